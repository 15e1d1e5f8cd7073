"""The choice of prunable weights: those of known layers, minus what rules and settings leave dense.

Biases and normalisation parameters are never pruned (paper, §3); embeddings and matrices of other layers only on
request. A parameter that appears under several names (tied weights) counts as one weight.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from acdc.errors import ArgumentError, ArgumentTypeError, Shown, did_you_mean
from acdc.sparsity.layers import (
    NORMS,
    ON_REQUEST,
    Layers,
    Weight,
    all_weights,
    computations,
    is_matrix,
    merge_aliases,
    state_name,
    weight_kinds,
)

Rule = str | Callable[[str, nn.Module], bool]
"""A glob over names ("fc", "layer4.*", "*.conv1.weight") or a predicate of (weight name, module that owns it)."""

_UNKNOWN = "of unknown layer type (to prune it, give its full name in include)"


def find_prunable(
    model: nn.Module,
    *,
    include: Sequence[Rule] = (),
    exclude: Sequence[Rule] = (),
    first_and_last_dense: bool = False,
    depthwise_dense: bool = False,
    embeddings: bool = False,
) -> Layers:
    """Find the weights to prune. `include` restricts them to what it matches; `exclude` then removes some.

    A rule in `include` also reaches matrices of layer types acdc does not know, as include=["rnn.*"] does; "*" means
    every known layer. Parameters that a module holds beside other layers, such as position embeddings, match only by
    their full names, and those of normalisation layers never. A weight that its layer computes (weight_norm,
    spectral_norm, torch.nn.utils.prune and other parametrizations) cannot be pruned: it stays dense, with a warning
    when a sparsifier is attached, and a rule that matches nothing else is refused.
    """
    for argument, rules in (("include", include), ("exclude", exclude)):
        check_rules(argument, rules)
    computed = list(_computed_weights(model))
    others = _other_weights(model, computed)
    requested = {id(weight.param) for weight in others if any(_asks_for(rule, weight) for rule in include)}
    rest = [weight for weight in others if id(weight.param) not in requested]
    weights = [*all_weights(model), *(weight for weight in computed if weight.kind != "other")]
    weights += [weight for weight in others if id(weight.param) in requested]
    order = {id(param): i for i, param in enumerate(model.parameters())}
    candidates = sorted(weights, key=lambda weight: order[id(weight.param)])
    for rule in include:
        check_include(rule, model, candidates, rest)
    for rule in exclude:
        check_exclude(rule, model, candidates, rest)

    kept: list[Weight] = []
    dense: dict[str, str] = {}
    unprunable: list[Weight] = []
    for aliases in merge_aliases(candidates):
        weight = aliases[0]
        if reason := _why_dense(aliases, include, exclude, depthwise_dense, embeddings):
            dense[weight.name] = reason
        elif weight.computation:
            dense[weight.name] = weight.computation.reason
            unprunable.append(weight)
        else:
            kept.append(weight)
    for aliases in merge_aliases(rest):
        dense[aliases[0].name] = _why_other_dense(aliases, exclude)
    if first_and_last_dense and kept:
        for weight in {kept[0].name: kept[0], kept[-1].name: kept[-1]}.values():
            dense[weight.name] = "first or last layer (first_and_last_dense)"
        kept = kept[1:-1]
    if not kept:
        settings = {"include": include, "exclude": exclude, "first_and_last_dense": first_and_last_dense}
        settings["depthwise_dense"] = depthwise_dense
        raise _nothing_prunable(model, dense, {name: value for name, value in settings.items() if value})
    firsts = [aliases[0] for aliases in merge_aliases(rest) if not include]
    on_request = tuple(weight for weight in firsts if dense[weight.name] == _UNKNOWN and _would_be_pruned(weight))
    return Layers(tuple(kept), dense, tuple(unprunable), on_request)


def _would_be_pruned(weight: Weight) -> bool:
    """Return True if this weight of unknown layer type would be pruned if `include` asked for it."""
    return isinstance(weight.module, ON_REQUEST) and weight.param.requires_grad


def _computed_weights(model: nn.Module) -> Iterator[Weight]:
    """Yield the weights that layers compute, each represented by the largest of its source parameters."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for computation in computations(module):
            if computation.largest.ndim > 1:
                kind = weight_kinds(module).get(computation.tensor, "other")
                name = state_name(prefix, computation.tensor)
                yield Weight(name, computation.largest, module, kind, computation)


