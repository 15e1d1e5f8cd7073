"""The preparation of a run: data, model, method, plan and execution, each settled once before the first step.

acdc train, check, eval and compare-methods all start here. `prepare` and `inspect` raise one UsageError that names
everything that is wrong with a recipe on its data and device, or return the run with its warnings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from acdc import data
from acdc.core.method import Method
from acdc.data.data_facts import Facts, ImageFacts, TextFacts
from acdc.data.image_sizes import ImageSizes
from acdc.errors import ArgumentError, UsageError
from acdc.recipes import load as recipes
from acdc.recipes.findings import Finding, RecipeError, SettingError, naming_settings
from acdc.recipes.fit import build_skeleton
from acdc.recipes.schema import Recipe
from acdc.recipes.validate import validate
from acdc.sparsity.layers import Layers
from acdc.sparsity.topk import Shards
from acdc.train import execution, hardware, loading, precision
from acdc.train.console import Plan, Planned
from acdc.train.distributed import World
from acdc.train.loading import LoadedData

STAGE_TITLES = {"dense": "dense baseline", "finetune": "twin, fine-tuned"}  # stages without a method
_STAND_IN = ImageFacts(train=1, test=1, shape=(3, 32, 32), classes=10)  # to check the rest if the data is wrong
_TEXT_STAND_IN = TextFacts(
    train=1000, test=10, validation=10, vocabulary=1000, length=1, evaluation_length=1, order="streams"
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run that do not change what it computes: device, data folder, logging and the like."""

    device: torch.device
    why_device: str = ""
    root: str | None = None  # the folder of the data
    workers: int | None = None
    world: World = field(default_factory=World)
    log: tuple[str, ...] = ()  # services that also receive the metrics
    settings: tuple[str, ...] = ()  # changes that are allowed in a run that has begun; see differences.FREE
    report: bool = True  # write report.html when a run ends

    @property
    def absolute_root(self) -> str | None:
        """Return the absolute path of the data, for config.json: a run may be resumed from another folder."""
        return str(Path(self.root).resolve()) if self.root else None


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is about to start. Whatever is slow to build is built on first use, and only once."""

    recipe: Recipe
    options: RunOptions
    facts: Facts
    loaded: LoadedData | None = None  # None if only the facts are needed, as in acdc check
    warnings: tuple[str, ...] = ()

    @property
    def data(self) -> LoadedData:
        assert self.loaded is not None, "prepare() loads the data; inspect() reads only its facts"
        return self.loaded

    @property
    def device(self) -> torch.device:
        return self.options.device

    @property
    def world(self) -> World:
        return self.options.world

    @property
    def steps_per_epoch(self) -> int:
        return self.facts.steps(self.recipe.train.batch_size)

    @cached_property
    def method(self) -> Method | None:
        """Return the method with what it chooses for the number of steps, or None for dense training."""
        return fitted_method(self.recipe, self.facts)

    @cached_property
    def plan(self) -> Plan:
        return plan_stages(self.recipe, self.method)

    @cached_property
    def execution(self) -> execution.Execution:
        """Choose how the steps run: compiled, replayed from CUDA graphs, or neither."""
        steps = sum(len(stage.kinds) for stage in self.plan.values()) * self.steps_per_epoch
        sizes = len(self.image_sizes.changes()) if self.image_sizes else 1
        train, world = self.recipe.train, self.world.size
        return execution.choose(train, self.device, steps=steps, world=world, sizes=sizes, model=self.skeleton)

    @cached_property
    def image_sizes(self) -> ImageSizes | None:
        """Return the sizes that training images grow through; None if they never change."""
        return self.recipe.image_sizes(self.facts.shape) if isinstance(self.facts, ImageFacts) else None

    @cached_property
    def skeleton(self) -> nn.Module:
        """Build the model for counting: on the meta device, unless its code is the user's own."""
        return build_skeleton(self.recipe, self.facts)

    @cached_property
    def layers(self) -> Layers | None:
        """Find the weights that the method compresses, and those it leaves dense; None for dense training."""
        return self.method.layers(self.skeleton) if self.method else None

    def check_shards(self) -> None:
        """Raise an ArgumentError if sharded training splits what a pattern keeps together, or what is indivisible."""
        processes = self.world.size
        if self.recipe.train.parallel != "fsdp" or processes == 1:
            return
        if scalars := [name for name, param in self.skeleton.named_parameters() if not param.ndim]:
            raise ArgumentError(
                "train.parallel",
                received="fsdp",
                allowed=f"{scalars[0]} is a single number, which fully_shard cannot split",
                instead='make it a tensor of shape [1], or write train.parallel = "ddp"',
            )
        if self.method and self.layers:
            with naming_settings():
                split = Shards(index=0, count=processes, sum=lambda counts: counts)
                self.method.pattern.check_shards(self.layers.weights, split)

    def new_model(self) -> nn.Module:
        """Build the model, with the initial weights of the recipe's seed."""
        return loading.build_model(self.recipe, self.facts)


