"""kill -9 at a random step inside a sparse phase, resume: the same bits as a run that was never killed."""

import random
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess

import torch

from tests import processes

SCRIPT = Path(__file__).with_name("kill_script.py")


def train(folder: Path, kill_at: int = -1) -> CompletedProcess[str]:
    """Until it ends, or until it kills itself after a step."""
    folder.mkdir(exist_ok=True)
    return processes.run([sys.executable, SCRIPT, folder, str(kill_at)])


def test_killed_twice_and_resumed(tmp_path):
    straight = train(tmp_path / "straight")
    assert straight.stdout.count("sparse") == 60
    assert straight.returncode == 0

    seed = random.randrange(1 << 30)
    print("seed", seed)  # shown when the test fails
    chooser = random.Random(seed)
    for first, last in ((11, 39), (51, 79)):  # one kill inside each sparse phase
        victim = train(tmp_path / "killed", chooser.randint(first, last))
        assert victim.returncode == -signal.SIGKILL
        assert victim.stdout.splitlines()[-1].endswith("sparse")
        assert not (tmp_path / "killed" / "result.pt").exists()
    assert train(tmp_path / "killed").returncode == 0

    one, two = (torch.load(tmp_path / name / "result.pt", weights_only=True) for name in ("straight", "killed"))
    for part in ("sparse", "dense", "masks"):
        assert one[part].keys() == two[part].keys()
        assert all(torch.equal(one[part][name], two[part][name]) for name in one[part])
