"""Text tables of one run: the page and Markdown show the same cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acdc import formatting as fmt
from acdc.report import deployment, facts
from acdc.report.facts import Model
from acdc.report.pair_agreement import Pair, caveat
from acdc.report.read import Run
from acdc.runs.quality import PERPLEXITY


@dataclass(frozen=True)
class Table:
    """A table: cells of text under a header."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text: int = 1  # columns of words; the others hold numbers
    sortable: bool = False


def models(run: Run) -> Table:
    """List the models of a run: accuracy or perplexity, zeros, costs, size, and the paper's result."""
    quality, all_models = run.quality, facts.models(run)
    text = any(model.language for model in all_models)
    header = [
        "model",
        quality.name,
        "test loss",
        "best epoch",
        "zeros",
        "paper’s count",
        "inference FLOPs",
        "of dense",
    ]
    header += ["training FLOPs", "size", "packed", *(_TEXT_HEADER if text else ()), "paper"]
    rows = [
        [
            model.title,
            quality.shown(model.score, 2),
            f"{model.loss:.4f}",
            _best(run, model),
            fmt.percent(model.sparsity, 2),
            or_dash(model.reported_sparsity, lambda value: fmt.percent(value, 2)),
            fmt.si(model.flops),
            fmt.times(model.ratio),
            or_dash(model.training, fmt.times),
            or_dash(model.dense_bytes, lambda value: fmt.si(value, "B")),
            or_dash(model.sparse_bytes, lambda value: fmt.si(value, "B")),
            *(_text_cells(model) if text else ()),
            model.paper or "–",
        ]
        for model in all_models
    ]
    chosen = {model.best.chosen_on for model in facts.models(run) if model.best}
    note = (
        f"FLOPs are theoretical: by non-zero weights of convolutions and linear layers, per {quality.unit}; training "
        "FLOPs by "
        f"the rule on the method’s card (AC/DC’s is the paper’s), as a fraction of {run.planned} dense epochs. "
        "“Paper’s count” of zeros has normalisation parameters in the denominator. Packed: the bytes of the file that "
        "acdc.export.save_sparse writes; where there is none, about 4 per non-zero weight and half a bit per position."
    )
    if text:
        note += f" {_TEXT_NOTE}"
    if chosen:
        twin = " (of the dense phases for the twin)" if (model := facts.model_of(run, "twin")) and model.best else ""
        phases = "all compressed phases" if run.recipe and run.recipe.run.best == "compressed" else "the final phase"
        there = ", with its value there" if quality is PERPLEXITY else ""
        note += f" Best epoch: of {phases}{twin}, chosen on the {' and '.join(sorted(chosen))} set{there}."
    return Table("models", "Models", header, rows, note)


def sizes(run: Run) -> Table | None:
    """List the bytes of the sparse model and of everything that was exported."""
    files = deployment.files(run)
    dense = next((file.bytes for file in files if file.name == deployment.UNPACKED), None)
    rows = [
        [file.name, file.what, fmt.si(file.bytes, "B"), or_dash(dense, lambda whole, file=file: _share(file, whole))]
        for file in files
    ]
    note = "Sizes of files, apart from the first: the bytes of its tensors."
    return Table("sizes", "Size", ["file", "what", "bytes", "of dense"], rows, note, text=2) if rows else None


def _share(file: deployment.ModelFile, whole: int) -> str:
    return f"{file.bytes / whole:.3f}x"


def speed(run: Run) -> Table | None:
    """List how fast engines ran the exported models, where `acdc bench` has measured them."""
    rows, notes = [], []
    for table in run.speed.models:
        for row in table.rows:
            if row.ms is None:
                notes.append(f"{row.engine} could not run {table.model}: {row.problem}.")
                continue
            times = f"{row.ms:.3g}"
            if row.ms_q1 is not None and row.ms_q3 is not None:
                times += f" ({row.ms_q1:.3g}–{row.ms_q3:.3g})"
            ratio = or_dash(row.ratio, lambda value: f"{value:.2f}x")
            if row.ratio is not None and row.ratio_q1 is not None and row.ratio_q3 is not None:
                ratio += f" ({row.ratio_q1:.2f}–{row.ratio_q3:.2f})"
            apart = or_dash(row.difference, lambda value: f"{value:.1e}")
            rows.append([table.model, row.engine, str(row.batch), str(row.threads), times, ratio, apart, str(row.n)])
    if not rows:
        return None
    where = dict.fromkeys(f"{t.cpu}, {t.cores} cores, load {t.load:g} before, {t.run}" for t in run.speed.models)
    note = (
        f"Measured by acdc bench in turns ({'; '.join(where)}): medians with quartiles. Speed is relative to ONNX "
        "Runtime on the same file; outputs are compared with its, over their largest value. "
        f"{' '.join(dict.fromkeys(notes))}"
    ).rstrip()
    header = ["model", "engine", "batch", "threads", "ms", "speed", "output differs", "rounds"]
    return Table("speed", "Measured speed", header, rows, note, text=2)


def paper(run: Run) -> Table | None:
    """Compare a run with the paper's values, if the paper has such a run."""
    compared = facts.paper_rows(run)
    if not compared:
        return None
    rows = [
        [
            what,
            fmt.fixed(ours, 2),
            f"{theirs:g}" + (f" ± {std:g}" if std else ""),
            f"{ours - theirs:+.2f}".replace("-", "−"),
        ]
        for what, ours, theirs, std in compared
    ]
    note = "Paper: Peste et al., AC/DC, NeurIPS 2021, mean over its seeds if a ± is given; it reports the best epoch."
    if remark := facts.paper_note(run):
        note += f" On this row: {remark}."
    return Table("paper", "Compared with the paper", ["", "this run", "paper", "difference"], rows, note)


