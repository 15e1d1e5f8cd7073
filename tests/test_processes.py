"""Programs forked from the server of tests.processes run, stop and end as those that subprocess starts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.waiting import HANG

TELLS = """
import atexit, json, os, sys, warnings
atexit.register(print, "at exit")
facts = {"argv": sys.argv[1:], "cwd": os.getcwd(), "A": os.environ.get("A"), "leader": os.getsid(0) == os.getpid()}
facts |= {"name": __name__, "main": sys.modules["__main__"].__dict__ is globals(), "tty": sys.stdout.isatty()}
try:
    warnings.warn("a")
    facts["warned"] = "shown"
except UserWarning:
    facts["warned"] = "raised"
print(json.dumps(facts))
print("é", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tells.py"
    path.write_text(TELLS)
    return path


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("started", [["tells.py"], ["-m", "tells"]])
def test_as_subprocess_runs_it(script: Path, started: list[str], session: bool) -> None:
    options = {"cwd": script.parent, "env": {**os.environ, "A": "b", "PYTHONWARNINGS": "error"}}
    command = [sys.executable, *started, "3", "x y"]
    forked = processes.run(command, start_new_session=session, **options)
    cold = subprocess.run(
        command, start_new_session=session, capture_output=True, text=True, check=False, timeout=HANG, **options
    )
    assert vars(forked) == vars(cold)
    facts, end = forked.stdout.splitlines()
    assert json.loads(facts)["leader"] == session
    assert end == "at exit"


FAILS = {"raise SystemExit('why')": 1, "raise ValueError": 1, "import os, signal; os.kill(os.getpid(), 15)": -15}


@pytest.mark.parametrize("text", FAILS)
def test_as_it_ends(text: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(text)
    assert processes.run([sys.executable, tmp_path / "fails.py"]).returncode == FAILS[text]


WAITS = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


@pytest.fixture
def waits(tmp_path: Path) -> list[str]:
    (tmp_path / "waits.py").write_text(WAITS)
    return [sys.executable, str(tmp_path / "waits.py")]


def test_its_signals_and_its_pipes(waits: list[str]) -> None:
    process = processes.Process(waits, stdout=processes.PIPE, stderr=processes.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{process.pid}\n"
    assert process.poll() is None
    with pytest.raises(processes.TimeoutExpired):
        process.wait(timeout=0)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=HANG)
    assert (out, process.returncode) == ("", -signal.SIGINT)
    assert errors.endswith("KeyboardInterrupt\n")
    process.send_signal(signal.SIGINT)  # it is gone, and so is nobody else's process of the same number


def test_no_process_is_left_behind(waits: list[str]) -> None:
    """Neither one that a test has dropped, nor any that runs as the tests end."""
    server = processes.Server(preloaded=())
    dropped = processes.Process(waits, stdout=processes.PIPE, server=server)
    assert dropped.stdout is not None
    with dropped.stdout as lines:
        assert lines.readline()
        dropped._status.close()
        assert lines.read() == "", "its end of the pipe is closed, as it has ended"
    left = processes.Process(waits, stdout=processes.PIPE, server=server)
    assert left.stdout is not None
    with left.stdout as lines:
        assert lines.readline()
        server.stop()
        assert lines.read() == ""
    left._status.close()