def fitted_method(recipe: Recipe, facts: Facts) -> Method | None:
    """Build the recipe's method, with what it chooses for as many steps as these data make; None for dense training."""
    method = recipe.build_method()
    return method.for_steps(facts.steps(recipe.train.batch_size), whole_epochs=True) if method else None


def plan_stages(recipe: Recipe, method: Method | None = None) -> Plan:
    """Plan a run's stages, by the recipe's method or that one made for the number of steps.

    Fine-tuning the twin replaces the final compressed phase, so it takes as many epochs.
    """
    epochs, method = recipe.epochs, method or recipe.build_method()
    dense = Planned(STAGE_TITLES["dense"] if method else "dense", 0, ("dense",) * epochs)
    if method is None:
        return {"dense": dense}
    phases = [method.schedule.phase_at(epoch, 1) for epoch in range(epochs)]
    final = sum(phase.final for phase in phases)
    stages = {"dense": dense} if recipe.run.baseline else {}
    stages[recipe.method.name] = Planned(method.title(), 0, tuple(phase.kind for phase in phases))
    if recipe.run.finetune and method.gives_twin():
        stages["finetune"] = Planned(STAGE_TITLES["finetune"], epochs - final, ("dense",) * final)
    return stages


def read_recipe(name: str, settings: Iterable[str], problems: list[str]) -> tuple[Recipe | None, tuple[Finding, ...]]:
    """Read a recipe as far as possible, and return it with its mistakes, which are also added to `problems` as text.

    Defaults replace mistaken values, so that the rest can be checked; if there are none, the recipe is None.
    """
    try:
        return recipes.read(name, settings), ()
    except RecipeError as error:
        problems += [f"{error.source}:", *error.problems]
        return error.recipe, error.findings


Loading = Callable[[Recipe, RunOptions], LoadedData]


def load_data(recipe: Recipe, options: RunOptions, vocabulary: Path | None = None) -> LoadedData:
    """Load a recipe's data, or raise a UsageError. A text is read with the vocabulary of a run, if that is given."""
    place = {"root": options.root, "workers": options.workers, "world": options.world, "vocabulary": vocabulary}
    return loading.load_data(recipe, options.device, **place)


def prepare(
    recipe: Recipe,
    options: RunOptions,
    *,
    mistakes: Sequence[Finding] = (),
    problems: Sequence[str] = (),
    resuming: bool = False,
    load: Loading = load_data,
    method_table: str = "method",
) -> PreparedRun:
    """Load the data and check the recipe against it; raise a UsageError that names all that is wrong.

    mistakes      found in reading the recipe, also in `problems`; what depends on a mistaken setting is not checked
    problems      found earlier, as text: raised with the rest
    resuming      a run whose method would do nothing is not started, but one that has begun gets only a warning
    load          shares data between runs that use the same
    method_table  the prefix of the method's settings in advice on what to type
    """
    wrong, loaded = [*problems, *unsupported(recipe, options.device, resuming=resuming)], None
    if not concern_data(mistakes):
        try:
            loaded = load(recipe, options)
        except UsageError as error:
            wrong += error.problems
    draft = PreparedRun(
        recipe=recipe, options=options, facts=loaded.facts if loaded else _stand_in(recipe), loaded=loaded
    )
    try:
        return _check(draft, mistakes, wrong, resuming=resuming, method_table=method_table)
    except UsageError:
        if loaded is not None:
            loaded.close()
        raise


