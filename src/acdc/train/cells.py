"""The runs of a comparison: methods and variants x sparsities x seeds, at equal epochs or equal training FLOPs.

A variant, NAME=METHOD:setting=value,setting=value, is a method with its own name and settings.
"""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from acdc import methods, models
from acdc.data.data_facts import Facts, ImageFacts
from acdc.errors import Problems, did_you_mean
from acdc.measure import predict
from acdc.recipes import load
from acdc.recipes.findings import Finding, RecipeError, naming_settings
from acdc.recipes.fit import count_uses
from acdc.recipes.schema import PROPORTIONS, Recipe, read_pattern
from acdc.runs.records import CellRecord
from acdc.train.loading import read_facts
from acdc.train.prepare import fitted_method, plan_stages

VARIANT_EXAMPLE = "--variant distilled=acdc:train.distill=0.5"
_VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# Settings that the comparison itself decides, and what to type instead.
_DECIDED = {
    "method.name": "put the method before the colon",
    "method.sparsity": "use --sparsities, which applies to all methods",
    "run.seeds": "use --seeds, which applies to all methods",
    "run.baseline": "add dense to --methods",
    "run.finetune": "twins are not fine-tuned in a comparison",
}
_FEWEST_EPOCHS = 4  # that a method gets at equal FLOPs

_ReadRecipe = Callable[[], Recipe]
_Mistakes = tuple[Finding, ...]


@dataclass(frozen=True)
class Variant:
    """A method with its own name, and settings that override those of the whole comparison."""

    name: str
    method: str  # or "dense"
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A run of a comparison: one method, or a variant of it, at one sparsity, for one seed."""

    variant: Variant
    sparsity: float | None  # None for dense training, and if training decides it
    seed: int
    recipe: Recipe
    mistakes: _Mistakes = ()  # in the recipe, which has other values in their place

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        percent = f"-{100 * self.sparsity:g}" if self.sparsity is not None else ""
        return f"{self.variant.name}{percent}-seed{self.seed}"

    def record(self) -> CellRecord:
        """Return the cell as comparison.json holds it."""
        return CellRecord(
            variant=self.variant.name,
            method=self.variant.method,
            settings=self.variant.settings,
            sparsity=self.sparsity,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The request for a comparison, before it has been checked."""

    recipe: str
    settings: Sequence[str]  # for all
    own_settings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # for one method and all its variants
    entries: Sequence[Variant]
    sparsities: Sequence[float]
    equal_to: Variant | None = None  # all get its training FLOPs; with None, all get the same epochs
    data: str | None = None


def known_methods() -> tuple[str, ...]:
    """Return the methods that a comparison accepts."""
    return (*methods.names(), "dense")


