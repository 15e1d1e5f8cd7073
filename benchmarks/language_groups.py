"""Kept runs on text by setting: seeds of a setting belong together, and the settings of a recipe are compared."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from acdc.formatting import fixed, short_percent, si
from acdc.recipes import load
from acdc.recipes.schema import Recipe
from acdc.report import facts, groups
from acdc.report.facts import Model
from acdc.report.groups import Group
from acdc.report.read import ReportError, Run
from acdc.report.reproduce import changed_settings
from acdc.runs.records import LanguageResult

_SAID_OTHERWISE = ("method.name=", "method.sparsity=", "run.")  # by a row's label, or of no consequence for a model


@dataclass(frozen=True, eq=False)
class Entry:
    """The runs of one setting that differ only in the seed, and the name of the setting in tables."""

    label: str
    group: Group

    @property
    def size(self) -> int:
        """Return the number of parameters of the model, zeros included."""
        return size_of(self.group)

    @property
    def short(self) -> str:
        """Return the label without settings, for a figure."""
        return self.label.partition(", `")[0]

    def mean(self, value: Callable[[LanguageResult], float | None]) -> float | None:
        """Return a value of the main models, averaged over the seeds that have one."""
        found = self.group.values(self.group.main, lambda model: value(language_of(model)))
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class Experiment:
    """The settings of one recipe on one text: dense ones first, then AC/DC, then other methods by name."""

    name: str  # of the recipe
    entries: Sequence[Entry]
    dense: Entry | None  # of full size, with which all others are compared
    shared: Sequence[str]  # settings that differ from the recipe's in all of them; options of the model: at full size

    @cached_property
    def runs(self) -> list[Run]:
        return [one for entry in self.entries for one in entry.group.runs]

    @property
    def title(self) -> str:
        first, size = self.runs[0], max(entry.size for entry in self.entries)
        text = f" on the text {first.config.dataset}" if recipe_of(first).data.name == "text" else ""
        return f"`{self.name}`{text}: {recipe_of(first).model.name}, {parameters(size)} parameters"


def experiment_of(name: str, kept: Sequence[Run]) -> Experiment:
    """Group the runs of a recipe by their settings."""
    found = groups.group_runs(kept)
    full = max(map(size_of, found))
    changes = {group.number: _changes(group) for group in found}
    of_full = [changes[group.number] for group in found if size_of(group) == full]
    shared = [  # a small model has other options of the model, which its label says
        one
        for one in of_full[0]
        if all(one in of for of in (of_full if one.startswith("model.") else changes.values()))
    ]
    entries = []
    for group in found:
        own = [one for one in changes[group.number] if one not in shared]
        entries.append(Entry(_label(group, full, own), group))
    labels = [entry.label for entry in entries]
    entries = [  # what distinguishes runs of one label is not a setting, such as the same seed again
        Entry(f"{one.label} ({one.group.runs[0].name})", one.group) if labels.count(one.label) > 1 else one
        for one in entries
    ]
    entries.sort(key=_place)
    candidates = [entry for entry in entries if entry.group.is_dense and entry.size == full]
    dense = min(candidates, key=lambda entry: len(changes[entry.group.number]), default=None)
    if dense is not None:
        entries.sort(key=lambda entry: entry is not dense)
    return Experiment(name, entries, dense, shared)


def _changes(group: Group) -> list[str]:
    """Return the settings that differ from the shipped recipe's, except those that a label says in words."""
    recipe = recipe_of(group.runs[0])
    if recipe.name not in load.shipped():
        return []
    left_out = (*_SAID_OTHERWISE, *(["method."] if group.is_dense else []))
    return [one for one in changed_settings(recipe, load.read(recipe.name)) if not one.startswith(left_out)]


def _label(group: Group, full: int, changes: Sequence[str]) -> str:
    """Return a setting's name: method, sparsity, size if it is not the full one, and what else was set for it alone."""
    name = "dense" if group.is_dense else groups.method_title(group.method)
    if not group.is_dense:
        name += f" at {short_percent(group.sparsity if group.requested is None else group.requested)}"
    if size_of(group) != full:
        name += f", {parameters(size_of(group))}"
    return ", ".join([name, *(f"`{one}`" for one in changes)])


def _place(entry: Entry) -> tuple[int, int, str, float, str]:
    group = entry.group
    kind = 0 if group.is_dense else 1 if group.method == "acdc" else 2
    return kind, -entry.size, group.method, group.sparsity, entry.label


# Runs


def recipe_of(run: Run) -> Recipe:
    if run.recipe is None:
        raise ReportError(f"{run.name}: this version of acdc cannot read its recipe")
    return run.recipe


def language_of(model: Model) -> LanguageResult:
    if model.language is None:
        raise ReportError(f"{model.title}: not a language model")
    return model.language


def size_of(group: Group) -> int:
    return language_of(facts.main_model(group.runs[0])).all_parameters


def steps_per_epoch(run: Run) -> int:
    last = run.stage(run.main)[-1]
    return last.step // (last.epoch + 1)


def steps_of(run: Run) -> int:
    """Return the steps of a run's main stage."""
    return run.planned * steps_per_epoch(run)


def row_length(run: Run) -> int:
    """Return the tokens of a row of a batch."""
    length = (run.config.recipe.data.options or {}).get("length")
    if not isinstance(length, int):
        raise ReportError(f"{run.name}: config.json does not say data.length, the tokens in a row")
    return length


def tokens_of(run: Run) -> int:
    """Return the tokens that a run's main stage trained on, counted in every pass over the text."""
    return steps_of(run) * recipe_of(run).train.batch_size * row_length(run)


def parameters(number: float) -> str:
    """Format a number of parameters: "9.3 M", "272 k"."""
    return f"{fixed(number / 1e6)} M" if number >= 999_500 else si(number)
