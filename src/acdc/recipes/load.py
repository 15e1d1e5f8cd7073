"""Reads recipes from TOML files with `a.b=value` settings on top, reports all mistakes at once, and writes TOML values.

Finding and listing recipes does not import torch.
"""

import json
import math
import re
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from acdc import methods
from acdc.errors import did_you_mean, suggest
from acdc.recipes.findings import Finding, RecipeError, SettingError
from acdc.recipes.schema import (
    PROPORTIONS,
    PaperRow,
    Recipe,
    read_pattern,
    setting_names,
    settings_called,
    tables,
    unknown_setting,
)
from acdc.schedule import Schedule

_FREE = {"model", "data", "method"}  # tables whose other keys are options, checked by whatever accepts them
_MOST_DEPTH, _MOST_ITEMS, _MOST_LETTERS, _LARGEST = 10, 10_000, 10_000, 2**63
_NEEDED = {"model.name": "resnet20", "data.name": "cifar10"}
_ROWS = ".paper.toml"  # the suffix of a file beside a recipe with its [[paper]] rows, if there are many
_EXAMPLE = "for example --set method.sparsity=0.95"


# Files


def shipped() -> dict[str, Path]:
    """Return the recipes that come with acdc by name."""
    folder = Path(str(resources.files("acdc") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml")) if not path.name.endswith(_ROWS)}


def find(name: str) -> Path:
    """Return the file of a shipped recipe, or `name` itself if that is a file."""
    known, path = shipped(), Path(name)
    if name in known:
        return known[name]
    if path.suffix == ".toml" and path.is_file():
        return path
    if path.suffix == ".toml":
        raise _refused(name, "there is no such file", "`acdc ls` lists the recipes that come with acdc")
    if path.is_file():
        raise _refused(name, "the name of a recipe file must end in .toml", f"rename it to {path.name}.toml")
    raise _refused(name, "no recipe has this name", f"`acdc ls` lists them{did_you_mean(name, known)}")


def text_of(name: str) -> bytes:
    """Return a recipe as a single file, including comments and the paper's rows."""
    path = find(name)
    rows = path.with_suffix(_ROWS)
    return b"\n".join(file.read_bytes() for file in (path, rows) if file == path or file.is_file())


def read(name: str, settings: Iterable[str] = ()) -> Recipe:
    """Return a recipe by name or file, with `a.b=value` settings on top; raise a RecipeError with every mistake."""
    path, wrong = find(name), ""
    try:
        values = tomllib.loads(text_of(name).decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        wrong = f"this is not TOML: {error}"
    except UnicodeDecodeError as error:
        wrong = f"this is not TOML: it is not text in UTF-8 ({error.reason} at byte {error.start:,})"
    except RecursionError:
        wrong = "this is not TOML: brackets are nested too deeply"
    except ValueError:  # Python does not read numbers of more than 4,300 digits
        wrong = "it contains a number with thousands of digits; write a shorter one"
    except OSError as error:
        wrong = f"it cannot be read: {error.strerror}"
    else:
        return from_tables(path.stem, values, settings, source=str(name))
    raise _refused(str(path), wrong)


def from_tables(name: str, values: Mapping[str, Any], settings: Iterable[str] = (), *, source: str = "") -> Recipe:
    """Return the recipe in these tables, with `a.b=value` settings on top; see _give_way for what they replace."""
    from acdc.recipes.validate import validate  # which imports torch

    findings: list[Finding] = []
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    changed_keys = {key for setting in settings if (key := _set(changed, setting, findings))}
    _give_way(changed, changed_keys)
    recipe = _recipe(name, changed, findings)
    if recipe is not None:
        findings += validate(recipe, known=findings)
    errors = {str(one): one for one in findings if one.level == "error"}
    if errors or recipe is None:
        raise RecipeError(source or name, tuple(errors.values()), recipe)
    return recipe


def from_dict(state: Mapping[str, Any], settings: Iterable[str] = ()) -> Recipe:
    """Return the recipe that Recipe.to_dict wrote, read back from JSON, with settings on top.

    A setting introduced since then has its default, which was in effect at the time.
    """
    values: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in state.items()}
    for free in _FREE:
        if isinstance(values.get(free), dict) and isinstance(options := values[free].pop("options", {}), Mapping):
            values[free] |= options
    name = values.pop("name", "")
    return from_tables(str(name), {key: _without_none(value) for key, value in values.items()}, settings)


# Values


def parse_value(text: str) -> Any:
    """Read a TOML value: 0.9, true, [1, 2], "text". A number may also be .9; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # including numbers with thousands of digits, and thousands of brackets
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", text, re.IGNORECASE) else text


def write_value(value: Any) -> str:
    """Write a value as TOML on one line; the standard library can only read TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {write_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_value, value))}]"
    return repr(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


# Settings on top of a file


def _set(values: dict[str, Any], setting: str, findings: list[Finding]) -> str | None:
    """Change one value, and return its key. An empty value resets the setting to its default."""
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) == 1:
        whole = equals and all(parts)
        instead = (suggest(settings_called(parts[0])) if whole else "") or f", {_EXAMPLE}"
        findings.append(_finding("", f"--set {setting}: expected table.key=value{instead}"))
        return None
    *path, last = parts
    table = values
    for part in path:
        inner = table.get(part)
        table[part] = dict(inner) if isinstance(inner, Mapping) else {}
        table = table[part]
    table[last] = parse_value(text.strip())
    if table[last] == "":
        del table[last]
    return ".".join(parts)


