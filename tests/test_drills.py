"""The fire drill, short; and that it notices a run that ended otherwise."""

import json
import shutil
from pathlib import Path

import pytest

from tests.drills.drill import drill
from tests.drills.faults import KINDS, ON_A_DISK
from tests.drills.hosts import Host, build


def test_a_run_disturbed_at_random_moments_is_the_run_left_alone(tmp_path: Path) -> None:
    """Everything that needs no root. A full disk and one rank killed have tests of their own."""
    host, kinds = build("text", tmp_path), set(KINDS) - {*ON_A_DISK, "one rank killed"}
    outcome = drill(host, tmp_path, faults=len(kinds), seed=3)
    assert outcome.problems == []
    assert outcome.tallies.keys() <= kinds
    assert sum(tally.recovered for tally in outcome.tallies.values()) == len(kinds)


@pytest.fixture
def host() -> Host:
    return Host("none", lambda _: (), None, "checkpoints/*.pt", "result.json", lines=("metrics.jsonl",))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    alone.mkdir()
    (alone / "sparse.safetensors").write_bytes(b"weights")
    (alone / "metrics.jsonl").write_text('{"loss": 1.0, "seconds": 2.0}\n')
    shutil.copytree(alone, disturbed)
    return alone, disturbed


def test_clocks_may_differ(host: Host, runs: tuple[Path, Path]) -> None:
    (runs[1] / "metrics.jsonl").write_text(json.dumps({"loss": 1.0, "seconds": 3.0, "tokens_per_second": 9}) + "\n")
    assert host.differences(*runs) == []


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("sparse.safetensors", b"weightt", "sparse.safetensors differs"),
        ("sparse.safetensors", None, "sparse.safetensors differs"),
        ("metrics.jsonl", b'{"loss": 1.0000000001}\n', "metrics.jsonl differs"),
        ("metrics.jsonl", b"", "metrics.jsonl differs"),
        ("metrics.jsonl", None, "metrics.jsonl differs"),
        (".sparse.safetensors.tmp", b"weig", ".sparse.safetensors.tmp is left half-written"),
    ],
)
def test_a_difference_is_noticed(
    host: Host, runs: tuple[Path, Path], name: str, content: bytes | None, told: str
) -> None:
    path = runs[1] / name
    path.unlink() if content is None else path.write_bytes(content)
    assert host.differences(*runs) == [told]
