"""docs/compatibility.md shows what the tests here cover, and nothing else."""

import re
from pathlib import Path

from tests.conformance import test_optimizers
from tests.conformance.harness import OPTIMIZERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


def test_the_page_has_every_optimizer_and_feature():
    header, _, *rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    source = Path(test_optimizers.__file__).read_text(encoding="utf-8")
    features = re.findall(r'@pytest\.mark\.feature\("(.*)"\)', source)
    assert header == f"| optimizer | {' | '.join(features)} |", "run make matrix"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(OPTIMIZERS), "run make matrix"
    assert all(set(row.strip("| ").split(" | ")[1:]) == {"yes"} for row in rows), "a cell failed when it was written"