def _give_way(values: dict[str, Any], changed_keys: set[str]) -> None:
    """Drop settings of a file that are superseded by settings from the command line.

    A number of epochs replaces a schedule of fixed length by the paper's proportions, and a schedule the number of
    epochs; a pattern such as 2:4, which fixes the sparsity, replaces the sparsity and its distribution; a method
    replaces knobs that only others have; and one that does not alternate replaces phases, but keeps their number of
    epochs.
    """
    method, train = (values[key] if isinstance(values.get(key), dict) else {} for key in ("method", "train"))
    name, schedule = method.get("name"), method.get("schedule")
    if "method.name" in changed_keys and (name == "dense" or name in methods.names()):
        for knob in _knobs_of_others(name):
            if f"method.{knob}" not in changed_keys:
                method.pop(knob, None)
    own = name == "dense" or (name in methods.names() and not methods.find(name).alternates)
    if own and "method.name" in changed_keys and "method.schedule" not in changed_keys and schedule is not None:
        del method["schedule"]
        if isinstance(schedule, str) and schedule in Schedule.named() and "epochs" not in train:
            values.setdefault("train", train)["epochs"] = Schedule.named()[schedule]().total_steps(1)
        schedule = None
    named = isinstance(schedule, str) and schedule != PROPORTIONS
    fixed_length = named or (isinstance(schedule, Mapping) and "total" in schedule)
    if fixed_length and "train.epochs" in changed_keys and "method.schedule" not in changed_keys:
        method["schedule"] = PROPORTIONS
    elif fixed_length and "method.schedule" in changed_keys and "train.epochs" not in changed_keys:
        train.pop("epochs", None)
    if "method.pattern" in changed_keys:
        try:
            sparsity = read_pattern(str(method.get("pattern"))).sparsity
        except ValueError:  # reported later, with all other mistakes
            return
        if sparsity is not None:
            if "method.sparsity" not in changed_keys:
                method["sparsity"] = sparsity
            if "method.distribution" not in changed_keys:
                method.pop("distribution", None)


def _knobs_of_others(name: str) -> set[str]:
    """Return the knobs that some method has and the one of this name has not."""
    from acdc.core.method import Method

    own = Method if name == "dense" else methods.find(name)
    every = {knob.name for other in methods.names() for knob in fields(methods.find(other))}
    return every - {knob.name for knob in fields(own)}


# Tables into dataclasses


