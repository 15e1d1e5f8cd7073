"""The benchmark of trainers runs each of them three times, in turns, and its rows make a table."""

import json
from pathlib import Path

import pytest

from benchmarks import hosts, pages


@pytest.mark.filterwarnings("ignore")  # what trainers advise
def test_a_trial(tmp_path: Path) -> None:
    file = tmp_path / "hosts.jsonl"
    assert hosts.main(["--quick", "--rounds", "2", "--results", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["host"], row["way"]) for row in rows] == [
        (host, way) for host in hosts.HOSTS for way in (hosts.DENSE, hosts.COMPRESSED)
    ]
    assert all(len(row["alone_seconds"]) == row["n"] == 2 for row in rows)
    assert pages._hosts(tmp_path) == "", "a trial stays out of the tables"
    file.write_text("".join(json.dumps({**row, "quick": False}) + "\n" for row in rows))
    assert pages._hosts(tmp_path).count("| Lightning |") == 2
