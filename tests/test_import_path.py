"""Functions of a user's own, by their import paths."""

from pathlib import Path

import pytest

from acdc.errors import ArgumentError
from acdc.import_path import call, check_import_path, import_function

MODULE = """
COUNT = 3
class Nets:
    @staticmethod
    def small(width=1): return ("small", width)
def build(classes, width=8, *, seed=None): return (classes, width, seed)
def open_ended(**options): return options
def fails(): raise KeyError("nothing here")
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


def refused(path: str, **options: object) -> ArgumentError:
    with pytest.raises(ArgumentError) as caught:
        call("model.name", path, offered={"classes": 10, "seed": 0}, options=options)
    return caught.value


def test_it_gets_what_it_names_and_its_options() -> None:
    offered = {"classes": 10, "in_channels": 3, "seed": 7}
    assert call("name", "own_nets:build", offered=offered, options={"width": 4}) == (10, 4, 7)
    assert call("name", "own_nets:Nets.small", offered=offered, options={}) == ("small", 1)
    assert call("name", "own_nets:open_ended", offered=offered, options={"a": 1}) == {"a": 1}
    assert call("name", "own_nets:build", offered=offered, options={"classes": 5}) == (5, 8, 7)


@pytest.mark.parametrize("path", ["own_nets", "own_nets:", ":build", "own nets:build", "own_nets:build()", "a:b:c"])
def test_what_is_not_written_as_one(path: str) -> None:
    with pytest.raises(ArgumentError, match=r"expected a module and a function in it.*write, for example,"):
        check_import_path("model.name", path)


@pytest.mark.parametrize(
    ("path", "why", "instead"),
    [
        ("own_gone:build", "own_gone cannot be imported (ModuleNotFoundError", "in the folder that holds own_gone"),
        ("own_broken:build", "own_broken cannot be imported (ZeroDivisionError", 'python -c "import own_broken"'),
        ("own_nets:biuld", "own_nets has no biuld; did you mean build?", "after the colon"),
        ("own_nets:COUNT", "expected a function or a class, but it is of type int", "after the colon"),
    ],
)
def test_what_cannot_be_found(path: str, why: str, instead: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        import_function("model.name", path)
    assert (caught.value.argument, caught.value.received) == ("model.name", path)
    assert why in caught.value.allowed
    assert instead in caught.value.instead


def test_what_cannot_be_called_so() -> None:
    unknown = refused("own_nets:build", widht=3)
    assert (unknown.argument, unknown.received) == ("widht", 3)
    assert "own_nets:build takes width; did you mean width?" in unknown.allowed
    assert "it raises KeyError: 'nothing here'" in refused("own_nets:fails").allowed
    with pytest.raises(ArgumentError, match="classes: own_nets:build requires it"):
        call("name", "own_nets:build", offered={}, options={})
