"""The weights of a model: the layers they belong to, their axes, and those that a layer computes itself.

Only weights that multiply activations are known: those of convolutions, linear layers (including GPT-2's Conv1D),
attention projections and embeddings. sparsity/prunable.py chooses among them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize

from acdc.errors import ArgumentError

AXES = {
    "conv": (0, 1),
    "conv_transpose": (1, 0),
    "linear": (0, 1),
    "linear_transposed": (1, 0),
    "attention": (0, 1),
    "embedding": (0, 1),
}
"""The axes of output and input channels, by kind. The axes of weights of kind "other" are not known."""

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
ON_REQUEST = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
"""Layers of torch with matrices that are not pruned unless `include` asks for them."""

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONV_TRANSPOSE = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
# GPT-2's linear layer, recognised by its current and former module names: acdc does not import transformers.
_LINEAR_TRANSPOSED = {"transformers.pytorch_utils.Conv1D", "transformers.modeling_utils.Conv1D"}
# What torch stores beside a tensor that a forward pre-hook computes: the suffixes, what computes it, how to undo it.
_HOOKS = (
    (("_g", "_v"), "weight_norm", "torch.nn.utils.remove_weight_norm"),
    (("_orig", "_mask"), "torch.nn.utils.prune", "torch.nn.utils.prune.remove"),
    (("_orig", "_u"), "spectral_norm", "torch.nn.utils.remove_spectral_norm"),
)
_PARAMETRIZATIONS = {"_WeightNorm": "weight_norm", "_SpectralNorm": "spectral_norm", "_Orthogonal": "orthogonal"}


@dataclass(frozen=True, eq=False)
class Computation:
    """A tensor that a layer computes: its source parameters, what computes it, and how to make it a parameter again."""

    tensor: str
    sources: tuple[nn.Parameter, ...]
    largest: nn.Parameter  # the largest source that replaces the tensor, and about its size
    by: str
    remover: str

    @property
    def reason(self) -> str:
        """Return why the tensor cannot be pruned."""
        return f"computed by {self.by} at each forward pass ({self.undo('layer')} makes it a parameter)"

    def undo(self, layer: str) -> str:
        """Return the code to type, where `layer` is an expression for the module."""
        return f"{self.remover}({layer}, {self.tensor!r})"


@dataclass(frozen=True, eq=False)
class Weight:
    """One weight tensor of the model: its name in the state dict, and the layer it belongs to."""

    name: str
    param: nn.Parameter
    module: nn.Module
    kind: str  # one of AXES, or "other"
    computation: Computation | None = None  # how the layer computes it, if it does: `param` is then one of its sources

    @property
    def local(self) -> Tensor:
        """Return the part of the weight that this process holds, which is all of it unless the model is sharded."""
        return local_part(self.param).detach()

    @property
    def local_grad(self) -> Tensor | None:
        """Return this process's part of the gradient, if there is one."""
        return None if self.param.grad is None else local_part(self.param.grad)

    @property
    def out_dim(self) -> int:
        """Return the axis of output channels."""
        return self._axes[0]

    @property
    def in_dim(self) -> int:
        """Return the axis of input channels."""
        return self._axes[1]

    @property
    def _axes(self) -> tuple[int, int]:
        if self.kind not in AXES:
            raise ArgumentError("out_dim and in_dim", allowed=_unknown_axes(self), instead="or avoid using them")
        return AXES[self.kind]

    @property
    def depthwise(self) -> bool:
        """Return True if each of its output channels reads one input channel."""
        groups = getattr(self.module, "groups", 1)
        return self.kind.startswith("conv") and groups > 1 and groups == self.module.in_channels


def state_name(prefix: str, local: str) -> str:
    """Return the name in the state dict of a module's tensor: torch's checkpoint_wrapper leaves itself out there."""
    return (f"{prefix}.{local}" if prefix else local).replace("_checkpoint_wrapped_module.", "")


