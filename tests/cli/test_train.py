"""acdc train from end to end: the folder it writes, what it refuses, how it stops."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import acdc
from acdc.cli import main
from acdc.cli.train import resolve
from acdc.data.digits import load_digits
from acdc.measure.flops import inference_flops
from acdc.models.resnet_cifar import digits_net
from acdc.train import experiment
from acdc.train.loop import accuracy

EPOCHS = 4
MODELS = ("baseline", "sparse", "dense", "finetuned")
FILES = {"config.json", "metrics.jsonl", "result.json", "masks.safetensors", *(f"{m}.safetensors" for m in MODELS)}


def environment() -> dict[str, str]:
    return {**os.environ, "FORCE_COLOR": "1", "PYTHONWARNINGS": "error"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs through main(), at seed 1."""
    out = tmp_path_factory.mktemp("runs") / "made"
    assert main(["train", "--epochs", str(EPOCHS), "--seed", "1", "--device", "cpu", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The same run by `python -m acdc` in a process of its own, into the default folder."""
    folder = tmp_path_factory.mktemp("cwd")
    command = [sys.executable, "-m", "acdc", "train", "--epochs", str(EPOCHS), "--seed", "1", "--device", "cpu"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read(run: Path, name: str) -> dict:
    return json.loads((run / name).read_text())


# What it writes


def test_the_folder_holds_what_it_should(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == FILES


def test_config_says_what_was_run_on_what(run: Path) -> None:
    config = read(run, "config.json")
    assert (config["dataset"], config["model"]) == ("digits", "digits_net")
    assert (config["recipe"]["epochs"], config["recipe"]["seed"]) == (EPOCHS, 1)
    assert config["method"]["sparsity"] == 0.9
    assert acdc.Schedule.from_dict(config["method"]["schedule"]) == acdc.Schedule.for_epochs(EPOCHS)
    assert config["steps_per_epoch"] == 22
    assert config["data"] == {"train": 1397, "test": 400}
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["acdc-torch"] == acdc.__version__
    assert config["hardware"]["threads"] == 1
    assert config["hardware"]["cpu"]


def test_metrics_have_a_line_for_each_epoch_and_run(run: Path) -> None:
    rows = metrics(run)
    assert [(row["run"], row["epoch"]) for row in rows] == [
        *(("dense", epoch) for epoch in range(EPOCHS)),
        *(("acdc", epoch) for epoch in range(EPOCHS)),
        ("finetune", 3),
    ]
    assert [row["step"] for row in rows[:4]] == [22, 44, 66, 88]
    assert all(0 <= row["test_accuracy"] <= 1 and row["loss"] > 0 and row["seconds"] > 0 for row in rows)


def test_each_phase_is_seen_by_its_own_model(run: Path) -> None:
    rows = [row for row in metrics(run) if row["run"] == "acdc"]
    assert [row["phase"] for row in rows] == ["warm-up", "compressed", "decompressed", "final compressed"]
    assert [row["kind"] for row in rows] == ["dense", "sparse", "dense", "sparse"]
    assert [row["sparsity"] for row in rows[1::2]] == pytest.approx([0.9, 0.9], abs=1e-4)
    assert max(row["sparsity"] for row in rows[::2]) < 0.1  # a weight whose gradient stays 0 stays where it restarted


def test_the_baseline_starts_as_acdc_does_and_so_does_the_fine_tuning(run: Path) -> None:
    """Same seed, same weights, same batches: the warm-up is the baseline's first epoch, bit for bit."""
    rows = metrics(run)
    same = ("loss", "train_accuracy", "test_accuracy", "lr")
    assert [rows[0][key] for key in same] == [rows[4][key] for key in same]
    assert rows[8]["lr"] == rows[7]["lr"]
    assert rows[8]["loss"] != rows[7]["loss"]


def test_the_sparse_model_has_exactly_the_weights_its_masks_keep(run: Path) -> None:
    sparse, masks = load_file(run / "sparse.safetensors"), load_file(run / "masks.safetensors")
    size = sum(mask.numel() for mask in masks.values())
    assert size == acdc.find_prunable(digits_net()).size
    assert sum(int(mask.sum()) for mask in masks.values()) == size - round(0.9 * size)
    assert all(torch.equal(sparse[name] != 0, mask) for name, mask in masks.items())


def test_the_table_is_what_the_files_measure(run: Path) -> None:
    rows = read(run, "result.json")["models"]
    data = load_digits()
    assert [row["file"] for row in rows] == [f"{name}.safetensors" for name in MODELS]
    for row in rows:
        model = digits_net()
        model.load_state_dict(load_file(run / row["file"]))
        flops = inference_flops(model, data.images[:1])
        assert row["test_accuracy"] == accuracy(model, data.test_images, data.test_labels)
        assert (row["flops"], row["dense_flops"], row["flops_ratio"]) == (flops.actual, flops.dense, flops.ratio)
    assert rows[1]["sparsity"] == pytest.approx(0.9, abs=1e-4)
    assert rows[0]["flops_ratio"] == 1
    assert rows[1]["flops_ratio"] < 0.3


def test_it_learns(run: Path) -> None:
    dense, sparse, _, finetuned = (row["test_accuracy"] for row in read(run, "result.json")["models"])
    assert min(dense, sparse, finetuned) > 0.8  # after four epochs; chance is 0.1


def test_the_table_s_last_accuracies_are_the_last_of_the_metrics(run: Path) -> None:
    models, last = read(run, "result.json")["models"], {row["run"]: row["test_accuracy"] for row in metrics(run)}
    assert [models[i]["test_accuracy"] for i in (0, 1, 3)] == [last["dense"], last["acdc"], last["finetune"]]
    assert models[2]["test_accuracy"] == metrics(run)[6]["test_accuracy"], "the twin is the end of the last dense phase"


def test_the_same_seed_gives_the_same_bytes(run: Path, piped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    again = piped[0] / "runs" / "digits-0001"
    for name in MODELS:
        assert (again / f"{name}.safetensors").read_bytes() == (run / f"{name}.safetensors").read_bytes(), name


def test_torch_s_threads_are_as_before(run: Path) -> None:
    device = torch.device("cpu")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with experiment.reproducible(device):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_of_four_leaves_the_first_layer_dense_and_says_so(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["train", "--epochs", "4", "--batch-size", "256", "--pattern", "2:4", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left dense: conv1.weight (1 input channels do not divide by 4)" in said
    masks = load_file(out / "masks.safetensors")
    assert "conv1.weight" not in masks
    kept = masks["stages.1.0.conv2.weight"]  # 32 x 32 x 3 x 3
    assert (kept.permute(0, 2, 3, 1).reshape(-1, 4).sum(1) == 2).all()
    assert read(out, "config.json")["method"]["pattern"] == "NM(n=2, m=4)"


# What it says


def test_piped_output_has_no_control_characters_and_one_line_an_epoch(
    piped: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = piped
    assert not [c for c in done.stdout if ord(c) < 32 and c != "\n"]
    assert done.stderr == ""
    assert sum(" loss " in line for line in done.stdout.splitlines()) == 2 * EPOCHS + 1


def test_it_ends_with_the_table_and_the_folder(piped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = piped
    lines = done.stdout.splitlines()
    rows = read(folder / "runs" / "digits-0001", "result.json")["models"]
    for row, line in zip(rows, lines[-6:-2], strict=True):
        assert line.startswith(row["model"])
        assert f"{row['test_accuracy']:.2%}" in line
        assert f"{row['sparsity']:.2%}" in line
        assert line.endswith(f"{row['flops_ratio']:.2f}x")
    assert lines[-1].endswith(str(Path("runs/digits-0001")))


def test_it_says_what_was_chosen_and_why(piped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert "device: cpu (as asked), one thread" in piped[1].stdout
    assert "AC/DC schedule: 4 epochs" in piped[1].stdout


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "train" in capsys.readouterr().out
    for arguments in (["--version"], ["train", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
    assert f"acdc {acdc.__version__}" in capsys.readouterr().out


# What it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sparsity", "90"], "--sparsity 90: expected the fraction of zeros.*type --sparsity 0.9"),
        (["--sparsity", "95%"], "--sparsity 95%: expected the fraction of zeros.*type --sparsity 0.95"),
        (["--sparsity", "1"], "--sparsity 1: expected the fraction of zeros"),
        (["--sparsity", "nan"], "--sparsity nan: expected the fraction of zeros.*type --sparsity 0.9"),
        (["--sparsity", "0.99999"], "--sparsity 0.99999: expected some of the 19,408 weights to be left"),
        (["--sparsity", "0.9", "--pattern", "2:4"], "--sparsity 0.9: --pattern 2:4 always makes 0.5; leave --sparsity"),
        (["--epochs", "3"], "--epochs 3: expected a whole number from 4 to 100000; type --epochs 40"),
        (["--epochs", "4.5"], "--epochs 4.5: expected a whole number"),
        (["--batch-size", "0"], "--batch-size 0: expected a whole number from 1 to 1397; type --batch-size 64"),
        (["--batch-size", "1398"], "--batch-size 1398: expected"),
        (["--lr", "0"], "--lr 0: expected a number above 0; type --lr 0.1"),
        (["--lr", "inf"], "--lr inf: expected"),
        (["--lr", "fast"], "--lr fast: expected"),
        (["--seed", "-1"], "--seed -1: expected a whole number from 0 to 4294967295; type --seed 0"),
        (["--device", "gpu"], "--device gpu: expected one of auto, cpu, cuda; type --device auto"),
        (["--pattern", "4:2"], "--pattern 4:2: expected one of unstructured, 2:4; type --pattern 2:4"),
    ],
)
def test_a_bad_option_is_refused_with_what_to_type(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert re.search(message, said.err)
    assert not list(tmp_path.iterdir())


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    bad = {"--sparsity": "2", "--epochs": "0", "--lr": "-1", "--seed": "x", "--batch-size": "-3", "--device": "tpu"}
    assert main(["train", *(part for pair in bad.items() for part in pair), "--pattern", "1:2"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7
    assert all(any(f"{option} {value}: " in line for line in lines) for option, value in bad.items())


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", "--device", "cuda"]) == 2
    assert "--device cuda: expected a GPU that torch can use" in capsys.readouterr().err


@pytest.mark.parametrize(("available", "device"), [(False, "cpu"), (True, "cuda")])
def test_auto_takes_a_gpu_where_there_is_one(available: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    given = {"epochs": "40", "batch_size": "64", "lr": "0.1", "seed": "0", "pattern": "unstructured"}
    settings = resolve(argparse.Namespace(**given, sparsity=None, device="auto", out=None))
    assert settings.device.type == device
    assert settings.why_device.startswith("chosen because")
    assert settings.method.sparsity == 0.9


def test_a_folder_that_holds_something_is_refused_and_left_alone(run: Path, capsys) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()}
    assert main(["train", "--epochs", "4", "--out", str(run)]) == 2
    assert f"--out {run}: the folder exists and is not empty" in capsys.readouterr().err
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("a file")
    assert main(["train", "--epochs", "4"]) == 2
    assert "--out runs: File exists; type another folder" in capsys.readouterr().err
    assert main(["train", "--out", "runs/x"]) == 2
    assert "nothing can be written in" in capsys.readouterr().err


def test_missing_scikit_learn_is_said_and_leaves_no_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["train", "--out", "here"]) == 2
    assert 'pip install "acdc-torch[digits]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_abbreviated_options_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--epoch", "4"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --epoch" in capsys.readouterr().err


# How it stops


def test_a_diverging_run_says_so_and_keeps_its_metrics(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    arguments = ["--epochs", "4", "--batch-size", "700", "--lr", "1e36", "--device", "cpu", "--out", str(out)]
    assert main(["train", *arguments]) == 1
    said = capsys.readouterr().err
    assert "dense: the loss of epoch 1 is" in said
    assert "type a lower --lr, such as --lr 1e+35" in said
    assert (out / "config.json").exists()
    assert not (out / "result.json").exists()


def test_ctrl_c_stops_with_130_and_keeps_the_metrics(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "acdc", "train", "--epochs", "2000", "--out", "run"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    try:
        file, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
        while not (file.exists() and file.read_text().count("\n") >= 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert errors.strip() == f"acdc: stopped; the epochs so far are in {Path('run/metrics.jsonl')}"
    assert len(metrics(tmp_path / "run")) >= 2
    assert not (tmp_path / "run" / "result.json").exists()


def test_ctrl_c_before_training_is_as_quiet(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acdc.data.digits.load_digits", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "\nacdc: stopped\n"


def test_a_reader_that_leaves_gets_no_traceback(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """As in `acdc train | head`: stdout is turned to nowhere, or Python would complain of it once more at the end."""

    def gone(*_: object) -> None:
        raise BrokenPipeError

    turned: list[int] = []
    monkeypatch.setattr("acdc.data.digits.load_digits", gone)
    monkeypatch.setattr(os, "dup2", lambda source, target: turned.append(target))
    assert main(["train"]) == 1
    assert turned == [sys.stdout.fileno()]
    assert capfd.readouterr() == ("", "")
