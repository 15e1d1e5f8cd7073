"""Ranks of one program or function, which end by themselves: no torchrun ends one when another has failed."""

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

from torch import distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

from tests.processes import Process
from tests.waiting import HANG


def two_ranks(command: Sequence[str | Path], cwd: Path | None = None) -> CompletedProcess[str]:
    """Start it twice; see start_ranks."""
    return start_ranks(2, command, cwd)


def start_ranks(count: int, command: Sequence[str | Path], cwd: Path | None = None) -> CompletedProcess[str]:
    """Start it with what torchrun would tell it; the result holds what all wrote, and the worst of their codes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # port 0: the system chooses a free one
    together = {
        **os.environ,
        **{"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)},
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"},  # rank 0 is to open no store
    }
    return _run(
        [command] * count, [{**together, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)], cwd
    )


def call_on_two_ranks(function: Callable[..., None], *arguments: Any) -> None:
    """Call it in two processes, with the rank in front of what else it takes."""
    call_on_ranks(2, function, *arguments)


def call_on_ranks(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call it in so many processes, with the rank in front of what else it takes."""
    with tempfile.NamedTemporaryFile() as file:
        pickle.dump((function, arguments), file)
        file.flush()
        commands = [[sys.executable, "-m", "tests.distributed.ranks", file.name, str(rank)] for rank in range(count)]
        done = _run(commands, [os.environ] * count)
    assert done.returncode == 0, done.stderr


def _run(
    commands: Sequence[Sequence[str | Path]], environments: Sequence[Mapping[str, str]], cwd: Path | None = None
) -> CompletedProcess[str]:
    ranks = [
        Process(command, env=environment, cwd=cwd, stdout=PIPE, stderr=PIPE)
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        texts = [rank.communicate(timeout=HANG) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    code = max((rank.wait() for rank in ranks), key=abs)
    return CompletedProcess(ranks[0].args, code, *map("".join, zip(*texts, strict=True)))


def _let_gloo_finish(destroy: Callable[..., None]) -> Callable[..., None]:
    """Return a destroy_process_group that waits a moment first.

    Threads of gloo drop references to Python objects after their last exchange. A group that is destroyed before they
    have the interpreter's lock waits for them, and they for the lock, for ever.
    """

    def wait_and_destroy(*arguments: Any) -> None:
        time.sleep(0.1)
        destroy(*arguments)

    return wait_and_destroy


if __name__ == "__main__":
    name, rank = sys.argv[1:]
    called, given = pickle.loads(Path(name).read_bytes())
    distributed.destroy_process_group = _let_gloo_finish(distributed.destroy_process_group)
    called(int(rank), *given)
