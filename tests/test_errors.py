"""Errors as data: how they read, how callers rename them, that they travel; and nothing takes their text apart."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError, Shown, UsageError, check_whole, did_you_mean, show, suggest

ROOT = Path(acdc.__file__).parent
KNOWN = ("digits_net", "resnet20", "wrn28_10")


# Rendering


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ArgumentError("sparsity", 2, "expected a fraction", "write 0.9"),
            "sparsity=2: expected a fraction; write 0.9",
        ),
        (ArgumentError("sparsity", received="x", allowed="expected a fraction"), "sparsity='x': expected a fraction"),
        (ArgumentError("sparsity", None, "expected a fraction"), "sparsity=None: expected a fraction"),
        (ArgumentError("sparsity", allowed="it is not set", instead="write 0.9"), "sparsity: it is not set; write 0.9"),
        (ArgumentError("", allowed="there is no data", instead="download it"), "there is no data; download it"),
        (ArgumentError("k", 3, instead="write 2"), "k=3: write 2"),
        (ArgumentError("include", Shown("[<lambda>]"), "it matches nothing"), "include=[<lambda>]: it matches nothing"),
    ],
)
def test_an_error_reads_as_its_four_parts(error: ArgumentError, text: str) -> None:
    assert str(error) == text


def test_a_long_value_is_cut() -> None:
    assert show("x" * 1000).startswith("'xxx")
    assert len(show("x" * 1000)) < 50
    assert show(list(range(1000))) == "<list>"
    assert show(10**5000) == "a number of thousands of digits"


# Names


def test_under_prefixes_the_argument_and_about_replaces_it() -> None:
    error = ArgumentError("sparsity", 2, "expected a fraction", "write 0.9")
    assert str(error.under("method")) == "method.sparsity=2: expected a fraction; write 0.9"
    assert error.under("stages", "method").argument == "stages.method.sparsity"
    assert ArgumentError("", 2, "too many").under("train").argument == "train"
    assert error.about("train.epochs").argument == "train.epochs"
    assert error.argument == "sparsity", "the first one is left as it was"


@pytest.mark.parametrize("kind", [ArgumentError, ArgumentTypeError])
def test_another_name_keeps_type_and_parts(kind: type[ArgumentError]) -> None:
    for error in (kind("seed", 0.5, "expected a whole number", "write 0"), kind("seed", allowed="it is missing")):
        renamed = error.under("run")
        assert type(renamed) is kind
        assert (renamed.received, renamed.allowed, renamed.instead) == (error.received, error.allowed, error.instead)
        assert renamed.was_received == error.was_received


def test_what_callers_catch() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert not issubclass(ArgumentError, TypeError)
    assert issubclass(ArgumentTypeError, ArgumentError)
    assert issubclass(ArgumentTypeError, TypeError)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, ArgumentTypeError), (1.0, ArgumentTypeError), ("1", ArgumentTypeError), (0, ArgumentError)],
)
def test_whole_numbers(value: object, kind: type[ArgumentError]) -> None:
    check_whole("rounds", 1, 1, "write rounds=12")
    with pytest.raises(ArgumentError, match="expected a whole number, 1 or more; write rounds=12") as caught:
        check_whole("rounds", value, 1, "write rounds=12")
    assert (type(caught.value), caught.value.argument, caught.value.received) == (kind, "rounds", value)


# Between processes


@pytest.mark.parametrize("kind", [ArgumentError, ArgumentTypeError])
@pytest.mark.parametrize("parts", [{"received": {"fc": 0.5}}, {"received": None}, {}])
def test_an_error_travels(kind: type[ArgumentError], parts: dict[str, Any]) -> None:
    error = kind("distribution", **parts, allowed="expected a name", instead="write 'global'")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, str(error))
    assert copy.was_received == error.was_received
    assert copy.under("method").argument == "method.distribution"


def test_a_value_that_cannot_travel_goes_as_its_text() -> None:
    error = ArgumentError("exclude", lambda: None, "expected a list")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert isinstance(copy.received, Shown)


def test_all_problems_travel() -> None:
    error = pickle.loads(pickle.dumps(UsageError(["one", "two"])))
    assert error.problems == ("one", "two")


# Suggestions


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("resnet2", "; did you mean resnet20?"),
        ("ResNet-20", "; did you mean resnet20?"),
        ("WRN-28-10", "; did you mean wrn28_10?"),
        ("transformer", ""),
        (20, ""),
    ],
)
def test_the_nearest_word_whatever_its_capitals_and_hyphens(typed: object, suggestion: str) -> None:
    assert did_you_mean(typed, KNOWN) == suggestion


def test_several_that_are_near_nearest_first() -> None:
    assert did_you_mean("conv3", ("conv1", "fc", "conv33"), most=2) == "; did you mean conv33 or conv1?"
    assert suggest(()) == ""


def test_nothing_else_suggests() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert [name for name, text in texts.items() if "did you mean" in text or "difflib" in text] == ["errors.py"]


# Nothing looks into the text of an error of ours

SURGERY = {
    *(
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "replace",
        "partition",
        "rpartition",
        "split",
        "rsplit",
    ),
    *("splitlines", "find", "rfind", "index", "count", "strip", "lstrip", "rstrip", "translate"),
}

# Modules that look into errors of torch, of the system or of a service: these have a text only.
OTHERS_ERRORS = {
    "data/image_folder.py",  # a worker of torch's that died
    "runs/checkpoint.py",  # torch's reader and writer, and its allocator
    "sparsity/published.py",  # the first line of what torch's reader raises
    "export/shrinking.py",  # the first line of what a model raises
    "export/trace.py",  # the first line of what torch.export, its ONNX exporter and ONNX Runtime raise
    "recipes/fit.py",  # the first line of what a model raises
    "serving/engine_process.py",  # the first line of what another engine raises
    "train/sinks.py",  # the first line of what a service raises
}


def test_no_text_of_an_error_is_taken_apart() -> None:
    places = {path: [*text_surgery(path.read_text(encoding="utf-8"))] for path in ROOT.rglob("*.py")}
    modules = {str(path.relative_to(ROOT)): functions for path, functions in places.items() if functions}
    assert not {module: functions for module, functions in modules.items() if module not in OTHERS_ERRORS}
    assert modules.keys() >= OTHERS_ERRORS, "take off the list what looks into no text any more"


@pytest.mark.parametrize(
    "body",
    [
        "str(error).startswith('x')",
        "re.match('x', str(error))",
        "'x' in str(error)",
        "str(error)[3:]",
        "error.args[0].partition(':')",
        "f'{error}'.replace('x', 'y')",
        "text = str(error); text.split(':')",
        "text = f'method.{error}'; re.sub('a', 'b', text)",
        "PATTERN.fullmatch(str(error))",
    ],
)
def test_the_search_sees(body: str) -> None:
    assert [*text_surgery(f"def f():\n    try: g()\n    except ValueError as error: {body}")] == ["f"]
    assert [*text_surgery(f"def f(error: ValueError): {body}")] == ["f"]


@pytest.mark.parametrize(
    "body",
    ["raise UsageError([str(error)])", "print(f'stopped: {error}')", "error.argument.startswith('x')", "x.strip()"],
)
def test_the_search_lets_pass(body: str) -> None:
    assert not [*text_surgery(f"def f():\n    try: g()\n    except ValueError as error: {body}")]


def text_surgery(source: str) -> Iterator[str]:
    """Yield the functions, by name, that take the text of an exception apart."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions or [tree]:
        errors = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
        if not isinstance(function, ast.Module):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            errors |= {arg.arg for arg in arguments if arg.annotation and _names_an_error(arg.annotation)}
        texts: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _is_text(node.value, errors, texts):
                texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if any(_takes_apart(node, errors, texts) for node in ast.walk(function)):
            yield getattr(function, "name", "")


def _names_an_error(annotation: ast.expr) -> bool:
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    return any(name.endswith(("Error", "Exception")) for name in names)


def _is_text(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Return True for str(error), repr(error), error.args[0], an f-string with the error in it, and such a variable."""

    def is_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in errors

    if isinstance(node, ast.Name):
        return node.id in texts
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        return any(is_error(argument) for argument in node.args)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "args" and is_error(node.value.value)
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(is_error(value) or _is_text(value, errors, texts) for value in values)
    return False


def _takes_apart(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    def is_text(node: ast.AST) -> bool:
        return _is_text(node, errors, texts)

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, owner = node.func.attr, node.func.value
        matching = method in ("match", "fullmatch", "search", "sub", "findall", "finditer")
        return (method in SURGERY and is_text(owner)) or (matching and any(map(is_text, node.args)))
    if isinstance(node, ast.Compare):
        return any(map(is_text, [node.left, *node.comparators]))
    return isinstance(node, ast.Subscript) and is_text(node.value)
