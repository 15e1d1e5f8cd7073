"""Every run of a comparison: methods and variants x sparsities x seeds, or all that is wrong with what was typed."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from acdc import methods
from acdc.cli import variants
from acdc.cli.equal import at_equal_flops
from acdc.cli.errors import UsageError
from acdc.cli.facts import Facts, facts_of
from acdc.cli.variants import Variant
from acdc.train import reading
from acdc.train.recipe import Recipe, read_pattern
from acdc.train.words import did_you_mean


@dataclass(frozen=True)
class Cell:
    """One method, or a variant of it, at one sparsity, for one seed."""

    variant: Variant
    sparsity: float | None  # None for dense training, and where training decides it
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        share = f"-{100 * self.sparsity:g}" if self.sparsity is not None else ""
        return f"{self.variant.name}{share}-seed{self.seed}"

    def told(self) -> dict[str, Any]:
        said = {"variant": self.variant.name, "method": self.variant.method, "settings": list(self.variant.settings)}
        return {**said, "sparsity": self.sparsity, "seed": self.seed}


def by_method(said: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Settings for all, and those for one method: rigl.drop=0.5 is method.drop=0.5 where the method is RigL."""
    shared, own = [], {name: [] for name in methods.names()}
    for setting in said:
        table, _, rest = setting.partition(".")
        own[table].append(f"method.{rest}") if table in own else shared.append(setting)
    return shared, own


def plan(
    args: argparse.Namespace, base: Recipe, settings: Sequence[str], own: Mapping[str, Sequence[str]]
) -> list[Cell]:
    """Every run. All that is wrong is said before anything is made."""
    problems: list[str] = []
    entries, sparsities = _entries(args, problems), _sparsities(args, problems)
    named = {entry.name: entry for entry in (*(Variant(name, name) for name in variants.known()), *entries)}
    if args.like not in named:
        problems.append(f"--like {args.like}: expected one of {', '.join(named)}{did_you_mean(args.like, named)}")
    if args.like != "acdc" and args.equal != "flops":
        problems.append(f"--like {args.like}: it counts with --equal flops only; type that too, or leave --like out")
    if problems:
        raise UsageError(problems)
    like = named[args.like]
    facts = _facts(base, args.data) if args.equal == "flops" else None

    def recipes(entry: Variant, sparsities: Sequence[float]) -> Iterator[tuple[float | None, Callable[[], Recipe]]]:
        shared = [*settings, *own.get(entry.method, ())]
        for sparsity, said in _shares(entry.method, [*shared, *entry.settings], sparsities):
            fixed = [f"method.name={entry.method}", "run.finetune=false", "run.baseline=false", said]
            if entry.method != "acdc":
                fixed += ["method.schedule=", f"train.epochs={base.epochs}"]
            yield sparsity, partial(reading.read, args.recipe, [*shared, *fixed, *entry.settings])

    cells: list[Cell] = []
    for entry in entries:
        for sparsity, read in recipes(entry, sparsities):
            try:
                recipe = read()
                if facts is not None:
                    ((_, read_like),) = recipes(like, [sparsity if sparsity is not None else sparsities[0]])
                    recipe = at_equal_flops(recipe, read_like(), facts)
            except reading.RecipeError as error:
                problems.append(f"{entry.name}: {'; '.join(error.problems)}")
                continue
            cells += [Cell(entry, sparsity, seed, recipe.with_seed(seed)) for seed in base.run.seeds]
    names = [cell.name for cell in cells]
    problems += [
        f"{name}: two runs would have this name; name a variant otherwise" for name in names if names.count(name) > 1
    ]
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return cells


def _entries(args: argparse.Namespace, problems: list[str]) -> list[Variant]:
    """Methods as they are, then variants."""
    known = variants.known()
    names = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    expected = f"expected some of {', '.join(known)}"
    problems += [f"--methods {n}: {expected}{did_you_mean(n, known)}" for n in names if n not in known]
    if not names and not args.variant:
        problems.append(f'--methods "{args.methods}": expected some of {", ".join(known)}')
    return [*(Variant(name, name) for name in names), *variants.read(args.variant, problems)]


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


def _facts(base: Recipe, root: str | None) -> Facts:
    try:
        return facts_of(base, root)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise UsageError([str(error)]) from None
