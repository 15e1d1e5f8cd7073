"""What is kept of a run names no place of the machine that ran it."""

import json
import tarfile
from pathlib import Path

import pytest
from benchmarks.record import RESULTS

from benchmarks import keeping

LOG = """\
3 images; 12 images/s, epoch 1/200, see https://example.org/a/b
folder: /home/some one/out/plain-90

/usr/lib/python3/site-packages/torch/nn/x.py:12: UserWarning: "/data/cifar/train" is slow
models, metrics and settings are in /home/some one/out/plain-90
report: /home/some one/out/plain-90/report.html
again: /elsewhere/out/plain-90/checkpoints/last.pt
"""


def test_paths_in_a_log_begin_at_the_run() -> None:
    assert keeping.without_places(LOG, "plain-90") == (
        "3 images; 12 images/s, epoch 1/200, see https://example.org/a/b\n"
        "folder: plain-90\n\n"
        'x.py:12: UserWarning: "train" is slow\n'
        "models, metrics and settings are in plain-90\n"
        "report: plain-90/report.html\n"
        "again: plain-90/checkpoints/last.pt\n"
    )


@pytest.mark.parametrize("log", ["plain-90/run.log", "plain-90.log"])
def test_a_run_is_packed_without_weights_and_places_always_alike(log: str, tmp_path: Path) -> None:
    run = tmp_path / "plain-90"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"root": "/data/cifar", "recipe": {}}))
    (run / "result.json").write_text("{}")
    (run / "sparse.safetensors").write_bytes(b"large")
    (tmp_path / log).write_text(LOG)
    for name in ("one", "two"):
        keeping.pack(tmp_path / name, {"plain-90-seed0": run}, {"told.json": b"[]"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        files = {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name))}
    assert set(files) == {
        "told.json",
        "plain-90-seed0/config.json",
        "plain-90-seed0/result.json",
        "plain-90-seed0.log",
    }
    assert json.loads(files["plain-90-seed0/config.json"]) == {"recipe": {}}
    assert not [name for name, content in files.items() if b"/home" in content or b"/data" in content]


@pytest.mark.parametrize("archive", sorted(RESULTS.rglob(keeping.ARCHIVE)), ids=lambda path: path.parent.name)
def test_what_is_kept_here_names_no_machine_s_places(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        files = {name: file.read() for name in opened.getnames() if (file := opened.extractfile(name))}
    assert files
    assert not [name for name, content in files.items() if b"/tmp/" in content or b"/root" in content]
