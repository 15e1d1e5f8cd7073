"""Checks of what a sparsifier is attached to and of how a run ends, and its warnings about layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from acdc.core.method import Method
from acdc.core.optimizers import parts_of
from acdc.errors import ArgumentError, ArgumentTypeError, Shown
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers, is_sharded
from acdc.sparsity.sharding import find_shards
from acdc.sparsity.topk import Shards


def check_types(model: Any, optimizer: Any, method: Any) -> None:
    """Raise if an argument of attach has the wrong type."""
    if type(optimizer).__name__.startswith("ScheduleFreeWrapper"):
        raise ArgumentTypeError(
            "optimizer",
            allowed=f"{type(optimizer).__name__} is no torch.optim.Optimizer, and swaps weights around its own",
            instead="use a schedule-free optimizer proper: schedulefree.SGDScheduleFree, AdamWScheduleFree or "
            "RAdamScheduleFree",
        )
    for argument, value, kind, expected in (
        ("model", model, nn.Module, "a torch.nn.Module"),
        ("optimizer", optimizer, Optimizer | list | tuple, "a torch.optim.Optimizer, or a list of them"),
        ("method", method, Method, "a method such as acdc.ACDC(sparsity=0.9, epochs=100)"),
    ):
        if not isinstance(value, kind):
            received = value.__name__ if isinstance(value, type) else type(value).__name__
            raise ArgumentTypeError(
                argument,
                allowed=f"expected {expected}, received {received}",
                instead="write attach(model, optimizer, method)",
            )


def check_sharding(model: nn.Module, method: Method, layers: Layers) -> Shards:
    """Return how the weights are split over processes, or raise if the method or its pattern cannot prune them so."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ArgumentError(
            "model",
            allowed="FullyShardedDataParallel (FSDP1) flattens parameters, so their rows and columns are lost",
            instead="shard it with FSDP2, torch.distributed.fsdp.fully_shard(model)",
        )
    shards = find_shards(layers.weights)
    if not any(is_sharded(weight.param) for weight in layers.weights):
        return shards
    if obstacle := method.sharding_obstacle():
        raise ArgumentError(
            "method",
            received=Shown(method.title()),
            allowed=f"the model is sharded (FSDP2, tensor parallel), and {obstacle}",
            instead="train with DistributedDataParallel, which keeps whole parameters, or use acdc.ACDC",
        )
    check = getattr(method.pattern, "check_shards", None)
    if check is None:
        raise ArgumentError(
            "pattern",
            received=method.pattern,
            allowed="the model is sharded (FSDP2, tensor parallel), and this pattern has no check_shards",
            instead="write pattern=acdc.Unstructured(), or add check_shards(weights, shards) to it",
        )
    check(layers.weights, shards)
    return shards


def check_values(layers: Layers) -> None:
    """Raise if weights have no values yet, as on the meta device."""
    empty = [weight.name for weight in layers.weights if weight.param.device.type == "meta"]
    if empty:
        raise ArgumentError(
            "model",
            allowed=f"on the meta device weights have shapes but no values, and there are {few(empty)}",
            instead='shard it if you do, then model.to_empty(device="cpu") and initialise or load the weights, '
            "build the optimizer, and attach",
        )


def check_optimizer_holds(optimizer: Optimizer, layers: Layers) -> None:
    """Raise unless the optimizer trains all of the weights to be pruned."""
    trained = {id(param) for group in optimizer.param_groups for param in group["params"]}
    missing = [weight.name for weight in layers.weights if id(weight.param) not in trained]
    if not missing:
        return
    if len(missing) == len(layers.weights):
        raise ArgumentError(
            "optimizer",
            allowed=f"this {_names(optimizer)} holds none of the model's {len(missing)} prunable weights",
            instead="build it from the same model, after moving it to its device or sharding it: "
            "torch.optim.SGD(model.parameters(), ...)",
        )
    raise ArgumentError(
        "optimizer",
        allowed=f"it does not hold {few(missing)}, but prunable weights must be trained",
        instead=f"add them to the optimizer, pass a list of all optimizers, or leave them dense with "
        f"exclude=[{missing[0]!r}, …]",
    )


