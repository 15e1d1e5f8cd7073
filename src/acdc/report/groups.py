"""Groups of runs: seeds of one setting belong together, and settings at one sparsity are compared."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acdc import formatting as fmt
from acdc import methods
from acdc.report import facts
from acdc.report.facts import Model
from acdc.report.read import ReportError, Run
from acdc.runs.quality import Quality

_NAMED = ("name", "method.name", "method.sparsity")
_IRRELEVANT = ("about", "paper", "run.")  # settings that describe a recipe, or do not change what it computes
_NEAR = 1.3  # a sparsity that training decided belongs to a requested one if the weights left differ by no more


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    label: str
    runs: Sequence[Run]
    number: int
    method: str = ""  # or a variant of one, by its own name
    name: str = ""  # the label without the sparsity
    requested: float | None = None  # sparsity; None for dense training, and if training decides it

    @property
    def main(self) -> str:
        """Return the role of the main model of these runs."""
        return facts.main_model(self.runs[0]).role

    @property
    def is_dense(self) -> bool:
        """Return True for dense training."""
        return self.main == "baseline"

    @property
    def quality(self) -> Quality:
        """Return the measure by which its models are compared."""
        return self.runs[0].quality

    @property
    def images(self) -> int | None:
        """Return the number of test images that accuracies were measured on."""
        return self.runs[0].images

    @property
    def sparsity(self) -> float:
        """Return the sparsity reached, averaged over seeds."""
        return statistics.fmean(self.values(self.main, lambda model: model.sparsity))

    def models(self, role: str) -> list[Model]:
        """Return the models of this role, one for each seed that has one."""
        return [model for run in self.runs if (model := facts.model_of(run, role))]

    def values(self, role: str, value: Callable[[Model], float | None]) -> list[float]:
        """Return a value of each model of this role, where there is one."""
        return [number for model in self.models(role) if (number := value(model)) is not None]

    def scores(self, role: str | None = None) -> list[float]:
        """Return the test accuracy or perplexity of each model of this role, or of the main one."""
        return self.values(role or self.main, lambda model: model.score)


def check_same_data(runs: Sequence[Run]) -> None:
    """Raise if runs were measured on different data."""
    first = runs[0]
    for other in runs[1:]:
        for what, value in _data(first).items():
            theirs = _data(other)[what]
            if value != theirs and value is not None and theirs is not None:
                raise ReportError(
                    f"{first.name} and {other.name} were measured on different data: {what} is {_as_json(value)} in "
                    f"one and {_as_json(theirs)} in the other; report them separately"
                )


def _data(run: Run) -> dict[str, Any]:
    data = run.config.recipe.data
    return {
        "data.name": run.config.data_name,
        "data.options": dict(data.options or {}),
        "the number of classes": run.classes,
        "the vocabulary": run.config.data.vocabulary,
        f"the number of test {run.quality.unit}s": run.test_images,
    }


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return a group for each setting, in the order of the runs, labelled by what distinguishes it from the others."""
    flat = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings if not key.startswith(_IRRELEVANT)))
    together: dict[tuple[str, int], list[int]] = {}
    for index, settings in enumerate(flat):
        setting, copy = json.dumps([settings.get(key) for key in keys]), 0
        while _has_seed(runs[index].seed, [runs[other] for other in together.get((setting, copy), ())]):
            copy += 1  # the same seed again is not a second seed: the run gets its own group
        together.setdefault((setting, copy), []).append(index)
    firsts = [flat[members[0]] for members in together.values()]
    differing = [key for key in keys if _differs(key, firsts)]
    cells = [(settings.get("method.name"), settings.get("method.sparsity")) for settings in firsts]
    if all(run.cell for run in runs) and len({*cells}) == len(cells):
        differing = ["method.name", *(["method.sparsity"] if len({share for _, share in cells} - {None}) > 1 else [])]
    telling = [key for key in differing if not _followed(key, runs)]
    for key in differing:  # what followed from the phases is named only where nothing else tells two settings apart
        if key not in telling and _tell_apart(firsts, [*telling, key]) > _tell_apart(firsts, telling):
            telling.append(key)
    if _tell_apart(firsts, telling) == len(firsts):
        differing = telling
    groups, copied = [], {setting for setting, copy in together if copy}
    for number, (((setting, _), members), settings) in enumerate(zip(together.items(), firsts, strict=True)):
        seeds = sorted((runs[index] for index in members), key=lambda run: (run.seed is None, run.seed))
        method, sparsity = cells[number]
        name = _label(settings, ["method.name", *(key for key in differing if key not in _NAMED)])
        label, suffix = _label(settings, differing), f" ({seeds[0].name})" if setting in copied else ""
        groups.append(Group(label + suffix, seeds, number, str(method), name + suffix, sparsity))
    return groups


def _has_seed(seed: int | None, runs: Sequence[Run]) -> bool:
    return seed is not None and any(run.seed == seed for run in runs)