def _other_weights(model: nn.Module, computed: Sequence[Weight]) -> list[Weight]:
    """Return the parameters of unknown layer types with two dimensions or more, unless they normalise."""
    known = {id(weight.param) for weight in all_weights(model)}
    known |= {id(source) for weight in computed if weight.computation for source in weight.computation.sources}
    others = [
        Weight(state_name(prefix, local), param, module, "other")
        for prefix, module in model.named_modules(remove_duplicate=False)
        if not isinstance(module, NORMS)
        for local, param in module._parameters.items()
        if param is not None and id(param) not in known and not is_lazy(param) and param.ndim > 1
    ]
    return others + [weight for weight in computed if weight.kind == "other"]


def _asks_for(rule: Rule, weight: Weight) -> bool:
    """Return True if a rule reaches a weight of unknown layer type.

    Its full name does. A wildcard might match more than was meant, so it reaches only matrices of layers: not vectors
    in the shape of a matrix, nor what a module holds beside other layers or beside the weights of a known one.
    """
    if rule == weight.name:
        return True
    children = {name for name, _ in weight.module.named_children()} - {"parametrizations"}
    is_layer = not children and not weight_kinds(weight.module)
    return is_layer and is_matrix(weight.param) and is_specific(rule) and matches(rule, weight)


def _why_dense(
    aliases: list[Weight],
    include: Sequence[Rule],
    exclude: Sequence[Rule],
    depthwise_dense: bool,
    embeddings: bool,
) -> str | None:
    """Return why a weight of known layer type stays dense, or None if it is to be pruned."""
    weight = aliases[0]
    if is_lazy(weight.param):
        allowed = "it belongs to a lazy layer that is not initialised yet"
        raise ArgumentError(weight.name, allowed=allowed, instead="run one forward pass before attaching")
    if any(matches(rule, alias) for rule in exclude for alias in aliases):
        return "excluded"
    if include and not any(matches(rule, alias) for rule in include for alias in aliases):
        return "not included"
    embedding = next((alias for alias in aliases if alias.kind == "embedding"), None)
    if embedding and not embeddings:
        return "embedding (embeddings=True prunes it)" if len(aliases) == 1 else "tied to an embedding"
    if embedding and embedding.module.sparse:
        raise ArgumentError(
            "embeddings",
            received=True,
            allowed=f"it needs dense gradients, but {embedding.name} has sparse=True",
            instead="build it with nn.Embedding(..., sparse=False), or keep embeddings=False",
        )
    if depthwise_dense and weight.depthwise:
        return "depthwise convolution (depthwise_dense)"
    if not weight.param.requires_grad:
        return "frozen (requires_grad=False)"
    if not weight.param.is_floating_point():
        return f"not floating point ({weight.param.dtype})"
    return None


def _why_other_dense(aliases: list[Weight], exclude: Sequence[Rule]) -> str:
    """Return why a weight of unknown layer type stays dense."""
    globs = [rule for rule in exclude if isinstance(rule, str)]  # a function may rely on what known layers have
    if any(matches(rule, alias) for rule in globs for alias in aliases):
        return "excluded"
    if computation := aliases[0].computation:
        return computation.reason
    return _UNKNOWN


def _nothing_prunable(model: nn.Module, left: Mapping[str, str], settings: Mapping[str, Any]) -> ArgumentError:
    if not left:
        return ArgumentError(
            "model",
            Shown(type(model).__name__),
            "there is nothing to prune: it has no convolution, linear or attention weights",
            "give the full names of other parameters, such as include=['rnn.weight_hh_l0'], or prune embeddings with "
            "embeddings=True",
        )
    reasons = "; ".join(f"{name}: {reason}" for name, reason in list(left.items())[:5])
    reasons = f"every weight stays dense ({reasons}{'; …' if len(left) > 5 else ''})"
    if not settings:
        kind = Shown(type(model).__name__)
        return ArgumentError("model", kind, f"there is nothing to prune: {reasons}", "change one of these")
    name, value = next(iter(settings.items()))
    others = [f"{name}={_listed(value)!r}" for name, value in settings.items()][1:]
    beside = f" with {' and '.join(others)}" if others else ""
    allowed = f"nothing is left to prune{beside}: {reasons}"
    return ArgumentError(name, _listed(value), allowed, f"relax {' or '.join(settings)}")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def check_rules(argument: str, rules: Any) -> None:
    """Raise unless this is a list of names and functions."""
    if isinstance(rules, str) or callable(rules):
        raise ArgumentTypeError(argument, rules, "expected a list of rules", f"write {argument}=[{rules!r}]")
    for rule in rules:
        if isinstance(rule, type):
            raise ArgumentTypeError(
                argument,
                Shown(f"[{rule.__name__}]"),
                "expected names or functions, but this is a class",
                f"write {argument}=[lambda name, module: isinstance(module, {rule.__name__})]",
            )
        if isinstance(rule, nn.Module) or not (isinstance(rule, str) or callable(rule)):
            raise ArgumentTypeError(
                argument,
                Shown(f"[{type(rule).__name__}]"),
                "expected names such as 'fc' or 'layer4.*', or functions of (weight name, module)",
                "use the names in model.named_modules()",
            )
        if callable(rule) and not _takes_two(rule):
            raise ArgumentTypeError(
                argument,
                Shown(f"[{getattr(rule, '__name__', 'function')}]"),
                "expected a function with two arguments",
                f"write {argument}=[lambda name, module: ...]",
            )