def inspect(
    recipe: Recipe,
    options: RunOptions,
    *,
    mistakes: Sequence[Finding] = (),
    problems: Sequence[str] = (),
    device_is_final: bool = False,
) -> PreparedRun:
    """Check a recipe as `prepare` does, without keeping its data; if it is not found, use the published facts.

    What the device cannot do is an error if this is the device to train on (`device_is_final`), else a warning.
    """
    wrong, facts = [*problems], _stand_in(recipe)
    if not concern_data(mistakes):
        try:
            facts = loading.read_facts(recipe, options.root)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            wrong.append(str(error))
    warnings = unsupported(recipe, options.device)
    if device_is_final:
        wrong, warnings = wrong + warnings, []
    if facts.missing:
        warnings.append(f"data not found: {facts.missing}")
    draft = PreparedRun(recipe=recipe, options=options, facts=facts, warnings=tuple(warnings))
    return _check(draft, mistakes, wrong)


def _stand_in(recipe: Recipe) -> Facts:
    try:
        text = data.describe(recipe.data.name).kind == "text"
    except ArgumentError:  # reported already
        text = False
    return _TEXT_STAND_IN if text else _STAND_IN


def concern_data(mistakes: Iterable[Finding]) -> bool:
    """Return True if a mistake in the recipe prevents loading its data."""
    return any(one.table == "data" or one.setting in ("run.seeds", "train.batch_size") for one in mistakes)


def unsupported(recipe: Recipe, device: torch.device, *, resuming: bool = False) -> list[str]:
    """Return what the recipe needs that this device cannot do."""
    why = precision.unsupported(recipe.train.precision, device, begun=resuming)
    return [f'train.precision = "{recipe.train.precision}": {why}'] if why else []


def _check(
    draft: PreparedRun,
    mistakes: Sequence[Finding],
    problems: Sequence[str],
    *,
    resuming: bool = False,
    method_table: str = "method",
) -> PreparedRun:
    """Return the run with all its warnings if nothing is wrong. What depends on unknown data is not checked."""
    recipe, facts, known = draft.recipe, draft.facts, draft.facts not in (_STAND_IN, _TEXT_STAND_IN)
    findings = validate(
        recipe,
        facts,
        known=mistakes,
        unread=not known,
        begun=resuming,
        method_table=method_table,
        cpu_cores=hardware.cores() if draft.device.type == "cpu" else None,
    )
    wrong = [str(finding) for finding in findings if finding.level == "error"]
    surprising = [str(finding) for finding in findings if finding.level == "warning"]
    warnings = (*surprising, *_too_many_threads(recipe, draft.device), *draft.warnings)
    run = replace(draft, warnings=warnings)
    if known and not wrong and not mistakes:
        for look in (lambda: run.execution, run.check_shards):
            try:
                look()
            except ArgumentError as error:
                wrong.append(str(SettingError(error.argument, error.received, error.allowed, error.instead)))
    if problems or wrong:
        raise UsageError([*problems, *wrong])
    return run


def _too_many_threads(recipe: Recipe, device: torch.device) -> list[str]:
    threads, cores = recipe.train.threads, hardware.cores()
    if device.type != "cpu" or threads <= cores:
        return []
    advice = f"set {cores} or less, or 0 for torch's own choice"
    return [f"train.threads = {threads:,}: this machine has {cores} cores, and more threads are slower; {advice}"]
