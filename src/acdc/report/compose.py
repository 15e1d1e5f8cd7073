"""A report before it has a form: words, cards, figures and tables of one run or of several."""

from collections.abc import Sequence
from dataclasses import dataclass

from acdc.report import again, costs, curves, facts, frontier, labels, overlay, several, tables, weights, words
from acdc.report.comparison import cells, dots, rows
from acdc.report.comparison import curves as methods
from acdc.report.comparison import frontier as by_cost
from acdc.report.comparison import tables as comparing
from acdc.report.comparison.levels import dense, levels
from acdc.report.facts import Model
from acdc.report.read import ReportError, Run
from acdc.report.several import Group
from acdc.report.tables import Table
from acdc.report.theme import Chart

_CARDS = ("sparse", "twin", "finetuned", "baseline")
# In the order of the page. Each is left out where a run has nothing for it.
_FIGURES = (
    curves.signature,
    curves.loss,
    weights.mask_change,
    costs.flops,
    curves.inactive,
    weights.layers,
    weights.magnitudes,
    costs.agreement,
    labels.memorization,
)


@dataclass(frozen=True)
class Card:
    role: str
    title: str
    value: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Report:
    title: str
    subtitle: str
    runs: Sequence[Run]
    groups: Sequence[Group]
    notes: Sequence[str]  # what is missing
    remarks: Sequence[str]  # what is worth knowing all the same
    cards: Sequence[Card]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    details: Sequence[Table]  # folded away in the page
    commands: Sequence[str]


def compose(runs: Sequence[Run], left_out: Sequence[str] = (), *, compared: bool = False) -> Report:
    """`left_out` says of other runs why they are not among these; `compared`, that one run is a whole comparison."""
    if len(runs) == 1 and not compared:
        return _one(runs[0])
    several.check_alike(runs)
    notes = [*left_out, *(f"{run.name}: {note}" for run in runs if not _cut(run) for note in run.notes)]
    notes += [f"{run.name} is left out: {_stands(run)}" for run in runs if _cut(run)]
    whole = [run for run in runs if not _cut(run)]
    if not whole:
        raise ReportError(f"{runs[0].folder.parent}: no run of this comparison is complete yet; wait for the first")
    found = several.groups(whole)
    several_methods = all(run.cell for run in whole) or len({group.method for group in found}) > 1
    return _methods(found, notes) if several_methods else _several(found, notes)


def _cut(run: Run) -> bool:
    """Means over seeds are of complete runs: in a comparison of methods the others are named, not counted."""
    return run.cell is not None and run.result is None


def _stands(run: Run) -> str:
    last = max(row.epoch for row in run.rows) + 1
    return f"it stands after epoch {last} of {run.planned}{cells.last_words(run.folder)}"


def _one(run: Run) -> Report:
    drawn = [figure(run) for figure in _FIGURES]
    shown = [tables.models(run), tables.paper(run), tables.phases(run), tables.agreement(run.pairs)]
    return Report(
        title=curves.name(run),
        subtitle=_subtitle(run),
        runs=[run],
        groups=[],
        notes=run.notes,
        remarks=facts.remarks(run),
        cards=[_card(model) for role in _CARDS for model in facts.models(run) if model.role == role],
        charts=[chart for chart in drawn if chart is not None],
        tables=[table for table in shown if table is not None],
        details=[tables.environment(run), tables.settings(run)],
        commands=again.commands(run),
    )


def _methods(found: Sequence[Group], notes: Sequence[str]) -> Report:
    made = rows.rows(found)
    runs = [run for group in found for run in group.runs]
    masks = overlay.mask_change(found)
    drawn = [by_cost.frontier(made), dots.dots(made), methods.accuracy(found), methods.loss(found)]
    first, held = runs[0], cells.read(runs[0].folder.resolve().parent) if runs[0].cell else None
    data, net = (name or "?" for name in (first.config.data_name, first.config.recipe.model.name))
    counts = sorted({len(group.runs) for group in found})
    seeds = "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    names = len({group.name for group in found})
    return Report(
        title=_best(made),
        subtitle=f"{len(runs)} runs: {names} method{'s' * (names > 1)}, {seeds} seed{'s' * (counts[-1] > 1)} each, "
        f"{net} on {data}, {rows.reference(found)} epochs",
        runs=runs,
        groups=found,
        notes=notes,
        remarks=several.remarks(runs),
        cards=[],
        charts=[chart for chart in [*drawn, masks] if chart is not None],
        tables=[table for table in (comparing.methods(made), comparing.agreement(made)) if table is not None],
        details=[tables.environment(first), comparing.shared(found), comparing.own(found), tables.seeds(found)],
        commands=(held and held.commands) or [line for group in found for line in again.commands(group.runs[0])[:1]],
    )


