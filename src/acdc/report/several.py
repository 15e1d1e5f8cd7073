"""Several runs together: which of them are seeds of one setting, whether they can be compared, and their figures."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.facts import Model
from acdc.report.read import ReportError, Run
from acdc.report.theme import DASHES, LIGHT, SERIES_LIGHT, Chart

_NOT_TOLD = {"about", "paper", "run.seeds", "run.checkpoint_every", "run.keep", "run.baseline", "run.finetune"}
_ROLES = ("sparse", "finetuned", "twin", "baseline")


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: Sequence[Run]
    number: int

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
    data, counts = run.settings("data"), run.config.get("data", {})
    return {
        "data.name": data.get("name"),
        "data.options": dict(data.get("options") or {}),
        "the number of classes": run.classes,
        "the number of test images": counts.get("test"),
    }


def _said(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def groups(runs: Sequence[Run]) -> list[Group]:
    flat = [_flat(run.config.get("recipe", {})) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings if key not in _NOT_TOLD))
    together: dict[str, list[int]] = {}
    for index, settings in enumerate(flat):
        together.setdefault(json.dumps([settings.get(key) for key in keys]), []).append(index)
    firsts = [flat[members[0]] for members in together.values()]
    differing = [key for key in keys if len({json.dumps(settings.get(key)) for settings in firsts}) > 1]
    found = []
    for number, (members, settings) in enumerate(zip(together.values(), firsts, strict=True)):
        seeds = sorted((runs[index] for index in members), key=lambda run: (run.seed is None, run.seed))
        found.append(Group(_label(settings, differing), seeds, number))
    return found


def _label(settings: Mapping[str, Any], differing: Sequence[str]) -> str:
    """The recipe's name if that tells, and the settings that differ from those of other groups."""
    dense = settings.get("method.name") == "dense"
    told = [key for key in differing if key not in ("name", "method.name") and not (dense and key.startswith("method."))]
    parts = [str(settings["name"])] if "name" in differing or not told else []
    if "method.name" in differing and not ("name" in differing and dense):
        parts.append(str(settings["method.name"]))
    parts += [f"{key.rpartition('.')[2].replace('_', ' ')} {_short(settings.get(key))}" for key in told[:4]]
    return ", ".join(parts) or str(settings.get("name", "run"))


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


def headline(found: Sequence[Group]) -> str:
    best = max(found, key=lambda group: statistics.fmean(group.values(group.main, _accuracy)))
    value = words.spread(best.values(best.main, _accuracy), digits=1)
    seeds = f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    if len(found) == 1:
        sparsity = f", {words.share(best.role(best.main)[0].sparsity)} sparse," if best.main == "sparse" else ""
        return f"{best.label}{sparsity} reaches {value} %{seeds}"
    return f"Best of {len(found)} settings: {best.label}, with {value} %{seeds}"


def _accuracy(model: Model) -> float:
    return model.accuracy


def _training(model: Model) -> float | None:
    return model.training


def accuracy(found: Sequence[Group]) -> Chart:
    """The main stage of every group: the mean over seeds, and from the lowest to the highest."""
    curves = {group.label: _curve(group) for group in found}
    rows = [row for group in found for run in group.runs for row in run.stage(run.main)]
    last = max(max(run.planned for run in group.runs) for group in found)
    images = found[0].runs[0].config.get("data", {}).get("test")
    one = found[0].runs[0] if len({tuple((p.first, p.kind) for p in facts.phases(g.runs[0])) for g in found}) == 1 else None

    def draw(narrow: bool) -> Figure:
        legend = 17 * len(found) if narrow else 0
        width, right = (plot.NARROW, 52) if narrow else (plot.WIDE, 52)
        figure = plot.new(width, (300 if narrow else 400) + max(legend, 17 * len(found)))
        top = 24 + 17 * len(found)
        axes = plot.panel(figure, "test accuracy (%)", left=34, right=right, top=top, height=232 if narrow else 332)
        scale = plot.accuracy_scale(axes, rows, images)
        if one:
            plot.shade(axes, facts.phases(one))
        for group in found:
            x, mean, low, high = curves[group.label]
            axes.plot(x, [scale(v) for v in mean], color=group.colour, linestyle=group.dash, linewidth=1.5)
            if len(group.runs) > 1:
                edges = [scale(v) for v in low], [scale(v) for v in high]
                axes.fill_between(x, *edges, color=group.colour, alpha=0.18, linewidth=0)
        shaded = " (shaded: compressed)" if one and any(p.kind == "sparse" for p in facts.phases(one)) else ""
        plot.epochs(axes, last, label=f"epochs trained{shaded}")
        ends = [(scale(curves[g.label][1][-1]), f"{100 * curves[g.label][1][-1]:.1f}", g.colour) for g in found]
        plot.label_ends(axes, ends)
        legend_of(figure, found, narrow)
        return figure

    ends = "; ".join(f"{group.label} ends at {words.percent(curves[group.label][1][-1])}" for group in found)
    alt = f"Test accuracy over the epochs, mean over seeds with the range from lowest to highest. {ends}."
    return Chart("curves", _accuracy_title(found), alt, draw, wide=True)


def legend_of(figure: Figure, found: Sequence[Group], narrow: bool) -> None:
    """A line of its own for each group, above the axes."""
    height, width = figure.bbox.height, figure.bbox.width
    for index, group in enumerate(found):
        y = 1 - (10 + 17 * index) / height
        figure.add_artist(_line(group, width, y))
        seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        text = words.clip(group.label, 52 if narrow else 130) + seeds
        figure.text(36 / width, y, text, va="center", fontsize=10, color=LIGHT["ink"])


def _line(group: Group, width: float, y: float) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([6 / width, 28 / width], [y, y], color=group.colour, linestyle=group.dash, linewidth=2.2)


def _accuracy_title(found: Sequence[Group]) -> str:
    final = [(statistics.fmean(group.values(group.main, _accuracy)), group) for group in found]
    best, top = max(final, key=lambda pair: pair[0])
    worst, bottom = min(final, key=lambda pair: pair[0])
    if len(found) == 1:
        values = found[0].values(found[0].main, _accuracy)
        if len(values) == 1:
            return f"{top.label} ends at {words.percent(best)}"
        return f"{len(values)} seeds end within {100 * (max(values) - min(values)):.1f} points of each other"
    return f"{top.label} ends highest, at {words.percent(best)}, {words.gap(best, worst, bottom.label)}"


def _curve(group: Group) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs that every seed has, with mean, lowest and highest accuracy."""
    stages = [{row["epoch"] + 1: row["test_accuracy"] for row in run.stage(run.main)} for run in group.runs]
    shared = sorted(set.intersection(*(set(stage) for stage in stages)))
    values = [[stage[epoch] for stage in stages] for epoch in shared]
    return shared, [statistics.fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values]
