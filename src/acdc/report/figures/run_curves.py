"""Figures over the epochs of one run: accuracy and sparsity, loss, FLOPs, weights that stay zero, memorization."""

from itertools import accumulate

from matplotlib.figure import Figure

from acdc import formatting as fmt
from acdc.report import facts
from acdc.report.figures.annotate import label_ends
from acdc.report.figures.axes import (
    HALF,
    NARROW,
    WIDE,
    add_panel,
    count_epochs,
    epoch_ends,
    hide_x,
    name_phases,
    new_figure,
    plot_by_kind,
    set_log_if_wide,
    set_score_scale,
    shade,
)
from acdc.report.figures.chart import Chart
from acdc.report.figures.theme import LIGHT
from acdc.report.read import Run

_TITLES = {"baseline": "dense baseline", "finetuned": "twin, fine-tuned"}
_NARROW_TITLES = {"dense baseline": "base", "twin, fine-tuned": "tuned", "dense twin": "twin"}
_MEMORIZATION = (("true", "true class", "finetuned"), ("memorised", "memorised", "series-3"))


def headline(run: Run) -> str:
    """State the run's finding in one sentence."""
    best = facts.main_model(run)
    so_far = "" if run.result is not None else f" so far (epoch {run.stage(run.main)[-1].epoch + 1})"
    if best.role != "sparse":
        return f"Dense training {'ends' if not so_far else 'stands'} at {_shown(run, best)}{so_far}"
    other, sparsity = facts.dense_rival(run), fmt.short_percent(best.sparsity)
    if other is None:
        return f"{sparsity} sparse reaches {_shown(run, best)}{so_far}"
    quality = run.quality
    limits = f"one seed and {run.images:,} {quality.unit}s" if run.images else ""
    uncertainty = quality.uncertainty([best.score], [other.score], run.images)
    noun = facts.NOUNS[other.role]
    gap = quality.gap(best.score, other.score, noun, uncertainty=uncertainty, limited_by=limits)
    return (
        f"{sparsity} sparse {'ends' if not so_far else 'stands'} {gap}{so_far}: "
        f"{quality.shown(best.score)} against {quality.shown(other.score)}"
    )


def _shown(run: Run, model: facts.Model) -> str:
    """Write a model's score, with the name of the measure if it needs one."""
    return f"{'perplexity ' * (not run.quality.symbol)}{run.quality.shown(model.score)}"


def signature(run: Run) -> Chart:
    """Draw test accuracy, or perplexity, and sparsity over the epochs, in the phases' colours: AC/DC's signature."""
    rows, phases = run.stage(run.main), facts.phases(run)
    others = {"baseline": run.stage("dense") if run.main != "dense" else [], "finetuned": run.stage("finetune")}
    last = max(run.planned, rows[-1].epoch + 1)
    images, quality = run.images, run.quality
    sparse = [phase for phase in phases if phase.kind == "sparse"]

    def draw(narrow: bool) -> Figure:
        width, right = (NARROW, 74) if narrow else (WIDE, 150)
        figure = new_figure(width, 380 if narrow else 440)
        height = 210 if narrow else 262
        top = add_panel(figure, quality.axis, left=34, right=right, top=24, height=height)
        scores = [quality.of(row) for part in (rows, *others.values()) for row in part]
        scale = set_score_scale(top, scores, images, quality)
        shade(top, phases)
        plot_by_kind(top, rows, phases, lambda row: scale(quality.of(row)))
        for role, part in others.items():
            style = {"linewidth": 1.3, "linestyle": (0, (4, 2))} if role == "baseline" else {}
            heights = [scale(quality.of(row)) for row in part]
            top.plot(epoch_ends(part), heights, color=LIGHT[role], zorder=2, **style)
        count_epochs(top, last)
        top.set_xlabel("")
        hide_x(top)
        ends = [
            (scale(quality.of(part[-1])), _end(role, quality.number(quality.of(part[-1])), narrow), LIGHT[role])
            for role, part in others.items()
            if part
        ]
        for kind, word in (("sparse", "sparse"), ("dense", "dense twin")):
            part = [row for row in rows if row.kind == kind]
            if part:
                point, height = part[-1], scale(quality.of(part[-1]))
                dense = run.main == "dense"
                text = _end("dense" if dense else word, quality.number(quality.of(point)), narrow)
                top.plot([point.epoch + 1], [height], "o", color=LIGHT[kind], markersize=5, clip_on=False, zorder=4)
                ends.append((height, text, LIGHT[kind]))
        label_ends(top, ends)
        low = add_panel(figure, "sparsity (%)", left=34, right=right, top=264 if narrow else 318, height=70)
        fills = []
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            edges = [*(row.epoch for row in part), part[-1].epoch + 1]
            fills.append([100 * row.sparsity for row in part])
            low.stairs(fills[-1], edges, fill=True, color=LIGHT[phase.kind], linewidth=0)
        low.set_ylim(0, 100)
        low.set_yticks([0, 50, 100])
        short = name_phases(low, phases, 50, fills=fills) if run.main != "dense" else ""
        count_epochs(low, last, label="epochs trained" + (f" ({short})" if short else ""))
        return figure

    alt = (
        f"{quality.title} and sparsity over {last} epochs; compressed phases are shaded. "
        + "; ".join(
            f"{phase.name}, epochs {phase.first + 1} to {phase.last + 1}, ends at {quality.shown(phase.score)} "
            f"with {fmt.short_percent(phase.sparsity)} zeros"
            for phase in phases
        )
        + "."
    )
    title = headline(run) if sparse else f"{headline(run)} after {len(rows)} epochs"
    return Chart("signature", title, alt, draw, wide=True)


