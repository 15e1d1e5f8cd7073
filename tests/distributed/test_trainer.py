"""acdc train in two processes: with gloo they give the masks and losses of one with the same batch.

One test starts them by torchrun. The others start them without it, so that no rank is ended by anything but itself.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

import acdc
from acdc.data.image_folder import ImageFolder
from acdc.train.distributed import join
from tests import processes
from tests.distributed.ranks import call_on_ranks, two_ranks
from tests.train.problems import JPEGS, jpegs

SETTINGS = [
    "data.name=synthetic", "data.classes=4", "data.train=70", "data.test=41", "train.epochs=6", "train.batch_size=16",
    "model.name=wide_resnet", "model.depth=10", "model.width=1", "model.dropout=0", "data.crop=2", "data.flip=true",
    "method.sparsity=0.8", "method.schedule=paper", "run.baseline=false",
]  # fmt: skip


ACDC = [sys.executable, "-m", "acdc"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


def arguments(out: Path, *settings: str) -> list[str]:
    sets = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["train", "digits", "--no-report", "--device", "cpu", "--out", str(out), *sets]


def train(out: Path, *settings: str, start: Callable[..., CompletedProcess[str]] = two_ranks) -> None:
    done = start([*ACDC, *arguments(out, *settings)])
    assert done.returncode == 0, done.stderr
    assert sum(" loss " in line for line in done.stdout.splitlines()) == 7, "rank 0 alone reports"


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_are_one_with_the_same_batch(tmp_path: Path) -> None:
    """Each batch norm of a rank sees its half of a batch: one process does the same with model.bn_splits=2.

    Two with that setting see no less: the halves are there already. Sums come in another order, and rounding grows from
    step to step: faster, the higher the learning rate.
    """
    one, two, gently = tmp_path / "one", tmp_path / "two", "optimizer.lr=0.01"
    train(one, gently, "model.bn_splits=2", start=processes.run)
    train(two, gently, "model.bn_splits=2")
    masks = acdc.load(one / "masks.safetensors")
    other = acdc.load(two / "masks.safetensors")
    assert all(torch.equal(masks[name], other[name]) for name in masks)
    for alone, shared in zip(rows(one), rows(two), strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert shared["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)
        assert shared["train_accuracy"] == alone["train_accuracy"]
        assert shared["test_accuracy"] == alone["test_accuracy"], "all 41 test images, each once"
    config = json.loads((two / "config.json").read_text())
    assert config["processes"] == 2


def test_a_signal_to_torchrun_stops_both_with_a_checkpoint_and_the_run_goes_on(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole)
    line = [*TORCHRUN, "tests.stops", "SIGTERM", "1", "parent", *arguments(parts)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    stopped = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    errors = stopped.stderr
    assert "Stopped by SIGTERM. A checkpoint was written; resume with: torchrun --nproc-per-node 2 -m acdc" in errors
    assert not (parts / "result.json").exists()
    done = two_ranks([*ACDC, "train", "--no-report", "--resume", str(parts), "--device", "cpu"])
    assert done.returncode == 0, done.stderr
    for name in ("sparse", "dense", "finetuned", "masks"):
        one, two = acdc.load(whole / f"{name}.safetensors"), acdc.load(parts / f"{name}.safetensors")
        assert all(torch.equal(one[key], two[key]) for key in one), name


def meet(rank: int, port: int, restarts: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restarts),
    }  # fmt: skip
    with join("cpu") as world:
        assert world.gather(rank) == [0, 1]


def test_processes_that_torchrun_restarts_read_nothing_of_the_killed_ones() -> None:
    """Its agent keeps one store for all of them: the second two meet under keys of their own."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    call_on_ranks(2, meet, store.port, 0)
    keys = store.num_keys()
    call_on_ranks(2, meet, store.port, 1)
    assert store.num_keys() > keys


LATE = """
import sys, time
from acdc.cli import main
from acdc.train.distributed import World

on_time = World.on_rank_zero

def late(world, act):
    made = on_time(world, act)
    time.sleep(0.2 * world.rank)
    return made

World.on_rank_zero = late
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_rank_that_is_late_goes_the_same_way(tmp_path: Path) -> None:
    """Rank 0 has written files by the time the other looks: what is there is asked once for all."""
    (tmp_path / "late.py").write_text(LATE)
    done = two_ranks([sys.executable, tmp_path / "late.py", *arguments(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "result.json").is_file()


def test_what_rank_0_cannot_do_is_known_to_all_and_said_once(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()  # where the folder would be made, by rank 0 alone
    without = [part for part in arguments(tmp_path / "out") if part not in ("--out", str(tmp_path / "out"))]
    done = two_ranks([*ACDC, *without], cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("acdc: --out runs: File exists; choose another folder") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("extra", [["--set", "optimizer.lr=-1"], ["--nothing"]])
def test_a_mistake_is_named_once(tmp_path: Path, extra: list[str]) -> None:
    done = two_ranks([*ACDC, *arguments(tmp_path / "out"), *extra])
    assert done.returncode != 0
    assert len(re.findall("optimizer.lr = -1|unrecognized arguments", done.stderr)) == 1


def on_jpegs(images: Path, out: Path, limit: int) -> CompletedProcess[str]:
    sets = [part for one in ("train.epochs=4", *JPEGS, f"data.bad_limit={limit}") for part in ("--set", one)]
    place = ["--device", "cpu", "--data", str(images), "--workers", "0", "--out", str(out)]
    return two_ranks([*ACDC, "train", "imagenet-mobilenet", "--no-report", *place, *sets])


def shares(images: Path) -> list[list[Path]]:
    """The files of epoch 0 that each of two ranks is to read."""
    options = {"batch_size": 4, "device": "cpu", "seed": 0, "train": True, "workers": 0, "bad_limit": 0}
    ranks = [ImageFolder(images, "train", rank=rank, world=2, **options) for rank in (0, 1)]
    return [[images / "train" / name for request in data._plan(0, 0) for name in request.names] for data in ranks]


def test_unreadable_files_are_counted_over_all_ranks(tmp_path: Path) -> None:
    images = jpegs(tmp_path / "images")
    first, second = shares(images)
    for path in (first[0], *second[:2]):
        path.write_bytes(b"")
    done = on_jpegs(images, tmp_path / "enough", 3)
    assert done.returncode == 0, done.stderr
    assert [row["skipped_images"] for row in rows(tmp_path / "enough")] == [3] * 4
    done = on_jpegs(images, tmp_path / "few", 2)
    assert done.returncode != 0
    said = "acdc: data.bad_limit=2: 3 of the 12 images in"
    assert done.stderr.count(said) == 1, done.stderr
    assert not (tmp_path / "few" / "metrics.jsonl").exists(), "in the first epoch, where no rank met more than two"
    assert not list((tmp_path / "few").glob("checkpoints/*"))


def test_a_rank_that_can_read_nothing_ends_all(tmp_path: Path) -> None:
    images = jpegs(tmp_path / "images")
    for path in shares(images)[1]:
        path.write_bytes(b"")
    done = on_jpegs(images, tmp_path / "out", 1)
    assert done.returncode != 0
    assert done.stderr.count("acdc: data.bad_limit=1: ") == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_test_images_that_cannot_be_read_count_over_all_ranks(tmp_path: Path) -> None:
    images = jpegs(tmp_path / "images")
    for name in ("cat/0.jpg", "dog/2.jpg"):  # the first rank's and the last one's
        (images / "val" / name).write_bytes(b"")
    done = on_jpegs(images, tmp_path / "few", 1)
    assert done.stderr.count("acdc: data.bad_limit=1: 2 of the 6 images in") == 1, done.stderr
