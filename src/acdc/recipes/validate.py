"""Checks of a recipe: names, schedules and numbers alone, and with the data also its model, layers, steps and cost.

Every value already has its setting's type (load.py ensures that). All errors and warnings are reported at once.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_type_hints

from acdc import data, methods, models
from acdc.data.data_facts import Facts
from acdc.errors import ArgumentError, ConflictError, did_you_mean
from acdc.recipes.findings import Finding, SettingError, naming_settings
from acdc.recipes.fit import check_fit
from acdc.recipes.load import convert
from acdc.recipes.schema import (
    Recipe,
    limits_of,
    read_pattern,
    setting_names,
    tables,
    unknown_setting,
)
from acdc.schedule import Duration, Schedule
from acdc.sparsity.distributions import check_distribution, check_sparsity
from acdc.typed_data import Limits

_LENGTHS = tuple(inspect.signature(Schedule.alternating).parameters)
_LONGEST = {"ep": 100_000, "st": 10**12}  # a run, and the distance between checkpoints
_FOLDER_SETTINGS = ("name", "flip", "first_size", "full_size_by", "size_step", "bad_limit")
_STAND_IN = 0.99  # replaces a wrong sparsity: no other knob of a method has to be above it


def validate(
    recipe: Recipe,
    data: Facts | None = None,
    *,
    known: Sequence[Finding] = (),
    unread: bool = False,
    begun: bool = False,
    method_table: str = "method",
    cpu_cores: int | None = None,
) -> list[Finding]:
    """Return every error and warning that is not `known` yet and does not follow from one that is.

    Without `data` the recipe alone is checked, and no user code is imported. With `data` only the remaining checks are
    made: whether the model accepts these images or tokens, the method these layers and steps, the learning rate these
    epochs, and whether it takes days on a CPU with so many cores. If the data is `unread`, a stand-in is used, and what
    depends on the data is not checked. A run that has `begun` gets a warning where a new one is refused because its
    method would never act. `method_table` is what a user types to set the method's knobs.
    """
    if data is None:
        findings = _check_alone(recipe)
    else:
        findings = check_fit(
            recipe, data, known, unread=unread, begun=begun, method_table=method_table, cpu_cores=cpu_cores
        )
    return [finding for finding in findings if not finding.follows_from(known)]


def _check_alone(recipe: Recipe) -> list[Finding]:
    errors: list[ArgumentError] = [*_schedule(recipe), *_method_options(recipe)]
    build = () if errors else (recipe.schedule, lambda: recipe.epochs)
    for attempt in (*build, *_knobs(recipe)):
        try:
            attempt()
        except ArgumentError as error:
            errors.append(error)
    if build:
        errors += _build(recipe)
    errors += _model(recipe)
    errors += _data(recipe)
    named = {error.argument for error in errors}  # a method may need more epochs than one
    errors += [error for error in _ranges(recipe) if error.argument not in named]
    errors += _checkpoints(recipe)
    depends = {
        "train.accumulate": ("train.batch_size",),
        "model.bn_splits": ("train.batch_size", "train.accumulate"),
        "train.epochs": ("method.schedule",),
        "train.times": ("train.epochs",),
        "rate.milestones": ("rate.shape",),
        "optimizer.nesterov": ("optimizer.momentum",),
        "optimizer.bias_correction": ("optimizer.name",),
    }
    return [Finding(error, depends=depends.get(error.argument, ())) for error in errors]


# Method


def _schedule(recipe: Recipe) -> list[ArgumentError]:
    setting, name = recipe.method.schedule, recipe.method.name
    if setting is not None and name in methods.names() and not (kind := methods.find(name)).alternates:
        own = f"{kind.title()} has its own phases, but these alternate"
        instead = f"remove it (method.schedule=) and set train.epochs = {recipe.train.epochs or _epochs(setting)}"
        return [SettingError("method.schedule", received=setting, allowed=own, instead=instead)]
    if not isinstance(setting, Mapping) or name == "dense":
        return []
    optional = ("last_dense", "shape", *(("total",) if recipe.train.epochs else ()))
    missing = [length for length in _LENGTHS if length not in optional and length not in setting]
    unknown = [key for key in setting if key not in _LENGTHS]
    errors: list[ArgumentError] = [unknown_setting("method.schedule", key, _LENGTHS) for key in unknown]
    if missing:
        instead = f'write, for example, {missing[0]} = "10ep"'
        errors.append(SettingError("method.schedule", allowed=f"{', '.join(missing)} not set", instead=instead))
    return errors


def _epochs(schedule: str | Mapping[str, Any]) -> int:
    """Return the number of epochs of a schedule that is dropped; 100 if it does not say."""
    named = Schedule.named()
    if isinstance(schedule, str):
        return named[schedule]().total_steps(1) if schedule in named else 100
    try:
        return int(Duration.parse(schedule.get("total", "100ep")).value)
    except (ValueError, TypeError):
        return 100


def _method_options(recipe: Recipe) -> list[ArgumentError]:
    settings = recipe.method
    if settings.name == "dense":
        why = 'method.name = "dense" has no knobs'
        return [SettingError(f"method.{key}", allowed=why, instead="remove it") for key in settings.options]
    if settings.name not in methods.names():
        known = ("dense", *methods.names())
        expected = f"expected one of {', '.join(known)}{did_you_mean(settings.name, known)}"
        return [SettingError("method.name", received=settings.name, allowed=expected)]
    known = [f.name for f in fields(methods.find(settings.name)) if f.name != "epochs"]
    return [unknown_setting("method", key, known) for key in settings.options if key not in known]


def _knobs(recipe: Recipe) -> Iterator[Callable[[], object]]:
    """Yield checks of the method's knobs, one by one; building the method would stop at the first wrong one."""
    settings = recipe.method

    def check(act: Callable[..., object], *args: Any) -> None:
        with naming_settings():
            act(*args)

    if settings.name != "dense":
        if settings.pattern is not None:
            yield lambda: read_pattern(settings.pattern or "")
        if settings.distribution is not None:
            yield lambda: check(check_distribution, settings.distribution)
        if settings.sparsity is not None:
            yield lambda: check(check_sparsity, "sparsity", settings.sparsity)


