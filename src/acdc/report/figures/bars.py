"""Figures that compare values: agreement of a run's models, accuracy of methods."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc import formatting as fmt
from acdc.report.figures.axes import ALONE, HALF, NARROW, WIDE, add_panel, add_panels, draw_bars, new_figure
from acdc.report.figures.chart import Chart
from acdc.report.figures.theme import LIGHT, Style, method_styles
from acdc.report.groups import Level, levels_of
from acdc.report.read import Run
from acdc.report.standings import Standing
from acdc.runs.quality import ACCURACY, Quality

_SHORT = {"sparse": "sparse", "dense": "twin", "finetuned": "tuned twin", "baseline": "baseline"}  # by their files
_LINE = 23  # pixels for each method
_LETTER = 6.1  # pixels, on average


def agreement(run: Run) -> Chart | None:
    """Draw the share of test images to which two models of the run give the same class."""
    if not run.pairs:
        return None
    first = run.pairs[0]
    title = f"{fmt.capitalize(first.a)} and {first.b} agree on {fmt.percent(first.top1)} of the test images"

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 74 + 46 * len(run.pairs))
        height = 46 * len(run.pairs)
        axes = add_panel(figure, "", left=118, right=108, top=8, height=height)
        labels = [" – ".join(_SHORT[model] for model in pair.models) for pair in run.pairs]
        text = [f"{fmt.percent(pair.top1)}\nCE {pair.ab:.2f} / {pair.ba:.2f}" for pair in run.pairs]
        colours = [LIGHT["sparse"] if "sparse" in pair.models else LIGHT["dense"] for pair in run.pairs]
        draw_bars(axes, labels, [100 * pair.top1 for pair in run.pairs], colours, text)
        axes.set_xlim(0, 100)
        axes.set_xlabel("same class (% of the test images)\nCE: cross-entropy one way / the other (nats)")
        axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT["ink"])
        return figure

    alt = "; ".join(
        f"{pair.a} and {pair.b}: {fmt.percent(pair.top1)} of {pair.samples:,} images, cross-entropy {pair.ab:.3f} "
        f"and {pair.ba:.3f} nats"
        for pair in run.pairs
    )
    return Chart("agreement", title, f"{alt}.", draw)


def score_by_method(standings: Sequence[Standing]) -> Chart | None:
    """Draw accuracy or perplexity by method at each sparsity: a dot for every seed, a bar for the mean."""
    groups = [row.group for row in standings]
    if len(groups) < 2:
        return None
    by_number = {row.group.number: row for row in standings}
    levels, styles = levels_of(groups), method_styles(groups)
    at_each = [
        sorted((by_number[group.number] for group in level.groups), key=lambda row: row.rank) for level in levels
    ]
    names = max(len(level.name(row.group)) for level, rows in zip(levels, at_each, strict=True) for row in rows)
    quality = groups[0].quality
    low, high = _range([value for row in standings for value in row.score.values], quality)

    def draw(width: int) -> Figure:
        left = min(14 + _LETTER * names, 150)
        heights = [_LINE * len(rows) + 6 for rows in at_each]
        label = "one dot for each seed, bar: mean ± std"
        figure, panels = add_panels(width, levels, label, heights=heights, left=left, right=92, below=58)
        for level, rows, axes in zip(levels, at_each, panels, strict=True):
            _draw_dots(axes, level, rows, styles, low, high)
        return figure

    drawn = lambda narrow: draw(NARROW if narrow else WIDE)  # noqa: E731
    listed = "; ".join(f"{row.group.label}: {quality.mean_std(row.score.values)}" for row in standings)
    alt = f"{quality.title}{' in %' * bool(quality.symbol)} by method, mean ± standard deviation over seeds. {listed}."
    return Chart("by-method", _title(levels, at_each), alt, drawn, wide=True, draw_alone=lambda: draw(ALONE))


def _range(values: Sequence[float], quality: Quality) -> tuple[float, float]:
    """Return the range of most values: a method that failed is shown at the edge, and compresses nothing."""
    ordered = sorted(values)
    if quality is not ACCURACY:
        middle, bottom = ordered[len(ordered) // 2], ordered[0]
        high = min(ordered[-1], bottom + 4 * max(middle - bottom, 0.01 * bottom))
        pad = 0.06 * (high - bottom) + 5e-3
        return bottom - pad, high + pad
    middle, top = ordered[len(ordered) // 2], ordered[-1]
    low = max(ordered[0], top - 4 * max(top - middle, 0.01))
    pad = 0.06 * (top - low) + 5e-4
    return low - pad, min(top + pad, 1.0 + 5e-4)


def _draw_dots(
    axes: Axes, level: Level, rows: Sequence[Standing], styles: Mapping[str, Style], low: float, high: float
) -> None:
    axes.set_ylim(len(rows) - 0.5, -0.5)
    quality = rows[0].group.quality
    axes.set_xlim(quality.scaled(low), quality.scaled(high))
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.set_yticks(range(len(rows)), [level.name(row.group) for row in rows])
    axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT["ink"], pad=7)
    for place, row in enumerate(rows):
        colour, mean, std = styles[row.group.name].colour, row.score.mean, row.score.std
        fill = LIGHT["page"] if row.group.is_dense else colour
        inside = [quality.scaled(value) for value in row.score.values if low <= value <= high]
        below, most = quality.higher_is_better, 1.0 if quality is ACCURACY else high
        edge = low + 0.02 * (high - low) if below else high - 0.02 * (high - low)
        cut = [quality.scaled(edge)] if len(inside) < len(row.score.values) else []
        ends = [quality.scaled(min(high, max(low, value))) for value in (mean - std, min(most, mean + std))]
        axes.plot(ends, [place] * 2, color=colour, linewidth=5, alpha=0.25, solid_capstyle="butt")
        if low <= mean <= high:
            axes.plot([quality.scaled(mean)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        axes.plot(inside, [place] * len(inside), "o", color=colour, markersize=5, markerfacecolor=fill)
        axes.plot(cut, [place] * len(cut), "<" if below else ">", color=colour, markersize=7, clip_on=False)
        text = quality.mean_std(row.score.values)
        right = 1 + 8 / axes.bbox.width
        axes.text(right, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=10)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(quality.axis)


def _title(levels: Sequence[Level], at_each: Sequence[Sequence[Standing]]) -> str:
    """State how far apart the sparse methods are at each sparsity."""
    gaps, quality = [], at_each[0][0].group.quality
    for level, rows in zip(levels, at_each, strict=True):
        sparse = [row for row in rows if not row.group.is_dense]
        if len(sparse) > 1:
            best, worst = sparse[0].score.mean, sparse[-1].score.mean
            gap = f"{100 * (best - worst):.1f} points" if quality is ACCURACY else f"{worst / best:.2f}x"
            where = f" at {fmt.short_percent(level.sparsity)} zeros" if level.sparsity is not None else " as learned"
            gaps.append(f"{gap}{where} ({sparse[0].group.name} to {sparse[-1].group.name})")
    return f"{quality.title} by method: from best to worst {', '.join(gaps)}" if gaps else f"{quality.title} by method"
