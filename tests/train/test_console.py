"""What a run shows, on a terminal and elsewhere."""

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console as Terminal

from acdc.recipes.load import read
from acdc.train import console
from acdc.train.console import Clock, LiveConsole, PlainConsole, Planned, open_console
from acdc.train.execution import Progress
from acdc.train.prepare import plan_stages
from tests.runs.test_folder import ROW

PLAN = {"dense": Planned("dense baseline", 0, ("dense",) * 4), "acdc": Planned("AC/DC", 0, ("dense", "sparse") * 2)}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a fixture: pytest puts its own stdout back between set-up and test."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Tty())


def test_a_terminal_gets_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    assert isinstance(open_console(PLAN), LiveConsole)


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_dumb_or_colourless_terminal_gets_plain_lines(name, value, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert isinstance(open_console(PLAN), PlainConsole)


def test_a_pipe_gets_plain_lines_whatever_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(open_console(PLAN), PlainConsole)


def test_a_plain_line_holds_all_there_is_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainConsole(PLAN) as shown:
        shown.epoch(ROW)
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"AC/DC +epoch +4/4 +compressed +sparsity +90.00% +loss 0.5000 +train +75.00% +test +50.00% +\d:\d\d left\n",
        line,
    )


def test_a_plain_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(PLAN).table("Title", ("model", "accuracy"), [("a", "9 %"), ("longer name", "100 %")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "Title",
        "model        accuracy",
        "-----------  --------",
        "a                 9 %",
        "longer name     100 %",
    ]


def test_plain_output_survives_a_narrow_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    PlainConsole(PLAN).say("Δ_w ░█")
    assert raw.getvalue() == b"?_w ??\n"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_table_fits_its_terminal(width: int) -> None:
    screen = io.StringIO()
    terminal = Terminal(file=screen, force_terminal=True, width=width, color_system="standard", legacy_windows=False)
    shown = LiveConsole(plan_stages(read("digits")), terminal)
    for run, phase in (("dense", "dense"), ("acdc", "final compressed")):
        shown.epoch(replace(ROW, run=run, phase=phase, epoch=36, test_accuracy=0.9875))
    terminal.print(shown._table())
    lines = ESCAPES.sub("", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    if width >= 80:
        row = next(line for line in lines if line.startswith("AC/DC"))
        assert all(text in row for text in ("37/40", "final compressed", "90.0%", "0.5000", "98.75%"))
        assert any(line.startswith("twin, fine-tuned") for line in lines)
        assert "left" in lines[-1]


def test_the_live_table_gives_the_screen_back_and_ends_with_the_result() -> None:
    screen = io.StringIO()
    terminal = Terminal(file=screen, force_terminal=True, width=80, color_system="standard", legacy_windows=False)
    with LiveConsole(PLAN, terminal) as shown:
        shown.say("[digits] as written")
        shown.epoch(ROW)
        shown.table("Title", ("model", "accuracy"), [("sparse", "98 %")])
    text = screen.getvalue()
    assert "[digits] as written" in ESCAPES.sub("", text)
    assert re.search(r"sparse +98 %", ESCAPES.sub("", text))
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"


def test_the_result_fits_eighty_columns() -> None:
    screen = io.StringIO()
    terminal = Terminal(file=screen, force_terminal=True, width=80, color_system="standard", legacy_windows=False)
    header = ("model", "test accuracy", "sparsity", "inference FLOPs", "of dense")
    row = ("dense twin, fine-tuned", "100.00%", "100.00%", "1.068 M", "0.12x")
    LiveConsole(PLAN, terminal).table("Title", header, [row])
    text = ESCAPES.sub("", screen.getvalue())
    assert all(cell in text for cell in (*header, *row))
    assert "…" not in text


def test_phases_are_drawn_where_they_lie() -> None:
    """AC/DC: the colour of each epoch's phase as far as the run has come; fine-tuning begins under the final phase."""
    runs = plan_stages(read("digits", ["train.epochs=4", "method.schedule=paper"]))
    strip = console._strip(runs["acdc"], done=3, epochs=4, cells=4)
    assert [span.style for span in strip.spans] == ["blue", "dark_orange", "blue", "grey35"]
    assert console._strip(runs["finetune"], done=0, epochs=4, cells=4).plain == "   ━"


def test_time_left_is_the_pace_times_the_epochs_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    clock = Clock(PLAN)  # 8 epochs
    assert str(clock) == "-:--"
    now[0] = 120.0
    clock.tick()
    assert str(clock) == "2:20"
    now[0] = 130.0
    assert str(clock) == "2:10"
    now[0] = 125.0
    clock.tick()  # the first compiled, and tells nothing of those to come
    assert str(clock) == "0:30"
    now[0] = 1000.0
    assert str(clock) == "0:00"


def test_a_long_epoch_shows_a_line_a_minute_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    shown = PlainConsole(PLAN)
    for second in (1, 59, 61, 100, 125):
        now[0] = float(second)
        shown.watch(Progress("acdc", 2, 0.5, 1.25, 1000.0))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"AC/DC +epoch +3/4 +50% +loss so far 1.25 +1,000 images/s", lines[0])
