"""The content of a report, whatever its format: words, cards, figures and tables of one run or several."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from acdc import formatting as fmt
from acdc.report import budget_tables, deployment, facts, group_tables, groups, tables
from acdc.report.budgets import (
    Budget,
    Panel,
    budgets_of,
    count_leads,
    differing_settings,
    groups_of,
    has_budgets,
    panels_of,
    requested_panels,
    untrained,
)
from acdc.report.deployment import Speed
from acdc.report.facts import Model
from acdc.report.figures import bars, budget_lines, frontier, group_curves, run_curves, zeros
from acdc.report.figures.chart import Chart
from acdc.report.groups import Group, levels_of
from acdc.report.read import ReportError, Run, log_end
from acdc.report.reproduce import commands, comparison_commands, first_commands
from acdc.report.standings import Standing, leaders, reference_epochs, standings_of
from acdc.report.tables import Table
from acdc.runs.quality import PERPLEXITY

_CARDS = ("sparse", "twin", "finetuned", "baseline")
# In the order of the page. Each is left out if a run has nothing for it.
_FIGURES = (
    run_curves.signature,
    run_curves.loss,
    zeros.mask_change,
    run_curves.flops,
    run_curves.inactive,
    zeros.layers,
    zeros.magnitudes,
    bars.agreement,
    run_curves.memorization,
)


@dataclass(frozen=True)
class Card:
    """A number in large print, with a few lines below it."""

    role: str
    title: str
    value: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report, for every format."""

    title: str
    subtitle: str
    runs: Sequence[Run]
    groups: Sequence[Group]
    notes: Sequence[str]  # what is missing or damaged
    remarks: Sequence[str]  # what else is worth knowing
    cards: Sequence[Card]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    details: Sequence[Table]  # folded away in the page
    commands: Sequence[str]


def compose(runs: Sequence[Run], left_out: Sequence[str] = (), *, compared: bool = False) -> Report:
    """Compose the report of a run, or of several.

    `left_out` are notes on other runs that are not included. `compared` is True for the folder of a comparison, even
    with one run.
    """
    if len(runs) == 1 and not compared:
        return _one_run(runs[0])
    groups.check_same_data(runs)
    complete = [run for run in runs if not _is_cut(run)]
    notes = [*left_out, *groups.say_once(complete, lambda run: run.notes)]
    notes += [f"{run.name} is left out: {_progress(run)}" for run in runs if _is_cut(run)]
    if not complete:
        raise ReportError(f"{runs[0].folder.parent}: no run of this comparison is complete yet; wait for the first")
    if has_budgets(complete):
        return _budgets(budgets_of(complete), notes)
    settings = groups.group_runs(complete)
    several_methods = all(run.cell for run in complete) or len({group.method for group in settings}) > 1
    return _methods(settings, notes) if several_methods else _settings(settings, notes)


def _is_cut(run: Run) -> bool:
    """Return True for an incomplete run of a comparison: means are over complete runs, and the others are listed."""
    return run.cell is not None and run.result is None


def _progress(run: Run) -> str:
    last = max(row.epoch for row in run.rows) + 1
    return f"it has finished epoch {last} of {run.planned}{log_end(run.folder)}"


# One run


def _one_run(run: Run) -> Report:
    charts = [figure(run) for figure in _FIGURES]
    candidates = [tables.models(run), tables.sizes(run), tables.speed(run), tables.paper(run), tables.phases(run)]
    candidates.append(tables.agreement(run.pairs))
    return Report(
        title=_title(run),
        subtitle=_subtitle(run),
        runs=[run],
        groups=[],
        notes=run.notes,
        remarks=facts.remarks(run),
        cards=[
            model_card(run, model, deployment.fastest(run))
            for role in _CARDS
            for model in facts.models(run)
            if model.role == role
        ],
        charts=[chart for chart in charts if chart is not None],
        tables=[table for table in candidates if table is not None],
        details=[tables.environment(run), tables.settings(run)],
        commands=commands(run),
    )


