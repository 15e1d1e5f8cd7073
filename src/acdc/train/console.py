"""The display of a run: a live table on a terminal, plain lines (one per epoch, no control characters) elsewhere."""

import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from acdc.formatting import si
from acdc.runs.quality import PERPLEXITY, quality_of
from acdc.runs.records import EpochRow
from acdc.train import tabulate
from acdc.train.execution import Progress
from acdc.train.stopping import StopRequest, showing, tell


@dataclass(frozen=True)
class Planned:
    """A planned run: its title, its first epoch, and the kind of phase of each of its epochs."""

    title: str
    first: int
    kinds: tuple[str, ...]


_MINUTE = 60.0
Plan = Mapping[str, Planned]  # by EpochRow.run, in the order they run


class Console(Protocol):
    """The interface for showing a run's messages and progress."""

    def __enter__(self) -> "Console": ...
    def __exit__(self, *_: object) -> None: ...
    def say(self, text: str) -> None: ...
    def epoch(self, row: EpochRow) -> None: ...
    def watch(self, progress: Progress) -> None: ...
    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None: ...


def open_console(plan: Plan, done: int = 0, shown: bool = True, stop: StopRequest | None = None) -> Console:
    """Open a live console if stdout is a terminal with a movable cursor and NO_COLOR is not set; otherwise a plain one.

    `done` epochs ran before; `stop` is set if nobody reads the output any more.
    """
    if not shown:
        return Silent()
    terminal = Terminal()
    if sys.stdout.isatty() and not terminal.is_dumb_terminal and not os.environ.get("NO_COLOR"):
        return LiveConsole(plan, terminal, done, stop)
    return PlainConsole(plan, done, stop)


class Clock:
    """An estimate of the time left, from the epochs that have run.

    The first of them, which may include compiling, counts until there is a second.
    """

    def __init__(self, plan: Plan, done: int = 0) -> None:
        self._left = sum(len(planned.kinds) for planned in plan.values()) - done
        self._ends = [time.monotonic()]

    def tick(self) -> None:
        self._left -= 1
        self._ends.append(time.monotonic())

    def __str__(self) -> str:
        if len(self._ends) == 1:
            return "-:--"
        counted = self._ends[1:] if len(self._ends) > 2 else self._ends
        each = (counted[-1] - counted[0]) / (len(counted) - 1)
        seconds = max(0, round(each * self._left - (time.monotonic() - counted[-1])))
        return f"{seconds // 60}:{seconds % 60:02}"


