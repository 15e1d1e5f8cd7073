"""Several runs together: which of them are seeds of one setting, and whether they can be compared."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acdc.report import facts, words
from acdc.report.comparison.cells import title
from acdc.report.facts import Model
from acdc.report.read import ReportError, Run
from acdc.report.theme import DASHES, SERIES_LIGHT

_NAMED = ("name", "method.name", "method.sparsity")
_NOT_TOLD = ("about", "paper", "run.")  # what is said of a recipe, and around its training
# How a setting is said where it tells runs apart, those that say most first.
_SAID: dict[str, Callable[[Any], str]] = {
    "name": str,
    "method.name": title,
    "method.sparsity": lambda value: f"{words.share(value)} sparse" if value is not None else "",
    "train.epochs": lambda epochs: f"{epochs} epochs" if epochs is not None else "",
}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: Sequence[Run]
    number: int
    method: str = ""  # or a variant of one, by the name it was given
    name: str = ""  # the label without the sparsity
    asked: float | None = None  # sparsity; None for dense training, and where training decides it

    @property
    def colour(self) -> str:
        return SERIES_LIGHT[self.number % len(SERIES_LIGHT)]

    @property
    def dash(self) -> Any:
        return DASHES[self.number // len(SERIES_LIGHT) % len(DASHES)] if self.number >= len(SERIES_LIGHT) else "-"

    def role(self, role: str) -> list[Model]:
        found = [facts.of_role(run, role) for run in self.runs]
        return [model for model in found if model is not None]

    def values(self, role: str, value: Callable[[Model], float | None]) -> list[float]:
        return [found for model in self.role(role) if (found := value(model)) is not None]

    @property
    def main(self) -> str:
        """The role of the model that these runs are about."""
        return facts.headline(self.runs[0]).role


def check_alike(runs: Sequence[Run]) -> None:
    """Refuse to compare what was measured on different data."""
    first = runs[0]
    for other in runs[1:]:
        for what, value in _data(first).items():
            theirs = _data(other)[what]
            if value != theirs and value is not None and theirs is not None:
                raise ReportError(
                    f"{first.name} and {other.name} were measured on different data: {what} is {_said(value)} in the "
                    f"one and {_said(theirs)} in the other; report them apart"
                )


def _data(run: Run) -> dict[str, Any]:
    data = run.config.recipe.data
    return {
        "data.name": run.config.data_name,
        "data.options": dict(data.options or {}),
        "the number of classes": run.classes,
        "the number of test images": run.test_images,
    }


def _said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def groups(runs: Sequence[Run]) -> list[Group]:
    flat = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings if not key.startswith(_NOT_TOLD)))
    together: dict[tuple[str, int], list[int]] = {}
    for index, settings in enumerate(flat):
        setting, again = json.dumps([settings.get(key) for key in keys]), 0
        while _has_seed(runs[index].seed, [runs[other] for other in together.get((setting, again), ())]):
            again += 1  # one seed twice is no second seed: the run stands by itself
        together.setdefault((setting, again), []).append(index)
    firsts = [flat[members[0]] for members in together.values()]
    differing = [key for key in keys if _differs(key, firsts)]
    cells = [(settings.get("method.name"), settings.get("method.sparsity")) for settings in firsts]
    if all(run.cell for run in runs) and len({*cells}) == len(cells):
        differing = ["method.name", *(["method.sparsity"] if len({share for _, share in cells} - {None}) > 1 else [])]
    found, twice = [], {setting for setting, again in together if again}
    for number, (((setting, _), members), settings) in enumerate(zip(together.items(), firsts, strict=True)):
        seeds = sorted((runs[index] for index in members), key=lambda run: (run.seed is None, run.seed))
        method, share = cells[number]
        name = _label(settings, ["method.name", *(key for key in differing if key not in _NAMED)])
        label, run = _label(settings, differing), f" ({seeds[0].name})" if setting in twice else ""
        found.append(Group(label + run, seeds, number, str(method), name + run, share))
    return found


def _has_seed(seed: int | None, runs: Sequence[Run]) -> bool:
    return seed is not None and any(run.seed == seed for run in runs)


def _differs(key: str, firsts: Sequence[Mapping[str, Any]]) -> bool:
    """Knobs of a method are compared among runs of that method; its sparsity among all that have one."""
    alike: dict[str, set[str]] = {}
    for settings in firsts:
        method = settings.get("method.name")
        if key == "method.sparsity" and method == "dense":
            continue
        own = key.startswith("method.") and key not in ("method.name", "method.sparsity")
        alike.setdefault(str(method) if own else "", set()).add(json.dumps(settings.get(key)))
    return any(len(values) > 1 for values in alike.values())


def _settings(run: Run) -> dict[str, Any]:
    """Of the recipe; those of the method as it was built, what the recipe left to it included.

    What came to be a setting after a run was made has its default there: of the recipe as reading it gives it, of the
    method as building it does.
    """
    recipe, built = dict(run.config.recipe.settings), run.config.method
    method = None
    if run.recipe:
        recipe, method = run.recipe.to_dict(), run.recipe.build_method()
        recipe["train"]["epochs"] = run.recipe.epochs  # by a schedule's name, too
    if built:
        newer = method.config() if method else {}
        recipe["method"] = {**newer, **built.settings, "schedule": run.config.recipe.method.settings.get("schedule")}
    if run.cell:
        recipe["method"] = {**recipe.get("method", {}), "name": run.cell.variant}
    return _flat(recipe)


def settings_of(group: Group) -> dict[str, Any]:
    """What decides what its runs compute, but the seed; by dotted names."""
    return {key: value for key, value in _settings(group.runs[0]).items() if not key.startswith(_NOT_TOLD)}


def _label(settings: Mapping[str, Any], differing: Sequence[str]) -> str:
    """The recipe's name if that tells, and the settings that differ from those of other groups."""
    dense = settings.get("method.name") == "dense"
    told = [key for key in differing if not (dense and key.startswith("method.") and key != "method.name")]
    known = [_SAID[key](settings.get(key)) for key in _SAID if key in told]
    rest = [
        f"{key.rpartition('.')[2].replace('_', ' ')} {_short(settings.get(key))}" for key in told if key not in _SAID
    ]
    return ", ".join(part for part in [*known, *rest[:4]] if part) or str(settings.get("name", "run"))


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _flat(settings: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        full = f"{name}.{key}" if name else key
        if isinstance(value, Mapping) and value:
            found |= _flat(value, full)
        else:
            found[full] = value
    return found


def remarks(runs: Sequence[Run]) -> list[str]:
    """Each once, with the names of its runs where it is not of all."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for text in facts.remarks(run):
            said.setdefault(text, []).append(run.name)
    return [text if len(of) == len(runs) else f"{words.listed(of)}: {text}" for text, of in said.items()]


def headline(found: Sequence[Group]) -> str:
    """The best sparse setting against the best dense model, or the best of all."""
    sparse = [group for group in found if group.main == "sparse"]
    best = max(sparse or found, key=lambda group: _mean(group, group.main))
    seeds = f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    said = (
        f"{words.sentence(best.label)} reaches {words.spread(best.values(best.main, accuracy_of), digits=1)} %{seeds}"
    )
    dense = [group.values("baseline", accuracy_of) for group in found if group.role("baseline")]
    if not sparse or not dense:
        return said
    ours, theirs = best.values("sparse", accuracy_of), max(dense, key=statistics.fmean)
    doubt = words.doubt(ours, theirs, best.runs[0].images)
    gap = words.gap(statistics.fmean(ours), statistics.fmean(theirs), "the best dense model", doubt=doubt)
    return f"{said}, {gap}"


def _mean(group: Group, role: str) -> float:
    return statistics.fmean(group.values(role, accuracy_of))


def accuracy_of(model: Model) -> float:
    return model.accuracy
