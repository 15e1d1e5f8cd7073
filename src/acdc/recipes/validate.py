"""What is wrong with a recipe whose values are each of the right type: names, schedules, numbers out of range."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

import torch

from acdc import data, methods, models
from acdc.errors import did_you_mean
from acdc.recipes.mistakes import SettingError, of_knob
from acdc.recipes.ranges import LIMITS
from acdc.recipes.schema import Recipe, in_method, read_pattern
from acdc.recipes.words import keys_of, no_such, shown
from acdc.schedule import Duration, Schedule
from acdc.sparsity.distributions import check_distribution, check_sparsity

_KNOBS = tuple(inspect.signature(Schedule.alternating).parameters)
_LONGEST = {"ep": 100_000, "st": 10**12}  # between checkpoints
_FOLDER_OPTIONS = ("size", "resize", "classes")


def check(recipe: Recipe) -> list[SettingError]:
    """What single values cannot show: models and data by name, schedules, numbers in range."""
    problems = [*_schedule_knobs(recipe), *_method_options(recipe)]
    phases = () if problems else (recipe.schedule, lambda: recipe.epochs)
    for attempt in (*phases, *_knobs(recipe)):
        try:
            attempt()
        except (ValueError, TypeError) as error:
            problems.append(SettingError.of(error))
    if phases:
        problems += _built(recipe)
    problems += _model(recipe)
    problems += _data(recipe)
    epochs = any(one.setting == "train.epochs" for one in problems)  # a method may need more of them than one
    problems += [one for one in _ranges(recipe) if not (epochs and one.setting == "train.epochs")]
    try:
        every = Duration.parse(recipe.run.checkpoint_every)
        if every.unit == "%" or not 0 < every.value <= _LONGEST[every.unit]:
            said = f' = "{recipe.run.checkpoint_every}": expected epochs or steps; write "10ep" or "500st"'
            problems.append(SettingError("run.checkpoint_every", said))
    except ValueError as error:
        problems.append(SettingError("run.checkpoint_every", f": {error}"))
    return problems


def _schedule_knobs(recipe: Recipe) -> list[SettingError]:
    said, name = recipe.method.schedule, recipe.method.name
    if said is not None and name in methods.names() and not (kind := methods.find(name)).alternates:
        own = f"{kind.title()} has phases of its own, and these alternate; leave it out (method.schedule=)"
        instead = f"set train.epochs = {recipe.train.epochs or _epochs(said)}"
        return [SettingError("method.schedule", f" = {shown(said)}: {own} and {instead}")]
    if not isinstance(said, Mapping) or name == "dense":
        return []
    optional = ("last_dense", "shape", *(("total",) if recipe.train.epochs else ()))
    needed = [knob for knob in _KNOBS if knob not in optional]
    missing = [knob for knob in needed if knob not in said]
    problems = [no_such("method.schedule", knob, _KNOBS) for knob in said if knob not in _KNOBS]
    if missing:
        instead = f'write for example {missing[0]} = "10ep"'
        problems.append(SettingError("method.schedule", f": {', '.join(missing)} not set; {instead}"))
    return problems


def _epochs(schedule: str | Mapping[str, Any]) -> int:
    """Of phases that are given up; 100 where nothing says how many."""
    named = Schedule.named()
    if isinstance(schedule, str):
        return named[schedule]().total_steps(1) if schedule in named else 100
    try:
        return int(Duration.parse(schedule.get("total", "100ep")).value)
    except (ValueError, TypeError):
        return 100


def _method_options(recipe: Recipe) -> list[SettingError]:
    said = recipe.method
    if said.name == "dense":
        why = ': method.name = "dense" has no knobs; leave it out'
        return [SettingError(f"method.{key}", why) for key in said.options]
    if said.name not in methods.names():
        known = ("dense", *methods.names())
        expected = f"expected one of {', '.join(known)}{did_you_mean(said.name, known)}"
        return [SettingError("method.name", f' = "{said.name}": {expected}')]
    known = [f.name for f in fields(methods.find(said.name)) if f.name != "epochs"]
    return [no_such("method", key, known) for key in said.options if key not in known]


def _knobs(recipe: Recipe) -> Iterator[Callable[[], object]]:
    """The method's, one by one: building it stops at the first that is wrong. Errors read as they do there."""
    said = recipe.method
    if said.name != "dense":
        if said.pattern is not None:
            yield lambda: read_pattern(said.pattern or "")
        if said.distribution is not None:
            yield lambda: in_method(check_distribution, said.distribution)
        if said.sparsity is not None:
            yield lambda: in_method(check_sparsity, "sparsity", said.sparsity)


def _built(recipe: Recipe) -> list[SettingError]:
    """What building the method refuses, knob after knob: one that is wrong is named, another value takes its place, and
    it is built again. What is said of a knob because of one named already is left out."""
    problems: list[SettingError] = []
    named: set[str] = set()
    while True:
        try:
            recipe.build_method()
            return problems
        except (ValueError, TypeError) as error:
            problem = SettingError.of(error)
        knob = problem.key if problem.table == "method" else ""
        if not knob or not any(f"{other}=" in str(problem) or other == knob for other in named):
            problems.append(problem)
        if not knob or knob in named:
            return problems
        named.add(knob)
        recipe = _without(recipe, knob)


