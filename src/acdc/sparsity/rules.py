"""Rules that choose weights by the names of parameters and modules, and what is said of a rule that chooses nothing."""

import inspect
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from acdc.errors import did_you_mean
from acdc.sparsity.kinds import NORMS
from acdc.sparsity.weights import Weight

Rule = str | Callable[[str, nn.Module], bool]
"""A glob over names ("fc", "layer4.*", "*.conv1.weight") or a predicate of (weight name, module that owns it)."""


def check_rules(argument: str, rules: Any) -> None:
    if isinstance(rules, str) or callable(rules):
        raise TypeError(f"{argument}={rules!r}: expected a list of rules; write {argument}=[{rules!r}]")
    for rule in rules:
        if isinstance(rule, type):
            raise TypeError(
                f"{argument}=[{rule.__name__}]: expected names or functions, and this is a class; write "
                f"{argument}=[lambda name, module: isinstance(module, {rule.__name__})]"
            )
        if isinstance(rule, nn.Module) or not (isinstance(rule, str) or callable(rule)):
            raise TypeError(
                f"{argument}=[{type(rule).__name__}]: expected names such as 'fc' or 'layer4.*', or functions of "
                "(weight name, module); name the module as model.named_modules() does"
            )
        if callable(rule) and not _takes_two(rule):
            raise TypeError(
                f"{argument}=[{getattr(rule, '__name__', 'function')}]: expected a function of two arguments; write "
                f"{argument}=[lambda name, module: ...]"
            )


def _takes_two(rule: Callable[..., Any]) -> bool:
    try:
        inspect.signature(rule).bind("name", None)
    except TypeError:
        return False
    except ValueError:  # of a function written in C, which does not tell
        return True
    return True


def matches(rule: Rule, weight: Weight) -> bool:
    if callable(rule):
        return bool(rule(weight.name, weight.module))
    parts = weight.name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), rule) for end in range(1, len(parts) + 1))


def is_specific(rule: Rule) -> bool:
    """Whether a rule names anything: "*" does not."""
    return callable(rule) or bool(rule.strip("*?."))


def check_include(rule: Rule, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> None:
    """Refuse a rule that asks for no weight, or only for weights that their layers compute."""
    chosen = [weight for weight in candidates if matches(rule, weight)]
    if chosen and all(weight.computation for weight in chosen):
        shown = repr(rule) if isinstance(rule, str) else getattr(rule, "__qualname__", repr(rule))
        raise ValueError(f"include=[{shown}] asks for no parameter: {_computed(chosen[0])}, or take the rule out")
    if not chosen and isinstance(rule, str):
        raise ValueError(f"include=[{rule!r}] {_why_nothing(rule, model, candidates, rest)}")


def check_exclude(rule: Rule, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> None:
    """Refuse a rule that takes no weight away, as it is misspelt or about parameters that stay dense in any case."""
    if isinstance(rule, str) and not any(matches(rule, weight) for weight in (*candidates, *rest)):
        raise ValueError(f"exclude=[{rule!r}] {_why_nothing(rule, model, candidates, rest)}")


def _why_nothing(rule: str, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> str:
    """Say what a rule matches instead of a weight, and what to do."""
    modules = {name: module for name, module in model.named_modules() if fnmatchcase(name, rule)}
    named = model.named_parameters(remove_duplicate=False)
    parameters = {name: param for name, param in named if fnmatchcase(name, rule)}
    held = [weight for weight in rest if matches(rule, weight)]
    if modules:
        name, module = next(iter(modules.items()))
        more = f" and {len(modules) - 1} more modules" if len(modules) > 1 else ""
        found = f"it matches {name or 'the model'} ({type(module).__name__}){more}, {_why_module(module, held)}"
    elif parameters:
        found = f"it matches {_why_parameter(*next(iter(parameters.items())), [*candidates, *rest])}"
    else:
        names = [weight.name for weight in (*candidates, *rest)]
        ancestors = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
        hint = did_you_mean(rule, [*names, *sorted(ancestors)], most=3)
        return (
            "matches no weight of this model (a rule is a glob over the names in model.named_modules(), such as 'fc' "
            f"or 'layer4.*'){hint}"
        )
    return f"matches no weight that can be pruned: {found}. Remove the rule, or name a layer with weights"


def _why_module(module: nn.Module, held: Sequence[Weight]) -> str:
    if isinstance(module, NORMS):
        return "whose parameters normalise, and always stay dense"
    if held and held[0].computation:
        return f"where {_computed(held[0])}"
    if held:
        return f"where {held[0].name} is of no known layer type: to prune it, write include=[{held[0].name!r}]"
    if any(True for _ in module.parameters()):
        return "whose parameters are biases or vectors, which always stay dense"
    return "which has no parameters"


def _why_parameter(name: str, param: nn.Parameter, weights: Sequence[Weight]) -> str:
    for weight in weights:
        if weight.computation and any(param is source for source in weight.computation.sources):
            return f"{name}, from which {_computed(weight)}"
    return f"{name}, and biases and normalisation parameters always stay dense"


def _computed(weight: Weight) -> str:
    """Say that a weight is computed, and what to call first."""
    assert weight.computation
    owner = weight.name.rpartition(".")[0]
    layer = f"model.get_submodule({owner!r})" if owner else "model"
    return (
        f"{weight.name} is computed by {weight.computation.by} at each forward pass, and only parameters can be "
        f"pruned: make it one with {weight.computation.undo(layer)} before attaching"
    )
