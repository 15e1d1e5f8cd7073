"""acdc export: a run's models in other formats, with their sizes, and clear words for what cannot be done."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import acdc
from acdc.cli import main
from acdc.models.resnet_cifar import digits_net
from acdc.sparsity import packed


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "made"
    sets = ["--set", "run.baseline=false", "--set", "run.finetune=false", "--set", "method.pattern=channel"]
    assert main(["train", "--no-report", "--epochs", "4", "--sparsity", "0.6", "--out", str(out), *sets]) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["export", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_safetensors_and_torch_hold_the_run_s_weights(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = exported(capsys, str(run), "--to", "safetensors")
    path = run / "exports" / "sparse.safetensors"
    assert code == 0
    assert re.search(rf"{re.escape(str(path))}: \S+ kB \(0\.\d\dx\)", out)
    assert "kB as dense tensors" in out
    assert_equal(acdc.load(path), acdc.load(run / "sparse.safetensors"))
    assert exported(capsys, str(run), "--to", "torch", "--model", "dense")[0] == 0
    assert_equal(torch.load(run / "exports" / "dense.pt", weights_only=True), acdc.load(run / "dense.safetensors"))
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert "exports" not in capsys.readouterr().out, "what was exported is no model of the run"


def test_a_shrunk_model_is_smaller_and_computes_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.parent / "small.safetensors"
    code, out, _ = exported(capsys, str(run), "--to", "safetensors", "--shrink", "--out", str(path))
    assert code == 0
    assert "layers that became smaller" in out
    assert re.search(r"19,706 parameters became [\d,]+ \(", out)
    assert "acdc.export.resize(model, state_dict)" in out
    model = digits_net()
    small = acdc.export.resize(model, acdc.load(path)).eval()
    model.load_state_dict(acdc.load(run / "sparse.safetensors"))
    images = torch.rand(9, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(small(images), model.eval()(images), rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in small.parameters()) < 19_706


def test_onnx_is_checked_on_test_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = exported(capsys, str(run / "sparse.safetensors"), "--to", "onnx", "--shrink")
    assert (code, error) == (0, "")
    assert re.search(r"ONNX Runtime differs from torch by \S+ at most; the largest output is \S+ \(64 samples\)", out)
    assert (run / "exports" / "sparse-shrunk.onnx").stat().st_size < 80_000


def test_a_checkpoint_is_exported_as_well(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = max((run / "checkpoints").iterdir())
    assert exported(capsys, str(newest), "--to", "safetensors")[0] == 0
    state = torch.load(newest, weights_only=True)["model"]
    assert_equal(acdc.load(run / "exports" / f"{newest.stem}.safetensors"), state)


def test_random_images_replace_missing_data(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    monkeypatch.delenv("ACDC_DATA", raising=False)
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["data"] |= {"name": "cifar10", "crop": 0}
    (run / "config.json").write_text(json.dumps(config))
    packed.save(acdc.models.build("digits_net", classes=10, in_channels=3).state_dict(), run / "sparse.safetensors")
    code, out, error = exported(capsys, str(run), "--to", "torch", "--shrink")
    assert (code, error) == (0, "")
    assert "note: the run's data are missing, so random images replace the test images" in out
    code, _, error = exported(capsys, str(run), "--to", "onnx", "--data", str(run / "gone"))
    assert (code, "cifar10: root = " in error) == (2, True)


def test_an_old_unpacked_model_still_opens(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from acdc.io import write_safetensors

    write_safetensors({run / "sparse.safetensors": acdc.load(run / "sparse.safetensors")})
    assert main(["eval", str(run / "sparse.safetensors"), "--device", "cpu"]) == 0
    assert "the same" in capsys.readouterr().out
    assert exported(capsys, str(run), "--to", "safetensors")[0] == 0


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        code, _, error = exported(capsys, *words)
        assert code == 2
        assert not (run / "exports").exists()
        return error

    assert "--to tflite: expected one of onnx, safetensors, torch" in refused(str(run), "--to", "tflite")
    assert "holds no run (no config.json)" in refused(str(tmp_path), "--to", "torch")
    assert "there is no such file; the folder's models are dense.safetensors" in refused(
        str(run), "--to", "torch", "--model", "best"
    )
    assert "leave --model out" in refused(str(run / "dense.safetensors"), "--to", "torch", "--model", "sparse")
    assert "it already exists" in refused(str(run), "--to", "torch", "--out", str(run / "dense.safetensors"))
    packed.save({"fc.weight": torch.ones(2, 2)}, run / "dense.safetensors")
    assert "does not fit the run's model" in refused(str(run), "--to", "torch", "--model", "dense", "--shrink")
    content = bytearray((run / "sparse.safetensors").read_bytes())
    content[-3] ^= 1
    (run / "sparse.safetensors").write_bytes(content)
    assert "its contents do not match the digest" in refused(str(run), "--to", "safetensors")


def test_several_seeds_are_exported_one_by_one(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "seeds"
    out.mkdir()
    shutil.copy(trained / "config.json", out / "config.json")
    shutil.copytree(trained, out / "seed-0")
    code, _, error = exported(capsys, str(out), "--to", "torch")
    assert code == 2
    assert f"it holds several seeds; name one of them, such as {out / 'seed-0'}" in error
