"""The theoretical cost of a forward pass, by non-zero weights. One multiply-add is 2 FLOPs.

"paper" (§4) counts convolutions and linear layers, including attention's projections, and nothing else:

    inference   F = Σ 2 · uses · non-zeros

"published" is the rule of the published code: F also includes an addition for each bias, 2 FLOPs for each element of a
batch norm, 1 for each of a ReLU, and the window size for each output of a pooling layer.

Products between activations (attention's QKᵀ and AV) are reported separately, in neither. Embedding look-ups count 0.
What a kernel really saves is measured elsewhere.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from acdc.errors import ArgumentError, Shown
from acdc.flops.uses import PRODUCTS, KnownWeights, batch_of, factors, forward_uses, storage_of
from acdc.sparsity.layers import NORMS, all_weights, is_matrix

Rule = Literal["paper", "published"]

_POOLS = {f"{kind}_pool{axes}d": axes for kind in ("max", "avg") for axes in (1, 2, 3)}
_WITH_BIAS = ("linear", *(f"conv{way}{axes}d" for way in ("", "_transpose") for axes in (1, 2, 3)))
# Uses of a parameter that enter no product: positions are added. Some attributes are views of it.
_HARMLESS = {
    "__get__",
    "size",
    "dim",
    "numel",
    "add",
    "sub",
    *(f"__{way}{op}__" for way in "ri" for op in ("add", "sub")),
}
_CASTS = ("to", "type", "type_as", "float", "half", "bfloat16", "double")  # copies that stand for the parameter
_VIEWS = ("T", "mT", "H", "mH", "data")

_COSTLY = re.compile(
    r"\w*mm|(add)?mv|v?dot|matmul|linear|einsum|_trilinear|_?cdist\w*|_euclidean_dist|geqrf|orgqr|ormqr|lu_\w+"
    r"|_?(fft|linalg)_\w+|_?conv(\d|_|olution)\w*"
    r"|\w*(convolution|attention|dot_product|cholesky|svd|triangular_solve|_rnn)\w*"
)
_CHEAP = re.compile(r"_?linalg_(vector_norm|cross|diagonal|_powsum|check_errors)|fft_\w*(shift|freq)")
_PLUMBING = ("prim", "prims", "profiler", "c10d", "_c10d_functional")  # operators that compute nothing of the model


@dataclass(frozen=True)
class Flops:
    """FLOPs per sample: those of all weights (`dense`), of the non-zero ones (`actual`), and of other operations.

    `uncounted` names parameters of unknown layers that the forward pass used, and operations of many multiplications
    that no layer accounts for: they count 0, which makes the total a lower bound.
    """

    dense: int
    actual: int
    attention: int = 0  # products between activations
    biases: int = 0
    elementwise: int = 0  # batch norm, ReLU and pooling
    uncounted: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Return the paper's "x": the fraction of the dense cost."""
        return self.actual / self.dense

    @property
    def lower_bound(self) -> bool:
        """Return True if the forward pass did more than was counted."""
        return bool(self.uncounted)

    @property
    def extra(self) -> int:
        """Return the FLOPs that the published code adds to each forward pass, pruned or not."""
        return self.biases + self.elementwise

    def inference(self, rule: Rule = "paper") -> int:
        """Return the FLOPs of a forward pass by this rule."""
        check_rule(rule)
        return self.actual + (self.extra if rule == "published" else 0)

    def __str__(self) -> str:
        text = f"{self.actual:,} FLOPs per sample of {self.dense:,} dense ({self.ratio:.2f}x)"
        if self.attention:
            text += f", and {self.attention:,} in products between activations"
        return f"at least {text}; {self.doubt}" if self.uncounted else text

    @property
    def doubt(self) -> str:
        """Return why this is a lower bound; "" if it is not."""
        if not self.uncounted:
            return ""
        return f"a lower bound, because these have unknown layer types and count 0: {', '.join(self.uncounted)}"


