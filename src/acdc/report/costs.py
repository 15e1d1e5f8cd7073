"""Figures of what a run costs in theory, and of how far its models agree."""

from itertools import accumulate

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.read import Run
from acdc.report.theme import LIGHT, Chart

_SHORT = {"sparse": "sparse", "dense": "twin", "finetuned": "tuned twin", "baseline": "baseline"}  # by their files


def flops(run: Run) -> Chart | None:
    """Inference FLOPs over the epochs, and training FLOPs so far, by the rule of the method's card."""
    rows, phases, dense = run.stage(run.main), facts.phases(run), facts.dense_flops(run)
    if not any(phase.kind == "sparse" for phase in phases):
        return None
    images = run.config.data.train or 1
    each = [flops * images for flops in facts.spent(run, rows)]
    spent = list(accumulate(each))
    usual = 3 * dense * images
    share, final = spent[-1] / (usual * len(rows)), rows[-1].flops / dense
    sparse = [row for row in rows if row.kind == "sparse"][-1].flops / dense
    title = f"The sparse model runs on {words.times(sparse)} of the dense FLOPs and is trained on {words.times(share)}"

    def draw(narrow: bool) -> Figure:
        figure = plot.new(plot.HALF, 330)
        top = plot.panel(figure, "inference FLOPs (fraction of dense)", left=36, right=86, top=24, height=100)
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            edges = [*(row.epoch for row in part), part[-1].epoch + 1]
            values = [row.flops / dense for row in part]
            top.stairs(values, edges, fill=True, color=LIGHT[phase.kind], linewidth=0, alpha=0.85)
        top.set_ylim(0, 1.05)
        top.set_yticks([0, 0.5, 1])
        plot.epochs(top, max(run.planned, len(rows)))
        top.set_xlabel("")
        plot.bare(top)
        ends = [(rows[-1].flops / dense, f"{final:.2f}x", LIGHT[rows[-1].kind])]
        plot.label_ends(top, ends)
        factor, unit = _unit(usual * len(rows))
        label = f"training FLOPs so far ({unit}FLOPs, whole run)"
        low = plot.panel(figure, label, left=36, right=86, top=158, height=130)
        plot.shade(low, phases)
        x = plot.after(rows)
        low.plot(
            x, [usual * epoch / factor for epoch in x], color=LIGHT["baseline"], linestyle=(0, (4, 2)), linewidth=1.3
        )
        low.plot(x, [value / factor for value in spent], color=LIGHT["ink"])
        low.set_ylim(0, 1.06 * usual * len(rows) / factor)
        plot.epochs(low, max(run.planned, len(rows)), label="epochs trained (shaded: compressed)")
        total = usual * x[-1] / factor
        ends = [(spent[-1] / factor, f"this run {share:.2f}x", LIGHT["ink"]), (total, "dense 1.00x", LIGHT["baseline"])]
        plot.label_ends(low, ends)
        return figure

    alt = (
        f"Inference FLOPs per image over the epochs, dense {words.si(dense, 'FLOPs')}; training FLOPs so far reach "
        f"{words.si(spent[-1], 'FLOPs')} against {words.si(usual * len(rows), 'FLOPs')} for dense training "
        "(3 F in compressed phases, 2 F plus the dense F in dense ones)."
    )
    return Chart("flops", title, alt, draw)


def _unit(value: float) -> tuple[float, str]:
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return factor, prefix
    return 1.0, ""


def agreement(run: Run) -> Chart | None:
    """On how many test images two models of the run name the same class."""
    if not run.pairs:
        return None
    first = run.pairs[0]
    title = f"{words.sentence(first.a)} and {first.b} agree on {words.percent(first.top1)} of the test images"

    def draw(narrow: bool) -> Figure:
        figure = plot.new(plot.HALF, 74 + 46 * len(run.pairs))
        height = 46 * len(run.pairs)
        axes = plot.panel(figure, "", left=118, right=108, top=8, height=height)
        labels = [" – ".join(_SHORT[model] for model in pair.models) for pair in run.pairs]
        text = [f"{words.percent(pair.top1)}\nCE {pair.ab:.2f} / {pair.ba:.2f}" for pair in run.pairs]
        colours = [LIGHT["sparse"] if "sparse" in pair.models else LIGHT["dense"] for pair in run.pairs]
        plot.bars(axes, labels, [100 * pair.top1 for pair in run.pairs], colours, text)
        axes.set_xlim(0, 100)
        axes.set_xlabel("same class named (% of the test images)\nCE: cross-entropy one way / the other (nats)")
        axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT["ink"])
        return figure

    alt = "; ".join(
        f"{pair.a} and {pair.b}: {words.percent(pair.top1)} of {pair.samples:,} images, cross-entropy {pair.ab:.3f} "
        f"and {pair.ba:.3f} nats"
        for pair in run.pairs
    )
    return Chart("agreement", title, f"{alt}.", draw)
