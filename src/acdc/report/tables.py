"""The tables of a report, as text: the page, Markdown and the tests read the same cells."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acdc.report import curves, facts, place, words
from acdc.report.facts import Model
from acdc.report.pairs import Pair, unchecked
from acdc.report.read import Run
from acdc.report.several import Group


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text: int = 1  # columns of words; the others hold numbers
    sortable: bool = False


def models(run: Run) -> Table:
    header = [
        "model",
        "test accuracy",
        "test loss",
        "best epoch",
        "zeros",
        "paper’s count",
        "inference FLOPs",
        "of dense",
    ]
    header += ["training FLOPs", "size", "as sparse", "paper"]
    rows = [
        [
            model.title,
            words.percent(model.accuracy, 2),
            f"{model.loss:.4f}",
            _best(model),
            words.percent(model.sparsity, 2),
            _or_dash(model.reported_sparsity, lambda value: words.percent(value, 2)),
            words.si(model.flops),
            words.times(model.ratio),
            _or_dash(model.training, words.times),
            _or_dash(model.dense_bytes, lambda value: words.si(value, "B")),
            _or_dash(model.sparse_bytes, lambda value: words.si(value, "B")),
            model.paper or "–",
        ]
        for model in facts.models(run)
    ]
    chosen = {model.best.chosen_on for model in facts.models(run) if model.best}
    note = (
        "FLOPs are theory: by non-zero weights of convolutions and linear layers, per image; training FLOPs by the "
        f"rule of the method’s card (AC/DC’s: the paper’s), as a fraction of {run.planned} dense epochs. “Paper’s "
        "count” of zeros has normalisation parameters in the denominator. As sparse: 4 bytes for each non-zero weight "
        "and a bit for every place."
    )
    if chosen:
        twin = " (of the dense phases for the twin)" if (kept := facts.of_role(run, "twin")) and kept.best else ""
        note += f" Best epoch of the final phase{twin}, chosen on the {' and '.join(sorted(chosen))} set."
    return Table("models", "Models", header, rows, note)


def paper(run: Run) -> Table | None:
    found = facts.paper_rows(run)
    if not found:
        return None
    rows = [
        [
            what,
            words.fixed(ours, 2),
            f"{theirs:g}" + (f" ± {std:g}" if std else ""),
            f"{ours - theirs:+.2f}".replace("-", "−"),
        ]
        for what, ours, theirs, std in found
    ]
    note = (
        "Paper: Peste et al., AC/DC, NeurIPS 2021, mean over its seeds where a ± is given; it reports the best epoch."
    )
    if said := facts.paper_note(run):
        note += f" On this row: {said}."
    return Table("paper", "Beside the paper", ["", "this run", "paper", "difference"], rows, note)


def phases(run: Run) -> Table:
    header = ["phase", "epochs", "test accuracy at its end", "best", "zeros", "inference FLOPs", "of dense"]
    header += ["changed, of all", "new, of kept", "explored", "dead filters", "time"]
    dense, rows = facts.dense_flops(run), []
    for phase in facts.phases(run):
        end = phase.end
        dead = f"{sum(end.dead_filters.values()):,} of {sum(end.filters.values()):,}" if end else "–"
        rows.append(
            [
                phase.name,
                f"{phase.first + 1}–{phase.last + 1}",
                words.percent(phase.accuracy, 2),
                words.percent(phase.best, 2),
                words.percent(phase.sparsity, 2),
                words.si(phase.flops),
                words.times(phase.flops / dense),
                _or_dash(end and end.mask_change, lambda value: f"{value:.2f} %"),
                _or_dash(end and end.regrown, lambda value: words.percent(value, 2)),
                _or_dash(end and end.explored, lambda value: words.percent(value, 1)),
                dead,
                words.duration(phase.seconds),
            ]
        )
    note = "Changed: positions in which this mask differs from the compressed one before, of all prunable weights. "
    note += "New: kept weights that the mask before had pruned. Explored: kept by any mask so far."
    if curves.all_alive(run):
        note += " Every weight came back to life in the dense phases after the first, and no filter died."
    return Table("phases", "Phases", header, rows, note)


def agreement(pairs: Sequence[Pair]) -> Table | None:
    if not pairs:
        return None
    rows = [
        [f"{p.a} and {p.b}", words.percent(p.top1, 2), f"{p.ab:.4f}", f"{p.ba:.4f}", f"{p.samples:,}"] for p in pairs
    ]
    header = ["models", "same class", "cross-entropy a→b", "cross-entropy b→a", "test images"]
    note = "Cross-entropy a→b is the mean of −Σ p_a · log p_b, in nats, with a the model named first. Two models with "
    note += "the same predictions have the entropy of these predictions, not 0."
    note += f" {unchecked(source for pair in pairs for source in pair.sources)}".rstrip()
    return Table("agreement", "Agreement", header, rows, note)


def settings(run: Run) -> Table:
    flat = flatten({key: value for key, value in run.config.recipe.settings.items() if key != "paper"})
    return Table("settings", "Settings of the recipe", ["setting", "value"], [[k, v] for k, v in flat.items()], text=2)


def environment(run: Run) -> Table:
    rows = [[key, str(value)] for key, value in place.environment(run).items()]
    seconds = {"sparse": "compressed", "dense": "dense"}
    timed = [f"{words.duration(value)} ({seconds[kind]})" for kind, value in place.epoch_seconds(run).items()]
    rows.append(["measured time of an epoch", ", ".join(timed) + ", median, evaluation included"])
    if run.result and run.result.seconds is not None:
        rows.append(["whole run", words.duration(run.result.seconds)])
    return Table("environment", "Environment", ["", "value"], rows, text=2)


def flatten(value: Mapping[str, Any], name: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, part in value.items():
        full = f"{name}.{key}" if name else str(key)
        if isinstance(part, Mapping):
            found |= flatten(part, full)
        elif part is not None and part != []:
            found[full] = ", ".join(map(str, part)) if isinstance(part, list | tuple) else str(part)
    return found


def several(groups: Sequence[Group]) -> Table:
    """One line for each setting: mean ± standard deviation over its seeds."""
    header = ["setting", "seeds", "sparse", "dense baseline", "dense twin", "fine-tuned", "zeros", "inference FLOPs"]
    header += ["training FLOPs", "size as sparse", "time"]
    rows = []
    for group in groups:
        main = group.main
        seconds = [run.result.seconds for run in group.runs if run.result and run.result.seconds is not None]
        rows.append(
            [
                group.label,
                str(len(group.runs)),
                *(_accuracy(group, role) for role in ("sparse", "baseline", "twin", "finetuned")),
                _mean(group, main, lambda model: 100 * model.sparsity, "{:.2f} %"),
                _mean(group, main, lambda model: model.ratio, "{:.3f}x"),
                _mean(group, main, lambda model: model.training, "{:.3f}x"),
                _or_dash(_average(group, main, lambda model: model.sparse_bytes), lambda value: words.si(value, "B")),
                words.duration(statistics.fmean(seconds)) if seconds else "–",
            ]
        )
    note = (
        "Test accuracy in %, mean ± standard deviation (n − 1) over seeds, last epoch. FLOPs in theory, as fractions "
        "of the dense model and of a dense run of as many epochs. Click a column to sort by it."
    )
    return Table("several", "All settings", header, rows, note, sortable=True)


def seeds(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        for run in group.runs:
            found = {model.role: model for model in facts.models(run)}
            cells = [words.fixed(100 * found[role].accuracy, 2) if role in found else "–" for role in facts.NOUNS]
            state = "complete" if run.result is not None else f"epoch {run.rows[-1].epoch + 1} of {run.planned}"
            rows.append([group.label, run.name, "–" if run.seed is None else str(run.seed), *cells, state])
    header = ["setting", "run", "seed", "sparse", "dense twin", "fine-tuned", "dense baseline", "state"]
    return Table("seeds", "Every run", header, rows, "Test accuracy in %, last epoch.", text=2, sortable=True)


def _accuracy(group: Group, role: str) -> str:
    return words.spread(group.values(role, lambda model: model.accuracy))


def _average(group: Group, role: str, value: Callable[[Model], float | None]) -> float | None:
    found = group.values(role, value)
    return statistics.fmean(found) if found else None


def _mean(group: Group, role: str, value: Callable[[Model], float | None], form: str) -> str:
    return _or_dash(_average(group, role, value), form.format)


def _best(model: Model) -> str:
    return f"{words.percent(model.best.accuracy, 2)} (epoch {model.best.epoch + 1})" if model.best else "–"


def _or_dash(value: Any, form: Callable[[Any], str]) -> str:
    return "–" if value is None else form(value)
