"""What a forward pass costs in theory, by non-zero weights. One multiply-add is 2 FLOPs.

"paper" (§4) counts convolutions and linear layers, attention's projections among them, and nothing else:

    inference   F = Σ 2 · uses · non-zeros

"published" is the rule of the published code: F also holds an addition for each bias, 2 for each element of a batch
norm, 1 of a ReLU, and the window for each output of a pooling.

Products between activations (attention's QKᵀ and AV) are given beside, in neither. Look-ups of embeddings count 0.
What a kernel saves of all this is measured elsewhere.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from acdc.flops.uses import batch_of, forward_uses
from acdc.flops.work import Work
from acdc.sparsity.layers import NORMS, all_weights, is_matrix

Rule = Literal["paper", "published"]

_POOLS = {f"{kind}_pool{axes}d": axes for kind in ("max", "avg") for axes in (1, 2, 3)}
_WITH_BIAS = ("linear", *(f"conv{way}{axes}d" for way in ("", "_transpose") for axes in (1, 2, 3)))
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm")
# What may be done to a parameter that then enters no product: positions are added. Some attributes are views of it.
_HARMLESS = {
    "__get__",
    "size",
    "dim",
    "numel",
    "add",
    "sub",
    *(f"__{way}{op}__" for way in "ri" for op in ("add", "sub")),
}
_VIEWS = ("T", "mT", "H", "mH", "data")


@dataclass(frozen=True)
class Flops:
    """FLOPs per sample: of weights, all of them (`dense`) and the non-zero ones (`actual`); and of what stands beside.

    `uncounted` names parameters of unknown layers that the forward pass used, and operations of many multiplications
    that no layer accounts for: they count 0, and the rest is a lower bound.
    """

    dense: int
    actual: int
    attention: int = 0  # products between activations
    biases: int = 0
    elementwise: int = 0  # batch norm, ReLU and pooling
    uncounted: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The paper's "x": the fraction of the dense cost."""
        return self.actual / self.dense

    @property
    def lower_bound(self) -> bool:
        return bool(self.uncounted)

    @property
    def extra(self) -> int:
        """What the published code adds to each forward pass, pruned or not."""
        return self.biases + self.elementwise

    def inference(self, rule: Rule = "paper") -> int:
        return self.actual + (self.extra if checked(rule) == "published" else 0)

    def __str__(self) -> str:
        said = f"{self.actual:,} FLOPs per sample of {self.dense:,} dense ({self.ratio:.2f}x)"
        if self.attention:
            said += f", and {self.attention:,} of products between activations"
        return f"at least {said}; {self.doubt}" if self.uncounted else said

    @property
    def doubt(self) -> str:
        """Why it is a lower bound; empty where it is not."""
        if not self.uncounted:
            return ""
        return f"a lower bound, as these are of no known layer and count 0: {', '.join(self.uncounted)}"


def inference_flops(model: nn.Module, example: Any) -> Flops:
    """FLOPs of one sample. `example` is a batch of any size, or a tuple of arguments; the batch is its first axis.

    Weights on the meta device have no values and count as non-zero.
    """
    flops, _ = count(model, example)
    if not flops.dense:
        unknown = f" (of no known layer: {', '.join(flops.uncounted)})" if flops.uncounted else ""
        raise ValueError(
            f"{type(model).__name__} used no convolution, linear or attention weight in its forward pass{unknown}: "
            "there are no FLOPs to count. Pass the model and an example of its input"
        )
    return flops


