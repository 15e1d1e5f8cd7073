"""Nested data against types: what is wrong is named by its place, whatever it is."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
import torch

from acdc.typed_data import DataError, Limits, Plain, Share, check, decode, whole


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: Annotated[int, Limits(least=0)]
    share: Share | None = None
    kind: Literal["dense", "sparse"] = "dense"
    inner: Inner | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    several: tuple[Inner, ...] = ()
    free: Plain = None
    settings: Mapping[str, Plain] = whole()

    def __post_init__(self) -> None:
        if self.count == 13:
            raise DataError("count", "another number", "13")


def test_what_is_written_is_read() -> None:
    given = {"count": 3, "share": 1, "inner": {"name": "a"}, "sizes": {"x": 4}, "several": [{"name": "b"}], "free": [1]}
    found = decode(Outer, given)
    assert (found.share, found.inner, found.several) == (1.0, Inner(name="a"), (Inner(name="b"),))
    assert found.settings == given
    assert decode(Outer, json.loads(json.dumps(asdict(found)))).sizes == {"x": 4}


def test_keys_of_a_newer_version_are_ignored_and_kept_in_the_whole() -> None:
    found = decode(Outer, {"count": 0, "later": {"deep": [1]}})
    assert found.settings == {"count": 0, "later": {"deep": [1]}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "count is missing"),
        ({"count": "x"}, 'count = "x": expected a whole number, 0 or more'),
        ({"count": True}, "count = true: expected a whole number, 0 or more"),
        ({"count": 1.5}, "count = 1.5: expected a whole number, 0 or more"),
        ({"count": -1}, "count = -1: expected a whole number, 0 or more"),
        ({"count": None}, "count = null: expected a whole number, 0 or more"),
        ({"count": 13}, "count = 13: expected another number"),
        ({"count": 1, "share": 1.5}, "share = 1.5: expected a number, from 0 to 1"),
        ({"count": 1, "share": 1e999}, "share = Infinity: expected a number, from 0 to 1"),
        ({"count": 1, "kind": "other"}, 'kind = "other": expected one of "dense", "sparse"'),
        ({"count": 1, "kind": []}, 'kind = […]: expected one of "dense", "sparse"'),
        ({"count": 1, "inner": {}}, "inner.name is missing"),
        ({"count": 1, "inner": [1]}, "inner = […]: expected a table"),
        ({"count": 1, "inner": {"name": 3}}, "inner.name = 3: expected text"),
        ({"count": 1, "inner": {"name": "\ud800"}}, 'inner.name = "\\ud800": expected text'),
        (
            {"count": 1, "inner": {"name": "a" * 10_001}},
            f'inner.name = "{"a" * 59}…: expected at most 10,000 characters',
        ),
        ({"count": 1, "sizes": {"x": None}}, "sizes.x = null: expected a whole number"),
        ({"count": 1, "several": {}}, "several = {…}: expected a list"),
        ({"count": 1, "several": [{"name": "a"}, 7]}, "several[1] = 7: expected a table"),
        ({"count": 1, "free": {"a": [1e999]}}, "free.a[0] = Infinity: expected a number"),
    ],
)
def test_the_first_key_that_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(Outer, given)
    assert str(caught.value) == said


def test_settings_of_any_kind_may_not_be_deep() -> None:
    value: Any = 1
    for _ in range(30):
        value = [value]
    with pytest.raises(DataError, match="nested at most 20 deep"):
        decode(Outer, {"count": 1, "free": value})


class Part(TypedDict):
    sizes: tuple[int, int]
    weights: dict[int, torch.Tensor]
    name: NotRequired[str | None]


STATE = {"sizes": (1, 2), "weights": {0: torch.ones(2)}, "more": object()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sizes": [1, 2]}, "state.sizes = […]: expected a tuple"),
        ({"sizes": (1, 2, 3)}, "state.sizes = […]: expected 2 items, not 3"),
        ({"sizes": (1, True)}, "state.sizes[1] = true: expected a whole number"),
        ({"weights": {0: 3}}, "state.weights.0 = 3: expected a tensor"),
        ({"weights": {"0": 3}}, 'a key of state.weights = "0": expected a whole number'),
        ({"name": torch.ones(2)}, "state.name = a tensor of shape [2] (float32): expected text"),
    ],
)
def test_state_dicts_are_checked_by_the_same_walk(change: dict[str, Any], said: str) -> None:
    check(STATE, Part, "state")
    check(STATE | {"name": None}, Part, "state")
    with pytest.raises(DataError) as caught:
        check(STATE | change, Part, "state")
    assert str(caught.value) == said
    with pytest.raises(DataError, match=r"^state\.sizes is missing$"):
        check({"weights": {}}, Part, "state")


def test_texts_that_no_file_may_hold_are_fine_in_a_state_dict() -> None:
    check(["\ud800", "a" * 10_001], list[str], "skipped")  # names of files may be any bytes
    with pytest.raises(DataError):
        decode(Inner, {"name": "\ud800"})


def test_an_error_travels_between_processes_and_gets_a_longer_path() -> None:
    error = pickle.loads(pickle.dumps(DataError("[0].name", "text", "3").under("several")))
    assert str(error) == "several[0].name = 3: expected text"
    assert (error.path, error.expected, error.received) == ("several[0].name", "text", "3")
