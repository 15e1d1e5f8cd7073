"""acdc train from end to end: the folder it writes, what it refuses, how it stops and goes on."""

import contextlib
import errno
import fcntl
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import acdc
from acdc.cli import main
from acdc.cli import train as train_verb
from acdc.cli.options import read_device
from acdc.data.digits import load_digits
from acdc.data.image_folder import ImageFolder
from acdc.data.images import InMemory
from acdc.errors import UsageError
from acdc.flops.training import inference_flops
from acdc.io import seal_zip
from acdc.models.resnet_cifar import digits_net
from acdc.recipes import load
from acdc.runs import folder, predictions
from acdc.runs.records import ModelResult
from acdc.train import experiment, loading, prepare
from acdc.train.console import open_console
from acdc.train.distributed import World
from acdc.train.evaluate import evaluate
from acdc.train.execution import Setting
from acdc.train.launch import show_results
from acdc.train.prepare import plan_stages
from acdc.train.resume import resume_command
from acdc.train.step import Execution
from tests import processes
from tests.processes import Process
from tests.train.problems import JPEGS, jpegs
from tests.waiting import HANG

EPOCHS = 4
MODELS = ("baseline", "sparse", "dense", "finetuned")
FILES = {
    "checkpoints",
    "config.json",
    "metrics.jsonl",
    "phases.jsonl",
    "result.json",
    "masks.safetensors",
    "predictions.safetensors",
    "report.html",
    *(f"{model}.safetensors" for model in MODELS),
}


