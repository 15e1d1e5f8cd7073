"""Kept sweeps over training budgets: their table, what it says of the default, and their figures."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.budgets import keep, place_of, read_all, read_sweep

from benchmarks import budgets, comparisons, tables
from tests.report.comparisons import make_comparison

CHOSEN = {"chosen": ("acdc", ("method.gradual=true",))}


def make_sweep(
    base: Path, budgets: Sequence[int] = (3, 12), seeds: Sequence[int] = (0, 1), shares: Sequence[float] = (0.9, 0.95)
) -> list[Path]:
    names = ("acdc", "gmp", "dense")
    return [make_comparison(base / f"budget-{n}", names, shares, seeds, CHOSEN, n) for n in budgets]


def set_accuracy(folder: Path, runs: str, *accuracies: float) -> None:
    for file, accuracy in zip(sorted(folder.glob(f"{runs}/result.json")), accuracies, strict=True):
        result = json.loads(file.read_text())
        result["models"][0]["test_accuracy"] = accuracy
        file.write_text(json.dumps(result))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The default is 2 points above all at 90 % over 3 epochs, 1 below AC/DC over 12, and level with GMP at 95 %."""
    folders = make_sweep(tmp_path_factory.mktemp("sweep"))
    for folder in folders:
        for share in (90, 95):
            for name in ("acdc", "gmp", "chosen"):
                set_accuracy(folder, f"{name}-{share}-*", 0.89, 0.91)
    set_accuracy(folders[0], "chosen-90-*", 0.91, 0.93)
    set_accuracy(folders[1], "acdc-90-*", 0.91, 0.91)
    return folders


