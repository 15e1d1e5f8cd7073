"""Text tables of several runs: settings, every run, and the methods of a comparison.

The page, Markdown and the console show the same cells.
"""

import statistics
from collections.abc import Callable, Sequence

from acdc import formatting as fmt
from acdc.report import facts
from acdc.report.facts import Model
from acdc.report.groups import Group, settings_of
from acdc.report.pair_agreement import caveat
from acdc.report.standings import Spread, Standing, reference_epochs
from acdc.report.tables import Table, flatten, or_dash

_AGREEMENT = (
    "Top-1 agreement: the share of test images to which two models give the same class, in %. Own twin: the sparse "
    "model and the dense model of the same run (AC/DC's last dense phase, the dense start of methods that prune "
    "later). Dense run: the sparse model and the dense run of the same seed; in the row of dense training, dense runs "
    "of different seeds with each other, which shows how far two dense models agree anyway."
)


def all_settings(groups: Sequence[Group]) -> Table:
    """List every setting: mean ± standard deviation over its seeds."""
    header = ["setting", "seeds", "sparse", "dense baseline", "dense twin", "fine-tuned", "zeros", "inference FLOPs"]
    header += ["training FLOPs", "packed", "time"]
    rows = []
    for group in groups:
        main = group.main
        rows.append(
            [
                group.label,
                str(len(group.runs)),
                *(group.quality.mean_std(group.scores(role)) for role in ("sparse", "baseline", "twin", "finetuned")),
                _mean(group, main, lambda model: 100 * model.sparsity, "{:.2f} %"),
                _mean(group, main, lambda model: model.ratio, "{:.3f}x"),
                _mean(group, main, lambda model: model.training, "{:.3f}x"),
                or_dash(_average(group, main, lambda model: model.sparse_bytes), lambda value: fmt.si(value, "B")),
                _time(group),
            ]
        )
    note = (
        f"{_measured(groups)}, mean ± standard deviation (n − 1) over seeds, last epoch. FLOPs are theoretical, as "
        "fractions of the dense model and of a dense run of as many epochs. Click a column to sort by it."
    )
    return Table("several", "All settings", header, rows, note, sortable=True)


def every_run(groups: Sequence[Group]) -> Table:
    """List every run with the accuracy or perplexity of each of its models."""
    rows = []
    for group in groups:
        for run in group.runs:
            models = {model.role: model for model in facts.models(run)}
            cells = [run.quality.number(models[role].score, 2) if role in models else "–" for role in facts.NOUNS]
            state = "complete" if run.result is not None else f"epoch {run.rows[-1].epoch + 1} of {run.planned}"
            rows.append([group.label, run.name, "–" if run.seed is None else str(run.seed), *cells, state])
    header = ["setting", "run", "seed", "sparse", "dense twin", "fine-tuned", "dense baseline", "state"]
    return Table("seeds", "Every run", header, rows, f"{_measured(groups)}, last epoch.", text=2, sortable=True)


# Methods of a comparison


def methods(standings: Sequence[Standing]) -> Table:
    """List every method at every sparsity."""
    epochs = reference_epochs([row.group for row in standings])
    twins = any(row.twin for row in standings)
    quality, text = standings[0].group.quality, any(row.parameters for row in standings)
    header = ["method", "zeros, %", quality.column, "inference FLOPs", "training FLOPs", "seeds", "epochs"]
    rows = [
        [
            row.group.name,
            _percent(row.zeros),
            quality.mean_std(row.score.values),
            _times(row.inference),
            _times(row.training),
            str(len(row.group.runs)),
            str(row.epochs),
            *([quality.mean_std(row.twin.values)] if twins else []),
            *(_text_cells(row) if text else []),
            _time(row.group),
        ]
        for row in standings
    ]
    note = (
        "Mean ± standard deviation (n − 1) over seeds, at the last epoch. FLOPs are theoretical: inference as a "
        f"fraction of the dense model’s, training by the rule on each method’s card as a fraction of {epochs} epochs "
        "of dense training. AC/DC’s rule is the paper’s; methods that need the gradients of more weights cost more. "
        "Time is for the whole run. Click a column to sort by it."
    )
    header += [*([f"dense twin{',' * bool(quality.symbol)}{quality.symbol}"] if twins else [])]
    header += [*(_TEXT_HEADER if text else []), "time"]
    if text:
        note += " Average parameters: those that are not 0, over the epochs of training."
    return Table("several", "Methods", header, rows, note, sortable=True)