def _recipe(name: str, values: dict[str, Any], findings: list[Finding]) -> Recipe | None:
    """Build the recipe with defaults in place of wrong values; None if a required one has no default."""
    parts = tables()
    allowed = [*parts, "about", "paper"]
    for key, value in values.items():
        if key not in allowed:
            what = f"[{key}]: no such table" if isinstance(value, Mapping) else f"{key}: no such setting"
            instead = suggest(settings_called(key)) or did_you_mean(key, allowed)
            findings.append(_finding("", f"{what}; expected one of {', '.join(allowed)}{instead}"))
    built = {key: _build(key, part, values.get(key, {}), findings) for key, part in parts.items()}
    about, rows = values.get("about", ""), values.get("paper", [])
    if not isinstance(about, str):
        findings.append(_finding("about", "expected text", about))
    if not isinstance(rows, list | tuple):
        findings.append(_finding("paper", "expected rows, each under a line [[paper]]"))
        rows = []
    paper = tuple(_build("paper", PaperRow, row, findings) for row in rows)
    return None if None in built.values() else Recipe(name=name, about=about, paper=paper, **built)


def _build(table: str, part: type, content: Any, findings: list[Finding]) -> Any:
    is_table = isinstance(content, Mapping)
    if not is_table:
        written = f"expected a table of settings: [{table}], with lines below it"
        findings.append(_finding(table, written, content))
        content = {}
    hints, known, free = get_type_hints(part), setting_names(part), table in _FREE
    values: dict[str, Any] = {"options": {}} if free else {}
    for key, value in content.items():
        if key not in known and not free:
            findings.append(Finding(unknown_setting(table, key, known)))
            continue
        try:
            _check_size(value)
            if key in known:
                values[key] = convert(value, hints[key])
            else:
                values["options"][key] = value
        except ValueError as error:
            findings.append(_finding(f"{table}.{key}", f"expected {error}", value))
    needed = [f.name for f in fields(part) if f.default is MISSING and f.default_factory is MISSING]
    for key in needed:
        if key not in content and is_table:
            setting = f"{table}.{key}"
            findings.append(_finding(setting, f'it must be set, for example {setting} = "{_NEEDED[setting]}"'))
    return part(**values) if all(key in values for key in needed) else None


def _check_size(value: Any, depth: int = 0) -> None:
    """Raise for values that no setting can have, which would fail later; the error says what was expected."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"tables and lists nested at most {_MOST_DEPTH} deep")
    if isinstance(value, Mapping | list | tuple):
        if len(value) > _MOST_ITEMS:
            raise ValueError(f"at most {_MOST_ITEMS:,} values")
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_size(item, depth + 1)
    elif isinstance(value, str):
        if len(value) > _MOST_LETTERS:
            raise ValueError(f"at most {_MOST_LETTERS:,} characters")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number")
    elif isinstance(value, int):
        if abs(value) >= _LARGEST:
            raise ValueError("a number with fewer digits")
    elif value is not None:  # a date or a time of day
        raise ValueError("a number, text, true or false, a list or a table")


def convert(value: Any, hint: Any) -> Any:
    """Return `value` converted to a setting's type; a ValueError says what was expected."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return convert(value, inner[0])
    if origin is Literal:
        if value not in inner or isinstance(value, bool):
            close = did_you_mean(value, inner) if isinstance(value, str) else ""
            raise ValueError(f"one of {', '.join(map(repr, inner))}{close}")
        return value
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        expected = []
        for kind in inner:
            if kind is not types.NoneType:
                try:
                    return convert(value, kind)
                except ValueError as error:
                    expected.append(str(error))
        raise ValueError(" or ".join(expected))
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError("a list, such as [1, 2]")
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            raise ValueError(f"a list of {len(inner)} values")
        try:
            return tuple(convert(item, inner[0]) for item in value)
        except ValueError as error:
            raise ValueError(f"a list, each item {error}") from None
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


_NOT_GIVEN: Any = object()


def _finding(setting: str, allowed: str, received: Any = _NOT_GIVEN) -> Finding:
    value = {} if received is _NOT_GIVEN else {"received": received}
    return Finding(SettingError(setting, **value, allowed=allowed))


def _refused(source: str, allowed: str, instead: str = "") -> RecipeError:
    return RecipeError(source, [Finding(SettingError("", allowed=allowed, instead=instead))])
