"""Runs that a command would start as processes of their own, in this one: what they are for is told without them."""

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TextIO

import pytest

from acdc.cli import main
from acdc.train import jobs


class InProcess:
    """In place of subprocess.Popen: the command has ended by the time this is made."""

    def __init__(self, command: Sequence[str], stdout: TextIO, stderr: TextIO, env: Mapping[str, str]) -> None:
        assert command[1:3] == ["-m", "acdc"]
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            self.code = main([*command[3:], "--no-report"])
        stdout.write(said.getvalue())

    def poll(self) -> int:
        return self.code


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.subprocess, "Popen", InProcess)
