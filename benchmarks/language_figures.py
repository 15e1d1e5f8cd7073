"""Pictures of kept runs on text: the training loss around AC/DC's transitions, and scores by non-zero parameters."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from acdc.formatting import fixed
from acdc.io import write_bytes
from acdc.report import facts
from acdc.report.figures.annotate import Mark, label_ends, label_marks
from acdc.report.figures.axes import ALONE, add_panel, new_figure
from acdc.report.figures.chart import Chart, draw_file
from acdc.report.figures.theme import LIGHT, SERIES_LIGHT
from acdc.report.read import Run
from acdc.runs.records import steps_per_loss
from benchmarks.language_groups import Entry, Experiment, parameters, steps_per_epoch
from benchmarks.language_spikes import WIDTH, curve_of, transitions_of

_BEFORE = 0.25  # of the steps before the first transition that are drawn
_MARGIN = 1.6  # of the axis of parameters, as a factor: names stand beside marks


def draw(experiment: Experiment, folder: Path) -> list[Path]:
    """Write the pictures of an experiment that its runs allow, and remove one that they no longer do."""
    drawn = []
    for name, chart_of in FIGURES.items():
        path = folder / f"{name}.svg"
        if chart := chart_of(experiment):
            write_bytes(path, draw_file(chart, "svg", f"acdc-language-{name}"))
            drawn.append(path)
        else:
            path.unlink(missing_ok=True)
    return drawn


# The loss around transitions


def loss_chart(experiment: Experiment) -> Chart | None:
    """Return the loss of AC/DC's runs with the same phases and of dense training, if there is any.

    None without a loss curve of each.
    """
    curved = {entry: one for entry in experiment.entries if (one := next(filter(_has_curve, entry.group.runs), None))}
    ours = {entry: one for entry, one in curved.items() if entry.group.method == "acdc"}
    dense = experiment.dense
    if not ours or (dense is not None and dense not in curved):
        return None
    if not (transitions := _transitions(first := next(iter(ours.values())))):
        return None
    drawn = {dense: curved[dense]} if dense is not None else {}
    drawn |= {entry: one for entry, one in ours.items() if _transitions(one) == transitions}
    begin, end = round((1 - _BEFORE) * transitions[0][0]), first.stage(first.main)[-1].step
    each = steps_per_epoch(first)
    compressed = [(one.first * each, (one.last + 1) * each) for one in facts.phases(first) if one.kind == "sparse"]
    lines = {entry: _smooth(one, begin, end) for entry, one in drawn.items()}
    title = f"{experiment.name}: the training loss from shortly before AC/DC's first compression on"
    names = ", ".join(entry.short for entry in lines)
    alt = f"Training loss from step {begin:,} to {end:,}, means of {WIDTH} steps, one seed each: {names}."

    def figure(_: bool) -> Figure:
        drawing = new_figure(ALONE, 320)
        label = f"training loss, nats per token, means of {WIDTH} steps; compressed phases are shaded"
        axes = add_panel(drawing, label, left=40, right=104, top=26, height=246)
        axes.set_xlim(begin, end)
        for low, high in compressed:
            axes.axvspan(low, high, color=LIGHT["shade"], linewidth=0, zorder=0)
        ends = []
        for number, (entry, (steps, losses)) in enumerate(lines.items(), start=0 if dense is None else -1):
            colour = LIGHT["ink"] if entry is dense else SERIES_LIGHT[number % len(SERIES_LIGHT)]
            axes.plot(steps, losses, color=colour, linewidth=1.1, zorder=2 + (entry is dense))
            ends.append((float(losses[-1]), entry.short, colour))
        label_ends(axes, ends)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        axes.set_xlabel("steps")
        return drawing

    return Chart("loss", title, alt, figure)


def _has_curve(run: Run) -> bool:
    return all(row.losses is not None for row in run.stage(run.main))


def _transitions(run: Run) -> list[tuple[int, str]]:
    return transitions_of(run.stage(run.main))


def _smooth(run: Run, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps from `begin` to `end`, one for each point of the curve, and the mean loss of WIDTH around each."""
    curve = curve_of(run.stage(run.main))
    means = np.convolve(curve, np.full(WIDTH, 1 / WIDTH), "valid")
    centres = np.arange(len(means)) + WIDTH / 2
    chosen = np.flatnonzero((centres >= begin) & (centres <= end))[:: steps_per_loss(steps_per_epoch(run))]
    return centres[chosen], means[chosen]


# Scores by parameters


def parameter_chart(experiment: Experiment) -> Chart | None:
    """Return the test score of each setting against its non-zero parameters; None if there are fewer than two.

    Of dense training at full size only the setting that the others are compared with: its line joins sizes.
    """
    label, score = "test bits per byte", _bits_per_byte
    if any(score(entry) is None for entry in experiment.entries):  # of words, some of which are <unk>
        label, score = "test perplexity", _perplexity
    points = [
        (entry, count, value)
        for entry in experiment.entries
        if not _is_other_dense(entry, experiment)
        and (count := entry.mean(lambda result: result.parameters))
        and (value := score(entry)) is not None
    ]
    if len(points) < 2:
        return None
    names = dict.fromkeys(entry.group.method for entry, _, _ in points if not entry.group.is_dense)
    colours = {name: SERIES_LIGHT[number % len(SERIES_LIGHT)] for number, name in enumerate(names)}
    listed = "; ".join(f"{entry.short}: {fixed(value, 3)} at {parameters(count)}" for entry, count, value in points)

    def figure(_: bool) -> Figure:
        drawing = new_figure(ALONE, 360)
        axes = add_panel(drawing, f"{label}, lower is better", left=44, right=20, top=26, height=286)
        _set_scales(axes, [count for _, count, _ in points], [value for _, _, value in points])
        dense = sorted((count, value) for entry, count, value in points if entry.group.is_dense)
        axes.plot(*zip(*dense, strict=True), color=LIGHT["line"], linewidth=4, zorder=1)  # what a smaller model reaches
        marks = []
        for entry, count, value in points:
            colour = colours.get(entry.group.method, LIGHT["ink"])
            axes.plot([count], [value], "s" if entry.group.is_dense else "o", color=colour, markersize=7, zorder=3)
            marks.append(Mark(count, value, entry.short, colour, (count, count, value, value)))
        label_marks(axes, marks)
        axes.set_xlabel("parameters that are not 0, log scale")
        return drawing

    title = f"{experiment.name}: {label} against non-zero parameters"
    return Chart("parameters", title, f"A mark for each setting, the mean over its seeds. {listed}.", figure)


def _is_other_dense(entry: Entry, experiment: Experiment) -> bool:
    """Return True for dense training at full size with settings of its own, such as another dropout."""
    dense = experiment.dense
    return dense is not None and entry is not dense and entry.group.is_dense and entry.size == dense.size


def _bits_per_byte(entry: Entry) -> float | None:
    return entry.mean(lambda result: result.test.bits_per_byte)


def _perplexity(entry: Entry) -> float | None:
    return entry.mean(lambda result: result.test.perplexity)


def _set_scales(axes: Axes, counts: Sequence[float], values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(counts) / _MARGIN, max(counts) * _MARGIN)
    pad = 0.1 * (max(values) - min(values)) or 0.1
    axes.set_ylim(min(values) - pad, max(values) + pad)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: parameters(count).replace(".0 M", " M")))


FIGURES: dict[str, Callable[[Experiment], Chart | None]] = {"loss": loss_chart, "parameters": parameter_chart}
