"""Digests of folders that other programs write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from acdc.integrations.sealed_folders import SEAL, find_change, newest_intact, seal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "checkpoint-12" / "shards"
    inner.mkdir(parents=True)
    (inner / ".metadata").write_bytes(b"where")
    (inner.parent / "model.bin").write_bytes(b"weights")
    (inner.parent / "rng_state_1.pth").write_bytes(b"still being written")
    seal(inner.parent, without=["rng_state_1.pth"])
    return inner.parent


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed byte": (lambda f: (f / "model.bin").write_bytes(b"weighty"), "model.bin does not match the digest"),
    "a lost file": (lambda f: (f / "shards" / ".metadata").unlink(), r"shards/.metadata cannot be read \(No such file"),
    "no seal": (lambda f: (f / SEAL).unlink(), f"it has no {SEAL}, which is written last"),
    "half a seal": (lambda f: (f / SEAL).write_bytes((f / SEAL).read_bytes()[:-9]), f"{SEAL} cannot be read"),
    "no text": (lambda f: (f / SEAL).write_bytes(b"\xff\xfe"), f"{SEAL} cannot be read"),
    "another seal": (lambda f: (f / SEAL).write_bytes(b"[]"), f"{SEAL} holds no digests"),
    "no digest": (lambda f: (f / SEAL).write_bytes(b'{"model.bin": null}'), "model.bin does not match the digest"),
}


def test_what_was_left_out_may_change(folder: Path) -> None:
    (folder / "rng_state_1.pth").write_bytes(b"written")
    assert find_change(folder) is None
    assert newest_intact(folder.parent, "checkpoint-*") == folder


@pytest.mark.parametrize(("damage", "told"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_skipped_and_named(
    damage: Callable[[Path], object], told: str, folder: Path, tmp_path: Path
) -> None:
    older = tmp_path / "checkpoint-9"
    older.mkdir()
    seal(older)
    assert newest_intact(tmp_path, "checkpoint-*") == folder, "12 comes after 9"
    damage(folder)
    with pytest.warns(UserWarning, match=f"Skipped a checkpoint, {folder}: {told}"):
        assert newest_intact(tmp_path, "checkpoint-*") == older


def test_none_may_be_left(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_intact(tmp_path, "checkpoint-*") is None
    assert newest_intact(tmp_path / "nowhere", "checkpoint-*") is None
