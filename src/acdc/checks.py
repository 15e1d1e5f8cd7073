"""What a sparsifier refuses, and what it says then."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.sparsity.layers import Layers
from acdc.state import check_structure

if TYPE_CHECKING:
    from acdc.method import Method

_KEYS = {"version", "method", "config", "layers", "steps_per_epoch"}
_KEYS |= {"step", "phase", "late", "masks", "history", "best_metric", "twin"}


def check_types(model: Any, optimizer: Any, method: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model={type(model).__name__}: expected a torch.nn.Module; write attach(model, optimizer, method)"
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer={type(optimizer).__name__}: expected a torch.optim.Optimizer; "
            "write attach(model, optimizer, method)"
        )
    if isinstance(method, type) or not callable(getattr(method, "enter", None)):
        name = method.__name__ if isinstance(method, type) else type(method).__name__
        raise TypeError(f"method={name}: expected a method such as acdc.ACDC(sparsity=0.9, epochs=100)")


def check_not_sharded(layers: Layers) -> None:
    sharded = [weight.name for weight in layers.weights if hasattr(weight.param, "to_local")]
    if sharded:
        raise ValueError(
            f"{sharded[0]} and {len(sharded) - 1} more weights are sharded (FSDP2, tensor parallel), which this "
            "release cannot prune; train with DistributedDataParallel, which keeps whole parameters"
        )


def check_optimizer_holds(optimizer: Optimizer, layers: Layers) -> None:
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    missing = [weight.name for weight in layers.weights if id(weight.param) not in held]
    if not missing:
        return
    if len(missing) == len(layers.weights):
        raise ValueError(
            f"this {type(optimizer).__name__} holds none of the model's {len(missing)} prunable weights; build it from "
            "the same model, after moving that to its device: torch.optim.SGD(model.parameters(), ...)"
        )
    names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    raise ValueError(
        f"the optimizer does not hold {names}: a pruned weight must be trained. Add them to the optimizer, or leave "
        f"them dense with exclude=[{missing[0]!r}, …]"
    )


def check_identity(state: Mapping[str, Any], expected: Mapping[str, Any], method: "Method") -> None:
    """A knob that came after the state was saved had its default there."""
    if not isinstance(state, Mapping) or not state.keys() >= _KEYS:
        raise ValueError("this is not a sparsifier's state dict: pass what sparsifier.state_dict() returned")
    check_structure(state)
    if state["version"] != 1:
        raise ValueError(f"this state dict has version {state['version']}; this release of acdc reads version 1")
    if state["method"] != expected["method"]:
        raise ValueError(
            f"this state dict is of method {state['method']!r}, and the one attached is {expected['method']!r}; "
            "attach the method the checkpoint was trained with"
        )
    ours, theirs = expected["layers"], state["layers"]
    if ours != theirs:
        differing = [n for n in [*ours, *theirs] if ours.get(n) != theirs.get(n)]
        name = differing[0]
        raise ValueError(
            f"this state dict is of another model: {len(set(differing))} prunable layers differ, first {name!r}: "
            f"shape {theirs.get(name, 'absent')} there, {ours.get(name, 'absent')} here. "
            "Build the model and the method's include/exclude as in the run that saved it"
        )
    knobs = {**state["config"], "steps_per_epoch": state["steps_per_epoch"]}
    for knob, value in {**expected["config"], "steps_per_epoch": expected["steps_per_epoch"]}.items():
        saved = knobs[knob] if knob in knobs else method.unset(knob)
        if saved != value:
            raise ValueError(
                f"this state dict was saved with {knob}={_short(saved)}, and {knob}={_short(value)} is attached; "
                f"a run resumes with the settings it began with: set {knob} back"
            )


def check_finished(step: int, total: int) -> None:
    """Refuse a run that is short of steps; forgive 1 %, since a gradient scaler skips a step at every overflow."""
    missing = total - step
    if missing <= 0:
        return
    shortfall = f"finish() at step {step} of {total}: {missing} steps are missing from the final phase"
    if missing > total // 100:
        raise RuntimeError(
            f"{shortfall}. Train on; if the run is really over, call finish(early=True), or set_step({total}) if some "
            "steps were taken without this optimizer"
        )
    warnings.warn(f"{shortfall}; a GradScaler that skipped as many explains it", RuntimeWarning, stacklevel=3)


def check_still_sparse(layers: Layers, masks: Mapping[str, Tensor]) -> None:
    broken = [w.name for w in layers.weights if w.param.detach()[masks[w.name] == 0].any()]
    if broken:
        raise RuntimeError(
            f"finish(): {len(broken)} layers have pruned weights that are not 0, first {broken[0]}: something other "
            "than the optimizer wrote them (another checkpoint loaded, weights averaged). To prune them again by the "
            "same masks call sparsifier.apply_masks(model) first"
        )


def check_same_parameters(model: nn.Module, layers: Layers) -> None:
    now = dict(model.named_parameters(remove_duplicate=False))
    replaced = [w.name for w in layers.weights if now.get(w.name) is not w.param]
    if replaced:
        raise RuntimeError(
            f"{replaced[0]} is no longer the parameter it was when the sparsifier was attached (load_state_dict with "
            "assign=True, or a layer replaced): detach() the sparsifier, build the optimizer anew and attach again"
        )


def _short(value: Any) -> str:
    """A schedule by its total and number of phases, anything else as it is."""
    if isinstance(value, Mapping) and {"phases", "total"} == set(value):
        return f"<{len(value['phases'])} phases, {value['total']}>"
    return repr(value)