def _end(word: str, score: str, narrow: bool) -> str:
    word = _TITLES.get(word, word)
    if narrow:
        word = _NARROW_TITLES.get(word, word)
    return f"{word} {score}"


def loss(run: Run) -> Chart:
    """Draw training and test loss, and the learning rate."""
    rows, phases = run.stage(run.main), facts.phases(run)
    last, lowest = rows[-1], min(rows, key=lambda row: row.test_loss)
    where = f"lowest {lowest.test_loss:.3g} after epoch {lowest.epoch + 1}"
    title = f"Training loss ends at {last.loss:.3g}, test loss at {last.test_loss:.3g} ({where})"
    rates = [row.lr for row in rows]

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 330)
        top = add_panel(figure, "loss (nats per image)", left=36, right=66, top=24, height=176)
        shade(top, phases)
        losses = [row.loss for row in rows], [row.test_loss for row in rows]
        for values, colour in zip(losses, ("ink", "series-3"), strict=True):
            top.plot(epoch_ends(rows), values, color=LIGHT[colour], linewidth=1.5)
        set_log_if_wide(top, [value for values in losses for value in values])
        count_epochs(top, max(run.planned, last.epoch + 1))
        top.set_xlabel("")
        hide_x(top)
        ends = [(last.loss, f"train {last.loss:.2g}", LIGHT["ink"])]
        label_ends(top, [*ends, (last.test_loss, f"test {last.test_loss:.2g}", LIGHT["series-3"])])
        low = add_panel(figure, "learning rate", left=36, right=66, top=228, height=58)
        shade(low, phases)
        low.plot(epoch_ends(rows), rates, color=LIGHT["muted"], drawstyle="steps-pre", linewidth=1.5)
        set_log_if_wide(low, rates)
        label = "epochs trained (shaded: compressed)" if any(p.kind == "sparse" for p in phases) else "epochs trained"
        count_epochs(low, max(run.planned, last.epoch + 1), label=label)
        return figure

    alt = f"Loss over the epochs on training batches and test images, and the learning rate: {max(rates):g} at most, "
    return Chart("loss", title, f"{alt}{rates[-1]:g} in the last epoch.", draw)


def inactive(run: Run) -> Chart | None:
    """Draw the zeros in dense phases: weights pruned before whose gradient has been 0 since; None if there are none."""
    phases = [phase for phase in facts.phases(run)[1:] if phase.kind == "dense"]
    if not phases:
        return None
    rows = [row for row in run.stage(run.main) if row.kind == "dense" and row.epoch >= phases[0].first]
    ends = [phase for phase in phases if phase.end]
    dead = {p.last + 1: 100 * sum(p.end.dead_filters.values()) / sum(p.end.filters.values()) for p in ends if p.end}
    if facts.every_weight_returned(run):  # the table of phases says this
        return None
    last = phases[-1]
    title = f"{fmt.short_percent(last.sparsity)} of the weights stay zero through the last dense phase"
    if last.sparsity == 0:
        title = "Every weight comes back to life in the last dense phase"
    if dead:
        share = dead[max(dead)]
        title += f"; {fmt.short_percent(share / 100)} of the filters are dead" if share else "; no filter is dead"

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 290)
        axes = add_panel(figure, "share (%)", left=36, right=96, top=24, height=218)
        shade(axes, facts.phases(run))
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            axes.plot(epoch_ends(part), [100 * row.sparsity for row in part], color=LIGHT["dense"], marker=".")
        axes.plot(list(dead), list(dead.values()), "D", color=LIGHT["series-3"], markersize=6, zorder=4)
        highest = max([100 * row.sparsity for row in rows] + list(dead.values()))
        axes.set_ylim(-0.02 * highest, 1.12 * highest)
        count_epochs(axes, max(run.planned, last.last + 1), label="epochs trained (shaded: compressed)")
        labels = [(100 * last.sparsity, "zero weights", LIGHT["dense"])]
        if dead:
            labels.append((dead[max(dead)], "dead filters", LIGHT["series-3"]))
        label_ends(axes, labels)
        return figure

    zeros = "; ".join(f"epoch {phase.last + 1}, {fmt.short_percent(phase.sparsity)} zero" for phase in phases)
    alt = (
        "Share of weights that are zero in each epoch of the dense phases, and of output channels with no weight left "
        f"at their ends: {zeros}."
    )
    return Chart("inactive", title, alt, draw)


