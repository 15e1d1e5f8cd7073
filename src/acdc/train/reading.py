"""Reading recipes: TOML files, `a.b=value` settings, and every mistake of a file at once."""

import difflib
import inspect
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from acdc import data, models
from acdc.duration import Duration
from acdc.schedule import Schedule
from acdc.sparsity.distributions import check_distribution, check_sparsity
from acdc.train.recipe import PaperRow, Recipe, in_method, read_pattern

_FREE = {"model", "data"}  # tables whose other keys are options, checked by what takes them
_NEEDED = {"model.name": "resnet20", "data.name": "cifar10"}
_KNOBS = tuple(inspect.signature(Schedule.alternating).parameters)
_FOLDER_OPTIONS = ("size", "resize", "classes")


class RecipeError(ValueError):
    """All that is wrong with a recipe."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__("\n  ".join((f"{source}:", *self.problems)))


def shipped() -> dict[str, Path]:
    """The recipes that come with acdc, by name."""
    folder = Path(str(resources.files("acdc") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(name: str) -> Path:
    """A shipped recipe's file, or the file itself where `name` is one."""
    known, path = shipped(), Path(name)
    if name in known:
        return known[name]
    if path.suffix == ".toml" and path.is_file():
        return path
    if path.suffix == ".toml":
        raise RecipeError(name, ["there is no such file; `acdc ls` lists the recipes that come with acdc"])
    if path.is_file():
        raise RecipeError(name, [f"a recipe's file ends in .toml; rename it to {path.name}.toml"])
    raise RecipeError(name, [f"no recipe has this name; `acdc ls` lists them{did_you_mean(name, known)}"])


def read(name: str, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by name or file, with `a.b=value` settings on top."""
    path = find(name)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), [f"this is not TOML: {error}"]) from None
    except OSError as error:
        raise RecipeError(str(path), [f"it cannot be read: {error.strerror}"]) from None
    return from_tables(path.stem, tables, settings, source=str(name))


def from_tables(name: str, tables: Mapping[str, Any], settings: Iterable[str] = (), *, source: str = "") -> Recipe:
    """Settings come after the tables, and give way to none of them: see _give_way."""
    problems: list[str] = []
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    said = {key for setting in settings if (key := _set(changed, setting, problems))}
    _give_way(changed, said)
    bad: set[str] = set()
    recipe = _recipe(name, changed, problems, bad)
    if recipe is not None:  # what follows from a mistake already named is left out
        problems += [problem for problem in check(recipe) if not any(key in problem for key in bad)]
    if problems or recipe is None:
        raise RecipeError(source or name, dict.fromkeys(problems))
    return recipe


def from_dict(state: Mapping[str, Any]) -> Recipe:
    """What Recipe.to_dict gave, after a trip through JSON."""
    tables: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in state.items()}
    for free in _FREE:
        options = tables[free].pop("options", {})
        tables[free] |= options
    return from_tables(tables.pop("name"), {key: _without_none(value) for key, value in tables.items()})


def parse_value(text: str) -> Any:
    """As in TOML: 0.9, true, [1, 2], "text"; and .9 is a number too. Anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", text, re.IGNORECASE) else text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    folded = {_fold(word): word for word in known}
    close = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.5)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


def check(recipe: Recipe) -> list[str]:
    """What single values cannot show: models and data by name, schedules, numbers in range."""
    problems = _schedule_knobs(recipe)
    phases = () if problems else (recipe.schedule, lambda: recipe.epochs, recipe.build_method)
    for attempt in (*phases, *_knobs(recipe), lambda: _check_model(recipe)):
        try:
            attempt()
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    problems += _data(recipe)
    problems += _ranges(recipe)
    try:
        if Duration.parse(recipe.run.checkpoint_every).unit == "%":
            said = recipe.run.checkpoint_every
            problems.append(f'run.checkpoint_every = "{said}": expected epochs or steps; write "10ep" or "500st"')
    except ValueError as error:
        problems.append(f"run.checkpoint_every: {error}")
    return problems


