"""The paper's four panels of memorization (§4): what becomes of training images with a random label.

Runs without augmentation are on the left and those with it on the right; images assigned to their true class are above,
memorised ones below; there is a line for dense training and for each sparsity.
"""

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc import formatting as fmt
from acdc.errors import ArgumentError
from acdc.recipes import load
from acdc.report.figures.annotate import label_ends
from acdc.report.figures.axes import add_panel, count_epochs, hide_x, name_phases, new_figure, set_label, shade
from acdc.report.figures.chart import Chart, draw_file
from acdc.report.figures.theme import LIGHT, SMALL
from acdc.report.read import config_of
from acdc.runs import json_files
from acdc.runs.folder import RunFolder
from acdc.runs.records import EpochRow

PANELS = {"true": "assigned to their true class", "memorised": "memorised: given their random label"}
# Darker is sparser. Any two differ by 26 or more (CIE 1976), even without red, green or blue cones.
_DENSE, _SPARSE = "#1c2228", ("#a48615", "#c4534e", "#90289c", "#0d06af")
_WIDTH, _LEFT, _RIGHT, _GAP = 800, 36, 58, 20  # pixels; left and right of each panel
_HEIGHT, _ABOVE = 196, (40, 32)  # of a panel, and over those of either line
_TOP = 112  # of the axis, in %: phases have their letters over 100


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a panel: shares after each epoch, on the unaugmented images."""

    sparsity: float  # 0 is the dense baseline
    augmented: bool  # in training
    kinds: tuple[str, ...]  # of the epochs: "dense" or "sparse"
    memorised: tuple[float, ...]
    true: tuple[float, ...]
    seeds: int = 1

    @property
    def name(self) -> str:
        """Return the label at the end of the line."""
        return f"{100 * self.sparsity:g} %" if self.sparsity else "dense"

    def end(self, kind: str, key: str) -> float | None:
        """Return the value at the end of the last phase of that kind."""
        epochs = [epoch for epoch, this in enumerate(self.kinds) if this == kind]
        return getattr(self, key)[epochs[-1]] if epochs else None


def read_curves(runs: Iterable[Path]) -> list[Curve]:
    """Read run folders that measured memorization: dense first, then by sparsity; seeds are averaged."""
    stages: dict[tuple[bool, float], dict[int, list[EpochRow]]] = {}  # a baseline may appear in several runs
    for run in runs:
        recipe = load.from_dict(config_of(run).recipe.settings)
        lines = json_files.read_lines(EpochRow, RunFolder(run).metrics)
        rows = [row for row in lines.checked() if row.memorization] if lines else []
        if not rows:
            raise ValueError(f"{run}: its metrics.jsonl has no memorization; set data.corrupt when training")
        augmented = bool(recipe.data.crop or recipe.data.flip)
        for stage, part in groupby(rows, lambda row: row.run):
            if stage != "finetune":
                sparsity = 0.0 if stage == "dense" else recipe.method.sparsity or 0.0
                stages.setdefault((augmented, sparsity), {})[recipe.run.seeds[0]] = list(part)
    return [_mean(*key, list(stages[key].values())) for key in sorted(stages)]


def _mean(augmented: bool, sparsity: float, seeds: Sequence[Sequence[EpochRow]]) -> Curve:
    """Average the seeds over the epochs that all of them have."""
    epochs = list(zip(*seeds, strict=False))
    memorised, true = (
        tuple(statistics.mean((row.memorization or {})[key] for row in rows) for rows in epochs)
        for key in ("memorised", "true")
    )
    kinds = tuple(rows[0].kind for rows in epochs)
    return Curve(sparsity=sparsity, augmented=augmented, kinds=kinds, memorised=memorised, true=true, seeds=len(seeds))


# Drawing


def draw_panels(curves: Sequence[Curve], out: Path) -> None:
    """Write the panels as SVG or PNG, 800 pixels wide with both sides."""
    if not curves:
        raise ArgumentError(
            "curves", received=curves, allowed="expected at least one", instead="pass those of read_curves(runs)"
        )
    chart = Chart("memorization", title(curves), _description(curves), lambda _: _figure(curves))
    out.write_bytes(draw_file(chart, out.suffix.removeprefix("."), "acdc-memorization"))


def title(curves: Sequence[Curve]) -> str:
    """State how the phases of the sparsest runs end, in numbers; those of dense training if nothing is sparse."""
    top = max(curve.sparsity for curve in curves)
    parts = []
    for curve in (curve for curve in curves if curve.sparsity == top):
        ends = [fmt.percent(end, 0) for kind in ("sparse", "dense") if (end := curve.end(kind, "true")) is not None]
        if not parts:
            who = f"at {100 * top:g} % sparsity the final compressed phase" if top else "dense training"
            first = f"{who} ends with {ends[0]} of the randomly labelled images in their true class"
            first = f"with augmentation, {first}" if curve.augmented else first
            parts.append(fmt.capitalize(", the last dense phase with ".join([first, *ends[1:]])))
        else:
            parts.append(f"with augmentation {' and '.join(ends)}")
    return "; ".join(parts)


def _description(curves: Sequence[Curve]) -> str:
    """Describe all ends of phases for readers who cannot see the lines."""
    parts = []
    for curve in curves:
        ends = [
            f"the last {'compressed' if kind == 'sparse' else 'dense'} epoch {fmt.short_percent(true)} in their true "
            f"class and {fmt.short_percent(memorised)} memorised"
            for kind in ("dense", "sparse")
            if (true := curve.end(kind, "true")) is not None and (memorised := curve.end(kind, "memorised")) is not None
        ]
        parts.append(f"{curve.name}, {'with' if curve.augmented else 'without'} augmentation: {', '.join(ends)}")
    return f"Shares of the training images with a random label over the epochs. {'; '.join(parts)}."


def _figure(curves: Sequence[Curve]) -> Figure:
    sides = sorted({curve.augmented for curve in curves})
    each = (_WIDTH - _GAP) / 2
    width = each * len(sides) + _GAP * (len(sides) - 1)
    figure = new_figure(width, sum(_ABOVE) + 2 * _HEIGHT + 36)
    letters = ""
    for column, augmented in enumerate(sides):
        x = column * (each + _GAP)
        here = [curve for curve in curves if curve.augmented == augmented]
        head = f"{'With' if augmented else 'Without'} augmentation"
        figure.text((x + 4) / width, 1, head, va="top", fontweight="bold")
        for line, (key, label) in enumerate(PANELS.items()):
            place = {"left": x + _LEFT, "right": width - x - each + _RIGHT, "height": _HEIGHT}
            axes = add_panel(figure, "", top=sum(_ABOVE[: line + 1]) + line * _HEIGHT, **place)
            set_label(axes, f"{label} (%)", x=-(_LEFT - 4) / axes.bbox.width)
            letters = _draw_panel(axes, here, key) or letters
            if line == 0:
                axes.set_xlabel("")
                hide_x(axes)
    note = f"Shares of the training images with a random label, unaugmented. {_seeds(curves)}."
    note += " Shaded: compressed phases." if any("sparse" in curve.kinds for curve in curves) else ""
    note += f" {letters}." if letters else ""
    lines = textwrap.fill(note, int(width / (0.58 * SMALL)))
    figure.text(4 / width, -8 / figure.bbox.height, lines, va="top", fontsize=SMALL, color=LIGHT["muted"])
    return figure


def _draw_panel(axes: Axes, curves: Sequence[Curve], key: str) -> str:
    """Draw a panel, and return what the letters over the phases mean."""
    phases = _phases(next((curve for curve in curves if "sparse" in curve.kinds), curves[0]))
    axes.set_ylim(0, _TOP)
    axes.set_yticks(range(0, 101, 25))
    count_epochs(axes, max(len(curve.kinds) for curve in curves))
    shade(axes, phases)
    sparse, ends = [curve for curve in curves if curve.sparsity], []
    for curve in curves:
        place = sparse.index(curve) * (len(_SPARSE) - 1) // max(1, len(sparse) - 1) if curve.sparsity else 0
        colour = _SPARSE[place] if curve.sparsity else _DENSE
        style: dict[str, Any] = {} if curve.sparsity else {"linestyle": (0, (4, 2)), "zorder": 3}
        shares = [100 * share for share in getattr(curve, key)]
        axes.plot(range(1, len(shares) + 1), shares, color=colour, linewidth=1.2, clip_on=False, **style)
        ends.append((shares[-1], curve.name, colour))
    head = [(_TOP, "sparsity", LIGHT["muted"])] if sparse else []
    label_ends(axes, ends + head, dx=6)
    return name_phases(axes, phases, (100 + _TOP) / 2) if sparse else ""


@dataclass(frozen=True)
class _Phase:
    name: str
    kind: str
    first: int
    last: int


def _phases(curve: Curve) -> list[_Phase]:
    phases: list[_Phase] = []
    for kind, epochs in groupby(range(len(curve.kinds)), lambda epoch: curve.kinds[epoch]):
        part = list(epochs)
        name = "compressed" if kind == "sparse" else "decompressed" if phases else "warm-up"
        phases.append(_Phase(name, kind, part[0], part[-1]))
    return phases


def _seeds(curves: Sequence[Curve]) -> str:
    counts = sorted({curve.seeds for curve in curves})
    if counts == [1]:
        return "One seed"
    return f"Means over {counts[0]} seeds" if len(counts) == 1 else f"Means over {counts[0]} to {counts[-1]} seeds"
