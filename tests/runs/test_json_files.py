"""The JSON files of a run: what is wrong is named by file, line and key, whatever it is."""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from acdc.runs.json_files import RecordError, read, read_lines, read_object
from acdc.typed_data import Count


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: Count


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "it cannot be read (Expecting property name"),
        (b"[]", "it holds […]: expected a table of settings"),
        (b"null", "it holds null: expected a table of settings"),
        (b'{"a": "\xff"}', "it cannot be read ('utf-8' codec can't decode"),
        (b'{"a": NaN}', "it cannot be read (NaN is not a number)"),
        (b'{"a": -Infinity}', "it cannot be read (-Infinity is not a number)"),
        (b'{"a": 1, "a": 2}', 'it cannot be read ("a" appears twice)'),
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
    assert str(caught.value).endswith("; restore the run's own file")


def test_what_is_no_file_is_refused_or_not_there(tmp_path: Path) -> None:
    assert read_object(tmp_path / "nothing.json") is None
    (tmp_path / "file").touch()
    assert read_object(tmp_path / "file" / "inside.json") is None
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("folder.json", "pipe.json"):
        with pytest.raises(RecordError, match="it is not a regular file"):
            read_object(tmp_path / name)


def test_a_file_without_end_is_not_loaded(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RecordError, match="expected at most 268,435,456 bytes, but it has 1,099,511,627,776"):
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
    assert str(caught.value) == f"{path} line 3: {problem}; restore the run's own file"


def test_errors_travel_between_processes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecordError) as caught:
        read(Outer, tmp_path / "config.json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