def _without(recipe: Recipe, knob: str) -> Recipe:
    """The recipe with some value that is not wrong in place of one that is."""
    said, train = recipe.method, recipe.train
    if knob == "schedule":  # with epochs that suit any method: those there are were meant for these phases
        train = replace(train, epochs=100)
    if knob in keys_of(type(said)):
        unset = next(f.default for f in fields(said) if f.name == knob)
        if knob == "sparsity" and methods.find(said.name).needs_sparsity and not _fixes_sparsity(said.pattern):
            unset = 0.5
        return replace(recipe, train=train, method=replace(said, **{knob: unset}))
    kept = {key: value for key, value in said.options.items() if key != knob}
    return replace(recipe, method=replace(said, options=kept))


def _fixes_sparsity(pattern: str | None) -> bool:
    try:
        return pattern is not None and read_pattern(pattern).sparsity is not None
    except ValueError:
        return False


def _model(recipe: Recipe) -> list[SettingError]:
    """Its name, and its options one by one."""
    said = recipe.model
    settled = {"classes": "the data settle it", "in_channels": "the data settle it", "seed": "run.seeds settles it"}
    problems = [
        SettingError(f"model.{key}", f": {why}; leave it out") for key, why in settled.items() if key in said.options
    ]
    for option in ({}, *({key: value} for key, value in said.options.items() if key not in settled)):
        try:
            with torch.device("meta"):
                models.build(said.name, classes=10, **option)
        except ValueError as error:
            problems.append(of_knob("model", str(error)))
            if not option:  # the name
                break
    return problems


def _data(recipe: Recipe) -> list[SettingError]:
    """The name, and options that its loader does not take."""
    said = recipe.data
    if said.name not in data.names():
        expected = f"expected one of {', '.join(data.names())}{did_you_mean(said.name, data.names())}"
        return [SettingError("data.name", f' = "{said.name}": {expected}')]
    known, problems = data.describe(said.name), []
    own = _FOLDER_OPTIONS
    if known.kind == "memory":
        load = getattr(import_module(known.module), known.function)
        own = tuple(name for name in inspect.signature(load).parameters if name not in ("root", "device"))
    else:
        problems = [
            SettingError(f"data.{key}", f" = {getattr(said, key)}: not for images read from folders; leave it out")
            for key in ("validation", "corrupt", "crop")
            if getattr(said, key)
        ]
    settings = [key for key in keys_of(type(said)) if known.kind == "memory" or key in ("name", "bad_limit")]
    return problems + [no_such("data", key, [*settings, *own]) for key in said.options if key not in own]


def _limits(recipe: Recipe) -> Iterator[SettingError]:
    """Numbers out of the range that ranges.py has for them."""
    for setting, limits in LIMITS.items():
        table, _, key = setting.partition(".")
        value = getattr(getattr(recipe, table), key)
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if complaint := next(filter(None, map(limits.complaint, values)), None):
            yield SettingError(setting, f" = {shown(value)}: expected {complaint}")


def _ranges(recipe: Recipe) -> list[SettingError]:
    """Numbers out of their range, by themselves or by what stands beside them."""
    o, t, r, rate = recipe.optimizer, recipe.train, recipe.run, recipe.rate
    problems = [*_limits(recipe)]
    named = {one.setting for one in problems}
    problems += [
        SettingError(key, f" = {shown(value)}: expected {allowed}")
        for key, value, fine, allowed in (
            ("optimizer.nesterov", o.nesterov, not o.nesterov or o.momentum > 0, "false where momentum is 0"),
            ("train.accumulate", t.accumulate, 0 < t.accumulate <= max(1, t.batch_size), "from 1 to train.batch_size"),
            ("rate.milestones", rate.milestones, rate.shape != "step" or bool(rate.milestones), "epochs, such as [60]"),
            ("rate.milestones", rate.milestones, len(rate.milestones) <= 100, "at most 100 epochs, such as [60]"),
            ("run.seeds", r.seeds, bool(r.seeds) and len({*r.seeds}) == len(r.seeds), "different whole numbers"),
            ("run.seeds", r.seeds, len(r.seeds) <= 1000, "at most 1,000 of them"),
        )
        if not fine and key not in named
    ]
    if t.distill and recipe.method.name == "dense":
        problems.append(
            SettingError("train.distill", ': method.name = "dense" has no twin to learn from; leave it out')
        )
    elif t.distill and not problems and not _gives_twin(recipe):
        why = f"{methods.find(recipe.method.name).title()} keeps no dense twin to learn from; leave it out"
        problems.append(SettingError("train.distill", f" = {t.distill:g}: {why}"))
    name = recipe.method.name
    if t.ema is not None and name in methods.names() and not methods.find(name).averages:
        why = f'method.name = "{name}" rounds weights, and an average of them is not rounded; leave it out'
        problems.append(SettingError("train.ema", f" = {t.ema:g}: {why}"))
    if recipe.method.name == "dense" and (r.baseline or r.finetune):
        why = ', run.finetune: method.name = "dense" has neither; set those that are true to false'
        problems.append(SettingError("run.baseline", why))
    return problems


def _gives_twin(recipe: Recipe) -> bool:
    try:
        method = recipe.build_method()
    except (ValueError, TypeError):  # named elsewhere
        return True
    return method is None or method.gives_twin()
