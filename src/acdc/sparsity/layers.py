"""Which parameters are prunable.

Only weights that multiply activations are: convolutions, linear layers (GPT-2's Conv1D among them), attention
projections and, on request, embeddings and matrices of other layers. Biases and normalisation parameters are not
(paper, §3). A parameter that appears under several names (tied weights) is one weight and counted once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from acdc.sparsity.computed import computations
from acdc.sparsity.kinds import NORMS, is_matrix, weights_of
from acdc.sparsity.rules import Rule, check_exclude, check_include, check_rules, is_specific, matches
from acdc.sparsity.weights import Layers, Weight, merge_aliases


def all_weights(model: nn.Module) -> Iterator[Weight]:
    """Every weight of a known layer type, aliases of tied parameters included."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for local, kind in weights_of(module).items():
            param = module._parameters.get(local)
            if param is not None:
                yield Weight(f"{prefix}.{local}" if prefix else local, param, module, kind)


def find_prunable(
    model: nn.Module,
    *,
    include: Sequence[Rule] = (),
    exclude: Sequence[Rule] = (),
    first_and_last_dense: bool = False,
    depthwise_dense: bool = False,
    embeddings: bool = False,
) -> Layers:
    """Find the weights to prune. `include` restricts to what it matches; `exclude` then takes away.

    A rule of `include` also reaches matrices of layer types acdc does not know, as include=["rnn.*"] does; "*" means
    every known layer. Parameters that a module holds beside other layers, such as position embeddings, are reached by
    their full names only, and those of normalisation layers never. A weight that its layer computes (weight_norm,
    spectral_norm, torch.nn.utils.prune and other parametrizations) cannot be pruned: it stays dense, with a warning as
    a sparsifier is attached, and a rule that asks for nothing else is refused.
    """
    for argument, rules in (("include", include), ("exclude", exclude)):
        check_rules(argument, rules)
    computed = list(_computed_weights(model))
    others = _other_weights(model, computed)
    wanted = {id(weight.param) for weight in others if any(_asks_for(rule, weight) for rule in include)}
    rest = [weight for weight in others if id(weight.param) not in wanted]
    weights = [*all_weights(model), *(weight for weight in computed if weight.kind != "other")]
    weights += [weight for weight in others if id(weight.param) in wanted]
    order = {id(param): i for i, param in enumerate(model.parameters())}
    candidates = sorted(weights, key=lambda weight: order[id(weight.param)])
    for rule in include:
        check_include(rule, model, candidates, rest)
    for rule in exclude:
        check_exclude(rule, model, candidates, rest)

    kept: list[Weight] = []
    left: dict[str, str] = {}
    unprunable: list[Weight] = []
    for aliases in merge_aliases(candidates):
        weight = aliases[0]
        if reason := _why_dense(aliases, include, exclude, depthwise_dense, embeddings):
            left[weight.name] = reason
        elif weight.computation:
            left[weight.name] = weight.computation.reason
            unprunable.append(weight)
        else:
            kept.append(weight)
    for aliases in merge_aliases(rest):
        left[aliases[0].name] = _why_other_dense(aliases, exclude)
    if first_and_last_dense and kept:
        for weight in {kept[0].name: kept[0], kept[-1].name: kept[-1]}.values():
            left[weight.name] = "first or last layer (first_and_last_dense)"
        kept = kept[1:-1]
    if not kept:
        said = {"include": include, "exclude": exclude, "first_and_last_dense": first_and_last_dense}
        said["depthwise_dense"] = depthwise_dense
        raise ValueError(_nothing_prunable(model, left, {knob: value for knob, value in said.items() if value}))
    return Layers(tuple(kept), left, tuple(unprunable))


