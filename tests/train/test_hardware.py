"""A CPU whose bf16 kernels crash is found out in a child process, and what to set is said before anything runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from acdc.cli import main
from acdc.train import hardware
from acdc.train.precision import unsupported

CRASHING = Path(__file__).parents[1] / "crashing_bf16"
CPU = torch.device("cpu")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered of this machine, before and after."""
    for known in (hardware.bf16_crash, hardware.bf16_remedy_works):
        known.cache_clear()
    yield
    for known in (hardware.bf16_crash, hardware.bf16_remedy_works):
        known.cache_clear()


@pytest.fixture
def crashing(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CRASHING), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv(hardware.BF16_REMEDY[0], raising=False)


@pytest.fixture
def known_to_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the probe of such a machine says, without a process for each question, which other tests start."""
    monkeypatch.setattr(hardware, "bf16_crash", lambda: "SIGILL")
    monkeypatch.setattr(hardware, "bf16_remedy_works", lambda: True)


def test_the_probe_runs_the_kernels_here(fresh: None) -> None:
    """The suite's own conftest has set the remedy where this machine needs it."""
    assert hardware.bf16_crash() is None
    assert unsupported("bf16", CPU) is None


def test_a_crash_is_named_with_the_remedy(crashing: None) -> None:
    assert hardware.bf16_crash() == "SIGILL"
    assert hardware.bf16_remedy_works()
    said = unsupported("bf16", CPU)
    assert said is not None
    assert "torch's bf16 kernels crash on this CPU (SIGILL;" in said
    assert "put ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the command, or add --set train.precision=fp32" in said
    assert unsupported("fp32", CPU) is None
    assert unsupported("bf16", torch.device("cuda")) is None


def test_the_remedy_is_not_advised_where_it_does_not_help(crashing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_BF16_PROBE", "raise SystemExit('no bf16 at all')")
    assert hardware.bf16_crash() == "no bf16 at all"
    assert hardware.bf16_advice().endswith("use fp32: add --set train.precision=fp32")


def test_train_and_check_say_it_and_leave_nothing_behind(known_to_crash: None, tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    settings = ["--device", "cpu", "--set", "train.precision=bf16"]
    assert main(["train", "digits", *settings, "--out", str(out)]) == 2
    assert 'train.precision = "bf16": torch\'s bf16 kernels crash on this CPU (SIGILL;' in capsys.readouterr().err
    assert not out.exists()
    assert main(["check", "digits", *settings]) == 2
    assert "put ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the command" in capsys.readouterr().err


def test_check_times_the_step_in_fp32_where_no_device_was_asked_for(known_to_crash: None, capsys, monkeypatch) -> None:
    monkeypatch.setattr("acdc.train.time_estimate._ENOUGH", 0.01)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["check", "digits", "--set", "train.precision=bf16"]) == 0
    said = capsys.readouterr()
    assert 'warning: train.precision = "bf16": torch\'s bf16 kernels crash' in said.out + said.err
    assert "images (fp32 on" in said.out


def test_doctor_says_it(known_to_crash: None, capsys) -> None:
    main(["doctor"])
    said = capsys.readouterr().out
    assert "no  bf16 on the CPU: torch's kernels crash (SIGILL)\n" in said
    assert "for recipes in bf16 set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment\n" in said


def test_a_run_trained_in_bf16_is_evaluated_in_fp32(known_to_crash: None, tmp_path: Path, capsys, monkeypatch) -> None:
    out, settings = tmp_path / "run", ["--set", "run.baseline=false", "--set", "run.finetune=false"]
    assert (
        main(["train", "--no-report", "digits", "--epochs", "4", "--device", "cpu", "--out", str(out), *settings]) == 0
    )
    config = out / "config.json"
    config.write_text(config.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    assert main(["eval", str(out), "--device", "cpu"]) == 0
    assert "precision: fp32 (trained in bf16, which crashes on this CPU: see acdc doctor)" in capsys.readouterr().out


def test_the_suite_sets_the_remedy_before_torch_is_imported() -> None:
    """On a machine that crashes; the variable must be there in time for oneDNN."""
    code = "import acdc.train.hardware, sys; assert 'torch' not in sys.modules\n"
    code += "import tests.conftest, os; print(os.environ['ONEDNN_MAX_CPU_ISA'])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CRASHING), *filter(None, sys.path)])}
    for name in (hardware.BF16_REMEDY[0], "ACDC_TESTS_PROBED_BF16"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "AVX512_CORE_BF16"), done.stderr


def test_a_run_that_has_begun_keeps_its_precision(crashing: None) -> None:
    said = unsupported("bf16", CPU, begun=True)
    assert said is not None
    assert said.endswith(
        "a run must continue in its own precision: put ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the command"
    )
