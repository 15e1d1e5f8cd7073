"""python -m benchmarks.theory: a trial of every experiment, and figures and tables from rows that are no trial."""

import json
from pathlib import Path

import pytest
from benchmarks.pages import insert
from benchmarks.record import read

from benchmarks import theory, theory_figures, theory_page

BLOCKS = (*theory_page.TABLES, "cpl")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("theory") / "theory.jsonl"
    assert theory.main(["--quick", "--seeds", "1", "--no-draw", "--results", str(file), "--commit", "here"]) == 0
    return file


def test_every_experiment_leaves_rows_with_their_environment(rows: Path) -> None:
    found = read(rows)
    assert {row["experiment"] for row in found} == {*theory.EXPERIMENTS}
    assert all(row["quick"] and row["n"] >= 1 and row["scipy"] and row["commit"] == "here" for row in found)


def test_trials_are_no_measurements(rows: Path, tmp_path: Path) -> None:
    assert theory_figures.draw(rows, tmp_path) == []
    assert set(theory_page.blocks(rows).values()) == {""}


@pytest.fixture(scope="module")
def measured(rows: Path) -> Path:
    """The same rows as if they were no trial."""
    file = rows.with_name("measured.jsonl")
    bound = {"noise": {"bound": 1.0}}  # a trial's k is too small for one
    lines = [json.dumps({**row, "quick": False, **bound.get(row["experiment"], {})}) for row in read(rows)]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.long
def test_figures_of_what_was_measured(measured: Path, tmp_path: Path) -> None:
    drawn = theory_figures.draw(measured, tmp_path / "theory")
    assert [path.stem for path in drawn] == ["convergence", "noise", "threshold", "rounds", "recovery"]
    assert all(path.read_text().endswith("</svg>\n") for path in drawn)


def test_tables_of_what_was_measured(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "theory.md"
    page.write_text("\n".join(f"<!-- results:{name} -->\n<!-- /results:{name} -->" for name in BLOCKS))
    theory_page.fill(page, measured)
    text = page.read_text()
    assert text.count("acdc at here") >= len(BLOCKS) - 1
    assert insert(text, theory_page.blocks(measured), page.name) == text
