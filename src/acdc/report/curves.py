"""Figures over the epochs of one run: the AC/DC signature, the loss and the learning rate, weights that stay zero."""

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.read import Run
from acdc.report.theme import LIGHT, Chart

_TITLES = {"baseline": "dense baseline", "finetuned": "twin, fine-tuned"}


def name(run: Run) -> str:
    """The page's title: what was trained, and what came out."""
    best, model, data = facts.headline(run), run.config.recipe.model.name, run.config.data_name
    if best.role != "sparse":
        return f"{model} on {data}: dense, {words.percent(best.accuracy)}"
    return (
        f"{model} on {data}: {words.share(best.sparsity)} sparse at {words.percent(best.accuracy)}, "
        f"with {words.times(best.ratio)} of the dense FLOPs"
    )


def headline(run: Run) -> str:
    """The run's finding in one sentence."""
    best = facts.headline(run)
    so_far = "" if run.result is not None else f" so far (epoch {run.stage(run.main)[-1].epoch + 1})"
    if best.role != "sparse":
        return f"Dense training {'ends' if not so_far else 'stands'} at {words.percent(best.accuracy)}{so_far}"
    other, sparsity = facts.rival(run), words.share(best.sparsity)
    if other is None:
        return f"{sparsity} sparse reaches {words.percent(best.accuracy)}{so_far}"
    noun, doubt = facts.NOUNS[other.role], words.doubt([best.accuracy], [other.accuracy], run.images)
    tell = f"one seed and {run.images:,} images" if run.images else ""
    gap = words.gap(best.accuracy, other.accuracy, noun, doubt=doubt, tell=tell)
    return (
        f"{sparsity} sparse {'ends' if not so_far else 'stands'} {gap}{so_far}: "
        f"{words.percent(best.accuracy)} against {words.percent(other.accuracy)}"
    )


def signature(run: Run) -> Chart:
    rows, phases = run.stage(run.main), facts.phases(run)
    others = {"baseline": run.stage("dense") if run.main != "dense" else [], "finetuned": run.stage("finetune")}
    last = max(run.planned, rows[-1].epoch + 1)
    images = run.images
    sparse = [phase for phase in phases if phase.kind == "sparse"]

    def draw(narrow: bool) -> Figure:
        width, right = (plot.NARROW, 74) if narrow else (plot.WIDE, 150)
        figure = plot.new(width, 380 if narrow else 440)
        height = 210 if narrow else 262
        top = plot.panel(figure, "test accuracy (%)", left=34, right=right, top=24, height=height)
        accuracies = [row.test_accuracy for part in (rows, *others.values()) for row in part]
        scale = plot.accuracy_scale(top, accuracies, images)
        plot.shade(top, phases)
        plot.by_kind(top, rows, phases, lambda row: scale(row.test_accuracy))
        for role, part in others.items():
            style = {"linewidth": 1.3, "linestyle": (0, (4, 2))} if role == "baseline" else {}
            heights = [scale(row.test_accuracy) for row in part]
            top.plot(plot.after(part), heights, color=LIGHT[role], zorder=2, **style)
        plot.epochs(top, last)
        top.set_xlabel("")
        plot.bare(top)
        ends = [
            (scale(part[-1].test_accuracy), _end(role, part[-1].test_accuracy, narrow), LIGHT[role])
            for role, part in others.items()
            if part
        ]
        for kind, word in (("sparse", "sparse"), ("dense", "dense twin")):
            part = [row for row in rows if row.kind == kind]
            if part:
                point, height = part[-1], scale(part[-1].test_accuracy)
                dense = run.main == "dense"
                text = _end("dense" if dense else word, point.test_accuracy, narrow)
                top.plot([point.epoch + 1], [height], "o", color=LIGHT[kind], markersize=5, clip_on=False, zorder=4)
                ends.append((height, text, LIGHT[kind]))
        plot.label_ends(top, ends)
        low = plot.panel(figure, "sparsity (%)", left=34, right=right, top=264 if narrow else 318, height=70)
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            edges = [*(row.epoch for row in part), part[-1].epoch + 1]
            values = [100 * row.sparsity for row in part]
            low.stairs(values, edges, fill=True, color=LIGHT[phase.kind], linewidth=0)
        low.set_ylim(0, 100)
        low.set_yticks([0, 50, 100])
        short = plot.name_phases(low, phases, 50, on_fill=True) if run.main != "dense" else ""
        plot.epochs(low, last, label="epochs trained" + (f" ({short})" if short else ""))
        return figure

    alt = (
        f"Test accuracy and sparsity over {last} epochs; compressed phases are shaded. "
        + "; ".join(
            f"{phase.name}, epochs {phase.first + 1} to {phase.last + 1}, ends at {words.percent(phase.accuracy)} "
            f"with {words.share(phase.sparsity)} zeros"
            for phase in phases
        )
        + "."
    )
    title = headline(run) if sparse else f"{headline(run)} after {len(rows)} epochs"
    return Chart("signature", title, alt, draw, wide=True)


