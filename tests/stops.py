"""Runs acdc and sends a signal at an exact moment of its run, however slow the machine and whoever watches.

    python -m tests.stops SIGTERM 2 self train digits --out RUN

The signal is sent once two epochs are in metrics.jsonl: to this process ("self"), or to the one that started it
("parent", such as torchrun), which passes it on; the run goes no further until it has arrived.
"""

import os
import signal
import sys
import threading
from typing import Any

from acdc.cli import main
from acdc.measure.dynamics import PhaseEnd
from acdc.runs.folder import RunFolder
from acdc.runs.records import EpochRow
from tests.waiting import HANG


def stop_after(epochs: int, number: signal.Signals, target: str) -> None:
    append = RunFolder.append

    def append_and_stop(self: RunFolder, row: EpochRow, phase_end: PhaseEnd | None = None) -> dict[str, str]:
        lines = append(self, row, phase_end)
        if len(self.metrics.read_text().splitlines()) == epochs:
            stop()
        return lines

    def stop() -> None:
        if target == "self":
            os.kill(os.getpid(), number)
            return
        arrived, handler = threading.Event(), signal.getsignal(number)
        assert callable(handler), "the run listens to it"

        def arrive(*args: Any) -> None:
            arrived.set()
            handler(*args)

        signal.signal(number, arrive)
        os.kill(os.getppid(), number)
        assert arrived.wait(HANG)

    RunFolder.append = append_and_stop


if __name__ == "__main__":
    name, epochs, target, *command = sys.argv[1:]
    stop_after(int(epochs), signal.Signals[name], target)
    sys.exit(main(command))