def _title(run: Run) -> str:
    """State what was trained, and the result."""
    best, what = facts.main_model(run), f"{run.config.recipe.model.name} on {run.data_name}"
    if best.role != "sparse":
        return f"{what}: dense, {_result(run, best)}"
    return (
        f"{what}: {fmt.short_percent(best.sparsity)} sparse at {_result(run, best)}, "
        f"with {fmt.times(best.ratio)} of the dense FLOPs"
    )


def _result(run: Run, model: Model) -> str:
    """Write a model's score with the name of the measure, if it needs one."""
    return f"{'perplexity ' * (run.quality is PERPLEXITY)}{run.quality.shown(model.score)}"


def _subtitle(run: Run) -> str:
    hardware, recipe = run.config.hardware, run.config.recipe
    parts = [
        recipe.name,
        f"{recipe.model.name} on {run.data_name}",
        f"{run.planned} epochs",
        f"seed {run.seed}",
        hardware.get("gpu") or hardware.get("cpu"),
        (run.config.started or "")[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


def model_card(run: Run, model: Model, speed: Speed | None = None) -> Card:
    """Return the card of a model: its accuracy or perplexity in large print, zeros, costs and measured speed below."""
    quality = run.quality
    zeros = fmt.percent(model.sparsity, 2)
    if model.reported_sparsity is not None and model.sparsity:
        zeros += f" ({fmt.percent(model.reported_sparsity, 2)} as the paper counts)"
    rows = [("zeros", zeros), ("inference", f"{fmt.si(model.flops, 'FLOPs')}, {fmt.times(model.ratio)} of dense")]
    if model.training is not None:
        rows.append(("training", f"{fmt.times(model.training)} of a dense run"))
    if model.dense_bytes and model.sparse_bytes:
        small = model.sparse_bytes < model.dense_bytes
        sparse = f", {fmt.si(model.sparse_bytes, 'B')} packed" if small else ""
        rows.append(("size", fmt.si(model.dense_bytes, "B") + sparse))
    if model.role == "sparse" and speed:
        table, row = speed
        ratio = f", {row.ratio:.2f}x ONNX Runtime" if row.ratio is not None else ""
        threads = f"{row.threads} thread{'s' * (row.threads > 1)}"
        rows.append(("measured", f"{row.ms:.3g} ms for one image{ratio} ({threads}, {table.model})"))
    if model.best and model.role == "twin":
        where = f"epoch {model.best.epoch + 1}, the best of the dense phases on the {model.best.chosen_on} set"
        rows.append(("kept", where))
    elif model.best and quality is PERPLEXITY and model.best.chosen_on != "test":  # another text, so not comparable
        where = f"epoch {model.best.epoch + 1} on the {model.best.chosen_on} set"
        rows.append(("best", f"{where}, at {quality.shown(quality.best(model.best), 2)} there"))
    elif model.best and quality.is_better(quality.best(model.best), model.score):
        where = f"(epoch {model.best.epoch + 1}, chosen on the {model.best.chosen_on} set)"
        rows.append(("best", f"{quality.shown(quality.best(model.best), 2)} {where}"))
    if own := model.language:
        bits = [f"{own.test.bits_per_byte:.4f} bits per byte"] if own.test.bits_per_byte is not None else []
        words = [f"{quality.text(own.test.word_perplexity)} per word"] if own.test.word_perplexity is not None else []
        rows.append(("also", ", ".join((*bits, *words, f"{fmt.fixed(own.validation.perplexity, 2)} in validation"))))
        average = f", {fmt.si(own.average_parameters)} on average in training" if own.average_parameters else ""
        rows.append(("parameters", f"{fmt.si(own.parameters)} not 0{average}"))
    if model.paper:
        rows.append(("paper", model.paper))
    return Card("dense" if model.role == "twin" else model.role, model.title, quality.shown(model.score, 2), rows)


# Several settings


def _settings(settings: Sequence[Group], notes: Sequence[str]) -> Report:
    runs = [run for group in settings for run in group.runs]
    charts = [
        group_curves.score(settings),
        frontier.setting_frontier(settings),
        group_curves.loss(settings),
        group_curves.mask_change(settings),
    ]
    return Report(
        title=_best_setting(settings),
        subtitle=f"{len(runs)} runs of {len(settings)} setting{'s' * (len(settings) > 1)} on {runs[0].data_name}",
        runs=runs,
        groups=settings,
        notes=notes,
        remarks=groups.say_once(runs, facts.remarks),
        cards=[_group_card(group) for group in settings] if len(settings) <= 6 else [],
        charts=[chart for chart in charts if chart is not None],
        tables=[group_tables.all_settings(settings), group_tables.every_run(settings)],
        details=[tables.environment(runs[0]), *(tables.settings(group.runs[0]) for group in settings[:8])],
        commands=first_commands(settings),
    )


def _best_setting(settings: Sequence[Group]) -> str:
    """State how the best sparse setting compares with the best dense model, or which is best of all."""
    sparse = [group for group in settings if group.main == "sparse"]
    quality = settings[0].quality
    best = min(sparse or settings, key=lambda group: quality.rank(statistics.fmean(group.scores())))
    ours, seeds = best.scores(), f" over {len(best.runs)} seeds" if len(best.runs) > 1 else ""
    result = f"{fmt.capitalize(best.label)} reaches {quality.mean_std(ours, digits=1)}{quality.symbol}{seeds}"
    dense = [group.scores("baseline") for group in settings if group.models("baseline")]
    if not sparse or not dense:
        return result
    theirs = min(dense, key=lambda values: quality.rank(statistics.fmean(values)))
    uncertainty = quality.uncertainty(ours, theirs, best.images)
    means = (statistics.fmean(ours), statistics.fmean(theirs))
    return f"{result}, {quality.gap(*means, 'the best dense model', uncertainty=uncertainty)}"


def _group_card(group: Group) -> Card:
    first, quality = group.models(group.main)[0], group.quality
    rows = [("zeros", fmt.percent(first.sparsity, 2)), ("inference", f"{fmt.times(first.ratio)} of dense")]
    if first.training is not None:
        rows.append(("training", f"{fmt.times(first.training)} of a dense run"))
    for role in ("baseline", "twin", "finetuned"):
        if role != group.main and (values := group.scores(role)):
            rows.append((facts.noun(role), f"{quality.mean_std(values)}{quality.symbol}"))
    rows.append(("seeds", ", ".join(str(run.seed) for run in group.runs)))
    shown = f"{quality.mean_std(group.scores())}{quality.symbol}"
    return Card(f"series-{group.number % 8}", group.label, shown, rows)


# Methods of a comparison


def _methods(settings: Sequence[Group], notes: Sequence[str]) -> Report:
    standings = standings_of(settings)
    runs = [run for group in settings for run in group.runs]
    first = runs[0]
    charts = [
        frontier.method_frontier(standings),
        bars.score_by_method(standings),
        group_curves.method_score(settings),
        group_curves.method_loss(settings),
        group_curves.mask_change(settings),
    ]
    candidates = [group_tables.methods(standings), group_tables.method_agreement(standings)]
    counts = sorted({len(group.runs) for group in settings})
    seeds = "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    names = len({group.name for group in settings})
    return Report(
        title=_best_methods(standings),
        subtitle=f"{len(runs)} runs: {names} method{'s' * (names > 1)}, {seeds} seed{'s' * (counts[-1] > 1)} each, "
        f"{first.config.recipe.model.name or '?'} on {first.data_name}, {reference_epochs(settings)} epochs",
        runs=runs,
        groups=settings,
        notes=notes,
        remarks=groups.say_once(runs, facts.remarks),
        cards=[],
        charts=[chart for chart in charts if chart is not None],
        tables=[table for table in candidates if table is not None],
        details=[
            tables.environment(first),
            group_tables.shared_settings(settings),
            group_tables.own_settings(settings),
            group_tables.every_run(settings),
        ],
        commands=comparison_commands(runs[:1]) or first_commands(settings),
    )


def _best_methods(standings: Sequence[Standing]) -> str:
    """State which method ends best at each sparsity, and where dense training ends."""
    by_number, parts, quality = {one.group.number: one for one in standings}, [], standings[0].group.quality
    levels = levels_of([one.group for one in standings])
    requested = [level for level in levels if level.sparsity is not None]
    for level in requested or levels:
        top = leaders([by_number[group.number] for group in level.groups])
        where = f"at {level.title} " if level.sparsity is not None else ""
        score = quality.mean_std(top[0].score.values, digits=1) + quality.symbol
        if len(top) == 1:
            ends = (
                " ends"
                if len([group for group in level.groups if not group.is_dense]) == 1
                else f" ends {quality.superlative},"
            )
            parts.append(f"{where}{level.name(top[0].group)}{'' if parts else ends} with {score}")
        else:
            names = fmt.join_names([level.name(one.group) for one in top]) + (
                f" end {quality.superlative}" if not parts else ""
            )
            parts.append(f"{where}{names}, too close to tell apart ({level.name(top[0].group)} {score})")
    dense = min((one for one in standings if one.group.is_dense), key=lambda one: one.rank, default=None)
    if requested and dense is not None:
        parts.append(f"dense training with {quality.mean_std(dense.score.values, digits=1)}{quality.symbol}")
    return fmt.capitalize("; ".join(parts))


# Methods over several budgets


def _budgets(budgets: Sequence[Budget], notes: Sequence[str]) -> Report:
    panels, all_groups = panels_of(budgets), groups_of(budgets)
    runs = [run for group in all_groups for run in group.runs]
    charts = [budget_lines.accuracy_by_epochs(budgets), budget_lines.accuracy_by_flops(budgets)]
    others = differing_settings(panels)
    names = len({group.name for group in all_groups})
    differs = [f"Not only epochs differ between budgets, but also {', '.join(others)}."] if others else []
    return Report(
        title=_best_by_budget(panels, budgets),
        subtitle=f"{len(runs)} runs: {names} method{'s' * (names > 1)} over {len(budgets)} budgets of training, "
        f"{runs[0].config.recipe.model.name or '?'} on {runs[0].data_name}",
        runs=runs,
        groups=all_groups,
        notes=[*notes, *untrained(panels, budgets), *differs],
        remarks=groups.say_once(runs, facts.remarks),
        cards=[],
        charts=[chart for chart in charts if chart is not None],
        tables=[budget_tables.accuracy(panels, budgets), budget_tables.training_flops(panels, budgets)],
        details=[
            tables.environment(runs[0]),
            *budget_tables.methods(budgets),
            group_tables.shared_settings(all_groups),
            group_tables.own_settings(all_groups),
            group_tables.every_run(all_groups),
        ],
        commands=comparison_commands(runs),
    )


def _best_by_budget(panels: Sequence[Panel], budgets: Sequence[Budget]) -> str:
    """State which methods are most often the most accurate, or too close to that to tell apart, at each sparsity."""
    parts = []
    for panel in requested_panels(panels):
        leads = count_leads(panel, budgets)
        most = max(leads.values(), default=0)
        names = fmt.join_names([name for name, count in leads.items() if count == most])
        parts.append(f"{panel.where}{names} ({most} of {len(budgets)})")
    span = f"{budgets[0].epochs} to {budgets[-1].epochs} epochs"
    return f"Most accurate, or too close to tell, at most budgets of {span}: {'; '.join(parts)}"