def phases(run: Run) -> Table:
    """List the phases of the main stage: accuracy or perplexity, zeros, FLOPs and how the mask changed."""
    quality = run.quality
    header = ["phase", "epochs", f"{quality.name} at its end", "best", "zeros", "inference FLOPs", "of dense"]
    header += ["changed, of all", "new, of kept", "explored", "dead filters", "time"]
    dense, rows = facts.dense_flops(run), []
    for phase in facts.phases(run):
        end = phase.end
        dead = f"{sum(end.dead_filters.values()):,} of {sum(end.filters.values()):,}" if end else "–"
        rows.append(
            [
                phase.name,
                f"{phase.first + 1}–{phase.last + 1}",
                quality.shown(phase.score, 2),
                quality.shown(phase.best, 2),
                fmt.percent(phase.sparsity, 2),
                fmt.si(phase.flops),
                fmt.times(phase.flops / dense),
                or_dash(end and end.mask_change, lambda value: f"{value:.2f} %"),
                or_dash(end and end.regrown, lambda value: fmt.percent(value, 2)),
                or_dash(end and end.explored, lambda value: fmt.percent(value, 1)),
                dead,
                fmt.duration(phase.seconds),
            ]
        )
    note = "Changed: positions in which this mask differs from the previous one, as a share of all prunable weights. "
    note += "New: kept weights that the previous mask had pruned. Explored: kept by any mask so far."
    if facts.every_weight_returned(run):
        note += " Every weight came back to life in the dense phases after the first, and no filter died."
    return Table("phases", "Phases", header, rows, note)


def agreement(pairs: Sequence[Pair]) -> Table | None:
    """List how far the models of a run agree."""
    if not pairs:
        return None
    rows = [[f"{p.a} and {p.b}", fmt.percent(p.top1, 2), f"{p.ab:.4f}", f"{p.ba:.4f}", f"{p.samples:,}"] for p in pairs]
    header = ["models", "same class", "cross-entropy a→b", "cross-entropy b→a", "test images"]
    note = "Cross-entropy a→b is the mean of −Σ p_a · log p_b, in nats, with a the model named first. Two models with "
    note += "the same predictions have the entropy of those predictions, not 0."
    note += f" {caveat(source for pair in pairs for source in pair.sources)}".rstrip()
    return Table("agreement", "Agreement", header, rows, note)


def settings(run: Run) -> Table:
    """List the settings of the recipe."""
    flat = flatten({key: value for key, value in run.config.recipe.settings.items() if key != "paper"})
    return Table("settings", "Settings of the recipe", ["setting", "value"], [[k, v] for k, v in flat.items()], text=2)


def environment(run: Run) -> Table:
    """List hardware, versions and measured times."""
    rows = [[key, str(value)] for key, value in facts.environment(run).items()]
    names = {"sparse": "compressed", "dense": "dense"}
    times = [f"{fmt.duration(seconds)} ({names[kind]})" for kind, seconds in facts.epoch_seconds(run).items()]
    rows.append(["measured time of an epoch", ", ".join(times) + ", median, including evaluation"])
    if (speed := facts.tokens_per_second(run)) is not None:
        rows.append(["measured tokens per second", f"{fmt.si(speed)} in training, median over epochs"])
    if run.result and run.result.seconds is not None:
        rows.append(["whole run", fmt.duration(run.result.seconds)])
    return Table("environment", "Environment", ["", "value"], rows, text=2)


def flatten(value: Mapping[str, Any], name: str = "") -> dict[str, str]:
    """Return nested settings as text by dotted names, omitting those that are not set."""
    flat: dict[str, str] = {}
    for key, part in value.items():
        full = f"{name}.{key}" if name else str(key)
        if isinstance(part, Mapping):
            flat |= flatten(part, full)
        elif part is not None and part != []:
            flat[full] = ", ".join(map(str, part)) if isinstance(part, list | tuple) else str(part)
    return flat


def _best(run: Run, model: Model) -> str:
    best, quality = model.best, run.quality
    return f"{quality.shown(quality.best(best), 2)} (epoch {best.epoch + 1})" if best else "–"


_TEXT_HEADER = ("bits per byte", "perplexity per word", "validation perplexity", "parameters", "average in training")
_TEXT_NOTE = (
    "Perplexity is per token of this vocabulary; bits per byte and perplexity per word compare models with different "
    "ones. Parameters that are not 0, and their mean over the epochs that trained the model."
)


def _text_cells(model: Model) -> list[str]:
    own = model.language
    if own is None:
        return ["–"] * len(_TEXT_HEADER)
    return [
        or_dash(own.test.bits_per_byte, lambda value: f"{value:.4f}"),
        or_dash(own.test.word_perplexity, PERPLEXITY.text),
        fmt.fixed(own.validation.perplexity, 2),
        fmt.si(own.parameters),
        or_dash(own.average_parameters, fmt.si),
    ]


def or_dash(value: Any, form: Callable[[Any], str]) -> str:
    """Return the value as text, or a dash if there is none."""
    return "–" if value is None else form(value)
