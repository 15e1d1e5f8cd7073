"""LoRA on a sparse base, so that merging keeps its zeros.

    model = peft.get_peft_model(sparse_model, LoraConfig(...))
    acdc.integrations.lora.keep_zeros(model)     # before training
    ...
    model = model.merge_and_unload()             # as sparse as before

A low-rank update s·BA is dense, and so is W + s·BA. Here the update of a layer is masked by the zeros of its weight,

    W + 1_{W ≠ 0} ⊙ s·BA

in training as in merging: what was trained is what is merged. A layer then multiplies by its masked update, an extra
product of the weight's size, instead of by two small matrices. SQFT (Muñoz, Yuan, Jain, EMNLP Findings 2024) trains
adapters in this way.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.core.checks import few
from acdc.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator


def masked_update(weight: Tensor, update: Tensor) -> Tensor:
    """Return the update of a weight with exact zeros where the weight is 0; gradients flow to the rest of it."""
    return torch.where(weight.detach() != 0, update, torch.zeros((), dtype=update.dtype, device=update.device))


@torch.no_grad()
def merge_(weight: Tensor, update: Tensor) -> None:
    """Add an update to a weight in place, and leave its zeros."""
    weight.add_(masked_update(weight, update).to(weight.dtype))


def keep_zeros(model: nn.Module) -> list[str]:
    """Mask the LoRA updates of a peft model by the zeros of the weights they belong to; return those layers' names.

    Layers without zeros are left as they are. Call it again after an adapter was added or loaded.
    """
    from peft.tuners.lora.layer import Linear, LoraLayer  # pyright: ignore[reportMissingImports]

    layers = list(_sparse_layers(model, LoraLayer))
    if not layers:
        raise ArgumentError(
            "model",
            allowed="it has no LoRA layer whose base weight has zeros",
            instead="pass what peft.get_peft_model returns, with a sparse base model",
        )
    if unknown := [f"{name} ({type(layer).__name__})" for name, layer in layers if type(layer) is not Linear]:
        allowed = f"LoRA updates can be masked for linear layers only, not for {few(unknown)}"
        raise ArgumentError("model", allowed=allowed, instead="leave them out of target_modules")
    if merged := [name for name, layer in layers if layer.merged]:
        allowed = f"the adapters of {few(merged)} are merged already"
        raise ArgumentError("model", allowed=allowed, instead="call model.unmerge_adapter() first")
    variant = _masked_variant()
    for name, layer in layers:
        for adapter in layer.lora_A:
            present = layer.lora_variant.get(adapter)
            if present is not None and type(present) is not variant:
                allowed = f"adapter {adapter!r} of {name} is of another kind of LoRA, {type(present).__name__}"
                raise ArgumentError("model", allowed=allowed, instead="write LoraConfig(...) without use_dora and such")
    for _, layer in layers:
        for adapter in layer.lora_A:
            layer.lora_variant[adapter] = variant()
    return [name for name, _ in layers]


def _sparse_layers(model: nn.Module, kind: type) -> "Iterator[tuple[str, Any]]":
    for name, module in model.named_modules():
        if isinstance(module, kind):
            layer: Any = module
            weight = getattr(layer.get_base_layer(), "weight", None)
            if isinstance(weight, Tensor) and weight.is_floating_point() and bool((weight == 0).any()):
                yield name, module


_variant: type | None = None


def _masked_variant() -> type:
    """Return the class that tells peft how to compute, merge and unmerge a masked update."""
    global _variant
    if _variant is not None:
        return _variant
    from peft.tuners.lora.layer import LoraVariant  # pyright: ignore[reportMissingImports]

    class MaskedLora(LoraVariant):
        @staticmethod
        def init(module: Any, adapter_name: str, **others: Any) -> None:
            return

        @staticmethod
        def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **others: Any) -> Tensor:
            update = _update(module, active_adapter)
            x = module.lora_dropout[active_adapter](x)
            bias = module.lora_B[active_adapter].bias
            scaled = None if bias is None else bias * module.scaling[active_adapter]
            return result + F.linear(x, update.T if module.fan_in_fan_out else update, scaled)

        @staticmethod
        def merge_safe(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
            return orig_weight + _update(module, active_adapter).to(orig_weight.dtype)

        @staticmethod
        def merge_unsafe(module: Any, active_adapter: str, orig_weight: Tensor) -> None:
            merge_(orig_weight.data, module.get_delta_weight(active_adapter))

        @staticmethod
        def unmerge(module: Any, active_adapter: str, orig_weight: Tensor) -> Tensor:
            return orig_weight.detach() - _update(module, active_adapter).detach().to(orig_weight.dtype)

    _variant = MaskedLora
    return MaskedLora


def _update(module: Any, adapter: str) -> Tensor:
    return masked_update(module.get_base_layer().weight, module.get_delta_weight(adapter))