def count(model: nn.Module, example: Any) -> tuple[Flops, dict[str, float]]:
    """FLOPs of one sample, which may be 0, and the uses of each weight, in one forward pass."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    rest = _Rest(model)
    dense = actual = 0.0
    uses = forward_uses(model, example, around=rest)
    for name, times in uses.items():
        param = parameters[name]
        dense += 2 * times * param.numel()
        actual += 2 * times * (param.numel() if param.is_meta else int(param.count_nonzero()))
    batch = batch_of(example)
    flops = Flops(
        dense=round(dense),
        actual=round(actual),
        attention=round(2 * rest.products / batch),
        biases=round(rest.biases / batch),
        elementwise=round(rest.elementwise / batch),
        uncounted=(*rest.uncounted, *rest.work.found),
    )
    return flops, uses


def checked(rule: str) -> str:
    if rule not in get_args(Rule):
        raise ValueError(f"rule={rule!r}: expected one of {', '.join(map(repr, get_args(Rule)))}; write rule='paper'")
    return rule


class _Rest(TorchFunctionMode):
    """Counts, over the whole batch, all that is not a use of a known weight; and sees which parameters are unknown."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.products = self.biases = self.elementwise = 0.0
        self.uncounted: dict[str, None] = {}  # in the order of their use
        self.work = Work(model)
        self._known = {id(weight.param) for weight in all_weights(model)}
        self._unknown = _unknown_parameters(model)
        self._weights = {_storage(param) for param in model.parameters()} - {None}
        named = (param for param in model.parameters() if id(param) in self._unknown)
        self._named = {_storage(param) for param in named} - {None}

    def __enter__(self) -> "_Rest":
        self.work.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.work.__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ in _VIEWS:
            name = func.__self__.__name__
        self.work.function, self.work.accounted = name or None, self._accounts(name, args, kwargs)
        try:
            output = func(*args, **kwargs)
        finally:
            self.work.function, self.work.accounted = None, False
        if self._unknown and name not in _HARMLESS:
            found = (self._unknown.get(id(tensor)) for tensor in _tensors((args, kwargs)))
            self.uncounted.update(dict.fromkeys(filter(None, found)))
        self._count(name, args, kwargs, output)
        return output

    def _accounts(self, name: str, args: tuple, kwargs: dict) -> bool:
        """Whether this call is counted, or a parameter in it named."""
        tensors = list(_tensors((args, kwargs)))
        if any(_storage(tensor) in self._named for tensor in tensors):
            return True
        if name in _WITH_BIAS:  # forward_uses counts the known weights
            return id(args[1] if len(args) > 1 else kwargs.get("weight")) in self._known
        if name in _PRODUCTS:
            return not {_storage(tensor) for tensor in tensors[:2]} & self._weights
        return name in ("scaled_dot_product_attention", "multi_head_attention_forward")

    def _count(self, name: str, args: tuple, kwargs: dict, output: Any) -> None:
        def given(place: int, key: str) -> Any:
            return args[place] if len(args) > place else kwargs.get(key)

        if name in _WITH_BIAS:
            self.biases += output.numel() if given(2, "bias") is not None else 0
        elif name == "addmm" and id(given(2, "mat2")) in self._known:  # bias + x · weight, as GPT-2's layers compute
            self.biases += output.numel()
        elif name == "batch_norm":
            self.elementwise += 2 * output.numel()
        elif name in ("relu", "relu_"):
            self.elementwise += output.numel()
        elif name in _POOLS:
            window, axes = given(1, "kernel_size"), _POOLS[name]
            elements = output[0] if isinstance(output, tuple) else output
            self.elementwise += elements.numel() * (window**axes if isinstance(window, int) else math.prod(window))
        elif name in _PRODUCTS:
            pair = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][:2]
            if not {_storage(tensor) for tensor in pair} & self._weights:
                self.products += output.numel() * pair[name == "__rmatmul__"].shape[-1]
        elif name == "scaled_dot_product_attention":  # counted whole, causal or not
            query, key, value = (given(i, k) for i, k in enumerate(("query", "key", "value")))
            pairs = query.numel() // query.shape[-1] * key.shape[-2]
            self.products += pairs * (query.shape[-1] + value.shape[-1])
        elif name == "multi_head_attention_forward":  # what nn.MultiheadAttention calls, the sequence first
            self.products += 2 * given(0, "query").numel() * given(1, "key").shape[0]


def _unknown_parameters(model: nn.Module) -> dict[int, str]:
    """Names of the matrices, by identity, of layers that are neither known nor norms. A vector multiplies no matrix."""
    known = {id(weight.param) for weight in all_weights(model)}
    return {
        id(param): f"{prefix}.{local} ({type(module).__name__})" if prefix else f"{local} ({type(module).__name__})"
        for prefix, module in model.named_modules()
        if not isinstance(module, NORMS)
        for local, param in module._parameters.items()
        if param is not None and id(param) not in known and not is_lazy(param) and is_matrix(param)
    }


def _storage(tensor: Tensor) -> int | None:
    """The same for a parameter and its views, as in x @ weight.T. None where there is no memory to point to."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # sparse or opaque: it has none, and is no view of a parameter that has
        return None
    except ValueError:  # lazy: it has none yet
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