def _differs(key: str, firsts: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the setting differs: a method's own among its runs, the sparsity among all that have one."""
    values: dict[str, set[str]] = {}
    for settings in firsts:
        method = settings.get("method.name")
        if key == "method.sparsity" and method == "dense":
            continue
        own = key.startswith("method.") and key not in ("method.name", "method.sparsity")
        values.setdefault(str(method) if own else "", set()).add(json.dumps(settings.get(key)))
    return any(len(different) > 1 for different in values.values())


def _tell_apart(firsts: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    """Return how many labels these settings give."""
    return len({_label(settings, keys) for settings in firsts})


def _followed(key: str, runs: Sequence[Run]) -> bool:
    """Return True if no run's recipe has this knob of its method: it follows from the phases, which are named."""
    knob = key.removeprefix("method.")
    return knob != key and not any(
        knob in method.settings or knob in (method.settings.get("options") or {})
        for method in (run.config.recipe.method for run in runs)
    )


def _settings(run: Run) -> dict[str, Any]:
    """Return the recipe's settings by dotted names; those of the method as built, including its defaults.

    A setting introduced after the run has its default: the recipe's from reading it, the method's from building it. A
    knob of `Method.off` was off.
    """
    recipe, built = dict(run.config.recipe.settings), run.config.method
    method = None
    if run.recipe:
        recipe, method = run.recipe.to_dict(), run.recipe.build_method()
        recipe["train"]["epochs"] = run.recipe.epochs  # even if they come from the name of a schedule
    if built:
        newer = {**method.config(), **method.off} if method else {}
        recipe["method"] = {**newer, **built.settings, "schedule": run.config.recipe.method.settings.get("schedule")}
    if run.cell:
        recipe["method"] = {**recipe.get("method", {}), "name": run.cell.variant}
    return _flat(recipe)


def _flat(settings: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        full = f"{name}.{key}" if name else key
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, full)
        else:
            flat[full] = value
    return flat


def settings_of(group: Group) -> dict[str, Any]:
    """Return, by dotted names, the settings that decide what a group's runs compute, except the seed."""
    return {key: value for key, value in _settings(group.runs[0]).items() if not key.startswith(_IRRELEVANT)}


# Labels


def method_title(method: str) -> str:
    """Return a method's display name; variants and dense training are shown as they were typed."""
    return methods.find(method).title() if method in methods.names() else method


# How to show a setting that distinguishes runs, the most informative first; others are shown as "key value".
_SHOWN: dict[str, Callable[[Any], str]] = {
    "name": str,
    "method.name": method_title,
    "method.sparsity": lambda value: f"{fmt.short_percent(value)} sparse" if value is not None else "",
    "train.epochs": lambda epochs: f"{epochs} epochs" if epochs is not None else "",
    "method.schedule": lambda value: f"schedule {_short(value)}" if value is not None else "chosen phases",
    "train.times": lambda times: f"{times}x epochs" if times is not None else "",
}


def _label(settings: Mapping[str, Any], differing: Sequence[str]) -> str:
    """Return the recipe's name if it distinguishes the group, and the settings that differ from other groups."""
    is_dense = settings.get("method.name") == "dense"
    keys = [key for key in differing if not (is_dense and key.startswith("method.") and key != "method.name")]
    first = [show(settings.get(key)) for key, show in _SHOWN.items() if key in keys]
    rest = [
        f"{key.rpartition('.')[2].replace('_', ' ')} {_short(settings.get(key))}" for key in keys if key not in _SHOWN
    ]
    return ", ".join(part for part in [*first, *rest[:4]] if part) or str(settings.get("name", "run"))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else "unset" if value is None else json.dumps(value)


def say_once(runs: Sequence[Run], texts: Callable[[Run], Sequence[str]]) -> list[str]:
    """Return each text about runs once, with the names of its runs unless it is about all of them."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for text in texts(run):
            names.setdefault(text, []).append(run.name)
    return [text if len(of) == len(runs) else f"{fmt.join_names(of)}: {text}" for text, of in names.items()]


# Levels


@dataclass(frozen=True)
class Level:
    """Settings at one requested sparsity, and dense training. None: learned sparsities near no requested one."""

    sparsity: float | None
    groups: Sequence[Group]  # dense ones last

    @property
    def title(self) -> str:
        """Return the heading of a panel, e.g. "90 % zeros"."""
        return f"{fmt.short_percent(self.sparsity)} zeros" if self.sparsity is not None else "zeros as learned"

    def name(self, group: Group) -> str:
        """Return the method's name, with its zeros if they differ from the level's."""
        if group.is_dense or (self.sparsity is not None and abs(group.sparsity - self.sparsity) < 0.005):
            return group.name
        return f"{group.name} ({fmt.short_percent(group.sparsity)})"


def levels_of(groups: Sequence[Group]) -> list[Level]:
    """Return a level for each requested sparsity, in rising order, and one for groups that are near none of them."""
    requested = sorted({group.requested for group in groups if group.requested is not None and not group.is_dense})
    members: dict[float | None, list[Group]] = {sparsity: [] for sparsity in requested}
    for group in groups:
        if not group.is_dense:
            level = group.requested if group.requested is not None else _nearest(group.sparsity, requested)
            members.setdefault(level, []).append(group)
    dense = [group for group in groups if group.is_dense]
    if not members:
        return [Level(None, dense)]
    return [Level(sparsity, [*sparse, *dense]) for sparsity, sparse in members.items()]


def _nearest(sparsity: float, requested: Sequence[float]) -> float | None:
    """Return the nearest requested sparsity, by the remaining weights: 98 to 99 % is as far as 80 to 90 %."""
    if sparsity >= 1:
        return None
    distances = {level: abs(math.log((1 - sparsity) / (1 - level))) for level in requested if level < 1}
    best = min(distances, key=distances.__getitem__, default=None)
    return best if best is not None and distances[best] <= math.log(_NEAR) else None
