"""What a run gives: how a result prints, and how it is saved and read again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import acdc
from acdc.io import IntegrityError, write_safetensors
from tests.conformance.harness import OPTIMIZERS, TOTAL, Net, Run, assert_same_bits
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS


SGD = OPTIMIZERS["SGD momentum, Nesterov, weight decay"]


@pytest.fixture(scope="module")
def result() -> acdc.Result:
    run = Run.make(SGD)
    for step in range(TOTAL):
        run.train_step(step)
    return run.sparsifier.finish()


def test_a_result_says_what_it_holds_and_what_to_do_next(result: acdc.Result) -> None:
    said = str(result)
    assert said.splitlines()[0] == f"result of {TOTAL} steps: 80.03% of 1,232 weights pruned, in 3 layers"
    for line in (
        "model.load_state_dict(result.sparse)",
        "acdc.finetune_dense(result, model, optimizer)",
        'result.save("FOLDER")',
        'acdc.Result.load("FOLDER")',
    ):
        assert line in said
    assert f"before step {result.dense_step}\n" in said
    assert repr(result).startswith(f"<Result after {TOTAL} steps: 80.03% of 1,232 weights pruned, in 3 layers; dense t")
    alone = replace(result, dense=None, dense_step=None, twin=None)
    assert "twin" not in str(alone)
    assert repr(alone).endswith("; no dense twin>")


def test_a_result_prints_short(result: acdc.Result) -> None:
    assert len(repr(result)) < 200


def test_result_saves_and_refuses_to_overwrite(result: acdc.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    assert_same_bits(acdc.load(tmp_path / "out" / "sparse.safetensors"), result.sparse)
    assert_same_bits(load_file(tmp_path / "out" / "dense.safetensors"), result.dense or {})
    assert_same_bits(acdc.load(tmp_path / "out" / "masks.safetensors"), result.masks)
    with pytest.raises(FileExistsError, match=r"already holds sparse\.safetensors"):
        result.save(tmp_path / "out")


def test_a_saved_result_is_read_again(result: acdc.Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    again = acdc.Result.load(tmp_path)
    assert result.dense is not None
    assert again.dense is not None
    for one, other in ((again.sparse, result.sparse), (again.dense, result.dense), (again.masks, result.masks)):
        assert_same_bits(one, other)
    assert (again.dense_step, again.total_steps) == (result.dense_step, result.total_steps)
    assert str(again) == str(result)
    model = Net()
    model.load_state_dict(again.sparse)
    model.load_state_dict(again.dense)
    with pytest.raises(ValueError, match="read from files, which do not hold the optimizer's state"):
        acdc.finetune_dense(again, model, SGD(model.parameters()))


def test_a_result_without_a_twin_is_read_again(result: acdc.Result, tmp_path: Path) -> None:
    replace(result, dense=None, dense_step=None, twin=None).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masks.safetensors", "sparse.safetensors"]
    again = acdc.Result.load(tmp_path)
    assert again.dense is None
    with pytest.raises(ValueError, match="has no dense phase"):
        acdc.finetune_dense(again, Net(), SGD(Net().parameters()))


@pytest.mark.parametrize("name", ["sparse", "dense", "masks"])
def test_a_file_that_changed_or_is_missing_is_refused(result: acdc.Result, tmp_path: Path, name: str) -> None:
    result.save(tmp_path)
    path = tmp_path / f"{name}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{name}.safetensors"):
        acdc.Result.load(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}.safetensors"):
        acdc.Result.load(tmp_path)


def test_a_file_that_another_command_wrote_is_refused(tmp_path: Path) -> None:
    write_safetensors({tmp_path / "sparse.safetensors": {"weight": torch.zeros(2)}})
    with pytest.raises(ValueError, match=r"sparse\.safetensors: not written by Result\.save"):
        acdc.Result.load(tmp_path)
