"""Runs acdc and sends a signal at an exact moment of its run, however slow the machine and whoever watches.

    python -m tests.stops SIGTERM 2 self train digits --out RUN

The signal is sent once two epochs are in metrics.jsonl: to this process ("self"), or to the one that started it
("parent", such as torchrun), which passes it on; the run goes no further until it has arrived.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from acdc.cli import main
from acdc.runs import folder
from tests.waiting import HANG


def stop_after(epochs: int, number: signal.Signals, target: str) -> None:
    append = folder.append

    def append_and_stop(path: Path, row: Any) -> None:
        append(path, row)
        if path.name != "metrics.jsonl" or len(path.read_text().splitlines()) != epochs:
            return
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

    folder.append = append_and_stop


if __name__ == "__main__":
    name, epochs, target, *command = sys.argv[1:]
    stop_after(int(epochs), signal.Signals[name], target)
    sys.exit(main(command))
