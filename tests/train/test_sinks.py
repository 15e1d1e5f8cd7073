"""Where else metrics go. The services themselves are stood in for: what is sent to them is what matters."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from acdc.cli import main
from acdc.runs import folder
from acdc.train import sinks
from tests.runs.test_folder import ROW
from tests.train.problems import recipe


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> None:
    made = ModuleType(name)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)


def test_what_is_sent_are_the_numbers_of_a_row() -> None:
    sent = sinks.numbers(ROW)
    assert sent["acdc/loss"] == 0.5
    assert sent["acdc/sparsity"] == 0.9
    assert "acdc/validation_accuracy" not in sent, "nothing was held out"
    assert all(isinstance(value, int | float) for value in sent.values())


def test_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said, logged = {}, []

    @contextmanager
    def init(**settings: object):
        said.update(settings)
        yield SimpleNamespace(log=logged.append, id=settings["id"] or "made-by-wandb")

    module(monkeypatch, "wandb", init=init)
    out = folder.claim(tmp_path / "run", "")
    with sinks.opened(["wandb"], recipe(), out) as (send,):
        send(ROW)
    assert (said["name"], said["id"], said["resume"]) == ("run", None, "allow")
    assert said["config"]["method"]["sparsity"] == 0.8
    assert logged == [sinks.numbers(ROW) | {"epoch": 3, "step": 8}]
    with sinks.opened(["wandb"], recipe(), out):
        assert said["id"] == "made-by-wandb", "the run that was stopped goes on"


def test_a_service_that_cannot_be_reached_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next epoch is sent again."""
    logged = []

    def log(numbers: dict) -> None:
        logged.append(numbers)
        if len(logged) == 1:
            raise ConnectionError("no route to host\nand much more")

    module(monkeypatch, "trackio", init=lambda **_: SimpleNamespace(name="run"), log=log, finish=lambda: None)
    with sinks.opened(["trackio"], recipe(), folder.claim(tmp_path / "run", "")) as (send,):
        send(ROW)
        send(ROW)
    assert len(logged) == 2
    (said,) = caplog.messages
    assert said == "--log trackio: epoch 4 of acdc was not sent (ConnectionError: no route to host)"


def test_trackio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    def init(**settings: object) -> SimpleNamespace:
        calls.append(f"init {settings['name']}, resume {settings['resume']}")
        return SimpleNamespace(name=settings["name"] if settings["resume"] == "allow" else "another")

    module(
        monkeypatch,
        "trackio",
        init=init,
        log=lambda numbers: calls.append(f"log {numbers['step']}"),
        finish=lambda: calls.append("finish"),
    )
    out = folder.claim(tmp_path / "run", "")
    with sinks.opened(["trackio"], recipe(), out) as (send,):
        send(ROW)
    assert calls == ["init run, resume never", "log 8", "finish"], "another folder's run may have this name"
    with sinks.opened(["trackio"], recipe(), out):
        assert calls[-1] == "init another, resume allow", "the run that was stopped goes on, as trackio named it"


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[tuple] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            written.append(("folder", folder, 0))

        def add_scalar(self, *scalar: object) -> None:
            written.append(scalar)

        def flush(self) -> None:
            pass

        def close(self) -> None:
            written.append(("closed", 0, 0))

    module(monkeypatch, "torch.utils.tensorboard")
    module(monkeypatch, "torch.utils.tensorboard.writer", SummaryWriter=Writer)
    with sinks.opened(["tensorboard"], recipe(), tmp_path) as (send,):
        send(ROW)
    assert written[0] == ("folder", str(tmp_path / "tensorboard"), 0)
    assert ("acdc/test_accuracy", 0.5, 8) in written
    assert written[-1][0] == "closed"


@pytest.mark.parametrize("name", sinks.names())
def test_a_missing_package_says_what_to_install(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "run"
    assert main(["train", "--epochs", "4", "--log", name, "--device", "cpu", "--out", str(out)]) == 2
    assert f'pip install "acdc-torch[{name}]"' in capsys.readouterr().err
    assert not out.exists()