# Inside


def _set(tables: dict[str, Any], setting: str, problems: list[str]) -> str | None:
    """Change one value, and return its key. An empty value takes the setting back to its default."""
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        problems.append(f"--set {setting}: expected table.key=value, for example --set method.sparsity=0.95")
        return None
    if len(parts) == 1:
        near = _elsewhere(parts[0])
        instead = f"; did you mean {' or '.join(near)}?" if near else ", for example --set method.sparsity=0.95"
        problems.append(f"--set {setting}: expected table.key=value{instead}")
        return None
    *path, last = parts
    table = tables
    for part in path:
        inner = table.get(part)
        table[part] = dict(inner) if isinstance(inner, Mapping) else {}
        table = table[part]
    table[last] = parse_value(text.strip())
    if table[last] == "":
        del table[last]
    return ".".join(parts)


def _give_way(tables: dict[str, Any], said: set[str]) -> None:
    """What a file says gives way to a setting that settles the same thing.

    A number of epochs takes the place of a schedule of fixed length, a schedule that of the number of epochs, and a
    pattern such as 2:4, which fixes the sparsity, that of the sparsity and its distribution.
    """
    method, train = (tables[key] if isinstance(tables.get(key), dict) else {} for key in ("method", "train"))
    schedule = method.get("schedule")
    fixed_length = isinstance(schedule, str) or (isinstance(schedule, Mapping) and "total" in schedule)
    if fixed_length and "train.epochs" in said and "method.schedule" not in said:
        del method["schedule"]
    elif fixed_length and "method.schedule" in said and "train.epochs" not in said:
        train.pop("epochs", None)
    if "method.pattern" in said:
        try:
            sparsity = read_pattern(str(method.get("pattern"))).sparsity
        except ValueError:  # named later, with all other mistakes
            return
        if sparsity is not None:
            if "method.sparsity" not in said:
                method["sparsity"] = sparsity
            if "method.distribution" not in said:
                method.pop("distribution", None)


def _elsewhere(key: str) -> list[str]:
    """The settings of this name, in whatever table."""
    return [f"{table}.{known}" for table, part in _parts().items() for known in _keys(part) if known == _fold(key)]


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def _parts() -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(Recipe).items() if is_dataclass(hint)}


def _keys(part: type) -> list[str]:
    return [f.name for f in fields(part) if f.name != "options"]


def _recipe(name: str, tables: dict[str, Any], problems: list[str], bad: set[str]) -> Recipe | None:
    """With defaults in place of the `bad` values, so that the rest can be checked; None where nothing stands in."""
    parts = _parts()
    allowed = [*parts, "about", "paper"]
    for key, value in tables.items():
        if key not in allowed:
            shown = f"[{key}]: no such table" if isinstance(value, Mapping) else f"{key}: no such setting"
            near = _elsewhere(key)
            instead = f"; did you mean {' or '.join(near)}?" if near else did_you_mean(key, allowed)
            problems.append(f"{shown}; allowed are {', '.join(allowed)}{instead}")
    built = {key: _build(key, part, tables.get(key, {}), problems, bad) for key, part in parts.items()}
    about, rows = tables.get("about", ""), tables.get("paper", [])
    if not isinstance(about, str):
        problems.append(f"about = {about!r}: expected text")
    if not isinstance(rows, list | tuple):
        problems.append("paper: expected rows, each under a line [[paper]]")
        rows = []
    paper = tuple(_build("paper", PaperRow, row, problems, bad) for row in rows)
    return None if None in built.values() else Recipe(name=name, about=about, paper=paper, **built)  # type: ignore[arg-type]


