"""Signals become a request, whatever they come in the middle of."""

import io
import signal
import sys

import pytest

from acdc.train.stopping import listening


class Interrupted(io.RawIOBase):
    """A stream that a SIGTERM comes in the middle of writing to."""

    written = b""

    def writable(self) -> bool:
        return True

    def write(self, content: memoryview) -> int:  # type: ignore[override]
        signal.raise_signal(signal.SIGTERM)
        self.written += bytes(content)
        return len(content)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup has it: a run that goes on when its terminal is lost."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop
            signal.raise_signal(signal.SIGTERM)
            assert stop.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_middle_of_a_write_to_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Interrupted()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True))
    with listening() as stop:
        print("a warning", file=sys.stderr)
    assert stop.signum == signal.SIGTERM
    assert raw.written == b"a warning\n"
