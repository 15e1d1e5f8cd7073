"""The layer types acdc knows: which of their parameters multiply activations, and along which axes."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

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

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONV_TRANSPOSE = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
# GPT-2's linear layer. It is known by name, now and before it moved, as acdc does not import transformers.
_LINEAR_TRANSPOSED = {"transformers.pytorch_utils.Conv1D", "transformers.modeling_utils.Conv1D"}


def weights_of(module: nn.Module) -> dict[str, str]:
    """Return the kind of each weight of a layer by its attribute; nothing for a layer of unknown type."""
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
    """Whether at least two axes are longer than 1. A vector, whatever its shape, multiplies no matrix."""
    return sum(size > 1 for size in param.shape) > 1
