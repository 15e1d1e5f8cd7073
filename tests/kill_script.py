"""Trains a tiny net and saves after every step; started again, it goes on. Used by test_kill.py.

python kill_script.py FOLDER STEP      it kills itself after that step, if it comes to it
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812

import acdc

SCHEDULE = acdc.Schedule.from_phases([("dense", "10st"), ("sparse", "30st"), ("dense", "10st"), ("sparse", "30st")])


def save(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    torch.save(value, temporary)
    temporary.replace(path)


def main(folder: Path, kill_at: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    s = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, schedule=SCHEDULE))
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        s.load_state_dict(saved["sparsifier"])
    while s.step < s.total_steps:
        generator = torch.Generator().manual_seed(s.step)
        x = torch.randn(32, 16, generator=generator)
        y = torch.randint(0, 8, (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        save(
            checkpoint,
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sparsifier": s.state_dict()},
        )
        print(s.step, s.phase.kind, flush=True)
        if s.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    result = s.finish()
    save(folder / "result.pt", {"sparse": result.sparse, "dense": result.dense, "masks": result.masks})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
