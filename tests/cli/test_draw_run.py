"""docs/draw_run.py draws a run folder, the same file from the same run."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ROOT / "results" / "runs" / "cifar100-wrn28-10-cifar100_20-90-seed0"


def test_the_readme_s_picture_is_of_the_run_that_is_kept(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_run.py"))
    for name in ("a.svg", "b.svg"):
        script["main"](RUN, tmp_path / name)
    drawn = (tmp_path / "a.svg").read_bytes()
    assert drawn.startswith(b"<?xml")
    assert 10_000 < len(drawn) < 200_000
    assert (tmp_path / "b.svg").read_bytes() == drawn, "the same run gives the same file"
