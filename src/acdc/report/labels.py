"""The figure of memorization: what becomes of training images with random labels (measure/memorization.py)."""

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.read import Run
from acdc.report.theme import LIGHT, Chart

_LINES = (("true", "true class", "finetuned"), ("memorised", "memorised", "series-3"))


def memorization(run: Run) -> Chart | None:
    """Over the epochs, the images as they are: the share given their random label, and their true class."""
    rows = [row for row in run.stage(run.main) if row.memorization]
    if not rows:
        return None
    last = {row.kind: row.memorization or {} for row in rows}  # of each kind the last
    shares = {kind: words.share(found["memorised"]) for kind, found in last.items()}
    if len(shares) == 2:
        title = f"Dense phases memorise {shares['dense']} of the random labels, compressed ones {shares['sparse']}"
    else:
        title = f"Training ends with {shares[rows[-1].kind]} of the random labels memorised"
    phases, base = facts.phases(run), [row for row in run.stage("dense") if row.memorization]
    others = base if run.main != "dense" else []

    def draw(narrow: bool) -> Figure:
        figure = plot.new(plot.HALF, 290)
        label = "training images with a random label (%)"
        axes = plot.panel(figure, label, left=36, right=84, top=24, height=218)
        plot.shade(axes, phases)
        ends = []
        for key, name, colour in _LINES:
            values = [100 * (row.memorization or {})[key] for row in rows]
            axes.plot(plot.after(rows), values, color=LIGHT[colour], linewidth=1.6)
            dense = [100 * (row.memorization or {})[key] for row in others]
            axes.plot(plot.after(others), dense, color=LIGHT[colour], linewidth=1, linestyle=(0, (4, 2)), alpha=0.7)
            ends.append((values[-1], name, LIGHT[colour]))
        axes.set_ylim(0, 100)
        dashed = "; dashed: baseline" if others else ""
        plot.epochs(axes, max(run.planned, rows[-1].epoch + 1), label=f"epochs trained (shaded: compressed{dashed})")
        plot.label_ends(axes, ends)
        return figure

    alt = "Shares of the training images with a random label over the epochs, without augmentation. " + "; ".join(
        f"the last {'compressed' if kind == 'sparse' else 'dense'} epoch: {words.share(found['memorised'])} given "
        f"their random label, {words.share(found['true'])} their true class"
        for kind, found in last.items()
    )
    return Chart("memorization", title, f"{alt}.", draw)
