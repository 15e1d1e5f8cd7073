"""What a sparsifier's state dict holds, and whether one fits the model and method it is loaded for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch
from torch import Tensor

from acdc.sparsity import masks as working
from acdc.state_dicts import check_optimizer, check_tensors
from acdc.typed_data import Plain, check

if TYPE_CHECKING:
    from acdc.core.sparsifier import Sparsifier


class TwinState(TypedDict):
    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None


class Event(TypedDict):
    step: int
    phase: str
    kind: str
    sparsity: float


class SparsifierState(TypedDict):
    version: int
    method: str
    config: dict[str, Plain]
    steps_per_epoch: int | None
    layers: dict[str, list[int]]
    step: int
    phase: int  # -1 before the first
    late: bool
    masks: dict[str, Tensor]  # packed, by layer; none in dense phases
    shadow: NotRequired[dict[str, Tensor] | None]
    history: list[Event]
    best_metric: float | None
    twin: TwinState | None
    memory: NotRequired[dict[str, Any] | None]
    kept_sparse: NotRequired[list[dict[str, Any]] | None]  # weights and masks


def check_structure(state: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the first part that is missing or of another type."""
    check(dict(state), SparsifierState, "sparsifier")


def check_fit(state: Mapping[str, Any], sparsifier: "Sparsifier") -> None:
    """Raise a ValueError that names the first part that does not fit. Method and layers were compared before."""
    weights = {weight.name: weight.param for weight in sparsifier.layers.weights}
    phases = len(sparsifier.method.schedule.phases)
    if state["step"] < 0:
        raise ValueError(f"sparsifier.step: expected 0 or more, received {state['step']}")
    if not -1 <= state["phase"] < phases:
        raise ValueError(f"sparsifier.phase: expected -1 to {phases - 1}, received {state['phase']}")
    packed = {name: working.packed_like(weight) for name, weight in weights.items()}
    check_tensors(state["masks"], packed, "sparsifier.masks", some=not state["masks"])
    if state.get("shadow") is not None:
        check_tensors(state["shadow"], weights, "sparsifier.shadow")
    memory = state.get("memory") or {}
    computed = state.get("shadow") is not None  # the model's weights are computed from all of these
    for key in sparsifier.method.by_layer:
        check_tensors(memory.get(key, {}), weights, f"sparsifier.memory.{key}", some=not computed)
    model = sparsifier.model.state_dict()
    if (twin := state["twin"]) is not None:
        check_tensors(twin["model"], model, "sparsifier.twin.model")
        check_optimizer(twin["optimizer"], sparsifier.optimizer, "sparsifier.twin.optimizer")
    if (kept := state.get("kept_sparse")) is not None:
        if len(kept) != 2:
            raise ValueError(f"sparsifier.kept_sparse: expected weights and masks, received {len(kept)} items")
        check_tensors(kept[0], model, "sparsifier.kept_sparse[0]")
        masks = {name: torch.empty_like(weight, dtype=torch.bool, device="meta") for name, weight in weights.items()}
        check_tensors(kept[1], masks, "sparsifier.kept_sparse[1]")
