"""What a sparsifier refuses, and what it says then."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from acdc.core.state import check_structure
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers

if TYPE_CHECKING:
    from acdc.core.method import Method

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
    raise ValueError(
        f"the optimizer does not hold {few(missing)}: a pruned weight must be trained. Add them to the optimizer, or "
        f"leave them dense with exclude=[{missing[0]!r}, …]"
    )


def check_optimizer_keeps_pruned(optimizer: Optimizer, layers: Layers) -> None:
    """Refuse an optimizer that cannot train weights whose gradient and state are exactly 0."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(
            f"optimizer={name}: it takes gradients of sparse layout only, and the masked gradients of prunable weights "
            "are dense tensors; write torch.optim.Adam(model.parameters(), ...), and nn.Embedding(..., sparse=False)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"optimizer={name}: it steps by past gradients of all weights together, which no longer fit once masks "
            "change; write torch.optim.SGD or Adam(model.parameters(), ...)"
        )
    prunable = {id(weight.param): weight.name for weight in layers.weights}
    for index, group in enumerate(optimizer.param_groups):
        names = [prunable[id(param)] for param in group["params"] if id(param) in prunable]
        if names and isinstance(eps := group.get("eps"), int | float) and eps == 0:
            raise ValueError(
                f"eps={eps} in param_groups[{index}] of this {name}, which holds {few(names)}: a pruned weight has "
                "gradient 0 and state 0, and 0 / (√0 + eps) is NaN; expected eps above 0: write "
                f"{name}(..., eps=1e-8)"
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


def empty_layers(kept: Mapping[str, int]) -> str | None:
    """Return a warning about layers without a weight left, by the number each keeps."""
    empty = [name for name, count in kept.items() if not count]
    if not empty:
        return None
    return (
        f"all weights of {few(empty)} are pruned: the output is constant, and two such layers in a row get no gradient "
        'to recover by. Train longer before compressing, lower the sparsity, use distribution="erk", or '
        "ACDC(revive=True)"
    )


def thin_layers(kept: Mapping[str, int], layers: Layers, budgets: Sequence[Budget]) -> dict[str, float]:
    """Return the density of layers that a budget shared with others leaves nearly empty.

    Such a layer keeps less than 1 % of its weights, and less than half of the share that all layers of the budget keep:
    above 99 % zeros for targets up to 98 %, above 99.5 % for a target of 99 %. Budgets of a single layer are what was
    asked for.
    """
    sizes = {weight.name: weight.param.numel() for weight in layers.weights}
    thin: dict[str, float] = {}
    for budget in budgets:
        if len(budget.names) > 1 and all(name in kept for name in budget.names):
            share = sum(kept[name] for name in budget.names) / sum(sizes[name] for name in budget.names)
            densities = {name: kept[name] / sizes[name] for name in budget.names if kept[name]}
            thin |= {name: density for name, density in densities.items() if density < min(0.01, share / 2)}
    return thin


def nearly_empty(thin: Mapping[str, float], layers: int) -> str:
    """Return a warning about thin layers, of so many in all."""
    named = few([f"{name} ({1 - density:.2%} zeros)" for name, density in thin.items()])
    return (
        f"{len(thin)} of {layers} layers are nearly empty: {named}. One threshold for all layers takes most from "
        'those with small weights, and the few that are left may not carry the signal. Set distribution="erk" or '
        f'"uniform", leave a layer dense with exclude=[{next(iter(thin))!r}], or lower the sparsity'
    )


def few(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _short(value: Any) -> str:
    """A schedule by its total and number of phases, anything else as it is."""
    if isinstance(value, Mapping) and {"phases", "total"} == set(value) and isinstance(value["phases"], Sequence):
        return f"<{len(value['phases'])} phases, {value['total']}>"
    return repr(value)
