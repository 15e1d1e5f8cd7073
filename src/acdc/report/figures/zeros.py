"""Figures of where the zeros are: how the mask changes, which layers it thins, and at which magnitude it cuts."""

from itertools import accumulate
from typing import Any

from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from acdc import formatting as fmt
from acdc.measure import dynamics
from acdc.measure.dynamics import PhaseEnd
from acdc.report import facts
from acdc.report.facts import Phase
from acdc.report.figures.annotate import label_ends
from acdc.report.figures.axes import (
    HALF,
    NARROW,
    SHORT,
    WIDE,
    add_panel,
    hide_x,
    new_figure,
    set_label,
    write_powers_of_ten,
)
from acdc.report.figures.chart import Chart
from acdc.report.figures.theme import LIGHT, SMALL
from acdc.report.read import Run
from acdc.runs.records import MethodSettings

_CELL = 16  # pixels that two digits need


def mask_change(run: Run) -> Chart | None:
    """Draw the change from one compressed mask to the next, relative to all weights (as published) and those kept."""
    sparse = [phase for phase in facts.phases(run) if phase.kind == "sparse"]
    numbered = [(number, phase, phase.end) for number, phase in enumerate(sparse, 1) if phase.end]
    moved = [
        (n, end.regrown, end.mask_change)
        for n, _, end in numbered
        if end.regrown is not None and end.mask_change is not None
    ]
    if not moved:
        return None
    first, last, explored = moved[0][1], moved[-1][1], numbered[-1][2].explored
    verb = "settles" if last < first / 2 else "keeps moving"
    title = f"The support {verb}: {fmt.short_percent(first)} of the kept weights are new at compression {moved[0][0]}"
    title += f", {fmt.short_percent(last)} at the last" if len(moved) > 1 else ""
    if not any(regrown for _, regrown, _ in moved):  # while the sparsity rises, and dense phases bring few weights back
        title = "No weight enters the support again: every mask is a part of the one before"

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 330)
        top = add_panel(figure, "change from the previous mask (%)", left=36, right=88, top=24, height=154)
        places = [n for n, _, _ in moved]
        regrown, changed = [100 * share for _, share, _ in moved], [percent for _, _, percent in moved]
        for shift, values, colour in ((-0.19, regrown, "sparse"), (0.19, changed, "series-5")):
            drawn = top.bar([place + shift for place in places], values, width=0.36, color=LIGHT[colour])
            if len(places) < 9:  # pale bars get whole numbers: two small ones side by side would touch
                marks = [fmt.bar_label(v) if values is regrown or v >= 0.95 else "" for v in values]
                top.bar_label(drawn, labels=marks, padding=1, fontsize=9, color=LIGHT[colour])
        top.set_ylim(0, max(1.15 * max(*regrown, *changed), 1))
        top.set_xlim(0.5, len(sparse) + 0.5)
        hide_x(top)
        top.text(1.02, 0.94, "new, of kept", transform=top.transAxes, color=LIGHT["sparse"], fontsize=10, va="center")
        top.text(1.02, 0.83, "changed,", transform=top.transAxes, color=LIGHT["series-5"], fontsize=10, va="center")
        top.text(1.02, 0.74, "of all", transform=top.transAxes, color=LIGHT["series-5"], fontsize=10, va="center")
        low = add_panel(figure, "kept by any mask so far (% of all weights)", left=36, right=88, top=212, height=66)
        shares = [(n, 100 * end.explored) for n, _, end in numbered if end.explored is not None]
        low.plot([n for n, _ in shares], [s for _, s in shares], color=LIGHT["finetuned"], marker="o", markersize=5)
        low.set_ylim(0, 1.25 * (max([s for _, s in shares], default=0) or 1))
        low.set_xlim(0.5, len(sparse) + 0.5)
        every = max(1, len(sparse) // 7)
        marks = [(n, f"{n}\n@{phase.first}") for n, phase in enumerate(sparse, 1) if (n - 1) % every == 0]
        low.set_xticks([n for n, _ in marks], [text for _, text in marks])
        low.set_xlabel("compression (number, @ epoch)", labelpad=1)
        if shares:
            label_ends(low, [(shares[-1][1], f"explored {fmt.bar_label(shares[-1][1])} %", LIGHT["finetuned"])])
        return figure

    alt = "; ".join(
        f"compression {n}: {fmt.short_percent(changed / 100)} of all positions changed, "
        f"{fmt.short_percent(regrown)} of the kept weights new"
        for n, regrown, changed in moved
    )
    alt += f". {fmt.short_percent(explored)} of the weights were kept by some mask." if explored is not None else "."
    return Chart("mask-change", title, alt, draw)


def layers(run: Run) -> Chart | None:
    """Draw the zeros of each layer at the end of each phase."""
    phases = [(phase, phase.end) for phase in facts.phases(run) if phase.end]
    if not any(phase.kind == "sparse" for phase, _ in phases):
        return None
    final = [end for phase, end in phases if phase.kind == "sparse"][-1]
    names = list(final.size)
    zeros = {name: _zeros(final, name) for name in names}
    least, most = min(names, key=zeros.__getitem__), max(names, key=zeros.__getitem__)
    title = (
        f"Layers end between {fmt.short_percent(zeros[least])} zeros ({_layer_name(least)}) and "
        f"{fmt.short_percent(zeros[most])} ({_layer_name(most)})"
    )
    if fmt.short_percent(zeros[least]) == fmt.short_percent(zeros[most]):
        title = f"All layers end with {fmt.short_percent(zeros[most])} zeros"

    def draw(narrow: bool) -> Figure:
        width, step = (NARROW, 15) if narrow else (WIDE, 17)
        letters = 19 if narrow else 30
        left, right = min(letters, max(len(_layer_name(name)) for name in names)) * 5.9 + 12, 6 if narrow else 66
        beside = (
            narrow and (width - left - right) / len(phases) < _CELL
        )  # no room in the cells: the last column's numbers go beside them
        right += 24 if beside else 0
        figure = new_figure(width, step * len(names) + 74)
        axes = add_panel(figure, "", left=left, right=right, top=30, height=step * len(names))
        axes.set_xlim(0, len(phases))
        axes.set_ylim(len(names), 0)
        axes.grid(visible=False)
        cells = [(c, r, _zeros(end, name)) for c, (_, end) in enumerate(phases) for r, name in enumerate(names)]
        filled = [(column, row, share) for column, row, share in cells if share]
        boxes = [Rectangle((column + 0.02, row + 0.04), 0.96, 0.92) for column, row, _ in filled]
        alphas = [share for _, _, share in filled]
        if boxes:  # there may be no zero weights if training decides
            axes.add_collection(PatchCollection(boxes, facecolor=LIGHT["sparse"], alpha=alphas, linewidth=0))
        for column, row, share in filled if not beside else ():
            colour = LIGHT["page" if share > 0.85 else "on-mid" if share > 0.6 else "ink"]
            text, size = fmt.bar_label(100 * share), 8.5 if narrow else SMALL
            axes.text(column + 0.5, row + 0.54, text, ha="center", va="center", fontsize=size, color=colour)
        whole = [(column + 0.5, row + 0.5) for column, row, share in cells if not share]
        places = [x for x, _ in whole], [y for _, y in whole]
        axes.plot(
            *places, ".", color=LIGHT["muted"], markersize=2, markeredgewidth=0
        )  # one artist, because text is slow
        for row, name in enumerate(names) if beside else ():
            text = fmt.bar_label(100 * zeros[name])
            axes.text(len(phases) + 0.2, row + 0.54, text, va="center", fontsize=8.5, color=LIGHT["ink"])
        if not narrow:
            for row, name in enumerate(names):
                size = fmt.si(final.size[name], digits=2)
                axes.text(len(phases) + 0.08, row + 0.54, size, va="center", fontsize=SMALL, color=LIGHT["muted"])
            axes.text(len(phases) + 0.08, -0.9, "weights", va="center", fontsize=SMALL, color=LIGHT["muted"])
        axes.set_yticks([])
        beyond = -6 / (axes.bbox.width / len(phases))
        for row, name in enumerate(names):  # not as ticks, which are five times as slow
            text, style = fmt.shorten(_layer_name(name), letters), {"fontsize": SMALL, "color": LIGHT["muted"]}
            axes.text(beyond, row + 0.54, text, ha="right", va="center", parse_math=False, **style)
        room = axes.bbox.width / len(phases)
        every = max(1, round(24 / room)) if room < 24 else 1
        marks = list(enumerate(phases))[::every]
        axes.set_xticks([column + 0.5 for column, _ in marks], [_column(phase, room) for _, (phase, _) in marks])
        axes.tick_params(axis="both", length=0, labelsize=SMALL)
        axes.spines["bottom"].set_visible(False)
        numbers = " (right: sparse model)" if beside else ""
        set_label(axes, f"zeros (%) of each layer at the end of each phase{numbers}", x=0)
        axes.set_xlabel("phase, and the epoch it ends with")
        return figure

    listed = "; ".join(f"{_layer_name(name)} {fmt.short_percent(share)}" for name, share in zeros.items())
    alt = f"Zeros of {len(names)} layers at the ends of {len(phases)} phases. At the last compressed one: {listed}."
    return Chart("layers", title, alt, draw, wide=True)


def _column(phase: Phase, room: float) -> str:
    name = phase.name if len(phase.name) * 5.6 < room else phase.name.removesuffix(" compressed")
    if len(name) * 5.6 > room:
        name = SHORT.get(phase.name, phase.name[:1].upper())
    return f"{name}\n{phase.last + 1}"


def _layer_name(name: str) -> str:
    return name.removesuffix(".weight")


def _zeros(end: PhaseEnd, name: str) -> float:
    return 1 - end.nonzero[name] / end.size[name]


def magnitudes(run: Run) -> Chart | None:
    """Draw how large the weights are before the last compression, and where it cuts."""
    phases = [phase for phase in facts.phases(run) if phase.end]
    sparse = [index for index, phase in enumerate(phases) if phase.kind == "sparse"]
    if not sparse or sparse[-1] == 0:
        return None
    before, after = phases[sparse[-1] - 1].end, phases[sparse[-1]].end
    assert before is not None
    assert after is not None
    size = sum(before.size.values())
    method = run.config.method or MethodSettings()  # as built, including what the recipe left out
    one = str(method.settings.get("pattern")).startswith("Unstructured")
    one = one and method.settings.get("distribution") == "global" and not method.settings.get("floor")
    target, zeros = method.sparsity, size - sum(before.nonzero.values())
    cut = dynamics.threshold(before.histogram, zeros, target) if one and target else None
    title = f"Kept weights are the large ones: {fmt.short_percent(1 - sum(after.histogram) / size)} are 0"
    if cut and target:
        title = f"The last compression cuts at |w| = {cut:.2g}: {fmt.short_percent(target)} of the weights lie below"
    low, high = _span(before.histogram, after.histogram, cut)

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 290)
        axes = add_panel(
            figure, "weights (% of all, ten bins to a doubling of |w|)", left=36, right=16, top=24, height=212
        )
        edges = [dynamics.edge(index) for index in range(low, high + 1)]
        for end, colour, filled in ((before, "dense", False), (after, "sparse", True)):
            values = [100 * count / size for count in end.histogram[low:high]]
            style: dict[str, Any] = {"fill": True, "alpha": 0.75, "linewidth": 0} if filled else {"linewidth": 1.7}
            axes.stairs(values, edges, color=LIGHT[colour], baseline=0 if filled else None, **style)
        highest = 100 * max(max(end.histogram[low + 1 : high]) for end in (before, after)) / size
        axes.set_ylim(0, 1.3 * highest)
        if cut:
            axes.axvline(cut, color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 2)))
            right = cut**4 > edges[0] * edges[-1] ** 3  # in the last quarter of the axis
            place = (cut / 1.25, "right") if right else (1.25 * cut, "left")
            axes.text(place[0], 1.22 * highest, f"cut {cut:.2g}", fontsize=10, va="center", ha=place[1])
        axes.set_xscale("log")
        axes.set_xlim(edges[0], edges[-1])
        write_powers_of_ten(axes)
        axes.set_xlabel("magnitude |w| of the weight (no unit)")
        for y, text, colour in (
            (0.95, "before: end of the last dense phase", "dense"),
            (0.86, "after: sparse model", "sparse"),
        ):
            axes.text(0.01, y, text, transform=axes.transAxes, color=LIGHT[colour], fontsize=10, va="center")
        return figure

    beneath = sum(before.histogram[:low]) / size
    alt = (
        "Histogram of the magnitudes of non-zero weights before and after the last compression. "
        f"{fmt.short_percent(zeros / size)} of the weights were zero before it, {fmt.short_percent(beneath)} smaller "
        "than the axis shows."
    )
    return Chart("magnitudes", title, alt, draw)


def _span(before: list[int], after: list[int], cut: float | None) -> tuple[int, int]:
    """Return the bins from the smallest 3 % of the weights, but not far below the cut, to the largest weight."""
    both = [one + other for one, other in zip(before, after, strict=True)]
    high = max((index + 1 for index, count in enumerate(both) if count), default=dynamics.BINS)
    running_total = accumulate(both)
    first = next((index for index, count in enumerate(running_total) if count > 0.03 * sum(both)), 0)
    near = [index for index in range(high) if cut and dynamics.edge(index) > cut / 2**14]
    return min(max(first, near[0] if near else 0), high - 10), high