def flops(run: Run) -> Chart | None:
    """Draw inference FLOPs over the epochs, and training FLOPs so far, by the rule on the method's card."""
    rows, phases, dense = run.stage(run.main), facts.phases(run), facts.dense_flops(run)
    if not any(phase.kind == "sparse" for phase in phases):
        return None
    images = run.config.data.train or 1
    each = [flops * images for flops in facts.training_flops(run, rows)]
    spent = list(accumulate(each))
    usual = 3 * dense * images
    share, final = spent[-1] / (usual * len(rows)), rows[-1].flops / dense
    sparse = [row for row in rows if row.kind == "sparse"][-1].flops / dense
    title = f"The sparse model runs with {fmt.times(sparse)} of the dense FLOPs and was trained with {fmt.times(share)}"

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 330)
        top = add_panel(figure, "inference FLOPs (fraction of dense)", left=36, right=86, top=24, height=100)
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            edges = [*(row.epoch for row in part), part[-1].epoch + 1]
            values = [row.flops / dense for row in part]
            top.stairs(values, edges, fill=True, color=LIGHT[phase.kind], linewidth=0, alpha=0.85)
        top.set_ylim(0, 1.05)
        top.set_yticks([0, 0.5, 1])
        count_epochs(top, max(run.planned, len(rows)))
        top.set_xlabel("")
        hide_x(top)
        ends = [(rows[-1].flops / dense, f"{final:.2f}x", LIGHT[rows[-1].kind])]
        label_ends(top, ends)
        factor, unit = fmt.si_prefix(usual * len(rows))
        label = f"training FLOPs so far ({unit}FLOPs, whole run)"
        low = add_panel(figure, label, left=36, right=86, top=158, height=130)
        shade(low, phases)
        x = epoch_ends(rows)
        low.plot(
            x, [usual * epoch / factor for epoch in x], color=LIGHT["baseline"], linestyle=(0, (4, 2)), linewidth=1.3
        )
        low.plot(x, [value / factor for value in spent], color=LIGHT["ink"])
        low.set_ylim(0, 1.06 * usual * len(rows) / factor)
        count_epochs(low, max(run.planned, len(rows)), label="epochs trained (shaded: compressed)")
        total = usual * x[-1] / factor
        ends = [(spent[-1] / factor, f"this run {share:.2f}x", LIGHT["ink"]), (total, "dense 1.00x", LIGHT["baseline"])]
        label_ends(low, ends)
        return figure

    alt = (
        f"Inference FLOPs per image over the epochs, dense {fmt.si(dense, 'FLOPs')}; training FLOPs so far reach "
        f"{fmt.si(spent[-1], 'FLOPs')} against {fmt.si(usual * len(rows), 'FLOPs')} for dense training "
        "(3 F in compressed phases, 2 F plus the dense F in dense ones)."
    )
    return Chart("flops", title, alt, draw)


def memorization(run: Run) -> Chart | None:
    """Draw the fate of training images with a random label, unaugmented: memorised, or assigned to their true class."""
    rows = [row for row in run.stage(run.main) if row.memorization]
    if not rows:
        return None
    last = {row.kind: row.memorization or {} for row in rows}
    shares = {kind: fmt.short_percent(measured["memorised"]) for kind, measured in last.items()}
    if len(shares) == 2:
        title = f"Dense phases memorise {shares['dense']} of the random labels, compressed ones {shares['sparse']}"
    else:
        title = f"Training ends with {shares[rows[-1].kind]} of the random labels memorised"
    phases, base = facts.phases(run), [row for row in run.stage("dense") if row.memorization]
    others = base if run.main != "dense" else []

    def draw(narrow: bool) -> Figure:
        figure = new_figure(HALF, 290)
        label = "training images with a random label (%)"
        axes = add_panel(figure, label, left=36, right=84, top=24, height=218)
        shade(axes, phases)
        ends = []
        for key, name, colour in _MEMORIZATION:
            values = [100 * (row.memorization or {})[key] for row in rows]
            axes.plot(epoch_ends(rows), values, color=LIGHT[colour], linewidth=1.6)
            dense = [100 * (row.memorization or {})[key] for row in others]
            axes.plot(epoch_ends(others), dense, color=LIGHT[colour], linewidth=1, linestyle=(0, (4, 2)), alpha=0.7)
            ends.append((values[-1], name, LIGHT[colour]))
        axes.set_ylim(0, 100)
        dashed = "; dashed: baseline" if others else ""
        count_epochs(axes, max(run.planned, rows[-1].epoch + 1), label=f"epochs trained (shaded: compressed{dashed})")
        label_ends(axes, ends)
        return figure

    alt = "Shares of the training images with a random label over the epochs, without augmentation. " + "; ".join(
        f"the last {'compressed' if kind == 'sparse' else 'dense'} epoch: "
        f"{fmt.short_percent(measured['memorised'])} given their random label, "
        f"{fmt.short_percent(measured['true'])} their true class"
        for kind, measured in last.items()
    )
    return Chart("memorization", title, f"{alt}.", draw)