def _build(recipe: Recipe) -> list[ArgumentError]:
    """Build the method repeatedly, replacing the value of each knob that it refuses."""
    errors: list[ArgumentError] = []
    named: set[str] = set()
    while True:
        try:
            recipe.build_method()
            return errors
        except ArgumentError as error:
            refusal = error
        table, _, knob = refusal.argument.partition("[")[0].partition(".")
        knob = knob.partition(".")[0] if table == "method" else ""
        if knob in named:  # it follows from the replacement value
            return errors
        errors.append(refusal)
        if not knob:
            return errors
        named.add(knob)
        recipe = _without(recipe, knob)


def _without(recipe: Recipe, knob: str) -> Recipe:
    """Return the recipe with a valid value in place of a wrong one."""
    settings, train = recipe.method, recipe.train
    if knob == "schedule":  # with epochs that suit any method: the current ones were meant for these phases
        train = replace(train, epochs=100)
    if knob in setting_names(type(settings)):
        unset = next(f.default for f in fields(settings) if f.name == knob)
        if knob == "sparsity" and methods.find(settings.name).needs_sparsity and not _fixes_sparsity(settings.pattern):
            unset = _STAND_IN
        return replace(recipe, train=train, method=replace(settings, **{knob: unset}))
    kept = {key: value for key, value in settings.options.items() if key != knob}
    return replace(recipe, method=replace(settings, options=kept))


def _fixes_sparsity(pattern: str | None) -> bool:
    try:
        return pattern is not None and read_pattern(pattern).sparsity is not None
    except ValueError:
        return False


# Model and data


def _model(recipe: Recipe) -> list[ArgumentError]:
    """Check the model's name and its options, without each that was refused. Import paths are checked with the data.

    Options are checked together: a width and a number of heads, say, may be right although neither is alone.
    """
    settings, errors = recipe.model, list[ArgumentError]()
    settled = {
        "classes": "the data determines it",
        "in_channels": "the data determines it",
        "vocabulary": "the data determines it",
        "seed": "run.seeds determines it",
    }
    for key, why in settled.items():
        if key in settings.options:
            errors.append(SettingError(f"model.{key}", allowed=why, instead="remove it"))
    options = {key: value for key, value in settings.options.items() if key not in settled}
    refused: list[ArgumentError] = []
    while True:
        try:
            models.check(settings.name, options)
        except ArgumentError as error:
            wrong = error.argument
            # Later ones may follow from a default in place of a refused value.
            if not refused or (wrong in options and not isinstance(error, ConflictError)):
                refused.append(error.under("model"))
            if wrong in options:
                options = {key: value for key, value in options.items() if key != wrong}
                continue
        return [*errors, *refused]