class Silent:
    """A silent console, for ranks above 0."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def epoch(self, row: EpochRow) -> None:
        pass

    def watch(self, progress: Progress) -> None:
        pass

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        pass


class PlainConsole:
    """A console that prints a line after each epoch."""

    def __init__(self, plan: Plan, done: int = 0, stop: StopRequest | None = None) -> None:
        self._plan, self._clock = plan, Clock(plan, done)
        self._stop = StopRequest() if stop is None else stop
        self._titles = max(len(planned.title) for planned in plan.values())
        self._last_line = time.monotonic()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an ASCII log is no reason to stop

    def __enter__(self) -> "PlainConsole":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        tell(text, self._stop)

    def epoch(self, row: EpochRow) -> None:
        self._clock.tick()
        self._last_line = time.monotonic()
        planned = self._plan[row.run]
        self.say(
            f"{planned.title:<{self._titles}}  epoch {row.epoch + 1:>3}/{_last_epoch(planned)}  {row.phase:<16}  "
            f"sparsity {row.sparsity:7.2%}  loss {row.loss:.4f}  {_scores(row)}  {self._clock} left"
        )

    def watch(self, progress: Progress) -> None:
        """Print a line every minute, if epochs are longer than that."""
        now = time.monotonic()
        if now - self._last_line < _MINUTE:
            return
        self._last_line = now
        planned = self._plan[progress.run]
        self.say(
            f"{planned.title:<{self._titles}}  epoch {progress.epoch + 1:>3}/{_last_epoch(planned)}  "
            f"{progress.share:4.0%}  loss so far {progress.loss:.4g}  {progress.per_second:,.0f} {progress.unit}/s"
        )

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        for line in tabulate.plain(title, header, rows):
            self.say(line)


class LiveConsole:
    """A console that keeps a table of all runs up to date."""

    def __init__(self, plan: Plan, terminal: Terminal, done: int = 0, stop: StopRequest | None = None) -> None:
        self._plan, self._terminal, self._clock = plan, terminal, Clock(plan, done)
        self._stop = StopRequest() if stop is None else stop
        self._rows: dict[str, EpochRow] = {}
        self._latest: Progress | None = None
        self._live = Live(get_renderable=self._table, console=terminal, refresh_per_second=4)

    def __enter__(self) -> "LiveConsole":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with showing(self._stop):
            self._live.stop()

    def say(self, text: str) -> None:
        with showing(self._stop):
            self._terminal.print(text, markup=False, highlight=False)

    def epoch(self, row: EpochRow) -> None:
        self._clock.tick()
        self._rows[row.run] = row
        self._latest = None

    def watch(self, progress: Progress) -> None:
        self._latest = progress

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        with showing(self._stop):
            self._live.stop()
            tabulate.show(self._terminal, title, header, rows)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption_justify="left")
        table.caption = Text.assemble(("━ dense ", _COLOURS["dense"]), ("━ compressed", _COLOURS["sparse"]))
        if progress := self._latest:
            table.caption.append(
                f"   epoch {progress.epoch + 1}: {progress.share:4.0%}, loss {progress.loss:.4f}, "
                f"{progress.per_second:,.0f} {progress.unit}/s",
                style="default",
            )
        table.caption.append(f"   {self._clock} left", style="default")
        titles = max(len(planned.title) for planned in self._plan.values())
        wide = _fitting(self._terminal.width - titles - 2)
        epochs = max(_last_epoch(planned) for planned in self._plan.values())
        cells = min(epochs, self._terminal.width - titles - sum(wide.values()) - 2 * (len(wide) + 2))
        table.add_column("run", min_width=titles, no_wrap=True)
        if cells > 0:
            table.add_column("", min_width=cells, no_wrap=True)
        for name, width, justify in _COLUMNS:
            if name in wide:
                table.add_column(name, min_width=width, justify=justify, no_wrap=True)
        for run, planned in self._plan.items():
            row = self._rows.get(run)
            strip = [_strip(planned, row.epoch + 1 if row else 0, epochs, cells)] if cells > 0 else []
            shown = {}
            if row:
                shown = {
                    "epoch": f"{row.epoch + 1}/{_last_epoch(planned)}",
                    "phase": row.phase,
                    "sparsity": f"{row.sparsity:.1%}",
                    "loss": f"{row.loss:.4f}",
                    "test": quality_of(row).text(quality_of(row).of(row)),
                }
            cells_of = [text for name, text in shown.items() if name in wide]
            table.add_row(planned.title, *strip, *cells_of, style="" if row else "dim")
        return table


_COLOURS = {"dense": "blue", "sparse": "dark_orange"}
_COLUMNS: tuple[tuple[str, int, Literal["left", "right"]], ...] = (
    ("epoch", 7, "right"),
    ("phase", 16, "left"),
    ("sparsity", 8, "right"),
    ("loss", 6, "right"),
    ("test", 7, "right"),
)


_LEAST = ("phase", "sparsity", "loss", "epoch")  # columns that a narrow terminal drops, in this order


def _fitting(room: int) -> dict[str, int]:
    """Return as many columns as there is room for, with their widths: a truncated number would be wrong."""
    wide = {name: width for name, width, _ in _COLUMNS}
    for name in _LEAST:
        if sum(wide.values()) + 2 * len(wide) > room:
            del wide[name]
    return wide


def _strip(planned: Planned, done: int, epochs: int, cells: int) -> Text:
    """Draw a run's phases as a line over all epochs, coloured up to its progress."""
    strip = Text()
    for cell in range(cells):
        epoch = cell * epochs // cells
        if epoch < planned.first:
            strip.append(" ")
        else:
            strip.append("━", style=_COLOURS[planned.kinds[epoch - planned.first]] if epoch < done else "grey35")
    return strip


def _scores(row: EpochRow) -> str:
    """Return an epoch's scores: accuracies, or a text's perplexity with the speed of training."""
    if row.language is None:
        return f"train {row.train_accuracy:7.2%}  test {row.test_accuracy:7.2%}"
    test = row.language.test
    bits = "" if test.bits_per_byte is None else f" ({test.bits_per_byte:.3f} bits/byte)"
    average = f"parameters {si(row.language.parameters)}, on average {si(row.language.average_parameters)}"
    speed = f"{si(row.language.tokens_per_second)} tokens/s"
    return f"perplexity {PERPLEXITY.text(test.perplexity):>7}{bits}  {average}  {speed}"


def _last_epoch(planned: Planned) -> int:
    return planned.first + len(planned.kinds)
