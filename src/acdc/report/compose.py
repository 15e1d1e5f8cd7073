"""A report before it has a form: words, cards, figures and tables of one run or of several."""

from collections.abc import Sequence
from dataclasses import dataclass

from acdc.report import again, costs, curves, facts, frontier, labels, overlay, several, tables, weights, words
from acdc.report.facts import Model
from acdc.report.read import Run
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
    notes: Sequence[str]
    cards: Sequence[Card]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    details: Sequence[Table]  # folded away in the page
    commands: Sequence[str]


def compose(runs: Sequence[Run]) -> Report:
    return _one(runs[0]) if len(runs) == 1 else _several(runs)


def _one(run: Run) -> Report:
    drawn = [figure(run) for figure in _FIGURES]
    shown = [tables.models(run), tables.paper(run), tables.phases(run), tables.agreement(run.pairs)]
    return Report(
        title=curves.name(run),
        subtitle=_subtitle(run),
        runs=[run],
        groups=[],
        notes=run.notes,
        cards=[_card(model) for role in _CARDS for model in facts.models(run) if model.role == role],
        charts=[chart for chart in drawn if chart is not None],
        tables=[table for table in shown if table is not None],
        details=[tables.environment(run), tables.settings(run)],
        commands=again.commands(run),
    )


def _several(runs: Sequence[Run]) -> Report:
    several.check_alike(runs)
    found = several.groups(runs)
    drawn = [overlay.accuracy(found), frontier.frontier(found), overlay.loss(found), overlay.mask_change(found)]
    first = runs[0]
    data = first.settings("data").get("name", "?")
    return Report(
        title=several.headline(found),
        subtitle=f"{len(runs)} runs of {len(found)} setting{'s' if len(found) > 1 else ''} on {data}",
        runs=runs,
        groups=found,
        notes=[f"{run.name}: {note}" for run in runs for note in run.notes],
        cards=[_group_card(group) for group in found] if len(found) <= 6 else [],
        charts=[chart for chart in drawn if chart is not None],
        tables=[tables.several(found), tables.seeds(found)],
        details=[tables.environment(first), *(tables.settings(group.runs[0]) for group in found[:8])],
        commands=[command for group in found for command in again.commands(group.runs[0])[:1]],
    )


def _subtitle(run: Run) -> str:
    hardware = run.config.get("hardware", {})
    recipe = run.config.get("recipe", {})
    parts = [
        recipe.get("name"),
        f"{run.settings('model').get('name')} on {run.settings('data').get('name')}",
        f"{run.planned} epochs",
        f"seed {run.seed}",
        hardware.get("gpu") or hardware.get("cpu"),
        str(run.config.get("started", ""))[:10],
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
    if model.best and model.best["accuracy"] > model.accuracy:
        where = f"(epoch {model.best['epoch'] + 1}, chosen on the {model.best['chosen_on']} set)"
        rows.append(("best", f"{words.percent(model.best['accuracy'], 2)} {where}"))
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
            rows.append((facts.NOUNS[role].removeprefix("the ").removeprefix("its "), f"{words.spread(values)} %"))
    rows.append(("seeds", ", ".join(str(run.seed) for run in group.runs)))
    return Card(f"series-{group.number % 8}", group.label, f"{words.spread(accuracies)} %", rows)
