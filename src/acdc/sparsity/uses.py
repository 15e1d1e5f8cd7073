"""How often one sample uses each weight: what turns counts of weights into FLOPs."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from acdc.sparsity.layers import Weight, all_weights, merge_aliases


def forward_uses(model: nn.Module, inputs: Any) -> dict[str, float]:
    """Output positions of a convolution, tokens of a linear layer: 2 · non-zeros · uses is the layer's cost in FLOPs.

    `inputs` is a tensor or a tuple of arguments, batch first. Runs one forward pass in eval mode without gradients.
    """
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = next((a.shape[0] for a in args if isinstance(a, Tensor) and a.ndim), None)
    if batch is None:
        raise TypeError(f"example={type(inputs).__name__}: expected a tensor, batch first, or a tuple with one in it")
    uses: dict[str, float] = {}
    by_module: dict[nn.Module, list[Weight]] = {}
    for aliases in merge_aliases(list(all_weights(model))):
        for weight in {id(alias.module): alias for alias in aliases}.values():  # once for each module it stands in
            by_module.setdefault(weight.module, []).append(replace(weight, name=aliases[0].name))
            uses[aliases[0].name] = 0.0

    def record(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        for weight in by_module[module]:
            uses[weight.name] += _positions(weight, module, args, kwargs, output) / batch

    # Attention calls its output projection as a function, so that layer's own hook would never fire.
    for module in [m for m in by_module if isinstance(m, nn.MultiheadAttention)]:
        by_module[module] += by_module.pop(module.out_proj, [])
    handles = [module.register_forward_hook(record, with_kwargs=True) for module in by_module]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            model(*args)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in training.items():
            module.training = mode
    return uses


def _positions(weight: Weight, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> float:
    """Uses of each weight by the whole batch, when `module` was called so."""
    if weight.kind == "embedding":
        return 0.0
    if isinstance(module, nn.MultiheadAttention):
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = (given[name].numel() / given[name].shape[-1] for name in ("query", "key", "value"))
        local = weight.name.rpartition(".")[2]
        by_name = {"k_proj_weight": key, "v_proj_weight": value, "in_proj_weight": (query + key + value) / 3}
        return by_name.get(local, query)
    if weight.kind == "conv_transpose":
        return (args[0] if args else kwargs["input"]).numel() / weight.module.in_channels  # pyright: ignore[reportOperatorIssue]
    return output.numel() / weight.param.shape[weight.out_dim]
