"""Methods over several training budgets: comparisons of one recipe, each over its own number of epochs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acdc.report.groups import Group, Level, group_runs, levels_of, settings_of
from acdc.report.read import Run
from acdc.report.standings import Standing, leaders, standings_of
from acdc.runs.quality import ACCURACY

_EXPECTED = ("train.epochs", "method.")  # settings that may differ with the budget: a method's follow its epochs


@dataclass(frozen=True)
class Budget:
    """All methods of the comparisons over one number of epochs."""

    epochs: int
    steps: int | None  # None if runs of this budget took different numbers of steps
    standings: Sequence[Standing]


@dataclass(frozen=True)
class Point:
    """A method at one sparsity and one budget."""

    budget: Budget
    standing: Standing

    @property
    def dense_epochs(self) -> float | None:
        """Return training FLOPs in epochs of dense training; None if they are unknown."""
        return self.standing.training.mean * self.budget.epochs if self.standing.training else None


@dataclass(frozen=True)
class Line:
    """A method at one sparsity, over its budgets in rising order."""

    name: str
    is_dense: bool
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """The methods at one sparsity, and dense training, which comes last."""

    level: Level
    lines: Sequence[Line]

    @property
    def where(self) -> str:
        """Return the beginning of a sentence about this sparsity: "at 90 % zeros "; "" for dense training alone."""
        return f"at {self.level.title} " if self.level.sparsity is not None else ""

    def at(self, budget: Budget) -> list[Standing]:
        """Return the methods that were trained over a budget."""
        return [point.standing for line in self.lines for point in line.points if point.budget is budget]


def has_budgets(runs: Sequence[Run]) -> bool:
    """Return True if runs are comparisons of one image recipe and model over several numbers of epochs."""
    recipes = {(run.config.recipe.name, repr(run.config.recipe.model)) for run in runs}
    epochs = {run.cell.epochs if run.cell else None for run in runs}
    images = all(run.quality is ACCURACY for run in runs)
    return images and len(recipes) == 1 and len(epochs) > 1 and None not in epochs


def budgets_of(runs: Sequence[Run]) -> list[Budget]:
    """Return the budgets in rising order. Groups are numbered through, and their labels name the budget."""
    by_epochs: dict[int, list[Run]] = {}
    for run in runs:
        assert run.cell is not None, "a run of a comparison"
        by_epochs.setdefault(run.cell.epochs, []).append(run)
    budgets, count = list[Budget](), 0
    for epochs, members in sorted(by_epochs.items()):
        groups = [
            replace(group, number=count + group.number, label=f"{group.label}, {epochs} epochs")
            for group in group_runs(members)
        ]
        count += len(groups)
        budgets.append(Budget(epochs, _steps(members, epochs), standings_of(groups)))
    return budgets


def _steps(runs: Sequence[Run], epochs: int) -> int | None:
    """Return the steps of the runs that have the budget's own epochs: at equal FLOPs, methods may have others."""
    steps = {run.stage(run.main)[-1].step for run in runs if run.planned == epochs}
    return steps.pop() if len(steps) == 1 else None


def groups_of(budgets: Sequence[Budget]) -> list[Group]:
    """Return the groups of all budgets."""
    return sorted((one.group for budget in budgets for one in budget.standings), key=lambda group: group.number)


def panels_of(budgets: Sequence[Budget]) -> list[Panel]:
    """Return a panel for each sparsity, with methods in the order they joined the comparisons."""
    points = {one.group.number: Point(budget, one) for budget in budgets for one in budget.standings}
    panels = []
    for level in levels_of(groups_of(budgets)):
        lines: dict[str, list[Point]] = {}
        for group in level.groups:
            lines.setdefault(group.name, []).append(points[group.number])
        panels.append(
            Panel(level, [Line(name, of[0].standing.group.is_dense, of) for name, of in lines.items()])
        )  # groups of a level are in the order of their numbers, so budgets rise
    return panels


def requested_panels(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels of requested sparsities, or all if none was requested."""
    return [panel for panel in panels if panel.level.sparsity is not None] or [*panels]


def count_leads(panel: Panel, budgets: Sequence[Budget]) -> Counter[str]:
    """Count, by method, the budgets at which it is the most accurate or too close to that to tell apart."""
    return Counter(one.group.name for budget in budgets if (at := panel.at(budget)) for one in leaders(at))


def untrained(panels: Sequence[Panel], budgets: Sequence[Budget]) -> list[str]:
    """Return a note on each method that lacks budgets which others have at its sparsity."""
    where: dict[tuple[str, str], list[str]] = {}
    for panel in panels:
        for line in panel.lines:
            there = [point.budget for point in line.points]
            others = [budget for budget in budgets if line.is_dense or not all(_dense(panel.at(budget)))]
            if gone := [str(budget.epochs) for budget in others if budget not in there]:
                zeros = [] if line.is_dense else [panel.where.strip().removeprefix("at ")]
                where.setdefault((line.name, join_all(gone)), []).extend(zeros)
    return [
        f"No complete run of {name} over {epochs} epochs{f', at {join_all(zeros)}' if zeros else ''}."
        for (name, epochs), zeros in where.items()
    ]


def join_all(words: Sequence[str]) -> str:
    """Join words as in a sentence: "5, 10 and 20"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _dense(standings: Sequence[Standing]) -> list[bool]:
    return [one.group.is_dense for one in standings]


def differing_settings(panels: Sequence[Panel]) -> list[str]:
    """Return the settings, besides the epochs and what a method derives from them, that differ between budgets."""
    keys = dict[str, None]()
    for panel in panels:
        for line in panel.lines:
            settings = [settings_of(point.standing.group) for point in line.points]
            for key in dict.fromkeys(key for one in settings for key in one):
                if not key.startswith(_EXPECTED) and len({repr(one.get(key)) for one in settings}) > 1:
                    keys[key] = None
    return [*keys]