@pytest.fixture(scope="module")
def results(sweep: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    keep(sweep, "small", results, "abc123", "A note.")
    return results


def test_every_budget_is_kept_like_a_comparison_with_one_pair_of_figures(results: Path) -> None:
    target = place_of("small", results)
    files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    each = [f"{epochs}/{file}" for epochs in (12, 3) for file in ("result.json", "runs.tar.xz")]
    assert files == [*each, "budget-flops.svg", "budget.svg"]
    assert list(read_sweep(target)) == [3, 12]
    assert list(read_all(results)) == ["small"]
    assert comparisons.read_all(results) == {}, "they are no comparison beside the others"
    for name in budgets.FIGURES:
        assert "</svg>" in (target / f"{name}.svg").read_text(encoding="utf-8")


def test_the_figures_are_drawn_again_from_what_is_kept(results: Path) -> None:
    target = place_of("small", results)
    before = (target / "budget.svg").read_bytes()
    (target / "budget.svg").unlink()
    assert budgets.main(["small", "--results", str(results)]) == 0
    assert (target / "budget.svg").read_bytes() == before


def test_the_table_has_a_row_for_each_sparsity_and_budget(results: Path) -> None:
    title, header, rows, note = budgets.table("small", read_all(results)["small"])
    assert title == "small: digits, 2 budgets"
    assert header == ["zeros", "epochs", "chosen", "AC/DC", "GMP", "dense", "chosen − best other"]
    assert [row[:2] for row in rows] == [["90%", "3"], ["90%", "12"], ["95%", "3"], ["95%", "12"]]
    assert rows[0][2] == "92.00 ± 1.41 (0.40x)"
    assert [row[-1] for row in rows] == ["+2.00 (AC/DC)", "−1.00 (AC/DC)", "+0.00 (AC/DC)", "+0.00 (AC/DC)"]
    assert rows[0][-2].endswith("(1.00x)")
    assert "abc123" in note
    assert "mean ± std over 2 seeds" in note
    assert "A note." in note
    assert "Not trained" not in note


def test_the_summary_has_the_average_and_the_lowest_difference(results: Path) -> None:
    assert budgets.summary(read_all(results)["small"]) == (
        "chosen − best other: +0.25 on average over 4 rows, lowest −1.00 at 90% over 12 epochs. "
        "chosen − GMP: +0.50 on average over 4 rows."
    )


def test_a_missing_method_a_single_seed_and_a_crashed_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(budgets, "draw", lambda target: [])
    folders = make_sweep(tmp_path)
    for run in folders[0].glob("gmp-*"):
        shutil.rmtree(run)
    (folders[1] / "gmp-90-seed1" / "result.json").unlink()
    keep(folders, "small", tmp_path)
    _, header, rows, note = budgets.table("small", read_all(tmp_path)["small"])
    gmp = header.index("GMP")
    assert rows[0][gmp] == "–"
    assert rows[1][gmp].endswith("x, 1 seed)")
    assert " ± " not in rows[1][gmp]
    assert "Not trained yet over 3 epochs: at 90 % GMP; at 95 % GMP." in note
    assert "Not trained yet over 12 epochs: at 90 % GMP (seed 1)." in note
    assert "chosen − GMP: " in note
    assert "over 2 rows" in note


def test_without_the_default_there_is_no_difference(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(budgets, "draw", lambda target: [])
    folders = [make_comparison(tmp_path / f"{n}", ["acdc", "gmp"], [0.9], [0], epochs=n) for n in (3, 4)]
    keep(folders, "small", tmp_path)
    _, header, rows, note = budgets.table("small", read_all(tmp_path)["small"])
    assert header == ["zeros", "epochs", "AC/DC", "GMP"]
    assert [len(row) for row in rows] == [4, 4]
    assert "best other" not in note


def test_a_budget_may_join_and_nothing_may_go(tmp_path: Path) -> None:
    folders = make_sweep(tmp_path, (3, 6, 12), (0,), (0.9,))
    target = keep(folders[:1], "small", tmp_path)
    assert not list(target.glob("*.svg")), "one budget is no line"
    keep(folders[1:2], "small", tmp_path)
    two = (target / "budget.svg").read_bytes()
    keep(folders[2:], "small", tmp_path)
    assert list(read_sweep(target)) == [3, 6, 12]
    assert (target / "budget.svg").read_bytes() != two
    shutil.rmtree(folders[0] / "gmp-90-seed0")
    before = (target / "6" / "result.json").stat().st_mtime_ns
    with pytest.raises(FileExistsError, match=r"holds gmp-90-seed0, which .*budget-3 does not"):
        keep([folders[1], folders[0]], "small", tmp_path)
    assert (target / "6" / "result.json").stat().st_mtime_ns == before, "nothing was written"


def test_what_cannot_be_kept_together_is_refused(tmp_path: Path, capsys) -> None:
    folders = make_sweep(tmp_path / "a", seeds=(0,))
    twice = make_comparison(tmp_path / "twice", ["acdc"], [0.9], [0], epochs=3)
    with pytest.raises(ValueError, match="are both over 3 epochs; keep one of them"):
        keep([*folders, twice], "small", tmp_path)
    comparison = json.loads((twice / "comparison.json").read_text())
    (twice / "comparison.json").write_text(json.dumps(comparison | {"recipe": "other", "epochs": 6}))
    with pytest.raises(ValueError, match=r"is of digits and .*twice of other; keep each recipe by a name of its own"):
        keep([*folders, twice], "small", tmp_path)
    assert not (tmp_path / "comparisons").exists()
    for words, message in (
        (["none"], "nothing is kept in .*none; type the folders to keep after the name"),
        (["small", str(tmp_path / "gone")], "gone"),
    ):
        with pytest.raises(SystemExit):
            budgets.main([*words, "--results", str(tmp_path)])
        assert re.search(message, capsys.readouterr().err)


def test_the_pages_have_the_table_and_the_figures(results: Path, tmp_path: Path) -> None:
    page = results / "docs" / "methods-compared.md"
    block = budgets.blocks(results, page)
    assert "| zeros | epochs | chosen | AC/DC | GMP | dense | chosen − best other |" in block
    assert "](../comparisons/budgets/small/budget.svg)" in block
    assert block.count("<sub>") == 1
    assert "](comparisons/budgets/small/budget-flops.svg)" in tables.page(results)
    assert budgets.blocks(tmp_path, page) == ""
    assert "Accuracy against budget" not in tables.page(tmp_path)
