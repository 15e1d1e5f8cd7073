"""Takes over models that torch.nn.utils.prune has pruned: plain sparse weights, and the masks they had."""

from torch import Tensor, nn
from torch.nn.utils import prune

from acdc.errors import ArgumentError, ArgumentTypeError


def from_torch_prune(model: nn.Module) -> dict[str, Tensor]:
    """Make every tensor that torch.nn.utils.prune computes a plain parameter, 0 where it was pruned; return the masks.

    Masks are boolean, True where a weight is kept. The state dict then has plain names again, and acdc.keep_masks keeps
    the zeros in training. Parameters are new objects, so build the optimizer afterwards.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", received=model, allowed="expected a torch.nn.Module")
    pruned = [
        (prefix, module, hook._tensor_name)
        for prefix, module in model.named_modules()
        for hook in list(module._forward_pre_hooks.values())
        if isinstance(hook, prune.BasePruningMethod)
    ]
    if not pruned:
        allowed = "torch.nn.utils.prune has pruned none of its layers"
        raise ArgumentError("model", allowed=allowed, instead="pass it before prune.remove, which leaves plain zeros")
    masks: dict[str, Tensor] = {}
    for prefix, module, tensor in pruned:
        masks[f"{prefix}.{tensor}" if prefix else tensor] = getattr(module, f"{tensor}_mask").detach() != 0
        prune.remove(module, tensor)
    return masks
