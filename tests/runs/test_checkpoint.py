"""Checkpoints are whole or not there, and the newest whole one is found."""

import errno
import io
import os
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
import torch

from acdc.io import verify_zip
from acdc.runs import checkpoint
from acdc.runs.checkpoint import CheckpointError, DamagedError, load, newest, save

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STATE = {"model": {"w": torch.arange(20_000.0)}, "epoch": 3, "rng": [1, (2, "x")]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 20, 100_000_000):
        save(tmp_path, 0, "acdc", step, STATE, keep=2)
    assert names(tmp_path) == ["0-acdc-00000020.pt", "0-acdc-100000000.pt"]
    save(tmp_path, 1, "finetune", 3, STATE, keep=2)
    assert names(tmp_path) == ["0-acdc-100000000.pt", "1-finetune-00000003.pt"], "a later stage is newer"


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    found = newest(save(tmp_path, 0, "acdc", 5, STATE, keep=1).parent)
    assert found.skipped == ()
    assert torch.equal(found.state["model"]["w"], STATE["model"]["w"])
    assert (found.state["epoch"], found.state["rng"]) == (3, [1, (2, "x")])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_one_cut_short_is_passed_over_by_name(tmp_path: Path, share: float) -> None:
    good, bad = (save(tmp_path, 0, "acdc", step, STATE, keep=2) for step in (5, 10))
    whole = bad.read_bytes()
    bad.write_bytes(whole[: int(share * len(whole))])
    found = newest(tmp_path)
    assert found.path == good
    assert len(found.skipped) == 1
    assert f"{bad}: damaged (it does not end with its digest, which is written last)" in found.skipped[0]


def test_one_with_a_flipped_bit_is_passed_over(tmp_path: Path) -> None:
    good, bad = (save(tmp_path, 0, "acdc", step, STATE, keep=2) for step in (5, 10))
    content = bytearray(bad.read_bytes())
    content[len(content) // 2] ^= 1
    bad.write_bytes(content)
    found = newest(tmp_path)
    assert found.path == good
    assert found.skipped == (f"{bad}: damaged (its contents do not match the digest written with it)",)


def test_a_bit_that_torch_s_reader_takes_for_a_folder_s_is_noticed(tmp_path: Path) -> None:
    """Bit 0x10 of a zip entry's external attributes: torch.load then returns that tensor unwritten."""
    path = save(tmp_path, 0, "acdc", 5, STATE, keep=1)
    whole = path.read_bytes()
    entries = [match.start() for match in re.finditer(b"PK\1\2", whole)]
    assert len(entries) > 3
    for entry in entries:
        content = bytearray(whole)
        content[entry + 38] ^= 0x10
        path.write_bytes(content)
        with pytest.raises(DamagedError, match="do not match the digest"):
            load(path)


def test_what_is_written_is_a_plain_file_of_torch_s(tmp_path: Path) -> None:
    path = save(tmp_path, 0, "acdc", 5, STATE, keep=1)
    assert torch.equal(torch.load(path, weights_only=True)["model"]["w"], STATE["model"]["w"])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_the_digest_is_taken_in_pieces(tmp_path: Path) -> None:
    """Of a file larger than the memory that hashing may take."""
    path = save(tmp_path, 0, "acdc", 5, {"large": torch.zeros(8_000_000)}, keep=1)
    tracemalloc.start()
    with path.open("r+b") as file:
        verify_zip(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < path.stat().st_size / 8


@pytest.mark.parametrize("keep", [1, 2])
def test_one_passed_over_takes_no_other_s_place_and_is_not_removed(tmp_path: Path, keep: int) -> None:
    for step in (5, 10):
        bad = save(tmp_path, 0, "acdc", step, STATE, keep=2)
    bad.write_bytes(b"damaged")
    assert save(tmp_path, 0, "acdc", 7, STATE, keep=keep).exists(), "also of one that is newer by its name"
    checkpoint.set_aside(tmp_path, newest(tmp_path).path)
    for step in (8, 9, 11):
        save(tmp_path, 0, "acdc", step, STATE, keep=keep)
    kept = [f"0-acdc-{step:08}.pt" for step in (9, 11)[-keep:]]
    assert names(tmp_path) == sorted([*kept, "0-acdc-00000010.pt.damaged"])
    assert (tmp_path / "0-acdc-00000010.pt.damaged").read_bytes() == b"damaged"


@pytest.mark.parametrize("wrong", [r"not a checkpoint of acdc train \(it has no digest\)", "could not be read"])
def test_one_that_is_whole_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    save(tmp_path, 0, "acdc", 5, STATE, keep=2)
    path = save(tmp_path, 0, "acdc", 10, STATE, keep=2)
    if "digest" in wrong:
        torch.save({"format": 1}, path)
    else:

        def broken(path: Path, **_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(torch, "load", broken)
    with pytest.raises(CheckpointError, match=f"{path.name}: {wrong}"):
        newest(tmp_path)
    assert names(tmp_path) == ["0-acdc-00000005.pt", "0-acdc-00000010.pt"]


def test_one_that_memory_does_not_suffice_for_is_not_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 0, "acdc", 5, {"small": 1}, keep=2)
    path = save(tmp_path, 0, "acdc", 10, {"large": torch.zeros(60_000_000)}, keep=2)
    script = (
        "import resource\n"
        "from pathlib import Path\n"
        "from acdc.runs import checkpoint\n"
        "room = 4096 * int(Path('/proc/self/statm').read_text().split()[0]) + 100_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "try:\n"
        f"    print(checkpoint.newest(Path({str(tmp_path)!r})).path)\n"
        "except checkpoint.CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: could not be read (there is not enough memory)\n"


def test_none_left_says_why_of_each(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no intact checkpoint to resume from"):
        newest(tmp_path / "nothing")
    for step in (5, 10):
        save(tmp_path, 0, "acdc", step, STATE, keep=2).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"(?s)00000010.pt: damaged.*00000005.pt: damaged"):
        newest(tmp_path)


def test_nothing_in_one_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "evil"),)

    path = save(tmp_path, 0, "acdc", 1, {"x": Evil()}, keep=1)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load(path)
    assert not (tmp_path / "evil").exists()
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"format": 1}))
    with pytest.raises(DamagedError, match="does not end with its digest"):
        load(tmp_path / "plain.pt")


