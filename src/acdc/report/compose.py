"""The content of a report, whatever its format: words, cards, figures and tables of one run or several."""

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acdc import formatting as fmt
from acdc.recipes import load
from acdc.recipes.load import write_value
from acdc.recipes.schema import Recipe
from acdc.report import facts, group_tables, groups, tables
from acdc.report.facts import Model
from acdc.report.figures import bars, frontier, group_curves, run_curves, zeros
from acdc.report.figures.chart import Chart
from acdc.report.groups import Group, levels_of
from acdc.report.read import ReportError, Run, log_end, read_comparison
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
    candidates = [tables.models(run), tables.paper(run), tables.phases(run), tables.agreement(run.pairs)]
    return Report(
        title=_title(run),
        subtitle=_subtitle(run),
        runs=[run],
        groups=[],
        notes=run.notes,
        remarks=facts.remarks(run),
        cards=[model_card(run, model) for role in _CARDS for model in facts.models(run) if model.role == role],
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


def model_card(run: Run, model: Model) -> Card:
    """Return the card of a model: its accuracy or perplexity in large print, zeros and costs below."""
    quality = run.quality
    zeros = fmt.percent(model.sparsity, 2)
    if model.reported_sparsity is not None and model.sparsity:
        zeros += f" ({fmt.percent(model.reported_sparsity, 2)} as the paper counts)"
    rows = [("zeros", zeros), ("inference", f"{fmt.si(model.flops, 'FLOPs')}, {fmt.times(model.ratio)} of dense")]
    if model.training is not None:
        rows.append(("training", f"{fmt.times(model.training)} of a dense run"))
    if model.dense_bytes and model.sparse_bytes:
        small = model.sparse_bytes < model.dense_bytes
        sparse = f", about {fmt.si(model.sparse_bytes, 'B')} packed" if small else ""
        rows.append(("size", fmt.si(model.dense_bytes, "B") + sparse))
    if model.best and model.role == "twin":
        where = f"epoch {model.best.epoch + 1}, the best of the dense phases on the {model.best.chosen_on} set"
        rows.append(("kept", where))
    elif model.best and quality.is_better(quality.best(model.best), model.score):
        where = f"(epoch {model.best.epoch + 1}, chosen on the {model.best.chosen_on} set)"
        rows.append(("best", f"{quality.shown(quality.best(model.best), 2)} {where}"))
    if own := model.language:
        bits = [f"{own.test.bits_per_byte:.4f} bits per byte"] * (own.test.bits_per_byte is not None)
        words = [f"{fmt.fixed(own.test.word_perplexity, 2)} per word"] if own.test.word_perplexity is not None else []
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
        commands=_first_commands(settings),
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
    comparison = read_comparison(first.folder.resolve().parent) if first.cell else None
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
        commands=(comparison and comparison.commands) or _first_commands(settings),
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


# Commands that reproduce a run


def commands(run: Run) -> list[str]:
    """Return `acdc train` with the differences from the shipped recipe; if there is none, the file is needed."""
    if run.recipe is None:
        return []
    shipped = run.recipe.name in load.shipped()
    words = ["acdc", "train", run.recipe.name if shipped else f"{run.recipe.name}.toml"]
    for setting in changed_settings(run.recipe, load.read(run.recipe.name)) if shipped else ():
        words += ["--set", setting]
    if run.quality is PERPLEXITY and run.config.root:
        words += ["--data", Path(run.config.root).name]
    words += ["--out", "runs/again"]
    return [shlex.join(words), "acdc report runs/again"]


def _first_commands(settings: Sequence[Group]) -> list[str]:
    return [line for group in settings for line in commands(group.runs[0])[:1]]


def changed_settings(recipe: Recipe, base: Recipe) -> list[str]:
    """Return the settings to `--set` on `base`, a shipped recipe, to get `recipe`."""
    ours, usual, changed = recipe.to_dict(), base.to_dict(), []
    for table, part in ours.items():
        if table in ("name", "about", "paper"):
            continue
        for key, value in _keys(part).items():
            if value is None or value == _keys(usual[table]).get(key):
                continue
            setting = f"{table}.{key}={write_value(value)}"
            if table != "method" or not _is_default(setting, base):
                changed.append(setting)
    return changed


def _keys(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a table: the options of a model, data set or method, and the common keys."""
    return {**{key: value for key, value in part.items() if key != "options"}, **part.get("options", {})}


def _is_default(setting: str, base: Recipe) -> bool:
    """Return True if the method does this by default."""
    try:
        one, other = load.read(base.name, [setting]).build_method(), base.build_method()
    except ValueError:
        return False
    return one is not None and other is not None and one.name == other.name and one.config() == other.config()
