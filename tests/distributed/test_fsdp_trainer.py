"""acdc train with train.parallel = "fsdp": the files of a DDP run, and checkpoints for any number of processes.

Two processes halve sums exactly, so sharded runs must have the bits of DDP's. Norms (clipping, LAMB) add in another
order, and other numbers of processes split batches differently: these runs agree up to rounding.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import acdc
from acdc.recipes.findings import RecipeError
from acdc.train.fsdp import find_units
from tests import processes
from tests.data.texts import folder
from tests.distributed.ranks import start_ranks
from tests.train.problems import recipe

ACDC = [sys.executable, "-m", "acdc", "train"]
TEXT = [
    "model.layers=2", "model.width=16", "model.heads=2", "data.length=12", "data.steps=6", "train.epochs=4",
    "train.batch_size=8", "method.schedule=paper", "run.baseline=false", "run.finetune=true",
]  # fmt: skip
GPT = [*TEXT, "model.context=12", "train.clip_norm=", "run.keep=100", "run.checkpoint_every=4st"]
XL = [
    *TEXT, "model.name=transformer-xl-small", "model.context=", "model.head_width=8", "model.feedforward=32",
    "model.target_length=12", "model.memory_length=20", "data.order=streams", "optimizer.name=lamb",
    "train.accumulate=2", "run.keep=100",
]  # fmt: skip
IMAGES = [
    "data.name=synthetic", "data.classes=4", "data.train=70", "data.test=41", "data.validation=9", "train.epochs=4",
    "train.batch_size=16", "model.name=wide_resnet", "model.depth=10", "model.width=1", "model.dropout=0",
    "method.sparsity=0.8", "method.schedule=paper", "run.baseline=false", "run.recalibrate=true", "data.corrupt=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))


def train(out: Path, name: str, settings: list[str], data: Path | None = None) -> Path:
    sets = [part for setting in settings for part in ("--set", setting)]
    place = ["--data", str(data)] if data else []
    done = start_ranks(2, [*ACDC, name, *place, "--no-report", "--device", "cpu", "--out", str(out), *sets])
    assert done.returncode == 0, done.stderr
    assert ("FSDP2" in done.stdout) == ("train.parallel=fsdp" in settings)
    return out


def both(tmp_path: Path, name: str, settings: list[str], data: Path | None = None) -> tuple[Path, Path]:
    return (
        train(tmp_path / "whole", name, settings, data),
        train(tmp_path / "sharded", name, [*settings, "train.parallel=fsdp"], data),
    )


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        timed = ("seconds", "eval_seconds", "tokens_per_second")
        return {key: without_clocks(item) for key, item in value.items() if key not in timed}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value


def records(out: Path) -> list[Any]:
    lines = [line for name in ("metrics.jsonl", "phases.jsonl") for line in (out / name).read_text().splitlines()]
    return [without_clocks(json.loads(line)) for line in (*lines, (out / "result.json").read_text())]


def assert_same_files(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    models = sorted(path.name for path in one.glob("*.safetensors"))
    assert models == sorted(path.name for path in other.glob("*.safetensors"))
    for name in models:
        ours, theirs = acdc.load(one / name), acdc.load(other / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name


def test_a_gpt_has_the_bits_of_ddp_and_resumes_on_any_number(tmp_path: Path, text: Path) -> None:
    """The run is stopped in its compressed phase, as if killed after a checkpoint, and resumed on 2, 1 and 4."""
    whole, sharded = both(tmp_path, "text-quick", GPT, text)
    assert_same_files(whole, sharded)
    for path in sorted((whole / "checkpoints").iterdir()):
        ours, theirs = (torch.load(out / "checkpoints" / path.name, weights_only=True) for out in (whole, sharded))
        for part in ("model", "optimizer", "sparsifier", "dynamics", "best_weights", "totals"):
            assert_equal(theirs[part], ours[part], f"{path.name}: {part}")

    expected = json.loads((sharded / "result.json").read_text())["models"]
    for count in (2, 1, 4):
        again = cut(sharded, tmp_path / f"on-{count}", "0-acdc-00000008.pt")
        command = [*ACDC, "--resume", str(again), "--no-report", "--device", "cpu"]
        done = processes.run(command) if count == 1 else start_ranks(count, command)
        assert done.returncode == 0, done.stderr
        assert (f"the run had 2 processes and has {count} from here on" in done.stdout) == (count != 2)
        if count == 2:
            assert_same_files(sharded, again)
        for ours, theirs in zip(expected, json.loads((again / "result.json").read_text())["models"], strict=True):
            assert theirs["sparsity"] == ours["sparsity"]
            assert theirs["test_loss"] == pytest.approx(ours["test_loss"], rel=1e-4)


def cut(run: Path, copy: Path, last: str) -> Path:
    """Copy a run as it was when it wrote the checkpoint `last`."""
    shutil.copytree(run, copy)
    (copy / "result.json").unlink()
    for path in (copy / "checkpoints").iterdir():
        if path.name > last:
            path.unlink()
    return copy


def assert_equal(one: Any, other: Any, where: str) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for index, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            assert_equal(ours, theirs, f"{where}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.mark.long
def test_transformer_xl_with_lamb_clipping_and_accumulation(tmp_path: Path, text: Path) -> None:
    whole, sharded = both(tmp_path, "text-quick", XL, text)
    for ours, theirs in zip(records(whole)[-1]["models"], records(sharded)[-1]["models"], strict=True):
        assert theirs["sparsity"] == ours["sparsity"]
        assert theirs["test_loss"] == pytest.approx(ours["test_loss"], rel=1e-5)
    cut(sharded, tmp_path / "cut", "0-acdc-00000018.pt")
    done = processes.run([*ACDC, "--resume", str(tmp_path / "cut"), "--no-report", "--device", "cpu"])
    assert done.returncode != 0
    assert "and a model with a memory resumes on as many; run: torchrun --nproc-per-node 2" in done.stderr


@pytest.mark.long
def test_images_with_batch_norm_random_labels_and_recalibration(tmp_path: Path) -> None:
    assert_same_files(*both(tmp_path, "digits", IMAGES))


def test_units_are_blocks_that_share_nothing() -> None:
    gpt = acdc.models.build("gpt-10m", vocabulary=10, layers=3, width=8, heads=2, context=4)
    assert [type(unit).__name__ for unit in find_units(gpt)] == ["Block"] * 3
    resnet = acdc.models.build("resnet20", classes=10, in_channels=3)
    assert find_units(resnet) == list(resnet.stages)  # pyright: ignore[reportArgumentType]
    gpt.blocks[1].attention.out.weight = gpt.blocks[0].attention.out.weight  # pyright: ignore
    assert find_units(gpt) == [gpt.blocks[2]]  # pyright: ignore[reportIndexIssue]


def test_what_cannot_be_sharded_is_refused_all_at_once() -> None:
    settings = ("ema=0.9", "distill=0.5", "precision=fp16", "channels_last=true", "compile=on")
    with pytest.raises(RecipeError) as refused:
        recipe("train.parallel=fsdp", *(f"train.{setting}" for setting in settings), "method.revive=true")
    for setting in settings:
        key, _, value = setting.partition("=")
        named = value if value[0] == "0" or value == "true" else f'"{value}"'
        assert f'train.{key} = {named}: with train.parallel = "fsdp" ' in str(refused.value)
    assert "method: with train.parallel" in str(refused.value)
    assert "revive=True draws whole filters" in str(refused.value)
    with pytest.raises(RecipeError, match=r"method: with .* DPF needs whole weights in every process"):
        recipe("train.parallel=fsdp", "method.name=dpf", "method.schedule=")


def test_a_pattern_that_a_shard_divides_is_refused_before_the_run(tmp_path: Path) -> None:
    sets = [*IMAGES, "train.parallel=fsdp", "method.pattern=block 4x4", "method.first_and_last_dense=true"]
    typed = [part for setting in sets for part in ("--set", setting)]
    done = start_ranks(2, [*ACDC, "digits", "--no-report", "--device", "cpu", "--out", str(tmp_path / "out"), *typed])
    assert done.returncode != 0
    assert done.stderr.count("method.pattern = ") == 1, done.stderr
    assert not (tmp_path / "out").exists()