def _best(made: Sequence[rows.Row]) -> str:
    """At each sparsity the method that ends highest, and dense training where there is."""
    by_number, said = {row.group.number: row for row in made}, []
    found = levels([row.group for row in made])
    at_levels = [level for level in found if level.sparsity is not None]
    for level in at_levels or found:
        top = rows.leaders([by_number[group.number] for group in level.groups])
        where = f"at {level.title} " if level.sparsity is not None else ""
        spread = words.spread(top[0].accuracy.values, digits=1)
        if len(top) == 1:
            ends = " ends" if len([group for group in level.groups if not dense(group)]) == 1 else " ends highest,"
            said.append(f"{where}{level.name(top[0].group)}{'' if said else ends} with {spread} %")
        else:
            names = words.listed([level.name(row.group) for row in top]) + (" end highest" if not said else "")
            said.append(f"{where}{names}, too close to tell apart ({level.name(top[0].group)} {spread} %)")
    plain = max((row for row in made if dense(row.group)), key=lambda row: row.accuracy.mean, default=None)
    if at_levels and plain is not None:
        said.append(f"dense training with {words.spread(plain.accuracy.values, digits=1)} %")
    return words.sentence("; ".join(said))


def _several(found: Sequence[Group], notes: Sequence[str]) -> Report:
    runs = [run for group in found for run in group.runs]
    drawn = [overlay.accuracy(found), frontier.frontier(found), overlay.loss(found), overlay.mask_change(found)]
    first = runs[0]
    data = first.config.data_name or "?"
    return Report(
        title=several.headline(found),
        subtitle=f"{len(runs)} runs of {len(found)} setting{'s' if len(found) > 1 else ''} on {data}",
        runs=runs,
        groups=found,
        notes=notes,
        remarks=several.remarks(runs),
        cards=[_group_card(group) for group in found] if len(found) <= 6 else [],
        charts=[chart for chart in drawn if chart is not None],
        tables=[tables.several(found), tables.seeds(found)],
        details=[tables.environment(first), *(tables.settings(group.runs[0]) for group in found[:8])],
        commands=[command for group in found for command in again.commands(group.runs[0])[:1]],
    )


def _subtitle(run: Run) -> str:
    hardware, recipe = run.config.hardware, run.config.recipe
    parts = [
        recipe.name,
        f"{recipe.model.name} on {run.config.data_name}",
        f"{run.planned} epochs",
        f"seed {run.seed}",
        hardware.get("gpu") or hardware.get("cpu"),
        (run.config.started or "")[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


def _card(model: Model) -> Card:
    zeros = words.percent(model.sparsity, 2)
    if model.reported_sparsity is not None and model.sparsity:
        zeros += f" ({words.percent(model.reported_sparsity, 2)} as the paper counts)"
    rows = [("zeros", zeros), ("inference", f"{words.si(model.flops, 'FLOPs')}, {words.times(model.ratio)} of dense")]
    if model.training is not None:
        rows.append(("training", f"{words.times(model.training)} of a dense run"))
    if model.dense_bytes and model.sparse_bytes:
        small = model.sparse_bytes < model.dense_bytes
        sparse = f", {words.si(model.sparse_bytes, 'B')} as sparse (estimate)" if small else ""
        rows.append(("size", words.si(model.dense_bytes, "B") + sparse))
    if model.best and model.role == "twin":
        where = f"epoch {model.best.epoch + 1}, the best of the dense phases on the {model.best.chosen_on} set"
        rows.append(("kept", where))
    elif model.best and model.best.accuracy > model.accuracy:
        where = f"(epoch {model.best.epoch + 1}, chosen on the {model.best.chosen_on} set)"
        rows.append(("best", f"{words.percent(model.best.accuracy, 2)} {where}"))
    if model.paper:
        rows.append(("paper", model.paper))
    return Card("dense" if model.role == "twin" else model.role, model.title, words.percent(model.accuracy, 2), rows)


def _group_card(group: Group) -> Card:
    accuracies = group.values(group.main, lambda model: model.accuracy)
    first = group.role(group.main)[0]
    rows = [("zeros", words.percent(first.sparsity, 2)), ("inference", f"{words.times(first.ratio)} of dense")]
    if first.training is not None:
        rows.append(("training", f"{words.times(first.training)} of a dense run"))
    for role in ("baseline", "twin", "finetuned"):
        if role != group.main and (values := group.values(role, lambda model: model.accuracy)):
            rows.append((facts.noun(role), f"{words.spread(values)} %"))
    rows.append(("seeds", ", ".join(str(run.seed) for run in group.runs)))
    return Card(f"series-{group.number % 8}", group.label, f"{words.spread(accuracies)} %", rows)