def environment() -> dict[str, str]:
    return {**os.environ, "FORCE_COLOR": "1", "PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs through main(), at seed 1."""
    out = tmp_path_factory.mktemp("runs") / "made"
    typed = ["--epochs", str(EPOCHS), "--seed", "1", "--set", "method.schedule=paper", "--device", "cpu"]
    assert main(["train", *typed, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The same run by `python -m acdc` in a process of its own, into the default folder."""
    folder = tmp_path_factory.mktemp("cwd")
    command = [sys.executable, "-m", "acdc", "train", "--epochs", str(EPOCHS), "--seed", "1", "--device", "cpu"]
    command += ["--set", "method.schedule=paper"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def contents(run: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}


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
    assert (config["recipe"]["train"]["epochs"], config["recipe"]["run"]["seeds"]) == (EPOCHS, [1])
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
    sparse, masks = acdc.load(run / "sparse.safetensors"), acdc.load(run / "masks.safetensors")
    size = sum(mask.numel() for mask in masks.values())
    assert size == acdc.find_prunable(digits_net()).size
    assert sum(int(mask.sum()) for mask in masks.values()) == size - round(0.9 * size)
    assert all(torch.equal(sparse[name] != 0, mask) for name, mask in masks.items())


def test_the_table_is_what_the_files_measure(run: Path) -> None:
    rows = read(run, "result.json")["models"]
    data, setting = (
        load_digits(),
        Setting(device=torch.device("cpu"), execution=Execution(False, False, ()), checkpoints=run),
    )
    assert [row["file"] for row in rows] == [f"{name}.safetensors" for name in MODELS]
    for row in rows:
        model = digits_net()
        model.load_state_dict(acdc.load(run / row["file"]))
        flops = inference_flops(model, torch.zeros(1, 1, 8, 8))
        batches = InMemory(data.test, data, batch_size=400)
        score = evaluate(model, batches, load.read("digits"), setting)
        assert (row["test_accuracy"], row["test_loss"]) == (score.accuracy, pytest.approx(score.loss, rel=1e-5))
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
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with experiment.reproducible(load.read("digits"), torch.device("cpu")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_of_four_leaves_the_first_layer_dense_and_says_so(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["train", "--no-report", "--epochs", "4", "--set", "method.pattern=2:4", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left dense: conv1.weight (1 input channels are not a multiple of 4)" in said
    masks = acdc.load(out / "masks.safetensors")
    assert "conv1.weight" not in masks
    kept = masks["stages.1.0.conv2.weight"]  # 32 x 32 x 3 x 3
    assert (kept.permute(0, 2, 3, 1).reshape(-1, 4).sum(1) == 2).all()
    assert read(out, "config.json")["method"]["pattern"] == "NM(n=2, m=4)"


def test_masks_are_exact_where_weights_they_keep_are_zero_as_well(tmp_path: Path, capsys) -> None:
    """SET draws what grows: some of it gets no gradient, and is 0 to the end."""
    out = tmp_path / "run"
    said = ["method.name=set", "method.every=1st", "run.baseline=false", "run.finetune=false"]
    sets = [part for setting in said for part in ("--set", setting)]
    assert (
        main(
            ["train", "--no-report", "--epochs", "4", "--sparsity", "0.98", *sets, "--device", "cpu", "--out", str(out)]
        )
        == 0
    )
    (row,) = read(out, "result.json")["models"]
    masks = acdc.load(out / "masks.safetensors")
    size = sum(mask.numel() for mask in masks.values())
    assert row["mask_sparsity"] == 1 - sum(int(mask.sum()) for mask in masks.values()) / size
    assert abs(row["mask_sparsity"] - 0.98) < 1 / size
    assert row["sparsity"] > row["mask_sparsity"], "else there is nothing to test here"
    assert "SET, sparse: its masks prune 98.00%; some of the weights they keep are also 0" in capsys.readouterr().out


def test_a_method_that_found_no_sparsity_says_what_decides_it(tmp_path: Path, capsys) -> None:
    said = ["method.name=str", "method.schedule=", "method.sparsity=", "run.baseline=false", "run.finetune=false"]
    sets = [part for setting in said for part in ("--set", setting)]
    assert (
        main(["train", "--no-report", "--epochs", "4", *sets, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    )
    (row,) = read(tmp_path / "run", "result.json")["models"]
    assert row["sparsity"] == 0, "else there is nothing to test here"
    assert "STR, sparse: no weight is 0 yet; the sparsity of STR depends on start and decay" in capsys.readouterr().out


# What it says


def test_piped_output_has_no_control_characters_and_one_line_an_epoch(
    piped: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = piped
    assert not [c for c in done.stdout if ord(c) < 32 and c != "\n"]
    assert done.stderr == ""
    assert sum(" loss " in line for line in done.stdout.splitlines()) == 2 * EPOCHS + 1


def test_the_paper_s_value_stands_beside_with_its_note(tmp_path: Path, capsys) -> None:
    settings = ["method.name=top_kast", "method.backward=0.8", "method.first_and_last_dense=true"]
    recipe = load.read("imagenet-resnet50", settings)
    row: Any = {"test_accuracy": 0.74, "test_loss": 1.0, "sparsity": 0.9, "reported_sparsity": 0.9}
    row |= {"flops": 13, "dense_flops": 100, "flops_ratio": 0.13}
    outcome = ModelResult(model="Top-KAST, sparse", file="sparse.safetensors", **row)
    show_results(open_console(plan_stages(recipe)), recipe, [outcome], 50_000, tmp_path)
    out = capsys.readouterr().out
    assert "74.76 %" in out
    assert "paper: Top-KAST ⋆, backward sparsity 80 %; as quoted by the paper\n" in out


def test_it_ends_with_the_table_and_the_folder(piped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = piped
    lines = done.stdout.splitlines()
    rows = read(folder / "runs" / "digits-0001", "result.json")["models"]
    assert lines.pop() == f"report: {Path('runs/digits-0001/report.html')}"
    for row, line in zip(rows, lines[-6:-2], strict=True):
        assert line.startswith(row["model"])
        assert f"{row['test_accuracy']:.2%}" in line
        assert f"{row['sparsity']:.2%}" in line
        assert line.endswith(f"{row['flops_ratio']:.2f}x")
    assert lines[-1].endswith(str(Path("runs/digits-0001")))


def test_it_says_what_was_chosen_and_why(piped: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert "device: cpu (as requested), 1 thread" in piped[1].stdout
    assert "schedule: 4 epochs" in piped[1].stdout


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
        (["--sparsity", "90"], r"sparsity=90.*0\.9"),
        (["--sparsity", "95%"], 'method.sparsity = "95%": expected a number'),
        (["--sparsity", "1"], "sparsity=1"),
        (["--epochs", "1"], "train.epochs = 1: a phase of AC/DC would be shorter than an epoch"),
        (["--epochs", "4.5"], "train.epochs = 4.5: expected a whole number"),
        (["--set", "train.batch_size=0"], "train.batch_size = 0: expected 1 or more"),
        (["--set", "train.batch_size=1398"], "train.batch_size=1398: digits has 1,397 training images; set it to 1397"),
        (["--lr", "0"], "optimizer.lr = 0.0: expected a number above 0"),
        (["--lr", "fast"], 'optimizer.lr = "fast": expected a number'),
        (["--seed", "-1"], "run.seeds = .*expected whole numbers from 0"),
        (["--seeds", "a"], "--seeds a: expected whole numbers separated by commas, such as --seeds 0,1,2"),
        (
            ["--set", "method.name=rigl", "--set", "method.drop=2"],
            "method.drop=2: expected a fraction of the kept weigh",
        ),
        (["--set", "method.name=str", "--set", "method.sparsity=", "--set", "method.criterion=snip"], "decay$"),
        (["--set", "method.name=sr_ste", "--set", "method.pattern=2:7"], "choose another pattern$"),
        (["--seeds", "1,1"], "run.seeds = .*expected different whole numbers"),
        (["--set", "method.pattern=4:2"], "4:2"),
        (["--set", "method.sparsty=0.5"], "method.sparsty: no such setting.*did you mean sparsity[?]"),
        (["--set", "sparsity=0.5"], "did you mean method.sparsity[?]"),
        (["--set", "train.precision=fp16"], 'train.precision = "fp16": it needs a GPU'),
        (["--set", "train.cuda_graphs=on"], 'train.cuda_graphs = "on": impossible here: they need a GPU'),
        (["--device", "gpu"], "--device gpu: expected one of auto, cpu, cuda; write --device auto"),
        (["--workers", "many"], "--workers many: expected a whole number"),
        (["--jobs", "0"], "--jobs 0: expected the number of runs"),
        (["digit"], "digit:.*no recipe has this name.*did you mean digits[?]"),
        (["cifar100-wrn28-10", "--data", "nowhere"], "nowhere"),
        (
            ["--set", 'method.exclude=["fcc"]'],
            r"method.exclude=\['fcc'\]: the rule matches no weight.*did you mean fc[?]",
        ),
        (["--set", 'method.exclude=["*"]'], r"method.exclude=\['\*'\]: nothing is left to prune.*relax exclude"),
        (["--set", "method.pattern=block 64x64"], "method.pattern=Block.*fits none of the model's 7 prunable layers"),
        (["--set", "method.pattern=2:7"], "method.pattern=NM.*fits none of the model's 7 prunable layers"),
        (
            ["--set", "method.distribution={layerX=0.5}"],
            "method.distribution.'layerX'.=0.5: it matches no prunable layer",
        ),
        (["--set", "method.name=lottery", "--epochs", "12", "--set", "method.rewind=2ep"], "method.rewind='2ep': the"),
        (["--set", "method.name=lottery", "--epochs", "4"], "train.epochs = 4: a phase of lottery ticket would be"),
        (
            ["--set", 'method.criterion={name="synflow",shape=[1,3,8,8]}'],
            r"method.criterion: SynFlow's shape is \[1, 3, 8, 8\], but images are 1 x 8 x 8; write shape = \[1, 1, 8",
        ),
        (
            ["--set", "method.name=one_shot", "--set", "method.at=0", "--set", "method.criterion=movement"],
            "begins with one here",
        ),
        (["--set", "method.name=rigl", "--set", "train.distill=0.5"], "train.distill = 0.5: RigL keeps no dense twin"),
        (["digits-4-bits", "--set", "train.ema=0.9"], "train.ema = 0.9: .* an average of them is not rounded"),
        (
            ["--set", "method.name=rigl", "--set", "method.every=2000st"],
            "method.every=.2000st.: the first update of Rig",
        ),
        (["--set", "method.name=set", "--set", "method.every=41ep"], 'for about ten updates write method.every="87st"'),
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
    place = [] if "--device" in arguments else ["--device", "cpu"]
    assert main(["train", *arguments, *place]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert re.search(message, said.err.strip().replace("\n", " "))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_all_that_is_wrong_with_a_recipe_is_said_at_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    bad = ["method.sparsity=2", "optimizer.lr=-1", "train.batch_size=-3", "train.colour=1", "run.keep=0"]
    assert main(["train", *(part for setting in bad for part in ("--set", setting))]) == 2
    first = capsys.readouterr().err
    assert "train.colour: no such setting" in first
    assert main(["train", *(part for setting in bad if "colour" not in setting for part in ("--set", setting))]) == 2
    said = capsys.readouterr().err
    for word in ("sparsity", "optimizer.lr", "train.batch_size", "run.keep"):
        assert word in said
    assert not list(tmp_path.iterdir())


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["train", "--device", "cuda"]) == 2
    assert "--device cuda: torch sees no GPU that it can use" in capsys.readouterr().err


@pytest.mark.parametrize(("available", "device"), [(False, "cpu"), (True, "cuda")])
def test_auto_takes_a_gpu_where_there_is_one(available: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    chosen, why = read_device("auto")
    assert chosen.type == device
    assert why.startswith("chosen because")
    with pytest.raises(UsageError, match="--device tpu"):
        read_device("tpu")


def test_a_folder_that_holds_something_is_refused_and_left_alone(run: Path, capsys) -> None:
    before = contents(run)
    assert main(["train", "--epochs", "4", "--out", str(run)]) == 2
    assert f"--out {run}: the folder is not empty" in capsys.readouterr().err
    assert contents(run) == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("a file")
    assert main(["train", "--epochs", "4"]) == 2
    assert "--out runs: File exists; choose another folder" in capsys.readouterr().err
    assert main(["train", "--out", "runs/x"]) == 2
    assert "is not writable" in capsys.readouterr().err


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


# How it stops and goes on


def test_a_diverging_run_says_so_and_keeps_its_metrics(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    growing = ["--set", "train.batch_size=100", "--lr", "1000", "--set", "optimizer.weight_decay=10"]
    assert main(["train", "--no-report", "--epochs", "4", *growing, "--device", "cpu", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert re.search(r"dense: the loss of step \d+ \(epoch 1\) is not finite.*there is no checkpoint yet", said)
    assert "Resuming would diverge again. Start a new run with a lower --lr, such as --lr 0.1." in said
    assert (out / "config.json").exists()
    assert not (out / "result.json").exists()


def start(out: Path, *arguments: str, epochs: int = 2000) -> subprocess.Popen[str]:
    """Start a run cold, as a user does."""
    command = [sys.executable, "-m", "acdc", "train", "--epochs", str(epochs), "--device", "cpu", "--out", str(out)]
    return subprocess.Popen(
        [*command, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )


def wait_for(process: subprocess.Popen[str] | Process, file: Path, lines: int) -> None:
    while not (file.exists() and file.read_text().count("\n") >= lines):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(number: int, code: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out)
    try:
        wait_for(process, out / "metrics.jsonl", 2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=HANG)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    name = signal.Signals(number).name
    assert f"acdc: Stopped by {name}. A checkpoint was written; resume with: acdc train --resume {out}" in errors
    assert len(metrics(out)) >= 2
    assert not (out / "result.json").exists()
    assert list((out / "checkpoints").iterdir())


def hear_hangups() -> None:
    """Undo what nohup does, for a process that is about to start: a run that it tells to ignore SIGHUP does."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


start_cold = functools.partial(subprocess.Popen, preexec_fn=hear_hangups)


WAITS_FOR_A_BATCH = """
import os, sys, time
from pathlib import Path
from acdc.cli import main
from acdc.data import image_folder
from acdc.data.jpeg import Reader

class Gated(Reader):
    def __getitem__(self, request):
        folder = Path(os.environ["GATE"])
        if self.train and request.epoch == 1:
            (folder / "reached").touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
        return super().__getitem__(request)

image_folder.Reader = Gated
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "code", "start"),
    [(signal.SIGINT, 130, Process), (signal.SIGTERM, 143, Process), (signal.SIGHUP, 129, start_cold)],
)
def test_a_signal_to_all_processes_leaves_the_workers_to_the_run(
    number: int, code: int, start: Callable[..., Process], tmp_path: Path
) -> None:
    """As Ctrl-C and schedulers send it, while the run waits for a batch that one of them reads."""
    out, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(WAITS_FOR_A_BATCH)
    settings = [part for text in JPEGS for part in ("--set", text)]
    folders = ["--data", str(jpegs(tmp_path / "images")), "--workers", "1", "--out", str(out)]
    process = start(
        [sys.executable, script, "train", "imagenet-mobilenet", "--device", "cpu", *folders, *settings],
        env=environment() | {"GATE": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(process, out / "metrics.jsonl", 1)
        wait_for(process, tmp_path / "reached", 0)
        os.killpg(process.pid, number)
        (tmp_path / "open").touch()
        _, errors = process.communicate(timeout=HANG)
    finally:
        process.kill()
    assert process.returncode == code, errors
    assert f"Stopped by {signal.Signals(number).name}. A checkpoint was written" in errors
    assert list(out.glob("checkpoints/*.pt"))


DIES = """
import os, sys
from acdc.cli import main
from acdc.data import image_folder
from acdc.data.jpeg import Reader

class Dying(Reader):
    def __getitem__(self, request):
        if self.train and request.epoch == 1:
            os._exit(1)  # as one that the system ends where memory is short
        return super().__getitem__(request)

image_folder.Reader = Dying
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_that_dies_ends_the_run_in_words_and_it_goes_on(tmp_path: Path, capsys) -> None:
    out, script, images = tmp_path / "run", tmp_path / "script.py", str(jpegs(tmp_path / "images"))
    script.write_text(DIES)
    settings = [part for text in (*JPEGS, "method.schedule=", "train.epochs=4") for part in ("--set", text)]
    folders = ["--device", "cpu", "--data", images, "--workers", "1", "--out", str(out)]
    typed = [sys.executable, script, "train", "imagenet-mobilenet", *folders, *settings]
    done = processes.run(typed, env=environment(), timeout=HANG)
    assert done.returncode == 1
    assert re.match("acdc: workers=1: a worker process died.*set fewer workers", done.stderr), done.stderr
    assert done.stderr.endswith(f"resume with: acdc train --resume {out}\n")
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu", "--workers", "0"]) == 0
    assert (out / "result.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_stopped_twice_ends_with_the_same_bytes(run: Path, number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = ["--epochs", str(EPOCHS), "--seed", "1", "--set", "method.schedule=paper", "--out", str(out)]
    first += ["--set", "run.checkpoint_every=7st"]
    resume = ["--resume", str(out)]
    for after, arguments in ((1, first), (5, resume)):
        stop = [sys.executable, "-m", "tests.stops", number.name, str(after), "self", "train", "--device", "cpu"]
        if number == signal.SIGKILL and arguments is first:
            done = subprocess.run([*stop, *arguments], env=environment(), capture_output=True, text=True, check=False)
        else:
            done = processes.run([*stop, *arguments], env=environment())
        assert done.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9}[number], done.stderr
        assert len(metrics(out)) == after
    last = [sys.executable, "-m", "acdc", "train", "--no-report", "--device", "cpu", *resume]
    done = processes.run(last, env=environment())
    assert done.returncode == 0, done.stderr
    assert "Resuming from " in done.stdout
    for name in (*MODELS, "masks"):
        assert (out / f"{name}.safetensors").read_bytes() == (run / f"{name}.safetensors").read_bytes(), name
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in metrics(run)]
    assert [{k: v for k, v in row.items() if "seconds" not in k} for row in metrics(out)] == timeless
    assert (out / "phases.jsonl").read_text() == (run / "phases.jsonl").read_text()
    assert len(read(out, "config.json")["resumed"]) == 2
    assert main(["train", "--resume", str(out)]) == 2, "it is complete"


@pytest.fixture(scope="module")
def disk_full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that ended in the middle of AC/DC, by an error of the disk, and what it said."""
    out, save = tmp_path_factory.mktemp("disk") / "stopped", torch.save
    calls = iter(range(100))

    def fail(state: object, file: IO[bytes]) -> None:
        if next(calls) == 4 * 4 + 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    every = ["--set", "run.checkpoint_every=6st", "--set", "run.keep=3"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as errors:
        patch.setattr(torch, "save", fail)
        assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(out), *every]) == 1
    return out, errors.getvalue()


@pytest.fixture
def stopped(disk_full: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of that run, to be damaged and resumed."""
    return shutil.copytree(disk_full[0], tmp_path / "stopped")


def test_a_full_disk_stops_the_run_and_the_checkpoint_before_survives(
    disk_full: tuple[Path, str], stopped: Path
) -> None:
    began, said = disk_full
    assert "No space left on device" in said
    assert f"acdc train --resume {began}" in said
    assert not list(stopped.rglob("*.tmp"))
    keep = ["--set", "run.keep=1", "--set", "run.checkpoint_every=1ep"]
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu", *keep]) == 0
    assert (stopped / "result.json").exists()
    assert len(list((stopped / "checkpoints").iterdir())) == 1


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(stopped: Path, capsys) -> None:
    shutil.rmtree(stopped / "checkpoints")
    capsys.readouterr()
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    assert "warning: there is no checkpoint to resume from, so 5 epochs are trained again" in capsys.readouterr().out


def test_a_checkpoint_cut_short_is_passed_over_and_named(stopped: Path, capsys) -> None:
    newest = max((stopped / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert f"Skipped a checkpoint, {newest}: damaged" in said
    assert "; renamed it to *.damaged.\n" in said
    assert newest.with_name(f"{newest.name}.damaged").stat().st_size == 1000


def test_checkpoints_of_another_version_are_left_alone(stopped: Path, capsys) -> None:
    for path in (stopped / "checkpoints").iterdir():
        torch.save({"format": 1}, path)
        with path.open("r+b") as file:
            seal_zip(file)
    before = contents(stopped)
    capsys.readouterr()
    assert main(["train", "--resume", str(stopped), "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert (
        ".pt: it has format 1, but this version of acdc reads format 2; resume with the version that wrote it" in said
    )
    assert "free disk space" not in said
    assert said.endswith("To start over, repeat the original command with another --out.\n")
    assert contents(stopped) == before


def test_damaged_predictions_of_a_stage_before_are_not_written_anew(stopped: Path, capsys) -> None:
    path = stopped / "predictions.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["train", "--resume", str(stopped), "--device", "cpu"]) == 1
    said = f"{path}: its contents do not match the digest written with it. Restore or remove the file, then resume"
    assert said in capsys.readouterr().err
    assert path.read_bytes() == content
    path.unlink()
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    assert "sparse" in predictions.kept(stopped)


def without_lines(run: Path) -> None:
    """Make its checkpoints as they were before they held the lines of metrics.jsonl and phases.jsonl."""
    for path in (run / "checkpoints").iterdir():
        state = torch.load(path, weights_only=True)
        del state["extra"]["lines"]
        with path.open("w+b") as file:
            torch.save(state, file)
            seal_zip(file)


def test_older_checkpoints_metrics_of_another_run_are_refused_and_nothing_changes(stopped: Path, capsys) -> None:
    without_lines(stopped)
    metrics = stopped / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"run": "dense"', '"run": "rigl"', 1))
    newest = max((stopped / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    before = contents(stopped)
    capsys.readouterr()
    assert main(["train", "--resume", str(stopped), "--device", "cpu"]) == 2
    assert f'--resume {stopped}: {metrics}: run = "rigl": expected one of its stages' in capsys.readouterr().err
    assert contents(stopped) == before, "the damaged checkpoint is not renamed either"


def test_damaged_metrics_are_restored_from_the_checkpoint(stopped: Path, capsys) -> None:
    metrics, phases = stopped / "metrics.jsonl", stopped / "phases.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_bytes(damaged := b"\0" * 900 + metrics.read_bytes()[900:])
    phases.unlink()
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "warning: metrics.jsonl was damaged or incomplete: restored from " in said
    assert "warning: phases.jsonl was damaged or incomplete: restored from " in said
    assert (stopped / "metrics.jsonl.damaged").read_bytes() == damaged
    restored = metrics.read_text().splitlines()
    assert restored[:4] == lines[:4]
    rows = [(row["run"], row["epoch"]) for row in map(json.loads, restored)]
    assert len(set(rows)) == len(rows) == 11
    assert json.loads(phases.read_text().splitlines()[0])["run"] == "dense"


def test_older_checkpoints_epochs_that_metrics_lack_are_told_as_a_run_goes_on(stopped: Path, capsys) -> None:
    without_lines(stopped)
    metrics = stopped / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:1] + lines[2:]))
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "warning: metrics.jsonl lacks 1 epoch from before the checkpoint (dense 2)" in said
    assert "restore its own metrics.jsonl and resume again" in said


def test_a_checkpoint_of_another_recipe_is_refused(stopped: Path, capsys) -> None:
    config = read(stopped, "config.json")
    config["recipe"]["optimizer"]["lr"] = 0.3
    (stopped / "config.json").write_text(json.dumps(config))
    before = contents(stopped)
    capsys.readouterr()
    assert main(["train", "--resume", str(stopped), "--device", "cpu"]) == 2
    assert "belongs to another recipe (optimizer.lr was 0.1 there and is 0.3 here)" in capsys.readouterr().err
    assert contents(stopped) == before


def test_a_first_checkpoint_that_failed_starts_over(tmp_path: Path, monkeypatch, capsys) -> None:
    """Also one that was killed while it was written."""
    out = tmp_path / "run"
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(out)]) == 1
    monkeypatch.undo()
    (out / "checkpoints" / ".0-dense-00000022.pt.tmp").write_bytes(b"half")
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert [row["epoch"] for row in metrics(out)][:4] == [0, 1, 2, 3]
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("file", ["config.json", "labels.json"])
def test_a_run_that_failed_before_its_first_step_is_begun_or_resumed(file: str, tmp_path: Path, monkeypatch) -> None:
    """Whichever of the folder's first files could not be written."""
    out, short = tmp_path / "run", ["--epochs", "4", "--set", "run.baseline=false", "--set", "run.finetune=false"]
    begin = ["train", "--no-report", "--device", "cpu", *short, "--set", "data.corrupt=5", "--out", str(out)]
    replace_file = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", full)
    assert main(begin) == 1
    monkeypatch.undo()
    (out / ".labels.json.tmp").touch() if file == "labels.json" else (out / ".config.json.tmp").touch()
    again = ["train", "--no-report", "--device", "cpu", "--resume", str(out)] if file == "labels.json" else begin
    assert main(again) == 0
    assert {"config.json", "labels.json", "result.json"} <= {path.name for path in out.iterdir()}
    assert not list(out.rglob(".*.tmp"))


def test_a_system_that_opens_no_folders_and_tells_no_cores(tmp_path: Path, monkeypatch, capsys) -> None:
    """Windows; macOS is like it in the latter."""
    opened = os.open

    def refusing(path: Any, *args: Any, **options: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    out, settings = tmp_path / "run", ["--set", "run.baseline=false", "--set", "run.finetune=false"]
    assert (
        main(
            ["train", "--no-report", "--epochs", "4", "--seeds", "0,1", "--device", "cpu", "--out", str(out), *settings]
        )
        == 0
    )
    (out / "result.json").unlink()
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu", "--jobs", "2"]) == 0
    recipe, root = load.read("imagenet-mobilenet", JPEGS), jpegs(tmp_path / "images")
    train = loading.load(recipe, torch.device("cpu"), root=root, world=World()).loaders.train
    assert isinstance(train, ImageFolder)
    assert train.workers == 3


def test_two_processes_cannot_train_in_one_folder(stopped: Path, capsys) -> None:
    handle = folder.lock(stopped)
    assert handle is not None
    before = contents(stopped)
    capsys.readouterr()
    assert main(["train", "--resume", str(stopped), "--device", "cpu"]) == 2
    assert "another process is training there" in capsys.readouterr().err
    assert contents(stopped) == before
    os.close(handle)


def test_a_reader_that_leaves_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    """A checkpoint, the reason, and the exit code of a program that a broken pipe ended."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "acdc", "train", "--epochs", "2000", "--device", "cpu", "--out", str(out)]
    process = Process(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    wait_for(process, out / "metrics.jsonl", 2)
    process.stdout.close()
    assert process.wait(timeout=HANG) == 141
    with process.stderr as said:
        stopped = "acdc: Stopped: the output pipe was closed. A checkpoint was written; resume with: acdc train"
        assert said.read() == f"{stopped} --resume {out}\n"
    assert list((out / "checkpoints").iterdir())


@pytest.mark.parametrize("live", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_terminal_that_is_lost_costs_nothing(live: bool, tmp_path: Path) -> None:
    """Nothing can be shown any more, the end of what was shown live neither."""
    out, (ours, theirs) = tmp_path / "run", os.openpty()

    def take_the_terminal() -> None:
        hear_hangups()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "acdc", "train", "--epochs", "2000", "--device", "cpu", "--out", str(out)],
        env={**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | ({} if live else {"NO_COLOR": "1"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(theirs)
    shown = b""
    try:
        while not (out / "metrics.jsonl").exists() or b"/2000" not in shown:
            shown += os.read(ours, 65536)
        os.close(ours)
        assert process.wait(timeout=HANG) == 129
    finally:
        process.kill()
    assert (b"\x1b[" in shown) == live
    assert list((out / "checkpoints").iterdir())


def test_piped_to_nobody(tmp_path: Path) -> None:
    """As into `head -1`, which leaves before the first step; the run goes on from there."""
    out, (reader, writer) = tmp_path / "run", os.pipe()
    os.close(reader)
    run = [sys.executable, "-m", "acdc", "train", "--epochs", "4", "--device", "cpu", "--out", str(out)]
    done = processes.run(run, env=environment(), stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    assert re.fullmatch(r"acdc: Stopped: the output pipe was closed\. A checkpoint was written; .*\n", done.stderr)
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert (out / "result.json").exists()


@pytest.mark.parametrize("seeds", ["0", "0,1"])
def test_the_data_s_place_is_remembered(seeds: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """A resumed run looks where the run before did, from wherever it is resumed."""
    seen = []
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    typed = ["--epochs", "4", "--device", "cpu", "--seeds", seeds, "--data", ".", "--out", str(out)]
    assert main(["train", "--no-report", *typed, "--set", "run.baseline=false", "--set", "run.finetune=false"]) == 0
    (out / "result.json").unlink()
    monkeypatch.chdir("/")
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda *a, **k: seen.append(k["root"]) or load(*a, **k))
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert seen == [str(tmp_path)]


@pytest.mark.parametrize("metrics", [None, b"\0" * 100 + b"\n{}\n"], ids=["intact metrics", "damaged metrics"])
def test_a_run_without_a_whole_checkpoint_says_why_and_begins_again(
    metrics: bytes | None, stopped: Path, capsys
) -> None:
    damaged = sorted((stopped / "checkpoints").iterdir())
    for path in damaged:
        path.write_bytes(b"damaged")
    if metrics:
        (stopped / "metrics.jsonl").write_bytes(metrics)
    capsys.readouterr()
    assert main(["train", "--no-report", "--resume", str(stopped), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    for path in damaged:
        assert f"warning: Skipped a checkpoint, {path}: damaged" in said
        assert path.with_name(f"{path.name}.damaged").read_bytes() == b"damaged"
    lost = 2 if metrics else 5
    assert ("warning: metrics.jsonl is damaged (it cannot be read" in said) == bool(metrics)
    assert (stopped / "metrics.jsonl.damaged").exists() == bool(metrics)
    assert f"warning: there is no intact checkpoint to resume from, so {lost} epochs are trained again" in said
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == 11
    assert (stopped / "result.json").exists()


def test_a_recipe_is_planned_once(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was said then is printed and kept, of a run that goes on as well."""
    planned, validate = [], prepare.validate
    monkeypatch.setattr(
        prepare, "validate", lambda recipe, *a, **k: planned.append(recipe) or validate(recipe, *a, **k)
    )
    out, said = tmp_path / "run", "rate.warmup = 9: the run of 4 epochs is all warm-up"
    short = ["--epochs", "4", "--set", "run.baseline=false", "--set", "run.finetune=false", "--set", "rate.warmup=9"]
    assert main(["train", "--no-report", *short, "--device", "cpu", "--out", str(out)]) == 0
    assert len(planned) == 1
    assert capsys.readouterr().out.count(f"warning: {said}") == 1
    assert read(out, "config.json")["warnings"] == [said]
    (out / "result.json").unlink()
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert len(planned) == 2
    assert capsys.readouterr().out.count(f"warning: {said}") == 1


def test_what_a_method_cautions_of_is_said_as_the_run_begins_and_once(tmp_path: Path, capsys, caplog) -> None:
    short = ["--epochs", "4", "--set", "run.baseline=false", "--set", "run.finetune=false"]
    short += ["--set", "method.schedule=paper"]
    fisher = 'method.criterion={name="woodfisher", steps=23, block=2}'
    assert (
        main(["train", "--no-report", *short, "--set", fisher, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    )
    out, said = capsys.readouterr().out, "criterion.steps=23: WoodFisher sees fewer gradients than that"
    assert out.count(f"warning: method.{said} before 1 of 2 compressions, 22 before") == 1
    assert out.index(said) < out.index("epoch   1/4")
    assert said not in caplog.text


def test_what_cannot_be_resumed_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    for arguments, message in (
        ([str(tmp_path)], "this folder holds no run (no config.json)"),
        ([str(run)], "this run is already complete"),
        ([str(run), "--epochs", "5"], "remove the other settings"),
    ):
        assert main(["train", "--resume", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_several_seeds_get_a_folder_each_and_a_mean(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    small = ["--set", "run.baseline=false", "--set", "run.finetune=false", "--device", "cpu"]
    assert main(["train", "--epochs", "4", "--seeds", "3,4", "--out", str(out), *small]) == 0
    reports = [out / "report.html", *(out / f"seed-{seed}" / "report.html" for seed in (3, 4))]
    assert all(report.is_file() for report in reports)
    result = read(out, "result.json")
    assert [model["model"] for model in result["models"]] == ["AC/DC, sparse", "AC/DC, dense twin"]
    values = result["models"][0]["values"]
    assert values == [read(out / f"seed-{s}", "result.json")["models"][0]["test_accuracy"] for s in (3, 4)]
    assert result["models"][0]["test_accuracy"] == pytest.approx(sum(values) / 2)
    assert "mean ± standard deviation over seeds 3, 4" in capsys.readouterr().out
    (out / "result.json").unlink()
    (out / "seed-4" / "result.json").unlink()
    for report in reports:
        report.unlink()
    assert main(["train", "--no-report", "--resume", str(out), "--jobs", "2", "--device", "cpu"]) == 0
    assert read(out, "result.json") == result
    said = capsys.readouterr().out
    assert "seed 4: done" in said
    assert "report:" not in said
    assert not any(report.exists() for report in reports), "neither here nor by the process of a seed"


def test_a_stop_while_models_are_measured_does_not_wait_for_the_end(tmp_path: Path, monkeypatch, capsys) -> None:
    out, measured = tmp_path / "run", experiment._measured

    def signalled(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return measured(*args)

    monkeypatch.setattr(experiment, "_measured", signalled)
    small = ["--set", "run.baseline=false", "--set", "run.finetune=false", "--device", "cpu"]
    assert main(["train", "--no-report", "--epochs", "4", "--out", str(out), *small]) == 143
    assert not (out / "result.json").exists()
    assert f"A checkpoint was written; resume with: acdc train --resume {out}" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert len(metrics(out)) == 4
    assert (out / "result.json").is_file()


def test_a_stop_as_one_seed_ends_keeps_the_next_from_beginning(tmp_path: Path, monkeypatch, capsys) -> None:
    out, measured, models = tmp_path / "run", experiment._measured, iter(range(10))

    def signalled(*args: Any) -> Any:
        found = measured(*args)
        if next(models) == 1:  # the dense twin, the last of the first seed
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(experiment, "_measured", signalled)
    small = ["--set", "run.baseline=false", "--set", "run.finetune=false", "--device", "cpu"]
    assert main(["train", "--no-report", "--epochs", "4", "--seeds", "3,4", "--out", str(out), *small]) == 143
    assert (out / "seed-3" / "result.json").is_file()
    assert not (out / "seed-4" / "metrics.jsonl").exists()
    assert capsys.readouterr().err.endswith(
        f"acdc: Stopped by SIGTERM. 1 of 2 runs finished, 0 have a checkpoint. Resume with: acdc train --resume {out}\n"
    )


def test_a_second_ctrl_c_before_a_seed_trains_says_what_there_is(tmp_path: Path, monkeypatch, capsys) -> None:
    """As while a large folder of images is listed for it."""
    out, prepare, seeds = tmp_path / "run", train_verb.prepare, iter(range(10))

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(seeds) == 2:  # the first is of all seeds
            raise KeyboardInterrupt
        return prepare(*args, **options)

    monkeypatch.setattr(train_verb, "prepare", interrupted)
    small = ["--set", "run.baseline=false", "--set", "run.finetune=false", "--device", "cpu"]
    assert main(["train", "--no-report", "--epochs", "4", "--seeds", "3,4", "--out", str(out), *small]) == 130
    said = "1 of 2 runs finished, 0 have a checkpoint"
    assert capsys.readouterr().err == f"acdc: Stopped at once. {said}. Resume with: acdc train --resume {out}\n"


def test_what_to_type_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resume_command(Path("run")) == "acdc train --resume run"
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert resume_command(Path("run"), 2) == "torchrun --nproc-per-node 2 -m acdc train --resume run"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert resume_command(Path("run"), 16) == "torchrun --nnodes 2 --nproc-per-node 8 -m acdc train --resume run"


def test_what_device_and_data_lack_is_told_with_the_recipe_s_mistakes(tmp_path: Path, capsys) -> None:
    place = ["--data", str(tmp_path / "none"), "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", "imagenet-resnet50", *place, "--set", "train.batchsize=3"]) == 2
    said = capsys.readouterr().err
    for wrong in ("train.batchsize: no such setting", 'train.precision = "fp16": it needs a GPU', "no such folder"):
        assert wrong in said
    assert not (tmp_path / "run").exists()


def test_ctrl_c_before_training_is_as_quiet(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acdc.data.digits.load_digits", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "\nacdc: stopped\n"


def test_a_reader_that_leaves_gets_no_traceback(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """As in `acdc train | head`: stdout is turned to nowhere, or Python would complain of it once more at the end."""

    def gone(**_: object) -> None:
        raise BrokenPipeError

    turned: list[int] = []
    monkeypatch.setattr("acdc.data.digits.load_digits", gone)
    monkeypatch.setattr(os, "dup2", lambda source, target: turned.append(target))
    assert main(["train"]) == 1
    assert turned == [sys.stdout.fileno()]
    assert capfd.readouterr() == ("", "")