def method_agreement(standings: Sequence[Standing]) -> Table | None:
    """List how far the sparse models of each method agree with dense ones."""
    known = [row for row in standings if row.with_twin or row.with_dense]
    if not known:
        return None
    rows = [
        [
            row.group.name,
            _percent(row.zeros),
            fmt.mean_std(row.with_twin.values),
            fmt.mean_std(row.with_dense.values),
            str(max(len(row.with_twin.values), len(row.with_dense.values))),
        ]
        for row in known
    ]
    header = ["method", "zeros, %", "with its own twin, %", "with the dense run, %", "pairs"]
    sources = {one.source for row in known for run in row.group.runs for one in run.kept.values()}
    note = f"{_AGREEMENT} Mean ± std over seeds. {caveat(sources)}".rstrip()
    return Table("agreement", "Sparse–dense agreement", header, rows, note, sortable=True)


def shared_settings(groups: Sequence[Group]) -> Table:
    """List the settings that all groups share."""
    flat = [flatten(settings_of(group)) for group in groups]
    same = {key: value for key, value in flat[0].items() if all(other.get(key) == value for other in flat)}
    rows = [[key, value] for key, value in same.items()]
    return Table("settings", "Settings of all runs", ["setting", "value"], rows, text=2)


def own_settings(groups: Sequence[Group]) -> Table:
    """List each group's settings that not all share."""
    flat = [flatten(settings_of(group)) for group in groups]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if len({one.get(key) for one in flat}) > 1]
    rows = [
        [group.label, "; ".join(f"{key} = {one[key]}" for key in keys if key in one)]
        for group, one in zip(groups, flat, strict=True)
    ]
    return Table("own", "Settings of each method", ["method", "settings"], rows, text=2)


def console_rows(standings: Sequence[Standing]) -> list[Sequence[str]]:
    """Return the cells of a table of methods that fit on a terminal, under `console_header`."""
    quality, text = standings[0].group.quality, any(row.parameters for row in standings)
    return [
        (row.group.name, _percent(row.zeros), quality.mean_std(row.score.values), f"{row.inference.mean:.2f}x",
         f"{row.training.mean:.2f}x" if row.training else "–", *(_text_cells(row) if text else []), str(row.epochs),
         str(len(row.group.runs)))
        for row in standings
    ]  # fmt: skip


def console_header(standings: Sequence[Standing]) -> list[str]:
    """Return the header of `console_rows`."""
    text = _TEXT_HEADER if any(row.parameters for row in standings) else []
    quality = standings[0].group.quality
    return ["method", "zeros, %", quality.column, "inference FLOPs", "training FLOPs", *text, "epochs", "seeds"]


# Cells


_TEXT_HEADER = ["bits per byte", "average parameters"]


def _text_cells(row: Standing) -> list[str]:
    bits = fmt.mean_std(row.bits_per_byte.values, scale=1, digits=4)
    return [bits, fmt.si(row.parameters.mean) if row.parameters else "–"]


def _measured(groups: Sequence[Group]) -> str:
    quality = groups[0].quality
    return f"{quality.title}{' in %' * bool(quality.symbol)}"


def _percent(spread: Spread) -> str:
    """Format a spread in %, without a deviation if there is none: a requested sparsity is the same for all seeds."""
    if spread.std < 5e-5:
        return fmt.fixed(100 * spread.mean, 2)
    return f"{fmt.fixed(100 * spread.mean, 2)} ± {fmt.fixed(100 * spread.std, 2)}"


def _times(spread: Spread) -> str:
    if not spread:
        return "–"
    return f"{spread.mean:.3f}x" + (f" ± {spread.std:.3f}" if spread.std >= 5e-4 else "")


def _time(group: Group) -> str:
    seconds = [run.result.seconds for run in group.runs if run.result and run.result.seconds is not None]
    return fmt.duration(statistics.fmean(seconds)) if seconds else "–"


def _average(group: Group, role: str, value: Callable[[Model], float | None]) -> float | None:
    values = group.values(role, value)
    return statistics.fmean(values) if values else None


def _mean(group: Group, role: str, value: Callable[[Model], float | None], form: str) -> str:
    return or_dash(_average(group, role, value), form.format)
