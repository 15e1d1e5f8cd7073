"""Every run of a comparison: methods and variants x sparsities x seeds, or all that is wrong with what was typed."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from acdc import methods
from acdc.errors import Problems, did_you_mean
from acdc.recipes import load
from acdc.recipes.mistakes import RecipeError, SettingError
from acdc.recipes.schema import Recipe, read_pattern
from acdc.runs.records import CellRecord
from acdc.train import variants
from acdc.train.equal import at_equal_flops, cost_of
from acdc.train.facts import Facts, facts_of
from acdc.train.variants import Variant

_Reading = Callable[[], Recipe]
_Mistakes = tuple[SettingError, ...]


@dataclass(frozen=True)
class Cell:
    """One method, or a variant of it, at one sparsity, for one seed."""

    variant: Variant
    sparsity: float | None  # None for dense training, and where training decides it
    seed: int
    recipe: Recipe
    wrong: _Mistakes = ()  # with the recipe, which has other values in their place

    @property
    def name(self) -> str:
        share = f"-{100 * self.sparsity:g}" if self.sparsity is not None else ""
        return f"{self.variant.name}{share}-seed{self.seed}"

    def record(self) -> CellRecord:
        """Return this cell as comparison.json holds it."""
        return CellRecord(
            variant=self.variant.name,
            method=self.variant.method,
            settings=tuple(self.variant.settings),
            sparsity=self.sparsity,
            seed=self.seed,
        )


def by_method(said: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Settings for all, and those for one method: rigl.drop=0.5 is method.drop=0.5 where the method is RigL."""
    shared, own = [], {name: [] for name in methods.names()}
    for setting in said:
        table, _, rest = setting.partition(".")
        own[table].append(f"method.{rest}") if table in own else shared.append(setting)
    return shared, own


def plan(
    args: argparse.Namespace,
    base: Recipe | None,
    settings: Sequence[str],
    own: Mapping[str, Sequence[str]],
    problems: Problems,
) -> list[Cell]:
    """Every run, also those that cannot be trained; what is wrong beyond their own recipes goes to `problems`."""
    sound = not problems  # what is reckoned from the data waits for that
    entries, sparsities = _entries(args, problems), _sparsities(args, problems)
    like = _like(args, entries, problems)
    epochs = _epochs(base)
    if base is None or epochs is None:  # said already
        return []
    sheet = _Sheet(args.recipe, settings, own, epochs)
    facts = problems.attempt(lambda: facts_of(base, args.data)) if like and sound else None
    costs: dict[float | None, float | None] = {}
    cells: list[Cell] = []
    for entry in entries:
        for sparsity, read in sheet.recipes(entry, sparsities):
            if like and sparsities and sparsity not in costs:
                costs[sparsity], wrong = _cost(sheet, like, sparsity or sparsities[0], facts)
                problems += [f"--like {like.name}: {text}" for text in wrong if like not in entries]
            recipe, wrong = _read(read, costs.get(sparsity), facts)
            if recipe is None:  # no other values stand in
                problems += [f"{entry.name}: {text}" for text in wrong]
                continue
            cells += [Cell(entry, sparsity, s, recipe.with_seed(s), wrong) for s in dict.fromkeys(base.run.seeds)]
    names = [cell.name for cell in cells]
    problems += [
        f"{name}: two runs would have this name; name a variant otherwise"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    return cells


@dataclass(frozen=True)
class _Sheet:
    """What recipes are made of: one for all, with settings for all, for a method and of a variant on top."""

    recipe: str
    settings: Sequence[str]
    own: Mapping[str, Sequence[str]]
    epochs: int

    def recipes(self, entry: Variant, sparsities: Sequence[float]) -> Iterator[tuple[float | None, _Reading]]:
        shared = [*self.settings, *self.own.get(entry.method, ())]
        for sparsity, said in _shares(entry.method, [*shared, *entry.settings], sparsities):
            fixed = [f"method.name={entry.method}", "run.finetune=false", "run.baseline=false", said]
            if entry.method != "acdc":
                fixed += ["method.schedule=", f"train.epochs={self.epochs}"]
            yield sparsity, partial(load.read, self.recipe, [*shared, *fixed, *entry.settings])


def _read(read: _Reading, cost: float | None, facts: Facts | None) -> tuple[Recipe | None, _Mistakes]:
    """A recipe, over as many epochs as the cost buys if there is one; and what is wrong with it."""
    recipe = None
    try:
        recipe = read()
        return (recipe if facts is None or cost is None else at_equal_flops(recipe, cost, facts)), ()
    except RecipeError as error:
        return error.recipe, error.mistakes
    except ValueError as error:  # layers that cannot be pruned as it says
        return recipe, (SettingError.of(error),)


def _cost(sheet: _Sheet, like: Variant, sparsity: float, facts: Facts | None) -> tuple[float | None, _Mistakes]:
    """What `like` costs at a sparsity, which all others get; or what is wrong with it."""
    ((_, read),) = sheet.recipes(like, [sparsity])
    recipe, wrong = _read(read, None, None)
    try:
        return (cost_of(recipe, facts) if recipe and facts and not wrong else None), wrong
    except ValueError as error:
        return None, (SettingError.of(error),)


def _like(args: argparse.Namespace, entries: Sequence[Variant], problems: list[str]) -> Variant | None:
    """Whose cost all get, if they do."""
    named = {entry.name: entry for entry in (*(Variant(name, name) for name in variants.known()), *entries)}
    if args.like not in named:
        problems.append(f"--like {args.like}: expected one of {', '.join(named)}{did_you_mean(args.like, named)}")
    if args.like != "acdc" and args.equal != "flops":
        problems.append(f"--like {args.like}: it counts with --equal flops only; type that too, or leave --like out")
    return named.get(args.like) if args.equal == "flops" else None


def _epochs(base: Recipe | None) -> int | None:
    try:
        return base.epochs if base else None
    except (ValueError, TypeError):  # of a recipe that is wrong
        return None


def _entries(args: argparse.Namespace, problems: list[str]) -> list[Variant]:
    """Methods as they are, then variants."""
    known = variants.known()
    names = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    expected = f"expected some of {', '.join(known)}"
    problems += [f"--methods {n}: {expected}{did_you_mean(n, known)}" for n in names if n not in known]
    if not names and not args.variant:
        problems.append(f'--methods "{args.methods}": expected some of {", ".join(known)}')
    return [*(Variant(name, name) for name in names if name in known), *variants.read(args.variant, problems)]


def _sparsities(args: argparse.Namespace, problems: list[str]) -> list[float]:
    if args.sparsity is not None:
        problems.append(
            f"--sparsity {args.sparsity}: methods are compared at --sparsities; type --sparsities {args.sparsity}"
        )
    try:
        return list(dict.fromkeys(float(text) for text in args.sparsities.split(",")))
    except ValueError:
        problems.append(f"--sparsities {args.sparsities}: expected fractions, such as 0.9,0.95")
        return []


def _shares(method: str, said: Sequence[str], sparsities: Sequence[float]) -> list[tuple[float | None, str]]:
    """The sparsities to train at, each with its setting. A pattern such as 2:4 has its own."""
    if method == "dense" or not methods.find(method).needs_sparsity:
        return [(None, "method.sparsity=")]
    patterns = [text.partition("=")[2].strip("\"' ") for text in said if text.startswith("method.pattern=")]
    try:
        fixed = read_pattern(patterns[-1]).sparsity if patterns and patterns[-1] else None
    except ValueError:  # named when the recipe is read
        fixed = None
    return [(s, f"method.sparsity={s}") for s in sparsities] if fixed is None else [(fixed, "method.sparsity=")]
