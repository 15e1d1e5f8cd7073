"""The number of times one sample uses each weight, which turns numbers of weights into FLOPs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from acdc.errors import ArgumentError, ArgumentTypeError, Shown
from acdc.sparsity.layers import Weight, all_weights, merge_aliases

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm")


def forward_uses(
    model: nn.Module, inputs: Any, *, around: AbstractContextManager[Any] | None = None
) -> dict[str, float]:
    """Return the uses of each weight: output positions of a convolution, tokens of a linear layer.

    2 · non-zeros · uses is the layer's cost in FLOPs.

    `inputs` is a tensor or a tuple of arguments, batch first. Runs one forward pass, inside `around`, in eval mode and
    without gradients.
    """
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = batch_of(inputs)
    uses: dict[str, float] = {}
    by_module: dict[nn.Module, list[Weight]] = {}
    for aliases in merge_aliases(list(all_weights(model))):
        for weight in {id(alias.module): alias for alias in aliases}.values():  # once for each module that holds it
            by_module.setdefault(weight.module, []).append(replace(weight, name=aliases[0].name))
            uses[aliases[0].name] = 0.0
    calls = _Calls(KnownWeights(model), uses, batch)

    def begin(module: nn.Module, args: tuple) -> None:
        calls.inside += 1

    def record(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        calls.inside -= 1
        for weight in by_module[module]:
            uses[weight.name] += _positions(weight, module, args, kwargs, output) / batch

    # Attention calls its output projection as a function, so that layer's own hook would never fire.
    for module in [m for m in by_module if isinstance(m, nn.MultiheadAttention)]:
        by_module[module] += by_module.pop(module.out_proj, [])
    handles = [module.register_forward_pre_hook(begin) for module in by_module]
    handles += [module.register_forward_hook(record, with_kwargs=True) for module in by_module]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad(), around or nullcontext(), calls:
            model(*args)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in training.items():
            module.training = mode
    return uses


def used_weights(model: nn.Module, uses: Mapping[str, float]) -> list[Weight]:
    """Return the weights of which forward_uses found a use, tied ones once: an embedding too, if it is the output's."""
    merged = (aliases[0] for aliases in merge_aliases(list(all_weights(model))))
    return [weight for weight in merged if uses.get(weight.name)]


def storage_of(tensor: Tensor) -> int | None:
    """Return the same number for a parameter and its views, as in x @ weight.T; None if it has no memory."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # sparse or opaque: it has no memory, and is not a view of a parameter that has
        return None
    except ValueError:  # lazy: it has no memory yet
        return None


class KnownWeights:
    """The weights of a model, found by identity, or by their memory, which a transposed weight shares."""

    def __init__(self, model: nn.Module) -> None:
        weights = [aliases[0] for aliases in merge_aliases(list(all_weights(model)))]
        self._by_identity = {id(weight.param): weight.name for weight in weights}
        self._by_memory = {storage_of(weight.param): weight for weight in weights}

    def name_of(self, tensor: Any) -> str | None:
        """Return the name of the weight that this tensor is or shows all of, transposed perhaps; None for others."""
        if not isinstance(tensor, Tensor):
            return None
        if name := self._by_identity.get(id(tensor)):
            return name
        storage = storage_of(tensor)
        weight = None if storage is None else self._by_memory.get(storage)
        return weight.name if weight and tensor.numel() == weight.param.numel() else None


def batch_of(inputs: Any) -> int:
    """Return the length of the first axis of the first tensor."""
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = next((a.shape[0] for a in args if isinstance(a, Tensor) and a.ndim), None)
    if batch is None:
        allowed = "expected a tensor, batch first, or a tuple that contains one"
        raise ArgumentTypeError("example", Shown(type(inputs).__name__), allowed)
    if not batch:
        received = Shown("a batch of 0")
        raise ArgumentError("example", received, "expected at least one sample", "pass, for example, a batch of 1")
    return batch


class _Calls(TorchFunctionMode):
    """A counter of weights used by F.linear(x, layer.weight), x @ layer.weight.T and the like.

    The layer is not called, so no hook fires. Tied decoders and adaptive softmaxes are written this way.
    """

    def __init__(self, known: KnownWeights, uses: dict[str, float], batch: int) -> None:
        super().__init__()
        self._known, self._uses, self._batch = known, uses, batch
        self.inside = 0  # number of modules entered whose own hook will count

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        output = func(*args, **(kwargs or {}))
        kind = getattr(func, "__name__", "")
        if not self.inside and (kind == "linear" or kind in _CONVOLUTIONS or kind in _TRANSPOSED):
            arguments = dict(zip(("input", "weight"), args, strict=False)) | (kwargs or {})
            name = self._known.name_of(arguments.get("weight"))
            if name is not None:
                side = arguments["input"] if kind in _TRANSPOSED else output
                self._uses[name] += side.numel() / arguments["weight"].shape[0] / self._batch
        elif not self.inside and kind in PRODUCTS:
            left, right = factors(kind, args, kwargs or {})
            if (name := self._known.name_of(right)) is not None:
                self._uses[name] += output.numel() / right.shape[-1] / self._batch
            elif (name := self._known.name_of(left)) is not None:
                self._uses[name] += output.numel() / left.shape[0] / self._batch
        return output


def factors(kind: str, args: tuple, kwargs: dict) -> tuple[Tensor, Tensor]:
    """Return the two factors of a product in PRODUCTS, the left one first."""
    first, second = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][:2]
    return (second, first) if kind == "__rmatmul__" else (first, second)


def _positions(weight: Weight, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> float:
    """Return the uses of each weight by the whole batch, given a call of `module`."""
    if weight.kind == "embedding":
        return 0.0
    if isinstance(module, nn.MultiheadAttention):
        arguments = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = (arguments[name].numel() / arguments[name].shape[-1] for name in ("query", "key", "value"))
        local = weight.name.rpartition(".")[2]
        by_name = {"k_proj_weight": key, "v_proj_weight": value, "in_proj_weight": (query + key + value) / 3}
        return by_name.get(local, query)
    if weight.kind == "conv_transpose":
        return (args[0] if args else kwargs["input"]).numel() / weight.module.in_channels
    return output.numel() / weight.param.shape[weight.out_dim]
