"""Tensors that a layer computes from other parameters at each forward pass: no mask on a parameter prunes them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import parametrize

# What torch puts beside a tensor that a forward pre-hook computes: the suffixes, who computes it, and how to undo that.
_HOOKS = (
    (("_g", "_v"), "weight_norm", "torch.nn.utils.remove_weight_norm"),
    (("_orig", "_mask"), "torch.nn.utils.prune", "torch.nn.utils.prune.remove"),
    (("_orig", "_u"), "spectral_norm", "torch.nn.utils.remove_spectral_norm"),
)
_PARAMETRIZATIONS = {"_WeightNorm": "weight_norm", "_SpectralNorm": "spectral_norm", "_Orthogonal": "orthogonal"}


@dataclass(frozen=True, eq=False)
class Computation:
    """How a layer computes one of its tensors: from which parameters, by what, and how to make it a parameter again."""

    tensor: str
    sources: tuple[nn.Parameter, ...]
    largest: nn.Parameter  # of the sources that stand in the tensor's place: about as large as the tensor
    by: str
    remover: str

    @property
    def reason(self) -> str:
        return f"computed by {self.by} at each forward pass ({self.undo('layer')} makes it a parameter)"

    def undo(self, layer: str) -> str:
        """Return what to type, where `layer` is an expression for the module."""
        return f"{self.remover}({layer}, {self.tensor!r})"


def computations(module: nn.Module) -> Iterator[Computation]:
    """Yield the tensors that this layer computes. None of them is evaluated: spectral_norm would take a step."""
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