def inference_flops(model: nn.Module, example: Any) -> Flops:
    """Count the FLOPs of one sample.

    `example` is a batch of any size, or a tuple of arguments; the batch is its first axis.
    Weights on the meta device have no values and count as non-zero.
    """
    flops, _ = count(model, example)
    if not flops.dense:
        unknown = f" (of unknown layer type: {', '.join(flops.uncounted)})" if flops.uncounted else ""
        raise ArgumentError(
            "model",
            Shown(type(model).__name__),
            f"its forward pass used no convolution, linear or attention weight{unknown}: there are no FLOPs to count",
            "pass the model and an example of its input",
        )
    return flops


def count(model: nn.Module, example: Any) -> tuple[Flops, dict[str, float]]:
    """Count the FLOPs of one sample, which may be 0, and the uses of each weight, in one forward pass."""
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
        uncounted=(*rest.uncounted, *rest.unaccounted.names),
    )
    return flops, uses


def weight_flops(counts: Mapping[str, int], uses: Mapping[str, float]) -> int:
    """Return 2 FLOPs for each use of each weight, given the number of weights and of uses in each layer."""
    return round(sum(2 * uses[name] * count for name, count in counts.items()))


def check_rule(rule: str) -> None:
    """Raise unless this is a rule for counting."""
    if rule not in get_args(Rule):
        allowed = f"expected one of {', '.join(map(repr, get_args(Rule)))}"
        raise ArgumentError("rule", rule, allowed, "write rule='paper'")