def split_settings(settings: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return settings for all methods, and those for one: rigl.drop=0.5 means method.drop=0.5 for RigL only."""
    shared, own = [], {name: [] for name in methods.names()}
    for setting in settings:
        table, _, rest = setting.partition(".")
        own[table].append(f"method.{rest}") if table in own else shared.append(setting)
    return shared, own


def read_variants(texts: Sequence[str], problems: list[str]) -> list[Variant]:
    """Return the variants that can be read, and add what is wrong with the others to `problems`."""
    variants: list[Variant] = []
    known = known_methods()
    for text in texts:
        name, equals, rest = text.partition("=")
        method, colon, settings_text = rest.partition(":")
        name, method, settings = name.strip(), method.strip(), _split_variant(settings_text)
        wrong = ""
        if not (equals and colon and settings):
            wrong = f"expected NAME=METHOD:setting=value,..., for example {VARIANT_EXAMPLE}"
        elif not _VARIANT_NAME.fullmatch(name):
            wrong = "expected a name made of letters, digits and . _ + - before the first ="
        elif method not in known:
            wrong = f"{method} is not a method; expected one of {', '.join(known)}{did_you_mean(method, known)}"
        elif name in known:
            wrong = f"{name} is the name of a method; use another name before the ="
        elif name in [variant.name for variant in variants]:
            wrong = f"{name} is the name of another variant; use another name before the ="
        if wrong:
            problems.append(f"--variant {text}: {wrong}")
            continue
        keys = [setting.partition("=")[0].strip() for setting in settings]
        decided = [f"--variant {text}: {key} cannot be set here: {_DECIDED[key]}" for key in keys if key in _DECIDED]
        problems += decided
        if not decided:
            variants.append(Variant(name, method, settings))
    return variants


def _split_variant(text: str) -> tuple[str, ...]:
    """Split at commas outside brackets and quotes. A key without a table is a setting of the method."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif not quote:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    settings = [part.strip() for part in parts if part.strip()]
    return tuple(part if "." in part.partition("=")[0] else f"method.{part}" for part in settings)


def plan_cells(grid: Grid, base: Recipe | None, problems: Problems, *, count_flops: bool = True) -> list[Cell]:
    """Return all runs, even those that cannot be trained; add what is wrong besides their recipes to `problems`.

    Without `count_flops` all get the epochs of `base`: predictions need a base recipe without mistakes.
    """
    like, epochs = grid.equal_to, _epochs_of(base)
    if base is None or epochs is None:  # reported already
        return []
    facts = problems.attempt(lambda: read_facts(base, grid.data)) if like and count_flops else None
    costs: dict[float | None, float | None] = {}
    cells: list[Cell] = []
    for entry in grid.entries:
        for sparsity, read in _recipes_of(entry, grid, grid.sparsities, epochs):
            if like and grid.sparsities and sparsity not in costs:
                costs[sparsity], mistakes = _cost_at(like, grid, sparsity or grid.sparsities[0], epochs, facts)
                problems += [f"--like {like.name}: {one}" for one in mistakes if like not in grid.entries]
            recipe, mistakes = _read(read, costs.get(sparsity), facts)
            if recipe is None:  # nothing could replace the mistakes
                problems += [f"{entry.name}: {one}" for one in mistakes]
                continue
            seeds = dict.fromkeys(base.run.seeds)
            cells += [Cell(entry, sparsity, seed, recipe.with_seed(seed), mistakes) for seed in seeds]
    names = [cell.name for cell in cells]
    problems += [
        f"{name}: two runs would have this name; rename a variant"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    return cells


def _recipes_of(
    entry: Variant, grid: Grid, sparsities: Sequence[float], epochs: int
) -> Iterator[tuple[float | None, _ReadRecipe]]:
    """Yield each sparsity of an entry with a reader for its recipe: common settings, the method's, the variant's."""
    shared = [*grid.settings, *grid.own_settings.get(entry.method, ())]
    for sparsity, setting in _sparsities_of(entry.method, [*shared, *entry.settings], sparsities):
        fixed = [f"method.name={entry.method}", "run.finetune=false", "run.baseline=false", setting]
        if entry.method != "acdc":
            fixed += ["method.schedule=", f"train.epochs={epochs}"]
        yield sparsity, partial(load.read, grid.recipe, [*shared, *fixed, *entry.settings])


def _sparsities_of(method: str, settings: Sequence[str], sparsities: Sequence[float]) -> list[tuple[float | None, str]]:
    """Return the sparsities to train at, each with its setting. A pattern such as 2:4 fixes its own."""
    if method == "dense" or not methods.find(method).needs_sparsity:
        return [(None, "method.sparsity=")]
    patterns = [text.partition("=")[2].strip("\"' ") for text in settings if text.startswith("method.pattern=")]
    try:
        fixed = read_pattern(patterns[-1]).sparsity if patterns and patterns[-1] else None
    except ValueError:  # reported when the recipe is read
        fixed = None
    return [(s, f"method.sparsity={s}") for s in sparsities] if fixed is None else [(fixed, "method.sparsity=")]


def _read(read: _ReadRecipe, cost: float | None, facts: Facts | None) -> tuple[Recipe | None, _Mistakes]:
    """Read a recipe, with as many epochs as the cost allows, if there is one; return it with its mistakes."""
    recipe = None
    try:
        recipe = read()
        return (recipe if facts is None or cost is None else at_equal_flops(recipe, cost, facts)), ()
    except RecipeError as error:
        return error.recipe, error.findings
    except ValueError as error:  # layers that cannot be pruned as requested
        return recipe, (Finding.of(error),)


def _epochs_of(base: Recipe | None) -> int | None:
    """Return the recipe's epochs before train.times multiplies them."""
    try:
        return base.epochs // base.train.times if base else None
    except (ValueError, TypeError):  # the recipe is wrong
        return None


# Equal training FLOPs, by prediction


def _cost_at(
    like: Variant, grid: Grid, sparsity: float, epochs: int, facts: Facts | None
) -> tuple[float | None, _Mistakes]:
    """Return the cost of `like` at a sparsity, which all others get; or what is wrong with it."""
    ((_, read),) = _recipes_of(like, grid, [sparsity], epochs)
    recipe, mistakes = _read(read, None, None)
    try:
        return (training_cost(recipe, facts) if recipe and facts and not mistakes else None), mistakes
    except ValueError as error:
        return None, (Finding.of(error),)


def at_equal_flops(recipe: Recipe, cost: float, facts: Facts) -> Recipe:
    """Return the recipe with as many epochs as this cost allows; milestones of the learning rate move along.

    If the total changes, phases get the method's own proportions; otherwise they stay.
    """
    if _epochs_for(recipe, cost, facts) == recipe.epochs:
        return recipe
    proportions = _over(recipe, recipe.epochs)
    return _over(proportions, _epochs_for(proportions, cost, facts))


def training_cost(recipe: Recipe, facts: Facts) -> float:
    """Return the predicted FLOPs of training, in dense epochs; the mean if there are two estimates."""
    # Initial weights show how a global budget spreads over layers.
    model = models.build(recipe.model.name, **facts.model_arguments(), seed=0, **recipe.model.options)
    uses = count_uses(model, facts)
    method = fitted_method(recipe, facts)
    with naming_settings():
        zeros = predict.compressed(method, method.layers(model)) if method else None
    flops = predict.inference(model, uses, zeros)
    (planned,) = plan_stages(recipe, method).values()  # there is no baseline and no twin to fine-tune
    factors = None
    if isinstance(facts, ImageFacts) and (sizes := recipe.image_sizes(facts.shape)):
        shares = predict.size_shares(model, uses, sizes, facts.shape)
        factors = [shares[sizes.at(epoch)] for epoch in range(len(planned.kinds))]
    return statistics.fmean(predict.training(planned.kinds, flops, 1, method, factors)) / (3 * flops.dense)


def _epochs_for(recipe: Recipe, cost: float, facts: Facts) -> int:
    return max(_FEWEST_EPOCHS, round(recipe.epochs * cost / training_cost(recipe, facts)))


def _over(recipe: Recipe, epochs: int) -> Recipe:
    changed, rate = recipe.to_dict(), recipe.stretched_rate()
    schedule = changed["method"]["schedule"]
    changed["train"] |= {"epochs": epochs, "times": 1}
    changed["method"]["schedule"] = None if schedule is None else PROPORTIONS
    changed["rate"] = asdict(rate)
    changed["rate"]["milestones"] = [round(m * epochs / recipe.epochs, 3) for m in rate.milestones]
    return load.from_dict(changed)
