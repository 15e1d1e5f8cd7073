"""The structure of a sparsifier's state dict, and the check that one fits its model and method."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.method import Method
from acdc.core.returning import SURVIVORS
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Layers
from acdc.state_dicts import check_optimizer, check_tensors
from acdc.typed_data import Plain, check


class TwinState(TypedDict):
    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None


class Event(TypedDict):
    """The beginning of a phase."""

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
    late: bool  # whether the forward pass of the step under way had already run when its phase began
    masks: dict[str, Tensor]  # packed, by layer; none in dense phases
    shadow: dict[str, Tensor] | None  # latent weights
    history: list[Event]
    best_metric: float | None
    twin: TwinState | None
    memory: dict[str, Any]
    kept_sparse: list[dict[str, Any]] | None  # weights and masks


def check_structure(state: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the first part that is missing or has the wrong type."""
    if not isinstance(state, Mapping) or "version" not in state or "masks" not in state:
        raise ValueError("this is not a sparsifier's state dict: pass what sparsifier.state_dict() returned")
    check(dict(state), SparsifierState, "sparsifier")


def check_identity(state: Mapping[str, Any], expected: Mapping[str, Any], off: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the state belongs to this method, these settings and such a model.

    Knobs that a state does not have because they were `off` have these values.
    """
    if state["version"] != expected["version"]:
        raise ValueError(
            f"this state dict has version {state['version']}; this release of acdc reads version {expected['version']}"
        )
    if state["method"] != expected["method"]:
        raise ValueError(
            f"this state dict belongs to method {state['method']!r}, but {expected['method']!r} is attached; "
            "attach the method that the checkpoint was trained with"
        )
    ours, theirs = expected["layers"], state["layers"]
    if ours != theirs:
        differing = [n for n in [*ours, *theirs] if ours.get(n) != theirs.get(n)]
        name = differing[0]
        raise ValueError(
            f"this state dict belongs to another model: {len(set(differing))} prunable layers differ, first {name!r}: "
            f"shape {theirs.get(name, 'absent')} there, {ours.get(name, 'absent')} here. "
            "Build the model and the method's include/exclude as in the run that saved it"
        )
    saved = {**state["config"], "steps_per_epoch": state["steps_per_epoch"]}
    left_out = {knob: off[knob] for knob in saved if knob in off}
    for knob, value in {**left_out, **expected["config"], "steps_per_epoch": expected["steps_per_epoch"]}.items():
        if knob not in saved and knob not in off:
            raise ValueError(f"sparsifier.config: {knob} is missing")
        before = saved.get(knob, off.get(knob))
        if before != value:
            raise ValueError(
                f"this state dict was saved with {knob}={_short(before)}, but the attached method has "
                f"{knob}={_short(value)}; a run must resume with the settings it started with: change {knob} back"
            )


def check_fit(
    state: Mapping[str, Any], *, method: Method, layers: Layers, model: nn.Module, optimizer: Optimizer, whole: bool
) -> None:
    """Raise a ValueError that names the first part that does not fit. Method and layers have been compared already.

    The state holds this process's parts of weights, or `whole` ones, which is the same unless the model is sharded.
    """
    weights = {weight.name: weight.param if whole else weight.local for weight in layers.weights}
    phases = len(method.schedule.phases)
    if state["step"] < 0:
        raise ValueError(f"sparsifier.step: expected 0 or more, received {state['step']}")
    if not -1 <= state["phase"] < phases:
        raise ValueError(f"sparsifier.phase: expected -1 to {phases - 1}, received {state['phase']}")
    packed = {name: working.packed_like(weight) for name, weight in weights.items()}
    check_tensors(state["masks"], packed, "sparsifier.masks", some=not state["masks"])
    if state["shadow"] is not None:
        check_tensors(state["shadow"], weights, "sparsifier.shadow")
    computed = state["shadow"] is not None  # the model's weights are computed from all of these
    check_tensors(state["memory"].get(SURVIVORS, {}), packed, f"sparsifier.memory.{SURVIVORS}", some=True)
    for key in method.by_layer:
        some = not computed or key in method.recomputed
        check_tensors(state["memory"].get(key, {}), weights, f"sparsifier.memory.{key}", some=some)
    tensors = model.state_dict()
    if (twin := state["twin"]) is not None:
        check_tensors(twin["model"], tensors, "sparsifier.twin.model")
        check_optimizer(twin["optimizer"], optimizer, "sparsifier.twin.optimizer")
    if (kept := state["kept_sparse"]) is not None:
        if len(kept) != 2:
            raise ValueError(f"sparsifier.kept_sparse: expected weights and masks, received {len(kept)} items")
        check_tensors(kept[0], tensors, "sparsifier.kept_sparse[0]")
        shapes = {weight.name: weight.param.shape for weight in layers.weights}
        masks = {name: torch.empty(shape, dtype=torch.bool, device="meta") for name, shape in shapes.items()}
        check_tensors(kept[1], masks, "sparsifier.kept_sparse[1]")


def _short(value: Any) -> str:
    """Describe a schedule by its number of phases and its total, and anything else by its repr."""
    if isinstance(value, Mapping) and {"phases", "total"} == set(value) and isinstance(value["phases"], Sequence):
        return f"<{len(value['phases'])} phases, {value['total']}>"
    return repr(value)
