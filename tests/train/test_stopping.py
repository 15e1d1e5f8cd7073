"""Signals become a request, whatever they come in the middle of."""

import io
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from acdc.train.stopping import listening

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Interrupted(io.RawIOBase):
    """A stream that a SIGTERM comes in the middle of writing to."""

    written = b""

    def writable(self) -> bool:
        return True

    def write(self, content: "ReadableBuffer", /) -> int:
        signal.raise_signal(signal.SIGTERM)
        self.written += bytes(content)
        return memoryview(content).nbytes


def test_of_the_signals_ignored_from_the_start_only_nohup_s_stays_so() -> None:
    """A run goes on when its terminal is lost; one in the background of a script is stopped by kill -INT."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        with listening() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop
            signal.raise_signal(signal.SIGINT)
            assert stop.signum == signal.SIGINT
        assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_in_the_middle_of_a_write_to_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Interrupted()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True))
    with listening() as stop:
        print("a warning", file=sys.stderr)
    assert stop.signum == signal.SIGTERM
    assert raw.written == b"a warning\n"
