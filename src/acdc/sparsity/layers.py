"""Which parameters are prunable.

Only weights that multiply activations are: convolutions, linear layers, attention projections and, on request,
embeddings. Biases and normalisation parameters never are (paper, §3). A parameter that appears under several names
(tied weights) is one weight and counted once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from acdc.sparsity.kinds import AXES, weights_of
from acdc.spelling import did_you_mean

Rule = str | Callable[[str, nn.Module], bool]
"""A glob over names ("fc", "layer4.*", "*.conv1.weight") or a predicate of (weight name, module that owns it)."""


@dataclass(frozen=True, eq=False)
class Weight:
    """One weight tensor of the model: its name in the state dict, and the layer it belongs to."""

    name: str
    param: nn.Parameter
    module: nn.Module
    kind: str  # one of AXES, or "other"

    @property
    def out_dim(self) -> int:
        """The axis of output channels."""
        return self._axes[0]

    @property
    def in_dim(self) -> int:
        """The axis of input channels."""
        return self._axes[1]

    @property
    def _axes(self) -> tuple[int, int]:
        check_axes("out_dim and in_dim", self, "do without them")
        return AXES[self.kind]

    @property
    def depthwise(self) -> bool:
        groups = getattr(self.module, "groups", 1)
        return self.kind.startswith("conv") and groups > 1 and groups == self.module.in_channels


def check_axes(argument: str, weight: Weight, instead: str) -> None:
    """Refuse a weight whose output and input axes are not known, where `argument` needs them."""
    if weight.kind not in AXES:
        raise ValueError(
            f"{argument}: {weight.name} belongs to {type(weight.module).__name__}, a layer type whose output and input "
            "axes are not known; expected weights of convolutions, linear layers, attention or embeddings only. Leave "
            f"it dense with exclude=[{weight.name!r}]; or {instead}"
        )


@dataclass(frozen=True)
class Layers:
    """The prunable weights of a model in the order they are registered, and why each other one stays dense."""

    weights: tuple[Weight, ...]
    left_dense: Mapping[str, str]

    @property
    def size(self) -> int:
        return sum(w.param.numel() for w in self.weights)


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
    """The weights to prune. `include` restricts to what it matches; `exclude` then takes away.

    A rule that names a parameter in full ("rnn.weight_hh_l0") may include one of a layer type this module does not
    know, as long as it has two dimensions or more.
    """
    for argument, rules in (("include", include), ("exclude", exclude)):
        _check_rules(argument, rules)
    order = {name: i for i, (name, _) in enumerate(model.named_parameters(remove_duplicate=False))}
    found = [*all_weights(model), *_named_in_full(model, include)]
    candidates = merge_aliases(sorted(found, key=lambda weight: order[weight.name]))
    _refuse_rules_that_match_nothing(candidates, include=include, exclude=exclude)

    kept: list[Weight] = []
    left: dict[str, str] = {}
    for aliases in candidates:
        weight = aliases[0]
        if reason := _why_dense(aliases, include, exclude, depthwise_dense, embeddings):
            left[weight.name] = reason
        else:
            kept.append(weight)
    known = {id(alias.param) for aliases in candidates for alias in aliases}
    for name, param in model.named_parameters():
        if id(param) not in known and not _is_lazy(param) and param.ndim > 1:
            left[name] = "of no known layer type (name it in full in include to prune it)"
    if first_and_last_dense and kept:
        for weight in {kept[0].name: kept[0], kept[-1].name: kept[-1]}.values():
            left[weight.name] = "first or last layer (first_and_last_dense)"
        kept = kept[1:-1]
    if not kept:
        said = {"include": include, "exclude": exclude, "first_and_last_dense": first_and_last_dense}
        said["depthwise_dense"] = depthwise_dense
        raise ValueError(_nothing_prunable(model, left, {knob: value for knob, value in said.items() if value}))
    return Layers(tuple(kept), left)


def _check_rules(argument: str, rules: Any) -> None:
    if isinstance(rules, str) or callable(rules):
        raise TypeError(f"{argument}={rules!r}: expected a list of rules; write {argument}=[{rules!r}]")
    for rule in rules:
        if isinstance(rule, nn.Module) or not (isinstance(rule, str) or callable(rule)):
            raise TypeError(
                f"{argument}=[{type(rule).__name__}]: expected names such as 'fc' or 'layer4.*', or functions of "
                "(weight name, module); name the module as model.named_modules() does"
            )


def _named_in_full(model: nn.Module, include: Sequence[Rule]) -> Iterator[Weight]:
    """Parameters of unknown layer types that an include rule names in full."""
    globs = [rule for rule in include if isinstance(rule, str)]
    known = {id(weight.param) for weight in all_weights(model)}
    for prefix, module in model.named_modules():
        for local, param in module._parameters.items():
            name = f"{prefix}.{local}" if prefix else local
            if param is None or id(param) in known or param.ndim < 2:
                continue
            if name in globs:
                yield Weight(name, param, module, "other")


def merge_aliases(weights: list[Weight]) -> list[list[Weight]]:
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        group = groups.setdefault(id(weight.param), [])
        if all(weight.name != alias.name for alias in group):
            group.append(weight)
    return list(groups.values())


def matches(rule: Rule, weight: Weight) -> bool:
    if callable(rule):
        return bool(rule(weight.name, weight.module))
    parts = weight.name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), rule) for end in range(1, len(parts) + 1))


def _why_dense(
    aliases: list[Weight],
    include: Sequence[Rule],
    exclude: Sequence[Rule],
    depthwise_dense: bool,
    embeddings: bool,
) -> str | None:
    weight = aliases[0]
    if _is_lazy(weight.param):
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


def _is_lazy(param: nn.Parameter) -> bool:
    return isinstance(param, nn.parameter.UninitializedParameter)


def _refuse_rules_that_match_nothing(candidates: list[list[Weight]], **arguments: Sequence[Rule]) -> None:
    names = [alias.name for aliases in candidates for alias in aliases]
    for argument, rules in arguments.items():
        for rule in rules:
            if callable(rule) or any(matches(rule, alias) for group in candidates for alias in group):
                continue
            ancestors = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1)}
            hint = did_you_mean(rule, [*names, *sorted(ancestors)], most=3)
            raise ValueError(
                f"{argument}=[{rule!r}] matches no weight of this model (a rule is a glob over the names in "
                f"model.named_modules(), such as 'fc' or 'layer4.*'){hint}"
            )


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
