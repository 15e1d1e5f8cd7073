"""Damaged files of a run are refused, or read as they were written; and no checkpoint's contents end in a traceback."""

import copy
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acdc.cli import main
from acdc.io import IntegrityError, seal_zip, verify_safetensors
from acdc.runs import checkpoint
from acdc.runs.checkpoint import CheckpointError
from acdc.sparsity.packed import load

Mutations = Callable[..., range]
FILES = ("sparse.safetensors", "masks.safetensors", "predictions.safetensors")
SETTINGS = (
    "data.name=synthetic", "data.classes=2", "data.shape=[1, 8, 8]", "data.train=32", "data.test=8", "data.crop=0",
    "data.flip=false", "train.epochs=4", "train.batch_size=16", "method.schedule=", "run.baseline=false",
    "run.checkpoint_every=1ep", "run.keep=100",
)  # fmt: skip
METHODS = {"acdc": ("method.name=acdc",), "rigl": ("method.name=rigl", "method.every=1st")}


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that is complete but for its last epochs."""
    out = tmp_path_factory.mktemp("fuzz") / request.param
    settings = [part for text in (*SETTINGS, *METHODS[request.param]) for part in ("--set", text)]
    assert main(["train", "--device", "cpu", "--out", str(out), *settings]) == 0
    (out / "result.json").unlink()
    return out


# Damaged bytes


def damage(content: bytes, rng: random.Random) -> bytes:
    """One mutation: a bit, a byte, a cut, bytes added, or a range that is zeroed, doubled, swapped or made random."""
    data, size = bytearray(content), len(content)
    start = rng.randrange(size)
    end = min(size, start + rng.choice((1, 4, 16, 64, 512)))
    other = rng.randrange(size - (end - start) + 1)
    kind = rng.choice(("bit", "bit", "bit", "byte", "cut", "added", "zeroed", "doubled", "copied", "swapped", "noise"))
    if kind == "bit":
        data[start] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[start] = rng.randrange(256)
    elif kind == "cut":
        del data[start:]
    elif kind == "added":
        data += rng.randbytes(rng.choice((1, 22, 76, 500)))
    elif kind == "zeroed":
        data[start:end] = bytes(end - start)
    elif kind == "doubled":
        data[end:end] = data[start:end]
    elif kind == "copied":
        data[start:end] = data[other : other + end - start]
    elif kind == "swapped":
        one, two = data[start:end], data[other : other + end - start]
        data[start:end], data[other : other + end - start] = two, one
    else:
        data[start:end] = rng.randbytes(end - start)
    return bytes(data)


def same(a: Any, b: Any) -> bool:
    """True where two states are equal to the bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return bool(a == b)


def accepted(path: Path, content: bytes, read: Callable[[Path], Any]) -> Any | None:
    """What is read of a file with this content; None where it is refused in words."""
    path.write_bytes(content)
    try:
        return read(path)
    except (CheckpointError, IntegrityError):  # anything else ends the test
        return None


def test_no_damage_to_a_checkpoint_goes_unnoticed(tmp_path: Path, mutations: Mutations) -> None:
    state = {"model": {"weight": torch.randn(4, 3), "bias": torch.randn(4)}, "epoch": 3, "rng": [(1, (2, 3), None)]}
    path = checkpoint.save(tmp_path, 0, "acdc", 1, state, keep=1)
    whole, before = path.read_bytes(), checkpoint.load(path)
    for seed in mutations(short=300, long=20_000):
        found = accepted(path, damage(whole, random.Random(seed)), checkpoint.load)
        assert found is None or same(found, before), f"mutation {seed}"


def test_no_damage_to_a_run_s_checkpoint_goes_unnoticed(run: Path, tmp_path: Path, mutations: Mutations) -> None:
    whole, path = max((run / "checkpoints").iterdir()), tmp_path / "0-acdc-00000001.pt"
    content, before = whole.read_bytes(), checkpoint.load(whole)
    for seed in mutations(short=50, long=2_000):
        found = accepted(path, damage(content, random.Random(seed)), checkpoint.load)
        assert found is None or same(found, before), f"mutation {seed}"


@pytest.mark.parametrize("name", FILES)
def test_no_damage_to_a_model_masks_or_predictions_goes_unnoticed(
    run: Path, name: str, tmp_path: Path, mutations: Mutations
) -> None:
    def read(path: Path) -> dict[str, Tensor]:
        verify_safetensors(path)
        return load(path)

    content, before = (run / name).read_bytes(), load(run / name)
    for seed in mutations(short=100, long=3_000):
        found = accepted(tmp_path / name, damage(content, random.Random(seed)), read)
        assert found is None or same(found, before), f"mutation {seed}"


# Whole files with other contents


def place(state: Any, rng: random.Random) -> tuple[Any, Any]:
    """A place in nested data, a container and a key in it: at each level one, or one below it."""
    while True:
        key = rng.choice(list(state) if isinstance(state, dict) else range(len(state)))
        inner = state[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.2:
            return state, key
        state = inner


def replacement(value: Any, rng: random.Random) -> Any:
    """Something else in the place of a value: of another type, shape or size, or out of range."""
    others: list[Any] = [
        None,
        -1,
        10**9,
        0.5,
        "x",
        True,
        [],
        {},
        (),
        [1, "x"],
        {"a": 1},
        torch.zeros(()),
        torch.ones(2),
    ]
    if isinstance(value, Tensor):
        others += [value.flatten()[:-1], value[None], value.to(torch.int64), value.tolist(), torch.zeros(0)]
    if isinstance(value, dict):
        others += [dict(list(value.items())[:-1]), {**value, "more": 1}, list(value.items())]
    if isinstance(value, list):
        others += [value[:-1], [*value, None], tuple(value)]
    return rng.choice(others)


def change(state: Any, rng: random.Random) -> str:
    """Delete or replace one place, and tell which."""
    container, key = place(state, rng)
    if rng.random() < 0.3:
        del container[key]
        return f"without {key}"
    container[key] = replacement(container[key], rng)
    return f"{key} is {container[key]!r:.60}"


def rewrite(path: Path, state: Any) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    seal_zip(buffer)
    path.write_bytes(buffer.getvalue())


def test_other_contents_end_in_words(
    run: Path, tmp_path: Path, mutations: Mutations, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each checkpoint of the run in turn: a dense phase, a sparse one, the fine-tuning, the end."""
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    states = {name: checkpoint.load(run / "checkpoints" / name) for name in names}
    for seed in mutations(short=30, long=1_000):
        rng = random.Random(seed)
        out, name = tmp_path / str(seed), names[seed % len(names)]
        shutil.copytree(run, out, ignore=shutil.ignore_patterns("checkpoints", "*.html"))
        state = copy.deepcopy(states[name])
        told = change(state, rng)
        (out / "checkpoints").mkdir()
        rewrite(out / "checkpoints" / name, state)
        try:
            code = main(["train", "--resume", str(out), "--device", "cpu"])
        except Exception as error:
            pytest.fail(f"mutation {seed} of {name}, {told}: {type(error).__name__}: {error}")
        assert code == 0 or str(out) in capsys.readouterr().err, f"mutation {seed} of {name}, {told}"
        shutil.rmtree(out)