def _data(recipe: Recipe) -> list[ArgumentError]:
    """Check the data's name, and its loader's options one by one."""
    section, errors = recipe.data, list[ArgumentError]()
    try:
        known = data.describe(section.name)
    except ArgumentError as error:
        return [SettingError("data.name", received=section.name, allowed=error.allowed, instead=error.instead)]
    if known.kind == "text":
        errors += _not_for_text(recipe)
    if known.kind == "folder":
        errors += [
            SettingError(
                f"data.{key}",
                received=getattr(section, key),
                allowed="not available for images read from folders",
                instead="remove it",
            )
            for key in ("validation", "corrupt", "crop")
            if getattr(section, key)
        ]
    hints = data.option_types(section.name)
    if hints is None:  # a user's own function, which is imported with the data
        return errors
    every = setting_names(type(section))
    settings = {"memory": every, "folder": _FOLDER_SETTINGS, "text": ["name"]}[known.kind]
    for key, value in section.options.items():
        if key not in hints:
            errors.append(unknown_setting("data", key, [*settings, *hints]))
        elif expected := _mismatch(value, hints[key]):
            errors.append(SettingError(f"data.{key}", received=value, allowed=f"expected {expected}"))
    return errors


_IMAGES_ONLY = {
    "data": ("crop", "flip", "validation", "corrupt"),
    "train": ("label_smoothing", "distill", "channels_last"),
    "run": ("recalibrate",),
}


def _not_for_text(recipe: Recipe) -> list[ArgumentError]:
    """Return what a recipe sets that only images have."""
    return [
        SettingError(
            f"{table}.{key}",
            received=getattr(getattr(recipe, table), key),
            allowed="not available for text: it is for image classification",
            instead="remove it",
        )
        for table, keys in _IMAGES_ONLY.items()
        for key in keys
        if getattr(getattr(recipe, table), key)
    ]


def _mismatch(value: Any, hint: Any) -> str | None:
    """Return what is expected instead of a value that has another type or is out of range; None if it is valid."""
    try:
        converted = convert(value, hint)
    except ValueError as error:
        return str(error)
    limits = limits_of(hint)
    return _complaint(limits, converted) if limits else None


# Numbers


def _complaint(limits: Limits, value: Any) -> str | None:
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return next(filter(None, map(limits.complaint, values)), None)


def _ranges(recipe: Recipe) -> list[ArgumentError]:
    """Check numbers against their ranges, then against related settings."""
    errors: list[ArgumentError] = []
    for name, table in tables().items():
        for key, hint in get_type_hints(table, include_extras=True).items():
            value, limits = getattr(getattr(recipe, name), key), limits_of(hint)
            if limits and (complaint := _complaint(limits, value)):
                errors.append(SettingError(f"{name}.{key}", received=value, allowed=f"expected {complaint}"))
    o, t, r, rate = recipe.optimizer, recipe.train, recipe.run, recipe.rate
    named = {error.argument for error in errors}
    errors += [
        SettingError(key, received=value, allowed=f"expected {allowed}")
        for key, value, fine, allowed in (
            ("optimizer.nesterov", o.nesterov, not o.nesterov or o.momentum > 0, "false if momentum is 0"),
            ("optimizer.bias_correction", False, o.bias_correction or o.name == "lamb", 'true unless name is "lamb"'),
            ("train.accumulate", t.accumulate, 0 < t.accumulate <= max(1, t.batch_size), "from 1 to train.batch_size"),
            ("rate.milestones", rate.milestones, rate.shape != "step" or bool(rate.milestones), "epochs, such as [60]"),
            ("rate.milestones", rate.milestones, len(rate.milestones) <= 100, "at most 100 epochs, such as [60]"),
            ("run.seeds", r.seeds, bool(r.seeds) and len({*r.seeds}) == len(r.seeds), "different whole numbers"),
            ("run.seeds", r.seeds, len(r.seeds) <= 1000, "at most 1,000 of them"),
        )
        if not fine and key not in named
    ]
    if t.epochs and not named & {"train.times", "train.epochs"} and t.times * t.epochs > _LONGEST["ep"]:
        allowed = f"with train.epochs = {t.epochs} it makes {t.times * t.epochs:,} epochs"
        most = f"write {_LONGEST['ep'] // t.epochs} or less"
        errors.append(SettingError("train.times", received=t.times, allowed=allowed, instead=most))
    if not {error.argument for error in errors} & {"model.bn_splits", "train.accumulate", "train.batch_size"}:
        errors += _norm_splits(recipe)
    return errors + _unsuited(recipe, sound=not errors)