def test_one_that_could_run_code_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    path = save(tmp_path, 0, "acdc", 1, {"model": torch.nn.Linear(1, 1)}, keep=1)
    with pytest.raises(CheckpointError, match="it could run code") as refused:
        checkpoint.load(path)
    assert "weights_only" not in str(refused.value)


def test_another_format_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, 0, "acdc", 1, {**STATE, "format": 7}, keep=1)
    with pytest.raises(CheckpointError, match="it has format 7, but this version of acdc reads format 2"):
        load(path)


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = save(tmp_path, 0, "acdc", 5, STATE, keep=1)

    def full(state: object, file: io.BufferedWriter) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=rf"(?s)No space left on device.*the newest intact one is {good}"):
        save(tmp_path, 0, "acdc", 10, STATE, keep=1)
    assert names(tmp_path) == [good.name]
    assert newest(tmp_path).path == good


def test_a_real_limit_on_file_size_does_too(tmp_path: Path) -> None:
    """Not a stand-in: the system refuses the write half way, as a full disk would."""
    good = save(tmp_path, 0, "acdc", 5, {"small": 1}, keep=1)
    script = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from acdc.runs import checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n"
        f"    checkpoint.save(Path({str(tmp_path)!r}), 0, 'acdc', 10, {{'w': torch.zeros(100_000)}}, keep=1)\n"
        "except checkpoint.CheckpointError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "could not be written (" in done.stdout
    assert f"the newest intact one is {good}" in done.stdout
    assert names(tmp_path) == [good.name]
    assert newest(tmp_path).path == good


def test_random_generators_of_all_kinds_go_on_where_they_were() -> None:
    state = checkpoint.rng_state()
    first = random.random(), torch.rand(3), numpy.random.rand(3), numpy.random.randn()
    checkpoint.set_rng_state(state)
    again = random.random(), torch.rand(3), numpy.random.rand(3), numpy.random.randn()
    assert first[0] == again[0]
    assert first[3] == again[3]
    assert torch.equal(first[1], again[1])
    assert (first[2] == again[2]).all()


def test_they_survive_the_trip_through_a_file(tmp_path: Path) -> None:
    path = save(tmp_path, 0, "acdc", 1, {"rng": [checkpoint.rng_state()]}, keep=1)
    expected = random.random(), numpy.random.rand()
    checkpoint.set_rng_state(load(path)["rng"][0])
    assert (random.random(), numpy.random.rand()) == expected


def test_a_disk_that_is_full_is_named_in_the_system_s_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's writer says "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"."""

    class Full(io.BytesIO):
        def write(self, data: "ReadableBuffer", /) -> int:
            if self.tell() > 500:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: save(state, Full()))
    with pytest.raises(
        CheckpointError, match=r"could not be written \(No space left on device\); there is no earlier one"
    ):
        checkpoint.save(tmp_path, 0, "dense", 1, {"a": torch.zeros(10_000)}, keep=1)
    assert not list(tmp_path.iterdir())
