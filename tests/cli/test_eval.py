"""acdc eval: the same numbers as the run wrote, and clear words for files that cannot be read."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import acdc
from acdc.cli import main
from tests.train.problems import JPEGS, jpegs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "made"
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[str]], str]:
    """Exit code, cells by file, and what went to stderr."""
    capsys.readouterr()
    code = main(["eval", *arguments, "--device", "cpu"])
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines() if ".safetensors " in line or ".pt " in line]
    return code, {row[0]: row[1:] for row in rows}, captured.err


def test_all_models_of_a_run_as_it_said(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows, error = evaluated(capsys, str(trained))
    said = {row["file"]: row for row in json.loads((trained / "result.json").read_text())["models"]}
    assert (code, error) == (0, "")
    assert set(rows) == set(said)
    for file, row in rows.items():
        assert row[0] == row[-3] == f"{said[file]['test_accuracy']:.2%}"
        assert row[1] == f"{said[file]['test_loss']:.4f}"
        assert row[2] == f"{said[file]['sparsity']:.2%}"
        assert row[-2:] == ["the", "same"]
        assert f"{said[file]['flops_ratio']:.2f}x" in row


def test_one_file_by_name_or_path(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = evaluated(capsys, str(trained / "sparse.safetensors"))
    assert list(one[1]) == ["sparse.safetensors"]
    assert one == evaluated(capsys, str(trained), "--file", "sparse.safetensors")
    two = evaluated(capsys, str(trained), "--file", "sparse", "--file", "dense")
    assert list(two[1]) == ["sparse.safetensors", "dense.safetensors"]


def test_a_checkpoint_is_a_model_of_its_run(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = sorted((trained / "checkpoints").glob("*.pt"))[-1]
    assert "finetune" in newest.name
    code, rows, error = evaluated(capsys, str(newest))
    assert (code, error) == (0, "")
    finetuned = evaluated(capsys, str(trained / "finetuned.safetensors"))[1]["finetuned.safetensors"]
    assert list(rows) == [f"checkpoints/{newest.name}"]
    assert rows[f"checkpoints/{newest.name}"] == finetuned[: -len(["result.json", "the", "same"])]
    assert evaluated(capsys, str(trained), "--file", f"checkpoints/{newest.name}")[1] == rows
    monkeypatch.chdir(newest.parent)
    assert evaluated(capsys, newest.name)[1] == rows


def test_checkpoints_that_cannot_be_read(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = sorted((run / "checkpoints").glob("*.pt"))[-1]
    gone = newest.with_name("9-none-00000001.pt")
    code, _, error = evaluated(capsys, str(gone))
    assert (code, f"there is no such checkpoint; name a checkpoint, such as {newest}" in error) == (2, True)
    alone = shutil.copy(newest, tmp_path / "alone.pt")
    code, _, error = evaluated(capsys, str(alone))
    assert (code, "use RUN/checkpoints/NAME.pt" in error) == (2, True)
    newest.write_bytes(newest.read_bytes()[:5000])
    code, _, error = evaluated(capsys, str(newest))
    assert (code, f"{newest}: damaged" in error) == (2, True)
    for file in run.glob("*.safetensors"):
        file.unlink()
    code, _, error = evaluated(capsys, str(run))
    assert (code, f"acdc train --resume {run}; or name a checkpoint, such as {newest}" in error) == (2, True)


def test_a_difference_shows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "baseline.safetensors", run / "sparse.safetensors")
    _, rows, _ = evaluated(capsys, str(run))
    said = {row["file"]: row["test_accuracy"] for row in json.loads((run / "result.json").read_text())["models"]}
    difference = 100 * (said["baseline.safetensors"] - said["sparse.safetensors"])
    assert rows["sparse.safetensors"][-1] == f"{difference:+.2f}"
    assert rows["sparse.safetensors"][2] == "0.00%"


def test_a_run_that_is_not_complete(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "result.json").unlink()
    assert main(["eval", str(run / "sparse.safetensors"), "--device", "cpu"]) == 0
    assert f"the run is not complete; resume it with: acdc train --resume {run}" in capsys.readouterr().out
    (run / "result.json").write_text('{"models": ')
    assert main(["eval", str(run / "sparse.safetensors"), "--device", "cpu"]) == 0
    assert "result.json cannot be read" in capsys.readouterr().out


def test_files_that_cannot_be_read_are_named_and_the_others_measured(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = (run / "sparse.safetensors").read_bytes()
    (run / "sparse.safetensors").write_bytes(sparse[: len(sparse) // 2])
    (run / "dense.safetensors").write_bytes(b"")
    weights = load_file(run / "finetuned.safetensors")
    weights["fc.weight"] = weights["fc.weight"][:5]
    weights["extra"] = weights.pop("fc.bias")
    save_file(weights, run / "finetuned.safetensors")
    code, rows, error = evaluated(capsys, str(run))
    assert (code, list(rows)) == (2, ["baseline.safetensors"])
    assert "sparse.safetensors: its contents do not match the digest written with it; restore the file" in error
    assert "dense.safetensors: it is truncated" in error
    assert "it lacks fc.bias; it also has extra; fc.weight is 5 x 32 but should be 10 x 32" in error


def test_a_model_with_a_flipped_bit_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((run / "sparse.safetensors").read_bytes())
    content[-3] ^= 0x10
    (run / "sparse.safetensors").write_bytes(content)
    code, rows, error = evaluated(capsys, str(run / "sparse.safetensors"))
    assert (code, rows) == (2, {})
    assert "sparse.safetensors: its contents do not match the digest written with it; restore the file from" in error


def test_a_model_that_another_tool_wrote_is_measured_and_a_note_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = run / "sparse.safetensors"
    save_file(acdc.load(model), model)
    assert main(["eval", str(model), "--device", "cpu"]) == 0
    note = f"note: {model}: it has no digest: another tool wrote it; its weights are not"
    assert note in capsys.readouterr().out
    assert main(["eval", str(run / "dense.safetensors"), "--device", "cpu"]) == 0
    assert "note: " not in capsys.readouterr().out


def test_masks_are_no_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = evaluated(capsys, str(trained / "masks.safetensors"))
    assert code == 2
    assert "does not fit the run's model" in error


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = evaluated(capsys, str(run / "nope.safetensors"))
    assert code == 2
    assert "there is no such file; the folder's models are baseline.safetensors, dense" in error
    assert "masks" not in error
    code, _, error = evaluated(capsys, str(tmp_path))
    assert (code, "holds no run (no config.json)" in error) == (2, True)
    code, _, error = evaluated(capsys, str(run / "sparse.safetensors"), "--file", "dense")
    assert (code, "remove --file" in error) == (2, True)
    (run / "config.json").write_text('{"recipe": {"model": {}}}')
    code, _, error = evaluated(capsys, str(run))
    assert (code, "config.json cannot be read" in error) == (2, True)
    assert "Traceback" not in error


def test_an_empty_run_says_how_to_go_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in run.glob("*.safetensors"):
        file.unlink()
    code, _, error = evaluated(capsys, str(run))
    assert (code, "it has no model yet; resume it with: acdc train --resume" in error) == (2, True)


def test_a_folder_of_several_seeds(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "seeds"
    out.mkdir()
    shutil.copy(trained / "config.json", out / "config.json")
    for seed in (0, 1):
        shutil.copytree(trained, out / f"seed-{seed}")
    assert main(["eval", str(out), "--file", "sparse", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("sparse.safetensors ") == 2
    assert "seed-1: test accuracy on 400 images" in printed


def test_missing_data_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["data"]["name"] = "cifar10"
    (run / "config.json").write_text(json.dumps(config))
    code, _, error = evaluated(capsys, str(run), "--data", str(tmp_path / "gone"))
    assert (code, "cifar10: root = " in error) == (2, True)


def test_fp16_is_evaluated_in_fp32_on_a_cpu(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["train"]["precision"] = "fp16"
    (run / "config.json").write_text(json.dumps(config))
    assert main(["eval", str(run / "sparse.safetensors"), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "precision: fp32 (trained in fp16, which needs a GPU)" in out
    assert "the same" in out


def test_a_run_s_data_are_found_where_they_lay(tmp_path: Path, capsys) -> None:
    """Other data may be typed, and are then said to be others."""
    images, out = jpegs(tmp_path / "images"), tmp_path / "run"
    place = ["--device", "cpu", "--workers", "0"]
    sets = [part for setting in JPEGS for part in ("--set", setting)]
    begin = ["train", "imagenet-mobilenet", "--epochs", "4", "--data", str(images), "--out", str(out)]
    assert main([*begin, *place, *sets]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), *place]) == 0
    assert "note:" not in capsys.readouterr().out
    (images / "val" / "cat" / "0.jpg").unlink()
    assert main(["eval", str(out), *place, "--data", str(images)]) == 0
    assert "note: this is not the run's data: 6 test images at the start, 5 now" in capsys.readouterr().out
