"""The tables of kept runs on text, for docs/language.md and results/README.md."""

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from acdc.formatting import fixed, mean_std, si, times
from acdc.report import facts
from acdc.report.facts import Model
from acdc.report.read import Run
from benchmarks import keeping, language_spikes
from benchmarks.language_groups import (
    Entry,
    Experiment,
    language_of,
    parameters,
    recipe_of,
    row_length,
    steps_of,
    tokens_of,
)
from benchmarks.language_runs import place_of, read_all

Table = tuple[str, list[str], list[list[str]], str]
NOTHING = "Not measured yet.\n"
INTRO = """
## Language models

Runs of `acdc train` on text, kept in [language](language) with their settings, every epoch's metrics and the log by
`python -m benchmarks.language_runs`; [what they are](../docs/language.md).
"""
_SCORES: dict[str, tuple[Callable[[Model], float | None], int]] = {  # by column, with the digits shown
    "test perplexity": (lambda model: language_of(model).test.perplexity, 2),
    "validation perplexity": (lambda model: language_of(model).validation.perplexity, 2),
    "perplexity per word": (lambda model: language_of(model).test.word_perplexity, 2),
    "bits per byte": (lambda model: language_of(model).test.bits_per_byte, 3),
}
_ALT = {
    "loss": "Training loss around the transitions of AC/DC",
    "parameters": "Test score against non-zero parameters, a mark for each setting",
}
_TWINS = {"twin": "↳ its dense twin", "finetuned": "↳ its dense twin, fine-tuned", "baseline": "↳ its dense baseline"}


# Pages


def blocks(results: Path, page: Path, markdown: Callable[[Table], str]) -> dict[str, str]:
    """Return what stands between the markers of docs/language.md: perplexities, and losses around transitions.

    Recipes without dense training to compare with have the latter alone, in a place of their own.
    """
    scores, transitions, alone = [], [], []
    for experiment in read_all(results):
        if experiment.dense:
            scores += [markdown(perplexities(experiment)), figure("parameters", experiment, results, page)]
        if table := language_spikes.table(experiment):
            target = transitions if experiment.dense else alone
            target += [markdown(table), figure("loss", experiment, results, page)]
    found = {"language": scores, "language-transitions": transitions, "language-alone": alone}
    return {name: "".join(texts) or NOTHING for name, texts in found.items()}


def section(results: Path, markdown: Callable[[Table], str]) -> str:
    """Return the section of results/README.md; "" if nothing is kept."""
    found = read_all(results)
    tables = [table for one in found for table in (perplexities(one), language_spikes.table(one)) if table]
    return INTRO + "".join(map(markdown, tables)) if found else ""


def figure(name: str, experiment: Experiment, results: Path, page: Path) -> str:
    """Return a kept figure as Markdown for a page; "" if there is none."""
    path = place_of(experiment.name, results) / f"{name}.svg"
    beside = ", beside that of dense training" if name == "loss" and experiment.dense else ""
    return f"\n![{_ALT[name]}{beside}]({os.path.relpath(path, page.parent)})\n" if path.is_file() else ""


# Tables


def perplexities(experiment: Experiment) -> Table:
    """Return the table of an experiment's models, with AC/DC's twins below their sparse models."""
    lines = [(entry, role, label) for entry in experiment.entries for role, label in _models(entry)]
    shown = {
        name: score
        for name, score in _SCORES.items()
        if any(entry.group.values(role, score[0]) for entry, role, _ in lines)
    }
    header = [
        "model",
        "n",
        *shown,
        "non-zero parameters",
        "on average in training",
        "training FLOPs",
        "perplexity / dense",
    ]
    cells = []
    for entry, role, label in lines:
        scores = [_score(entry.group.values(role, of), digits) for of, digits in shown.values()]
        counts = [
            entry.group.values(role, lambda model: language_of(model).parameters),
            entry.group.values(role, lambda model: language_of(model).average_parameters),
        ]
        cells.append(
            [
                label,
                str(len(entry.group.models(role))),
                *scores,
                *(parameters(statistics.fmean(values)) if values else "–" for values in counts),
                _cost(experiment.dense, entry, role),
                _ratio(experiment.dense, entry, role),
            ]
        )
    return experiment.title, header, cells, _note(experiment)


def _score(values: Sequence[float], digits: int) -> str:
    """Return mean ± standard deviation, without digits that say nothing beside thousands."""
    return mean_std(values, scale=1, digits=0 if values and statistics.fmean(values) >= 1000 else digits)


def _models(entry: Entry) -> list[tuple[str, str]]:
    """Return the roles of an entry's models that have a row, with their labels."""
    rows = [(entry.group.main, entry.label)]
    for role, label in _TWINS.items():
        begun = role == "twin" and entry.group.method != "acdc"  # other methods' is only what they began to prune
        if not (entry.group.is_dense or begun) and entry.group.models(role):
            rows.append((role, label))
    return rows


def _cost(dense: Entry | None, entry: Entry, role: str) -> str:
    """Return the FLOPs that trained these models, as a fraction of those that trained the dense ones of full size."""
    if dense is None:
        return "–"
    whole = statistics.fmean(map(_dense_flops, dense.group.runs))
    shares = [
        model.training * _dense_flops(one) / whole
        for one in entry.group.runs
        if (model := facts.model_of(one, role)) and model.training is not None
    ]
    return times(statistics.fmean(shares)) if shares else "–"


def _dense_flops(run: Run) -> float:
    """Return the FLOPs of forward passes of a run's model, without zeros, over all tokens of its main stage."""
    return facts.dense_flops(run) * tokens_of(run)


def _ratio(dense: Entry | None, entry: Entry, role: str) -> str:
    """Return the mean test perplexity of these models over the mean of the dense ones of full size."""
    ours = entry.group.scores(role)
    return fixed(statistics.fmean(ours) / statistics.fmean(dense.group.scores()), 3) if dense and ours else "–"


# Notes


def _note(experiment: Experiment) -> str:
    kept = experiment.runs
    first = "the first row's: dense training at full size" if experiment.dense else "dense training, not measured yet"
    settings = ", ".join(f"`{one}`" for one in experiment.shared)
    shared = f" All with {settings}, unless the row says otherwise." if settings else ""
    return (
        "Of the last step's models, mean ± standard deviation over n seeds; perplexity per word and bits per byte are "
        "those of the test part. FLOPs are theoretical, including those that fine-tuned a twin; they and the last "
        f"column are fractions of {first}. {_names(recipe_of(one).train.precision for one in kept)}; batches of "
        f"{_names(f'{recipe_of(one).train.batch_size:,} × {row_length(one):,}' for one in kept)} tokens; "
        f"{_numbers(map(steps_of, kept))} steps, {_names(si(tokens_of(one)) for one in kept)} tokens, of "
        f"{_names(si(one.config.data.train or 0) for one in kept)} in the training part; seeds: "
        f"{_numbers(one.seed for one in kept if one.seed is not None)}.{shared} {_place(kept)}"
    )


def _place(kept: Sequence[Run]) -> str:
    """Return hardware, versions, commits and date of runs."""
    return keeping.place(
        {
            "hardware": sorted({str(one.config.hardware.get("gpu") or one.config.hardware.get("cpu")) for one in kept}),
            "torch": sorted({one.config.versions.get("torch", "?") for one in kept}),
            "commit": _names(one.config.commit or "an unknown commit" for one in kept),
            "started": min(one.config.started or "?" for one in kept)[:10],
        }
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted({*names}))


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in sorted({*numbers}))
