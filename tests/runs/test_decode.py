"""JSON into records: what is wrong is named by file, line and key, whatever it is."""

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from acdc.limits import Limits, Share
from acdc.runs.decode import RecordError, decode, read, read_lines, read_object, whole


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
    free: Any = None
    settings: Mapping[str, Any] = whole()

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("count = 13: expected another number")


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
        ({"count": 1, "inner": {"name": "a" * 10_001}}, f'inner.name = "{"a" * 59}…: expected at most 10,000 letters'),
        ({"count": 1, "sizes": {"x": None}}, "sizes.x = null: expected a whole number"),
        ({"count": 1, "several": {}}, "several = {…}: expected a list"),
        ({"count": 1, "several": [{"name": "a"}, 7]}, "several[1] = 7: expected a table"),
        ({"count": 1, "free": {"a": [1e999]}}, "free.a[0] = Infinity: expected a number"),
    ],
)
def test_the_first_key_that_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        decode(Outer, given)
    assert str(caught.value) == said


def test_settings_of_any_kind_may_not_be_deep() -> None:
    value: Any = 1
    for _ in range(30):
        value = [value]
    with pytest.raises(ValueError, match="nested at most 20 deep"):
        decode(Outer, {"count": 1, "free": value})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "it cannot be read (Expecting property name"),
        (b"[]", "it holds […]: expected a table of settings"),
        (b"null", "it holds null: expected a table of settings"),
        (b'{"a": "\xff"}', "it cannot be read ('utf-8' codec can't decode"),
        (b'{"a": NaN}', "it cannot be read (NaN is not a number)"),
        (b'{"a": -Infinity}', "it cannot be read (-Infinity is not a number)"),
        (b'{"a": 1, "a": 2}', 'it cannot be read ("a" stands there twice)'),
        (b"[" * 100_000, "it cannot be read (brackets are nested too deeply)"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "it cannot be read (a number has 5,000 digits)"),
    ],
)
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        read_object(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert str(caught.value).endswith("; put the run's own file back")


def test_what_is_no_file_is_refused_or_not_there(tmp_path: Path) -> None:
    assert read_object(tmp_path / "nothing.json") is None
    (tmp_path / "file").touch()
    assert read_object(tmp_path / "file" / "inside.json") is None
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(RecordError, match="expected a file, and it is none"):
            read_object(tmp_path / name)


def test_a_file_without_end_is_not_loaded(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RecordError, match="expected at most 268,435,456 bytes, and it has 1,099,511,627,776"):
        read_object(tmp_path / "config.json")


def test_lines_that_are_cut_are_told_from_those_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"count": 1}\n7\n{"count": "x"}\n{"count": 2, "later": 0}\n{"cou')
    found = read_lines(Outer, path)
    assert found is not None
    assert [record.count for record in found.records] == [1, 2]
    assert found.texts == [b'{"count": 1}', b'{"count": 2, "later": 0}']
    assert ([*found.cut], [*found.wrong], found.count) == ([2, 5], [3], 5)
    with pytest.raises(RecordError) as caught:
        found.checked()
    problem = 'count = "x": expected a whole number, 0 or more'
    assert str(caught.value) == f"{path} line 3: {problem}; put the run's own file back"


def test_errors_travel_between_processes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecordError) as caught:
        read(Outer, tmp_path / "config.json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