def _takes_two(rule: Callable[..., Any]) -> bool:
    try:
        inspect.signature(rule).bind("name", None)
    except TypeError:
        return False
    except ValueError:  # a function written in C has no signature
        return True
    return True


def matches(rule: Rule, weight: Weight) -> bool:
    """Return True if a rule matches this weight: by its name, by a module that contains it, or by a function."""
    if callable(rule):
        return bool(rule(weight.name, weight.module))
    parts = weight.name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), rule) for end in range(1, len(parts) + 1))


def is_specific(rule: Rule) -> bool:
    """Return True if a rule names anything in particular: "*" does not."""
    return callable(rule) or bool(rule.strip("*?."))


def check_include(rule: Rule, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> None:
    """Raise if a rule matches no weight, or only weights that their layers compute."""
    chosen = [weight for weight in candidates if matches(rule, weight)]
    if chosen and all(weight.computation for weight in chosen):
        name = repr(rule) if isinstance(rule, str) else getattr(rule, "__qualname__", repr(rule))
        allowed = f"the rule matches no parameter: {_computed(chosen[0])}, or remove the rule"
        raise ArgumentError("include", Shown(f"[{name}]"), allowed)
    if not chosen and isinstance(rule, str):
        raise ArgumentError("include", [rule], *_why_nothing(rule, model, candidates, rest))


def check_exclude(rule: Rule, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> None:
    """Raise if a rule excludes nothing, because it is misspelt or its parameters stay dense anyway."""
    if isinstance(rule, str) and not any(matches(rule, weight) for weight in (*candidates, *rest)):
        raise ArgumentError("exclude", [rule], *_why_nothing(rule, model, candidates, rest))


def _why_nothing(rule: str, model: nn.Module, candidates: Sequence[Weight], rest: Sequence[Weight]) -> tuple[str, str]:
    """Return what a rule matches instead of a weight, and what to do about it."""
    modules = {name: module for name, module in model.named_modules() if fnmatchcase(name, rule)}
    named = model.named_parameters(remove_duplicate=False)
    parameters = {name: param for name, param in named if fnmatchcase(name, rule)}
    leftovers = [weight for weight in rest if matches(rule, weight)]
    if modules:
        name, module = next(iter(modules.items()))
        more = f" and {len(modules) - 1} more modules" if len(modules) > 1 else ""
        match = f"{name or 'the model'} ({type(module).__name__}){more}, {_why_module(module, leftovers)}"
    elif parameters:
        match = _why_parameter(*next(iter(parameters.items())), [*candidates, *rest])
    else:
        names = [weight.name for weight in (*candidates, *rest)]
        ancestors = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
        hint = did_you_mean(rule, [*names, *sorted(ancestors)], most=3)
        allowed = "the rule matches no weight of this model (it is a glob over the names in model.named_modules(), such"
        return f"{allowed} as 'fc' or 'layer4.*'){hint}", ""
    allowed = f"the rule matches no weight that can be pruned: it matches {match}"
    return allowed, "remove the rule, or name a layer with weights"


def _why_module(module: nn.Module, leftovers: Sequence[Weight]) -> str:
    if isinstance(module, NORMS):
        return "whose parameters are for normalisation and always stay dense"
    if leftovers and leftovers[0].computation:
        return f"where {_computed(leftovers[0])}"
    if leftovers:
        return f"where {leftovers[0].name} is of unknown layer type: to prune it, write include=[{leftovers[0].name!r}]"
    if any(True for _ in module.parameters()):
        return "whose parameters are biases or vectors, which always stay dense"
    return "which has no parameters"


def _why_parameter(name: str, param: nn.Parameter, weights: Sequence[Weight]) -> str:
    for weight in weights:
        if weight.computation and any(param is source for source in weight.computation.sources):
            return f"{name}, from which {_computed(weight)}"
    return f"{name}, and biases and normalisation parameters always stay dense"


def _computed(weight: Weight) -> str:
    """Return a clause that says what computes a weight, and what to call first."""
    assert weight.computation
    owner = weight.name.rpartition(".")[0]
    layer = f"model.get_submodule({owner!r})" if owner else "model"
    return (
        f"{weight.name} is computed by {weight.computation.by} at each forward pass, but only parameters can be "
        f"pruned; make it a parameter with {weight.computation.undo(layer)} before attaching"
    )