def _end(word: str, accuracy: float, narrow: bool) -> str:
    word = _TITLES.get(word, word)
    if narrow:
        word = {"dense baseline": "base", "twin, fine-tuned": "tuned", "dense twin": "twin"}.get(word, word)
    return f"{word} {words.fixed(100 * accuracy)}"


def loss(run: Run) -> Chart:
    rows, phases = run.stage(run.main), facts.phases(run)
    last, lowest = rows[-1], min(rows, key=lambda row: row.test_loss)
    where = f"lowest {lowest.test_loss:.3g} after epoch {lowest.epoch + 1}"
    title = f"Training loss ends at {last.loss:.3g}, test loss at {last.test_loss:.3g} ({where})"
    rates = [row.lr for row in rows]

    def draw(narrow: bool) -> Figure:
        figure = plot.new(plot.HALF, 330)
        top = plot.panel(figure, "loss (nats per image)", left=36, right=66, top=24, height=176)
        plot.shade(top, phases)
        losses = [row.loss for row in rows], [row.test_loss for row in rows]
        for values, colour in zip(losses, ("ink", "series-3"), strict=True):
            top.plot(plot.after(rows), values, color=LIGHT[colour], linewidth=1.5)
        plot.log_if_wide(top, [value for values in losses for value in values])
        plot.epochs(top, max(run.planned, last.epoch + 1))
        top.set_xlabel("")
        plot.bare(top)
        ends = [(last.loss, f"train {last.loss:.2g}", LIGHT["ink"])]
        plot.label_ends(top, [*ends, (last.test_loss, f"test {last.test_loss:.2g}", LIGHT["series-3"])])
        low = plot.panel(figure, "learning rate", left=36, right=66, top=228, height=58)
        plot.shade(low, phases)
        low.plot(plot.after(rows), rates, color=LIGHT["muted"], drawstyle="steps-pre", linewidth=1.5)
        plot.log_if_wide(low, rates)
        label = "epochs trained (shaded: compressed)" if any(p.kind == "sparse" for p in phases) else "epochs trained"
        plot.epochs(low, max(run.planned, last.epoch + 1), label=label)
        return figure

    alt = f"Loss over the epochs on training batches and test images, and the learning rate: {max(rates):g} at most, "
    return Chart("loss", title, f"{alt}{rates[-1]:g} in the last epoch.", draw)


def all_alive(run: Run) -> bool:
    """Whether dense phases after the first left no weight at zero, and no filter without one."""
    phases = [phase for phase in facts.phases(run)[1:] if phase.kind == "dense"]
    rows = [row for row in run.stage(run.main) if row.kind == "dense" and phases and row.epoch >= phases[0].first]
    dead = any(any(phase.end.dead_filters.values()) for phase in phases if phase.end)
    return bool(phases) and not dead and not any(row.sparsity for row in rows)


def inactive(run: Run) -> Chart | None:
    """Zeros in dense phases: weights pruned before that never moved since (their gradient is 0). None without any."""
    phases = [phase for phase in facts.phases(run)[1:] if phase.kind == "dense"]
    if not phases:
        return None
    rows = [row for row in run.stage(run.main) if row.kind == "dense" and row.epoch >= phases[0].first]
    ends = [phase for phase in phases if phase.end]
    dead = {p.last + 1: 100 * sum(p.end.dead_filters.values()) / sum(p.end.filters.values()) for p in ends if p.end}
    if all_alive(run):  # the table of phases says so
        return None
    last = phases[-1]
    title = f"{words.share(last.sparsity)} of the weights stay zero through the last dense phase"
    if last.sparsity == 0:
        title = "Every weight comes back to life in the last dense phase"
    if dead:
        share = dead[max(dead)]
        title += f"; {words.share(share / 100)} of the filters are dead" if share else "; no filter is dead"

    def draw(narrow: bool) -> Figure:
        figure = plot.new(plot.HALF, 290)
        axes = plot.panel(figure, "share (%)", left=36, right=96, top=24, height=218)
        plot.shade(axes, facts.phases(run))
        for phase in phases:
            part = [row for row in rows if phase.first <= row.epoch <= phase.last]
            axes.plot(plot.after(part), [100 * row.sparsity for row in part], color=LIGHT["dense"], marker=".")
        axes.plot(list(dead), list(dead.values()), "D", color=LIGHT["series-3"], markersize=6, zorder=4)
        highest = max([100 * row.sparsity for row in rows] + list(dead.values()))
        axes.set_ylim(-0.02 * highest, 1.12 * highest)
        plot.epochs(axes, max(run.planned, last.last + 1), label="epochs trained (shaded: compressed)")
        labels = [(100 * last.sparsity, "zero weights", LIGHT["dense"])]
        if dead:
            labels.append((dead[max(dead)], "dead filters", LIGHT["series-3"]))
        plot.label_ends(axes, labels)
        return figure

    alt = (
        "Share of weights that are zero in each epoch of the dense phases, and of output channels with no weight left "
    )
    alt += "at their ends: " + "; ".join(f"epoch {p.last + 1}, {words.share(p.sparsity)} zero" for p in phases) + "."
    return Chart("inactive", title, alt, draw)