def _build(table: str, part: type, said: Any, problems: list[str], bad: set[str]) -> Any:
    if not isinstance(said, Mapping):
        problems.append(f"{table} = {said!r}: expected a table of settings, written as [{table}] and lines below it")
        bad.add(f"{table}.")
        said = {}
    hints, known, free = get_type_hints(part), _keys(part), table in _FREE
    values: dict[str, Any] = {"options": {}} if free else {}
    for key, value in said.items():
        if key in known:
            try:
                values[key] = _convert(value, hints[key])
            except ValueError as error:
                problems.append(f"{table}.{key} = {_shown(value)}: expected {error}")
                bad.add(f"{table}.{key}")
        elif free:
            values["options"][key] = value
        else:
            problems.append(_no_such(table, key, known))
    needed = [f"{table}.{f.name}" for f in fields(part) if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key.partition(".")[2] not in said and f"{table}." not in bad:
            problems.append(f'{key} is not set: it must be, for example {key} = "{_NEEDED[key]}"')
    return part(**values) if all(key.partition(".")[2] in values for key in needed) else None


def _no_such(table: str, key: str, known: Iterable[str]) -> str:
    """With the setting that was meant: of this table, or of the same name in another one."""
    known = list(known)
    instead = did_you_mean(key, known)
    if _fold(key) not in known and (near := _elsewhere(key)):
        instead = f"; did you mean {' or '.join(near)}?"
    allowed = f"allowed are {', '.join(known)}" if known else "there are none"
    return f"{table}.{key}: no such setting; {allowed}{instead}"


def _convert(value: Any, hint: Any) -> Any:
    """`value` as the type a field has. The error says what was expected."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in inner or isinstance(value, bool):
            close = did_you_mean(value, inner) if isinstance(value, str) else ""
            raise ValueError(f"one of {', '.join(map(repr, inner))}{close}")
        return value
    if origin in (Union, types.UnionType):
        errors = []
        for kind in inner:
            try:
                return _convert(value, kind)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError(" or ".join(error for error in errors if error != "nothing"))
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError("a list, such as [1, 2]")
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            raise ValueError(f"a list of {len(inner)} values")
        try:
            return tuple(_convert(item, inner[0]) for item in value)
        except ValueError as error:
            raise ValueError(f"a list, each item {error}") from None
    if hint is type(None):
        if value is not None:
            raise ValueError("nothing")
        return None
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError("true or false")
    elif hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number")
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError("a number")
        return float(value)
    elif hint is str:
        if not isinstance(value, str):
            raise ValueError("text")
    elif origin in (dict, Mapping) and not isinstance(value, Mapping):
        raise ValueError("a table")
    return value


def _schedule_knobs(recipe: Recipe) -> list[str]:
    said = recipe.method.schedule
    if not isinstance(said, Mapping) or recipe.method.name == "dense":
        return []
    needed = [knob for knob in _KNOBS if knob != "last_dense" and not (knob == "total" and recipe.train.epochs)]
    missing = [knob for knob in needed if knob not in said]
    problems = [_no_such("method.schedule", knob, _KNOBS) for knob in said if knob not in _KNOBS]
    if missing:
        problems.append(f'method.schedule: {", ".join(missing)} not set; write for example {missing[0]} = "10ep"')
    return problems


def _knobs(recipe: Recipe) -> Iterator[Callable[[], object]]:
    """The method's, one by one: building it stops at the first that is wrong. Errors read as they do there."""
    said = recipe.method
    if said.name != "dense":
        yield lambda: read_pattern(said.pattern)
        yield lambda: in_method(check_distribution, said.distribution)
        if said.sparsity is not None:
            yield lambda: in_method(check_sparsity, "sparsity", said.sparsity)


def _check_model(recipe: Recipe) -> None:
    for key in ("classes", "in_channels", "seed"):
        if key in recipe.model.options:
            raise ValueError(f"model.{key}: the data and run.seeds settle it; leave it out")
    try:
        with torch.device("meta"):
            models.build(recipe.model.name, classes=10, **recipe.model.options)
    except ValueError as error:
        raise ValueError(f"model.{error}") from None


def _data(recipe: Recipe) -> list[str]:
    """The name, and options that its loader does not take."""
    said = recipe.data
    if said.name not in data.names():
        close = did_you_mean(said.name, data.names())
        return [f'data.name = "{said.name}": expected one of {", ".join(data.names())}{close}']
    known, problems = data.describe(said.name), []
    own = _FOLDER_OPTIONS
    if known.kind == "memory":
        load = getattr(import_module(known.module), known.function)
        own = tuple(name for name in inspect.signature(load).parameters if name not in ("root", "device"))
    else:
        problems = [
            f"data.{key} = {getattr(said, key)}: not for images read from folders; leave it out"
            for key in ("validation", "corrupt", "crop")
            if getattr(said, key)
        ]
    settings = [key for key in _keys(type(said)) if known.kind == "memory" or key in ("name", "bad_limit")]
    return problems + [_no_such("data", key, [*settings, *own]) for key in said.options if key not in own]


def _ranges(recipe: Recipe) -> list[str]:
    o, t, r, d, rate = recipe.optimizer, recipe.train, recipe.run, recipe.data, recipe.rate
    smoothing = 0 <= t.label_smoothing < 1
    problems = [
        f"{key} = {_shown(value)}: expected {allowed}"
        for key, value, fine, allowed in (
            ("optimizer.lr", o.lr, o.lr > 0, "a number above 0, such as 0.1"),
            ("optimizer.momentum", o.momentum, 0 <= o.momentum < 1, "from 0 to below 1, such as 0.9"),
            ("optimizer.nesterov", o.nesterov, not o.nesterov or o.momentum > 0, "false where momentum is 0"),
            ("optimizer.betas", o.betas, all(0 <= b < 1 for b in o.betas), "two numbers from 0 to below 1"),
            ("optimizer.eps", o.eps, o.eps is None or o.eps > 0, "a number above 0, such as 1e-8"),
            ("optimizer.weight_decay", o.weight_decay, o.weight_decay >= 0, "0 or more, such as 5e-4"),
            ("train.epochs", t.epochs, t.epochs is None or t.epochs > 0, "1 or more"),
            ("train.batch_size", t.batch_size, t.batch_size > 0, "1 or more, such as 128"),
            ("train.accumulate", t.accumulate, 0 < t.accumulate <= max(1, t.batch_size), "from 1 to train.batch_size"),
            ("train.label_smoothing", t.label_smoothing, smoothing, "from 0 to below 1, such as 0.1"),
            ("train.clip_norm", t.clip_norm, t.clip_norm is None or t.clip_norm > 0, "a number above 0, such as 1.0"),
            ("train.ema", t.ema, t.ema is None or 0 < t.ema < 1, "between 0 and 1, such as 0.999"),
            ("rate.warmup", rate.warmup, rate.warmup >= 0, "epochs, 0 or more"),
            ("rate.final", rate.final, 0 <= rate.final <= 1, "a fraction of lr, from 0 to 1"),
            ("rate.gamma", rate.gamma, rate.gamma > 0, "a number above 0, such as 0.1"),
            ("rate.milestones", rate.milestones, rate.shape != "step" or bool(rate.milestones), "epochs, such as [60]"),
            ("data.crop", d.crop, d.crop >= 0, "pixels, 0 or more"),
            ("data.validation", d.validation, d.validation >= 0, "images, 0 or more"),
            ("data.corrupt", d.corrupt, d.corrupt >= 0, "images, 0 or more"),
            ("data.bad_limit", d.bad_limit, d.bad_limit >= 0, "files, 0 or more"),
            ("run.seeds", r.seeds, bool(r.seeds) and len({*r.seeds}) == len(r.seeds), "different whole numbers"),
            ("run.seeds", r.seeds, all(0 <= s < 2**31 for s in r.seeds), "whole numbers from 0 to 2147483647"),
            ("run.keep", r.keep, r.keep > 0, "checkpoints, 1 or more"),
        )
        if not fine
    ]
    if recipe.method.name == "dense" and (r.baseline or r.finetune):
        problems.append('run.baseline, run.finetune: method.name = "dense" has neither; leave them false')
    return problems


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