class _Rest(TorchFunctionMode):
    """A counter, over the whole batch, of everything but uses of known weights; it also names unknown parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.products = self.biases = self.elementwise = 0.0
        self.uncounted: dict[str, None] = {}  # in the order of their use
        self.unaccounted = _Unaccounted(model)
        self._known = KnownWeights(model)
        self._unknown = _unknown_parameters(model)
        self._weights = {storage_of(param) for param in model.parameters()} - {None}
        named = (param for param in model.parameters() if id(param) in self._unknown)
        self._named = {storage_of(param) for param in named} - {None}
        self._casts: list[Tensor] = []

    def __enter__(self) -> "_Rest":
        self.unaccounted.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.unaccounted.__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ in _VIEWS:
            name = func.__self__.__name__
        self.unaccounted.function, self.unaccounted.accounted = name or None, self._accounts(name, args, kwargs)
        try:
            output = func(*args, **kwargs)
        finally:
            self.unaccounted.function, self.unaccounted.accounted = None, False
        if name in _CASTS and (cast := self._unknown.get(id(args[0]))):
            self._unknown[id(output)] = cast
            self._named.add(storage_of(output))
            self._casts.append(output)  # alive, so that no other tensor gets its id
        elif self._unknown and name not in _HARMLESS:
            names = (self._unknown.get(id(tensor)) for tensor in _tensors((args, kwargs)))
            self.uncounted.update(dict.fromkeys(filter(None, names)))
        self._count(name, args, kwargs, output)
        return output

    def _accounts(self, name: str, args: tuple, kwargs: dict) -> bool:
        """Return True if this call is counted, or one of its parameters is named."""
        tensors = list(_tensors((args, kwargs)))
        if any(storage_of(tensor) in self._named for tensor in tensors):
            return True
        if name in _WITH_BIAS:  # forward_uses counts the known weights
            return self._known.name_of(args[1] if len(args) > 1 else kwargs.get("weight")) is not None
        if name in PRODUCTS:
            if any(self._known.name_of(tensor) for tensor in tensors[:2]):
                return True
            return not {storage_of(tensor) for tensor in tensors[:2]} & self._weights
        return name in ("scaled_dot_product_attention", "multi_head_attention_forward")

    def _count(self, name: str, args: tuple, kwargs: dict, output: Any) -> None:
        def argument(place: int, key: str) -> Any:
            return args[place] if len(args) > place else kwargs.get(key)

        if name in _WITH_BIAS:
            self.biases += output.numel() if argument(2, "bias") is not None else 0
        elif name == "addmm" and self._known.name_of(argument(2, "mat2")):  # bias + x · weight, as in GPT-2's layers
            self.biases += output.numel()
        elif name == "batch_norm":
            self.elementwise += 2 * output.numel()
        elif name in ("relu", "relu_"):
            self.elementwise += output.numel()
        elif name in _POOLS:
            window, axes = argument(1, "kernel_size"), _POOLS[name]
            elements = output[0] if isinstance(output, tuple) else output
            self.elementwise += elements.numel() * (window**axes if isinstance(window, int) else math.prod(window))
        elif name in PRODUCTS:
            pair = factors(name, args, kwargs)
            if not {storage_of(tensor) for tensor in pair} & self._weights:
                self.products += output.numel() * pair[0].shape[-1]
        elif name == "scaled_dot_product_attention":  # counted in full, causal or not
            query, key, value = (argument(i, k) for i, k in enumerate(("query", "key", "value")))
            pairs = query.numel() // query.shape[-1] * key.shape[-2]
            self.products += pairs * (query.shape[-1] + value.shape[-1])
        elif name == "multi_head_attention_forward":  # what nn.MultiheadAttention calls, the sequence first
            self.products += 2 * argument(0, "query").numel() * argument(1, "key").shape[0]


class _Unaccounted(TorchDispatchMode):
    """A list of operations of many multiplications that no count accounts for.

    torch's dispatcher sees every operation, whoever calls it. Those that multiply and add along an axis (products,
    convolutions, Fourier transforms, decompositions), and custom operators, are named, with the module they ran in, if
    they run while `accounted` is False. Elementwise operations, reductions and look-ups are cheap by comparison and
    never named. `function` is what the model's own code has called.
    """

    supports_higher_order_operators = True  # flex_attention is one

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names: dict[str, None] = {}  # in the order of their use
        self.function: str | None = None
        self.accounted = False
        self.inside = 0  # number of known layers entered: the uses of their weights count what they do
        self._model, self._handles = model, list[RemovableHandle]()
        self._places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not self.accounted and not self.inside and (name := _costly(func)):
            self.names[f"{self.function or name} in {self._places[-1]}"] = None
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "_Unaccounted":
        known = {weight.module for weight in all_weights(self._model)}
        for name, module in self._model.named_modules():
            place = f"{name} ({type(module).__name__})" if name else type(module).__name__
            self._handles += self._follow(module, place, module in known)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for handle in self._handles:
            handle.remove()

    def _follow(self, module: nn.Module, place: str, known: bool) -> list[RemovableHandle]:
        def begin(module: nn.Module, args: tuple) -> None:
            self._places.append(place)
            self.inside += known

        def end(module: nn.Module, args: tuple, output: Any) -> None:
            self._places.pop()
            self.inside -= known

        return [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]


def _unknown_parameters(model: nn.Module) -> dict[int, str]:
    """Return the names of matrices, by identity, in layers that are neither known nor norms (vectors do not count)."""
    known = {id(weight.param) for weight in all_weights(model)}
    return {
        id(param): f"{prefix}.{local} ({type(module).__name__})" if prefix else f"{local} ({type(module).__name__})"
        for prefix, module in model.named_modules()
        if not isinstance(module, NORMS)
        for local, param in module._parameters.items()
        if param is not None and id(param) not in known and not is_lazy(param) and is_matrix(param)
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _costly(func: Any) -> str | None:
    """Return the name of an operation that may be expensive, or None for one that is not."""
    namespace, _, name = str(getattr(func, "name", lambda: f"higher_order::{func}")()).partition("::")
    name = name.partition(".")[0]
    if namespace in _PLUMBING:
        return None
    if namespace != "aten":
        return f"{namespace}.{name}"
    return name if _COSTLY.fullmatch(name) and not _CHEAP.fullmatch(name) else None
