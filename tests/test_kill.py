"""kill -9 at a random step inside a sparse phase, resume: the same bits as a run that was never killed."""

import random
import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("kill_script.py")


def start(folder: Path, pause: float) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, SCRIPT, folder, str(pause)], stdout=subprocess.PIPE, text=True)


def test_killed_twice_and_resumed(tmp_path):
    straight = start(tmp_path / "straight", 0)
    assert straight.communicate()[0].count("sparse") == 60
    assert straight.returncode == 0

    seed = random.randrange(1 << 30)
    print("seed", seed)  # shown when the test fails
    chooser = random.Random(seed)
    for first, last in ((11, 39), (51, 79)):  # one kill inside each sparse phase
        victim = start(tmp_path / "killed", 0.02)
        step = chooser.randint(first, last)
        assert victim.stdout is not None
        for line in victim.stdout:
            if int(line.split()[0]) >= step:
                assert line.split()[1] == "sparse"
                break
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert not (tmp_path / "killed" / "result.pt").exists()
    final = start(tmp_path / "killed", 0)
    final.communicate()
    assert final.returncode == 0

    one, two = (torch.load(tmp_path / name / "result.pt", weights_only=True) for name in ("straight", "killed"))
    for part in ("sparse", "dense", "masks"):
        assert one[part].keys() == two[part].keys()
        assert all(torch.equal(one[part][name], two[part][name]) for name in one[part])
