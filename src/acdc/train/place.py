"""Where runs happen, their data there, and whether a recipe fits both: one for checks, for runs and for comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from acdc.errors import ArgumentError, UsageError
from acdc.recipes.mistakes import SettingError
from acdc.recipes.schema import Recipe
from acdc.train import experiment, hardware, loading, planning
from acdc.train.distributed import World
from acdc.train.execution import Execution, choose
from acdc.train.facts import STAND_IN, Facts
from acdc.train.precision import unsupported


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run happens, and who looks on: nothing that changes what it computes."""

    device: torch.device
    why_device: str
    root: str | None
    workers: int | None
    world: World
    log: tuple[str, ...]
    settings: tuple[str, ...] = ()  # that runs which have begun go on with; see differences.FREE
    report: bool = True  # draw report.html as a run ends

    @property
    def whole_root(self) -> str | None:
        """As it is kept: a run may be gone on with from another folder."""
        return str(Path(self.root).resolve()) if self.root else None


def load(recipe: Recipe, place: Place, *, begun: bool = False) -> loading.Problem:
    """The data to train on, of a new run or one that has begun."""
    if wrong := not_here(recipe, place.device, begun=begun):
        raise UsageError(wrong)
    return load_data(recipe, place.device, root=place.root, workers=place.workers, world=place.world)


def not_here(recipe: Recipe, device: torch.device, *, begun: bool = False) -> list[str]:
    """What this device cannot do."""
    why = unsupported(recipe.train.precision, device, begun=begun)
    return [f'train.precision = "{recipe.train.precision}": {why}'] if why else []


def load_data(
    recipe: Recipe, device: torch.device, *, root: str | None, workers: int | None, world: World
) -> loading.Problem:
    """A recipe's data; or a UsageError: where they lie, and that they are whole, is the user's to see to."""
    try:
        return loading.load(recipe, device, root=root, workers=workers, world=world)
    except BrokenPipeError:  # of who reads our output
        raise
    except (ModuleNotFoundError, ValueError, OSError) as error:
        raise UsageError([str(error)]) from None


def execution(recipe: Recipe, facts: Facts, device: torch.device, world: int = 1) -> Execution:
    """How the steps of a run on these data are executed by so many processes."""
    epochs = sum(len(planned.kinds) for planned in experiment.plan(recipe).values())
    return choose(recipe.train, device, steps=epochs * facts.steps(recipe.train.batch_size), world=world)


def fit(
    recipe: Recipe,
    facts: Facts | None,
    device: torch.device | None,
    world: int = 1,
    *,
    wrong: Sequence[SettingError] = (),
    began: bool = False,
    typed: str = "method",
) -> list[str]:
    """What may surprise in a recipe that fits its model, data and device; a UsageError, with all that does not.

    Data and device may be unknown, as what was typed of them is wrong: the rest is looked at. A run whose method will
    do nothing is not begun; one that has begun is not lost, and warned of.
    """
    data = facts or STAND_IN
    steps = facts.steps(recipe.train.batch_size) if facts else None
    found = planning.fit(recipe, classes=data.classes, shape=data.shape, steps=steps, wrong=wrong, typed=typed)
    problems = found.problems if began else found.problems + found.idle
    if facts and device and not problems and not wrong:
        try:
            execution(recipe, facts, device, world)
        except ArgumentError as error:
            problems.append(f'{error.argument} = "{error.received}": {error.allowed}; {error.instead}')
    if problems:
        raise UsageError(problems)
    return found.idle + found.warnings + _too_many_threads(recipe, device)


def _too_many_threads(recipe: Recipe, device: torch.device | None) -> list[str]:
    threads, cores = recipe.train.threads, hardware.cores()
    if device is None or device.type != "cpu" or threads <= cores:
        return []
    advice = f"set {cores} or less, or 0 for torch's own choice"
    return [f"train.threads = {threads:,}: this machine has {cores} cores, and more threads slow each other; {advice}"]
