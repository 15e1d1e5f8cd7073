"""Two ranks of one program, started with what torchrun would tell them, and left to end by themselves."""

import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess

from torch.distributed import TCPStore

from tests.processes import Process
from tests.waiting import HANG


def two_ranks(command: Sequence[str | Path], cwd: Path | None = None) -> CompletedProcess[str]:
    """Run it as two ranks; the result holds what both wrote, and the worse of their exit codes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # port 0: the system chooses a free one
    together = {
        **os.environ,
        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)},
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"},  # rank 0 is to open no store
    }
    ranks = [
        Process(command, env={**together, "RANK": str(n), "LOCAL_RANK": str(n)}, cwd=cwd, stdout=PIPE, stderr=PIPE)
        for n in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=HANG) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    code = max((rank.wait() for rank in ranks), key=abs)
    return CompletedProcess(ranks[0].args, code, *map("".join, zip(*texts, strict=True)))