def is_sharded(tensor: Tensor) -> bool:
    """Return True for DTensors, of which every process holds a part."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this process holds, in the same memory; of other tensors, all."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]


def check_axes(weight: Weight, argument: str, received: object, instead: str) -> None:
    """Raise if `argument` needs output and input axes that are not known for this weight."""
    if weight.kind not in AXES:
        raise ArgumentError(argument, received, _unknown_axes(weight), f"or {instead}")


def _unknown_axes(weight: Weight) -> str:
    return (
        f"{weight.name} belongs to {type(weight.module).__name__}, a layer type whose output and input axes are not "
        "known; expected weights of convolutions, linear layers, attention or embeddings only. Leave it dense with "
        f"exclude=[{weight.name!r}]"
    )


@dataclass(frozen=True)
class Layers:
    """The prunable weights of a model in the order they are registered, and why each of the others stays dense.

    `computed` are those that would be pruned if their layers did not compute them from other parameters, `on_request`
    matrices of torch's layers that only `include` reaches, such as recurrent ones, where none was given.
    """

    weights: tuple[Weight, ...]
    left_dense: Mapping[str, str]
    computed: tuple[Weight, ...] = ()
    on_request: tuple[Weight, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of prunable weights."""
        return sum(w.param.numel() for w in self.weights)

    def warnings(self) -> list[str]:
        """Return what may surprise a user about these layers; the sparsifier warns of it when it is attached."""
        return [*self._of_computed(), *self._on_request()]

    def _of_computed(self) -> Iterator[str]:
        if not self.computed:
            return
        ways = [weight.computation for weight in self.computed if weight.computation]
        by = " or ".join(dict.fromkeys(way.by for way in ways))
        undo = " or ".join(dict.fromkeys(way.undo("layer") for way in ways))
        names = [weight.name for weight in self.computed]
        yield (
            f"{self._stay_dense(self.computed)}. {by} computes them at each forward pass, "
            f"so there is no parameter to prune. To prune them, call {undo} before attaching; to keep them "
            f"dense without this warning, write exclude=[{names[0]!r}{', …' if len(names) > 1 else ''}]"
        )

    def _on_request(self) -> Iterator[str]:
        if not self.on_request:
            return
        kinds = " and ".join(dict.fromkeys(type(weight.module).__name__ for weight in self.on_request))
        layers = list(dict.fromkeys(weight.name.rpartition(".")[0] or weight.name for weight in self.on_request))
        listed = repr(layers[0]) + ", …" * (len(layers) > 1)
        yield (
            f"{self._stay_dense(self.on_request)}. {kinds} layers are pruned only on request. To prune them beside all "
            f"others, write include=[{listed}, '*']; to keep them dense without this warning, write exclude=[{listed}]"
        )

    def _stay_dense(self, weights: Sequence[Weight]) -> str:
        names = [weight.name for weight in weights]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        size = sum(weight.param.numel() for weight in weights)
        whole = size + self.size
        return (
            f"some weights stay dense: {', '.join(names[:3])}{more}, which are {size:,} of {whole:,} weights "
            f"({size / whole:.0%})"
        )


def all_weights(model: nn.Module) -> Iterator[Weight]:
    """Yield every weight of a known layer type, aliases of tied parameters included."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for local, kind in weight_kinds(module).items():
            param = module._parameters.get(local)
            if param is not None:
                yield Weight(state_name(prefix, local), param, module, kind)


def merge_aliases(weights: Sequence[Weight]) -> list[list[Weight]]:
    """Group the names of each parameter, in the order given."""
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        group = groups.setdefault(id(weight.param), [])
        if all(weight.name != alias.name for alias in group):
            group.append(weight)
    return list(groups.values())


def weight_kinds(module: nn.Module) -> dict[str, str]:
    """Return the kind of each weight of a layer by attribute name; an empty dict for unknown types of layers."""
    if isinstance(module, _CONV):
        return {"weight": "conv"}
    if isinstance(module, _CONV_TRANSPOSE):
        return {"weight": "conv_transpose"}
    if isinstance(module, nn.Linear):
        return {"weight": "linear"}
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return {"weight": "embedding"}
    if isinstance(module, nn.MultiheadAttention):
        return dict.fromkeys(_ATTENTION_WEIGHTS, "attention")
    if any(f"{base.__module__}.{base.__qualname__}" in _LINEAR_TRANSPOSED for base in type(module).__mro__):
        return {"weight": "linear_transposed"}
    return {}


def is_matrix(param: nn.Parameter) -> bool:
    """Return True if at least two axes are longer than 1. A vector, whatever its shape, multiplies no matrix."""
    return sum(size > 1 for size in param.shape) > 1


def computations(module: nn.Module) -> Iterator[Computation]:
    """Yield the tensors that this layer computes, without evaluating any: spectral_norm would take a step."""
    if parametrize.is_parametrized(module):
        yield from _parametrized(module)
    parameters = {name: param for name, param in module._parameters.items() if param is not None}
    beside = {*parameters, *module._buffers}
    for tensor in dict.fromkeys(name.rpartition("_")[0] for name in parameters):
        for suffixes, by, remover in _HOOKS:
            names = [tensor + suffix for suffix in suffixes]
            if beside.issuperset(names) and isinstance(vars(module).get(tensor), Tensor):
                sources = tuple(parameters[name] for name in names if name in parameters)
                yield Computation(tensor, sources, _largest(sources), by, remover)
                break


def _parametrized(module: nn.Module) -> Iterator[Computation]:
    assert isinstance(module.parametrizations, nn.ModuleDict)
    for tensor, chain in module.parametrizations.items():
        assert isinstance(chain, parametrize.ParametrizationList)
        originals = [param for param in chain._parameters.values() if param is not None]
        if originals:  # a buffer may be parametrized as well
            names = [_PARAMETRIZATIONS.get(kind := type(step).__name__, kind) for step in chain]
            remover = "torch.nn.utils.parametrize.remove_parametrizations"
            yield Computation(tensor, tuple(chain.parameters()), _largest(originals), " and ".join(names), remover)


def _largest(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    return max(parameters, key=nn.Parameter.numel)