def _norm_splits(recipe: Recipe) -> list[ArgumentError]:
    """Check that a batch divides into the parts that batch norms are to see."""
    splits, batch = recipe.model.bn_splits, recipe.train.batch_size
    if splits > 1 and (batch % splits or batch == splits):
        near = max(2, round(batch / splits)) * splits
        return [
            SettingError(
                "model.bn_splits",
                received=splits,
                allowed=f"train.batch_size = {batch} does not divide into {splits} parts of two images or more",
                instead=f"write train.batch_size = {near}, or another model.bn_splits",
            )
        ]
    try:
        recipe.norm_splits()
    except ArgumentError as error:
        return [error]
    return []


def _unsuited(recipe: Recipe, *, sound: bool) -> list[ArgumentError]:
    """Check settings that a method does not support."""
    name, t, remove = recipe.method.name, recipe.train, "remove it"
    errors: list[ArgumentError] = []
    if t.distill and name == "dense":
        why = 'method.name = "dense" has no twin to learn from'
        errors.append(SettingError("train.distill", allowed=why, instead=remove))
    elif t.distill and sound and not _gives_twin(recipe):
        why = f"{methods.find(name).title()} keeps no dense twin to learn from"
        errors.append(SettingError("train.distill", received=t.distill, allowed=why, instead=remove))
    if t.ema is not None and name in methods.names() and not methods.find(name).averages:
        why = f'method.name = "{name}" rounds weights, but an average of them is not rounded'
        errors.append(SettingError("train.ema", received=t.ema, allowed=why, instead=remove))
    if t.parallel == "fsdp":
        errors += _not_sharded(recipe, sound=sound)
    if name == "dense":
        errors += [
            SettingError(
                f"run.{key}", received=True, allowed='method.name = "dense" has none', instead=f"set run.{key} = false"
            )
            for key in ("baseline", "finetune")
            if getattr(recipe.run, key)
        ]
    return errors


def _not_sharded(recipe: Recipe, *, sound: bool) -> list[ArgumentError]:
    """Return what a recipe sets that sharded training cannot do."""
    t = recipe.train
    errors: list[ArgumentError] = [
        SettingError(
            f"train.{key}", received=getattr(t, key), allowed=f'with train.parallel = "fsdp" {why}', instead=do
        )
        for key, wrong, why, do in (
            ("ema", t.ema is not None, "the average would need a whole copy of the model", "remove it"),
            ("distill", t.distill, "the teacher would need a whole copy of the model", "remove it"),
            ("precision", t.precision == "fp16", "processes do not agree on fp16's overflows", 'write "bf16"'),
            ("channels_last", t.channels_last, "parameters are split in contiguous rows", "set it to false"),
            ("compile", t.compile == "on", "compiled steps were never tried", 'write "auto" or "off"'),
        )
        if wrong
    ]
    try:
        method = recipe.build_method() if sound else None
    except ValueError:  # reported elsewhere
        method = None
    if method and (obstacle := method.sharding_obstacle()):
        allowed = f'with train.parallel = "fsdp" every process holds a part of each weight, and {obstacle}'
        instead = 'write train.parallel = "ddp", which keeps whole weights, or another method'
        errors.append(SettingError("method", allowed=allowed, instead=instead))
    return errors


def _gives_twin(recipe: Recipe) -> bool:
    try:
        method = recipe.build_method()
    except ValueError:  # reported elsewhere
        return True
    return method is None or method.gives_twin()


def _checkpoints(recipe: Recipe) -> list[ArgumentError]:
    text = recipe.run.checkpoint_every
    try:
        every = Duration.parse(text, "checkpoint_every")
    except ArgumentError as error:
        return [error.under("run")]
    except ValueError as error:
        return [SettingError("run.checkpoint_every", allowed=str(error))]
    if every.unit != "%" and 0 < every.value <= _LONGEST[every.unit]:
        return []
    expected, instead = "expected epochs or steps", 'write "10ep" or "500st"'
    return [SettingError("run.checkpoint_every", received=text, allowed=expected, instead=instead)]
