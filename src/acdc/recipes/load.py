"""Reading recipes: TOML files, `a.b=value` settings, and every mistake of a file at once."""

import math
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from acdc import methods
from acdc.errors import did_you_mean, suggest
from acdc.recipes.mistakes import RecipeError, SettingError
from acdc.recipes.schema import PaperRow, Recipe, read_pattern
from acdc.recipes.shelf import find
from acdc.recipes.shelf import shipped as shipped
from acdc.recipes.validate import check
from acdc.recipes.words import elsewhere, keys_of, no_such, parts_of_a_recipe, short, shown
from acdc.schedule import Schedule

_FREE = {"model", "data", "method"}  # tables whose other keys are options, checked by what takes them
_TOO_DEEP = "brackets are nested too deeply"
_MOST_DEPTH, _MOST_ITEMS, _MOST_LETTERS, _LARGEST = 10, 10_000, 10_000, 2**63
_NEEDED = {"model.name": "resnet20", "data.name": "cifar10"}


def read(name: str, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by name or file, with `a.b=value` settings on top."""
    path = find(name)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of numbers with thousands of digits
        raise RecipeError(str(path), [SettingError("", f"this is not TOML: {error}")]) from None
    except RecursionError:
        raise RecipeError(str(path), [SettingError("", f"this is not TOML: {_TOO_DEEP}")]) from None
    except OSError as error:
        raise RecipeError(str(path), [SettingError("", f"it cannot be read: {error.strerror}")]) from None
    return from_tables(path.stem, tables, settings, source=str(name))


def from_tables(name: str, tables: Mapping[str, Any], settings: Iterable[str] = (), *, source: str = "") -> Recipe:
    """Settings come after the tables, and give way to none of them: see _give_way."""
    problems: list[SettingError] = []
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    said = {key for setting in settings if (key := _set(changed, setting, problems))}
    _give_way(changed, said)
    bad: set[str] = set()
    recipe = _recipe(name, changed, problems, bad)
    if recipe is not None:  # what mentions a setting already named follows from that, and is left out
        problems += [problem for problem in check(recipe) if not any(key in str(problem) for key in bad)]
    if problems or recipe is None:
        raise RecipeError(source or name, {str(problem): problem for problem in problems}.values(), recipe)
    return recipe


def from_dict(state: Mapping[str, Any], settings: Iterable[str] = ()) -> Recipe:
    """What Recipe.to_dict gave, after a trip through JSON, with settings on top.

    A setting that came after it was written has its default, as it had in effect.
    """
    tables: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in state.items()}
    for free in _FREE:
        if isinstance(tables.get(free), dict) and isinstance(options := tables[free].pop("options", {}), Mapping):
            tables[free] |= options
    name = tables.pop("name", "")
    return from_tables(str(name), {key: _without_none(value) for key, value in tables.items()}, settings)


def parse_value(text: str) -> Any:
    """As in TOML: 0.9, true, [1, 2], "text"; and .9 is a number too. Anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also numbers with thousands of digits, and brackets by the thousand
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", text, re.IGNORECASE) else text


# Inside


def _set(tables: dict[str, Any], setting: str, problems: list[SettingError]) -> str | None:
    """Change one value, and return its key. An empty value takes the setting back to its default."""
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        example = "expected table.key=value, for example --set method.sparsity=0.95"
        problems.append(SettingError("", f"--set {setting}: {example}"))
        return None
    if len(parts) == 1:
        instead = suggest(elsewhere(parts[0])) or ", for example --set method.sparsity=0.95"
        problems.append(SettingError("", f"--set {setting}: expected table.key=value{instead}"))
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

    A number of epochs takes the place of a schedule of fixed length, a schedule that of the number of epochs, a pattern
    such as 2:4, which fixes the sparsity, that of the sparsity and its distribution, and a method that does not
    alternate that of phases, whose number of epochs it keeps.
    """
    method, train = (tables[key] if isinstance(tables.get(key), dict) else {} for key in ("method", "train"))
    name, schedule = method.get("name"), method.get("schedule")
    own = name == "dense" or (name in methods.names() and not methods.find(name).alternates)
    if own and "method.name" in said and "method.schedule" not in said and schedule is not None:
        del method["schedule"]
        if isinstance(schedule, str) and schedule in Schedule.named() and "epochs" not in train:
            tables.setdefault("train", train)["epochs"] = Schedule.named()[schedule]().total_steps(1)
        schedule = None
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


def _recipe(name: str, tables: dict[str, Any], problems: list[SettingError], bad: set[str]) -> Recipe | None:
    """With defaults in place of the `bad` values, so that the rest can be checked; None where nothing stands in."""
    parts = parts_of_a_recipe()
    allowed = [*parts, "about", "paper"]
    for key, value in tables.items():
        if key not in allowed:
            what = f"[{key}]: no such table" if isinstance(value, Mapping) else f"{key}: no such setting"
            instead = suggest(elsewhere(key)) or did_you_mean(key, allowed)
            problems.append(SettingError("", f"{what}; allowed are {', '.join(allowed)}{instead}"))
    built = {key: _build(key, part, tables.get(key, {}), problems, bad) for key, part in parts.items()}
    about, rows = tables.get("about", ""), tables.get("paper", [])
    if not isinstance(about, str):
        problems.append(SettingError("about", f" = {short(about)}: expected text"))
    if not isinstance(rows, list | tuple):
        problems.append(SettingError("paper", ": expected rows, each under a line [[paper]]"))
        rows = []
    paper = tuple(_build("paper", PaperRow, row, problems, bad) for row in rows)
    return None if None in built.values() else Recipe(name=name, about=about, paper=paper, **built)  # type: ignore[arg-type]


def _build(table: str, part: type, said: Any, problems: list[SettingError], bad: set[str]) -> Any:
    if not isinstance(said, Mapping):
        written = f"written as [{table}] and lines below it"
        problems.append(SettingError(table, f" = {short(said)}: expected a table of settings, {written}"))
        bad.add(f"{table}.")
        said = {}
    hints, known, free = get_type_hints(part), keys_of(part), table in _FREE
    values: dict[str, Any] = {"options": {}} if free else {}
    for key, value in said.items():
        if key not in known and not free:
            problems.append(no_such(table, key, known))
            continue
        try:
            _check_size(value)
            if key in known:
                values[key] = _convert(value, hints[key])
            else:
                values["options"][key] = value
        except ValueError as error:
            problems.append(SettingError(f"{table}.{key}", f" = {shown(value)}: expected {error}"))
            bad.add(f"{table}.{key}")
    needed = [f"{table}.{f.name}" for f in fields(part) if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key.partition(".")[2] not in said and f"{table}." not in bad:
            problems.append(SettingError(key, f' is not set: it must be, for example {key} = "{_NEEDED[key]}"'))
    return part(**values) if all(key.partition(".")[2] in values for key in needed) else None


def _check_size(value: Any, depth: int = 0) -> None:
    """Refuse what no setting is, and what would fail far from here: the error says what was expected."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"tables and lists nested at most {_MOST_DEPTH} deep")
    if isinstance(value, Mapping | list | tuple):
        if len(value) > _MOST_ITEMS:
            raise ValueError(f"at most {_MOST_ITEMS:,} values")
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_size(item, depth + 1)
    elif isinstance(value, str):
        if len(value) > _MOST_LETTERS:
            raise ValueError(f"at most {_MOST_LETTERS:,} letters")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number")
    elif isinstance(value, int):
        if abs(value) >= _LARGEST:
            raise ValueError("a number of fewer digits")
    elif value is not None:  # a date or a time of day
        raise ValueError("a number, text, true or false, a list or a table")


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


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