def _computed_weights(model: nn.Module) -> Iterator[Weight]:
    """Yield weights that their layers compute. Of its parameters the largest stands for a weight, by its size."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for computation in computations(module):
            if computation.largest.ndim > 1:
                kind = weights_of(module).get(computation.tensor, "other")
                name = f"{prefix}.{computation.tensor}" if prefix else computation.tensor
                yield Weight(name, computation.largest, module, kind, computation)


def _other_weights(model: nn.Module, computed: Sequence[Weight]) -> list[Weight]:
    """Return the parameters of unknown layer types with two dimensions or more, unless they normalise."""
    known = {id(weight.param) for weight in all_weights(model)}
    known |= {id(source) for weight in computed if weight.computation for source in weight.computation.sources}
    others = [
        Weight(f"{prefix}.{local}" if prefix else local, param, module, "other")
        for prefix, module in model.named_modules(remove_duplicate=False)
        if not isinstance(module, NORMS)
        for local, param in module._parameters.items()
        if param is not None and id(param) not in known and not is_lazy(param) and param.ndim > 1
    ]
    return others + [weight for weight in computed if weight.kind == "other"]


def _asks_for(rule: Rule, weight: Weight) -> bool:
    """Whether a rule reaches a weight of unknown layer type.

    Its full name does. A wildcard might sweep in what nobody meant, and so reaches matrices of layers only: not vectors
    in the shape of a matrix, nor what a module holds beside other layers or beside the weights of a known one.
    """
    if rule == weight.name:
        return True
    children = {name for name, _ in weight.module.named_children()} - {"parametrizations"}
    is_layer = not children and not weights_of(weight.module)
    return is_layer and is_matrix(weight.param) and is_specific(rule) and matches(rule, weight)


def _why_dense(
    aliases: list[Weight],
    include: Sequence[Rule],
    exclude: Sequence[Rule],
    depthwise_dense: bool,
    embeddings: bool,
) -> str | None:
    weight = aliases[0]
    if is_lazy(weight.param):
        raise ValueError(f"{weight.name} is not initialised yet (a lazy layer): run one forward pass before attaching")
    if any(matches(rule, alias) for rule in exclude for alias in aliases):
        return "excluded"
    if include and not any(matches(rule, alias) for rule in include for alias in aliases):
        return "not included"
    embedding = next((alias for alias in aliases if alias.kind == "embedding"), None)
    if embedding and not embeddings:
        return "embedding (embeddings=True prunes it)" if len(aliases) == 1 else "tied to an embedding"
    if embedding and embedding.module.sparse:
        raise ValueError(
            f"{embedding.name}: embeddings=True needs dense gradients, and this layer has sparse=True; "
            "build it with nn.Embedding(..., sparse=False) or leave embeddings=False"
        )
    if depthwise_dense and weight.depthwise:
        return "depthwise convolution (depthwise_dense)"
    if not weight.param.requires_grad:
        return "frozen (requires_grad=False)"
    if not weight.param.is_floating_point():
        return f"not floating point ({weight.param.dtype})"
    return None


def _why_other_dense(aliases: list[Weight], exclude: Sequence[Rule]) -> str:
    globs = [rule for rule in exclude if isinstance(rule, str)]  # a function may rely on what known layers have
    if any(matches(rule, alias) for rule in globs for alias in aliases):
        return "excluded"
    if computation := aliases[0].computation:
        return computation.reason
    return "of no known layer type (name it in full in include to prune it)"


def _nothing_prunable(model: nn.Module, left: Mapping[str, str], said: Mapping[str, Any]) -> str:
    if left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(left.items())[:5])
        reasons = f"every weight stays dense ({reasons}{'; …' if len(left) > 5 else ''})"
        if not said:
            return f"nothing to prune: {reasons}; change one of these"
        shown = ", ".join(
            f"{knob}={list(value) if isinstance(value, tuple) else value!r}" for knob, value in said.items()
        )
        return f"{shown}: nothing is left to prune, {reasons}; loosen {' or '.join(said)}"
    return (
        f"nothing to prune: {type(model).__name__} has no convolution, linear or attention weight. Name other "
        "parameters in full, for example include=['rnn.weight_hh_l0']; embeddings=True prunes embeddings"
    )
