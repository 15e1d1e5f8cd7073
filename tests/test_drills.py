"""The fire drill, short."""

from pathlib import Path

from tests.drills import Drill, drill
from tests.processes import Process


def test_a_run_killed_at_random_moments_is_the_run_left_alone(tmp_path: Path) -> None:
    assert drill(Drill(tmp_path, kills=2, epochs=6, seed=1, launch=Process)) == []