def check_several(optimizer: Optimizer, method: Method) -> None:
    """Raise if there are several optimizers and the method needs one."""
    if len(parts_of(optimizer)) == 1 or not (method.trains_latent_weights() or method.looks_at_gradients()):
        return
    does = "trains latent weights" if method.trains_latent_weights() else "looks at gradients before the step"
    raise ArgumentError(
        "optimizer",
        received=Shown(f"[{_names(optimizer)}]"),
        allowed=f"{method.title()} {does}, so one optimizer must hold all prunable weights",
        instead="pass one, and leave the weights of others dense with exclude=[...]; or attach acdc.ACDC to all",
    )


def check_optimizer_keeps_pruned(optimizer: Optimizer, layers: Layers) -> None:
    """Raise if the optimizer cannot handle weights whose gradient and state are exactly 0."""
    for part in parts_of(optimizer):
        _check_keeps_pruned(part, layers)


def _check_keeps_pruned(optimizer: Optimizer, layers: Layers) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ArgumentError(
            "optimizer",
            allowed=f"{name} accepts only gradients in sparse layout, but the masked gradients of prunable weights are "
            "dense tensors",
            instead="write torch.optim.Adam(model.parameters(), ...), and nn.Embedding(..., sparse=False)",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError(
            "optimizer",
            allowed=f"{name} uses past gradients of all weights together, which are wrong once masks change",
            instead="write torch.optim.SGD or Adam(model.parameters(), ...)",
        )
    prunable = {id(weight.param): weight.name for weight in layers.weights}
    for index, group in enumerate(optimizer.param_groups):
        names = [prunable[id(param)] for param in group["params"] if id(param) in prunable]
        if names and isinstance(eps := group.get("eps"), int | float) and eps == 0:
            raise ArgumentError(
                f"optimizer.param_groups[{index}].eps",
                received=eps,
                allowed=f"it holds {few(names)}, and a pruned weight has gradient 0 and state 0, so that "
                "0 / (√0 + eps) is NaN",
                instead=f"write {name}(..., eps=1e-8)",
            )


def _names(optimizer: Optimizer) -> str:
    return ", ".join(type(part).__name__ for part in parts_of(optimizer))


def check_finished(step: int, total: int, counted: str = "") -> str | None:
    """Raise if a run is short of steps; if no more than 1 % are missing, or there were too many, return a warning.

    A gradient scaler skips a step at every overflow. `counted` says which steps_per_epoch would have been right for
    a loop that is over.
    """
    missing = total - step
    if missing < -max(1, total // 100):
        return (
            f"finish() at step {step} of {total}: {counted}phases came earlier than they should have, and the last "
            f"{-missing} steps were more of the final one"
        )
    if missing <= 0:
        return None
    shortfall = f"finish() at step {step} of {total}: {missing} steps are missing from the final phase"
    if missing > total // 100:
        raise RuntimeError(
            f"{shortfall}. Continue training; if the run is really over, {counted}call finish(early=True), or "
            f"set_step({total}) if some steps were taken without this optimizer"
        )
    return f"{shortfall}, perhaps because a GradScaler skipped them"


def empty_layers(kept: Mapping[str, int]) -> str | None:
    """Return a warning about layers that keep no weights, given how many each keeps."""
    empty = [name for name, count in kept.items() if not count]
    if not empty:
        return None
    return (
        f"all weights of {few(empty)} are pruned: the output is constant, and two such layers in a row get no gradient "
        'to recover with. Train longer before compressing, lower the sparsity, use distribution="erk", or, '
        "in a run with decompressions, ACDC(revive=True)"
    )


def thin_layers(kept: Mapping[str, int], layers: Layers, budgets: Sequence[Budget]) -> dict[str, float]:
    """Return the density of each layer that a shared budget leaves nearly empty.

    Such a layer keeps less than 1 % of its weights, and less than half of the share that the budget keeps overall:
    above 99 % zeros for targets up to 98 %, above 99.5 % for a target of 99 %. A budget for a single layer is what
    the user asked for.
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
    """Return a warning about thin layers, given the total number of layers."""
    named = few([f"{name} ({1 - density:.2%} zeros)" for name, density in thin.items()])
    return (
        f"{len(thin)} of {layers} layers are nearly empty: {named}. A single threshold for all layers prunes most in "
        'those with small weights, and the few that remain may not carry the signal. Set distribution="erk" or '
        f'"uniform", leave a layer dense with exclude=[{next(iter(thin))!r}], or lower the sparsity'
    )


def few(names: Sequence[str]) -> str:
    """Return the first three names and the number of others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
