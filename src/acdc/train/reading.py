"""Reading recipes: TOML files, `a.b=value` settings, and every mistake of a file at once."""

import difflib
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from acdc import data, models
from acdc.duration import Duration
from acdc.train.recipe import PaperRow, Recipe

_FREE = {"model", "data"}  # tables whose other keys are options, checked by what takes them


class RecipeError(ValueError):
    """All that is wrong with a recipe."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
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
    raise RecipeError(name, [f"there is no recipe of this name{did_you_mean(name, known)}; `acdc ls` lists them"])


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
    problems: list[str] = []
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    for setting in settings:
        _set(changed, setting, problems)
    recipe = _recipe(name, changed, problems)
    if recipe is not None:
        problems += check(recipe)
    if problems or recipe is None:
        raise RecipeError(source or name, dict.fromkeys(problems))
    return recipe


def from_dict(state: Mapping[str, Any]) -> Recipe:
    """What Recipe.to_dict gave, after a trip through JSON."""
    tables = {key: dict(value) if isinstance(value, Mapping) else value for key, value in state.items()}
    for free in _FREE:
        tables[free] = {**tables[free], **tables[free].pop("options", {})}
    return from_tables(tables.pop("name"), {key: _without_none(value) for key, value in tables.items()})


def parse_value(text: str) -> Any:
    """As in TOML: 0.9, true, [1, 2], "text"; anything that is not TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def check(recipe: Recipe) -> list[str]:
    """What single values cannot show: models and data by name, schedules, numbers in range."""
    problems = []
    for attempt in (recipe.schedule, lambda: recipe.epochs, recipe.build_method, lambda: _check_names(recipe)):
        try:
            attempt()
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    problems += _ranges(recipe)
    try:
        if Duration.parse(recipe.run.checkpoint_every).unit == "%":
            problems.append(f'run.checkpoint_every = "{recipe.run.checkpoint_every}": write epochs "10ep" or steps "500st"')
    except ValueError as error:
        problems.append(f"run.checkpoint_every: {error}")
    return problems


# Inside


def _set(tables: dict[str, Any], setting: str, problems: list[str]) -> None:
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        problems.append(f'--set {setting}: expected table.key=value, for example --set method.sparsity=0.95')
        return
    if len(parts) == 1:
        near = [f"{table}.{parts[0]}" for table, part in _parts().items() if parts[0] in _keys(part)]
        instead = f"; did you mean {' or '.join(near)}?" if near else ", for example --set method.sparsity=0.95"
        problems.append(f"--set {setting}: expected table.key=value{instead}")
        return
    *path, last = parts
    table = tables
    for part in path:
        inner = table.get(part)
        table[part] = dict(inner) if isinstance(inner, Mapping) else {}
        table = table[part]
    table[last] = parse_value(text.strip())


def _parts() -> dict[str, type]:
    hints = get_type_hints(Recipe)
    return {name: hint for name, hint in hints.items() if is_dataclass(hint)}


def _keys(part: type) -> list[str]:
    return [f.name for f in fields(part) if f.name != "options"]


def _recipe(name: str, tables: dict[str, Any], problems: list[str]) -> Recipe | None:
    parts = _parts()
    allowed = [*parts, "about", "paper"]
    for key in tables:
        if key not in allowed:
            problems.append(f"[{key}]: no such table{did_you_mean(key, allowed)}; allowed are {', '.join(allowed)}")
    before = len(problems)
    built = {key: _build(key, part, tables.get(key, {}), problems) for key, part in parts.items()}
    about = tables.get("about", "")
    if not isinstance(about, str):
        problems.append(f"about = {about!r}: expected text")
    rows = []
    for row in tables.get("paper", ()):
        rows.append(_build("paper", PaperRow, row, problems))
    if len(problems) > before:
        return None
    return Recipe(name=name, about=about, paper=tuple(rows), **built)  # type: ignore[arg-type]


def _build(table: str, part: type, said: Any, problems: list[str]) -> Any:
    if not isinstance(said, Mapping):
        problems.append(f"{table} = {said!r}: expected a table of settings, written as [{table}] and lines below it")
        return None
    hints, known, free = get_type_hints(part), _keys(part), table in _FREE
    values: dict[str, Any] = {"options": {}} if free else {}
    before = len(problems)
    for key, value in said.items():
        if key in known:
            try:
                values[key] = _convert(value, hints[key])
            except ValueError as error:
                problems.append(f"{table}.{key} = {_shown(value)}: expected {error}")
        elif free:
            values["options"][key] = value
        else:
            problems.append(
                f"{table}.{key}: no such setting{did_you_mean(key, known)}; allowed are {', '.join(known)}"
            )
    for f in fields(part):
        if f.name not in said and f.default is MISSING and f.default_factory is MISSING and f.name != "options":
            problems.append(f'{table}.{f.name} is not set: it must be, for example [{table}] {f.name} = "resnet20"')
    return part(**values) if len(problems) == before else None


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
        return tuple(_convert(item, inner[0]) for item in value)
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


def _check_names(recipe: Recipe) -> None:
    if recipe.data.name not in data.names():
        raise ValueError(
            f'data.name = "{recipe.data.name}": expected one of {", ".join(data.names())}'
            f"{did_you_mean(recipe.data.name, data.names())}"
        )
    try:
        with torch.device("meta"):
            models.build(recipe.model.name, classes=10, **recipe.model.options)
    except ValueError as error:
        raise ValueError(f"model: {error}") from None


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
