"""Comparisons over several budgets on one page: accuracy against epochs and against training FLOPs."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from acdc.report.budgets import budgets_of, count_leads, differing_settings, has_budgets, panels_of
from acdc.report.compose import Report, compose
from acdc.report.figures import budget_lines
from acdc.report.read import ReportError, expand, read_runs
from acdc.report.write import make
from tests.report.comparisons import make_comparison

BUDGETS = (3, 6, 12)
CHOSEN = {"chosen": ("acdc", ("method.gradual=true",))}


def make_budgets(
    base: Path, names: Sequence[str] = ("acdc", "gmp", "dense"), seeds: Sequence[int] = (0, 1), **options
) -> list[Path]:
    sparsities = options.pop("sparsities", (0.9, 0.95))
    return [
        make_comparison(base / f"budget-{epochs}", names, sparsities, seeds, options.get("variants"), epochs)
        for epochs in BUDGETS
    ]


def composed(folders: Sequence[Path]) -> Report:
    return compose(read_runs(expand(folders)), compared=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_budgets(tmp_path_factory.mktemp("budgets"), variants=CHOSEN)


def names_in(figure: Figure, number: int) -> list[str]:
    return [text.get_text() for text in figure.axes[number].texts]


def test_one_page_shows_accuracy_against_epochs_and_flops(folders: list[Path], tmp_path: Path) -> None:
    path, notes = make(folders, tmp_path / "report.html")
    assert [note for note in notes if "phases.jsonl" not in note] == []
    text = path.read_text(encoding="utf-8")
    assert re.findall(r'<figure id="([\w-]+)"', text) == ["budget", "budget-flops"]
    names = ("budget", "budget-flops", "several-3", "several-6", "several-12", "settings", "own", "seeds")
    assert re.findall(r'id="table-([\w-]+)"', text) == ["budget", "budget-flops", "environment", *names[2:]]
    assert "42 runs: 4 methods over 3 budgets of training, digits_net on digits" in text


def test_titles_say_the_finding(folders: list[Path]) -> None:
    report = composed(folders)
    assert report.title == (
        "Most accurate, or too close to tell, at most budgets of 3 to 12 epochs: at 90 % zeros AC/DC (3 of 3); at 95 % "
        "zeros AC/DC (3 of 3)"
    )
    by_epochs, by_flops = report.charts
    assert by_epochs.title.startswith(
        "Highest accuracy over 3 to 12 epochs: at 90 % zeros 89.1 % (AC/DC) to 94.1 % (AC/"
    )
    assert by_flops.title.startswith(
        "What no cheaper sparse training equals: at 90 % zeros GMP over 3, 6 and 12 epochs"
    )
    assert "AC/DC 89.12 ± 0.14 at 3, 92.45 ± 0.14 at 6, 94.12 ± 0.14 at 12" in by_epochs.alt


def test_a_panel_for_each_sparsity_has_a_line_for_each_method_and_dense_training(folders: list[Path]) -> None:
    budgets = budgets_of(read_runs(expand(folders)))
    assert [(budget.epochs, budget.steps) for budget in budgets] == [(3, 66), (6, 132), (12, 264)]
    panels = panels_of(budgets)
    assert [panel.level.sparsity for panel in panels] == [0.9, 0.95]
    for panel in panels:
        assert [line.name for line in panel.lines] == ["AC/DC", "GMP", "chosen", "dense"]
        for line in panel.lines:
            assert [point.budget.epochs for point in line.points] == list(BUDGETS)
    acdc = panels[0].lines[0]
    assert acdc.points[1].standing.score.values == pytest.approx([0.92353, 0.92553], abs=1e-5)
    assert acdc.points[1].dense_epochs == pytest.approx(6 * 0.55)
    assert count_leads(panels[0], budgets) == {"AC/DC": 3}
    numbers = [one.group.number for budget in budgets for one in budget.standings]
    assert len({*numbers}) == len(numbers)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_axes_show_every_budget_with_its_steps(folders: list[Path], narrow: bool) -> None:
    by_epochs, by_flops = composed(folders).charts
    figure = by_epochs.draw(narrow)
    assert len(figure.axes) == 2
    for number, axes in enumerate(figure.axes):
        assert axes.get_xscale() == "log"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["3\n66", "6\n132", "12\n264"]
        assert {*names_in(figure, number)} == {"AC/DC", "GMP", "chosen", "dense"}
        assert axes.get_xlabel() == "training budget (epochs; below: steps)\nbars: ± std over seeds"
    flops = by_flops.draw(narrow).axes[0]
    assert "dense epochs" in flops.get_xlabel()
    assert {"1", "10"} <= {text.get_text() for text in flops.get_xticklabels()}


def test_the_tables_have_a_column_for_each_budget_and_dense_training_once(folders: list[Path]) -> None:
    accuracy, flops = composed(folders).tables
    assert accuracy.header == ["method", "zeros", "3 epochs", "6 epochs", "12 epochs", "seeds"]
    assert [row[:2] for row in accuracy.rows[:3]] == [["AC/DC", "90 %"], ["GMP", "90 %"], ["chosen", "90 %"]]
    assert accuracy.rows[0][2:] == ["89.12 ± 0.14", "92.45 ± 0.14", "94.12 ± 0.14", "2"]
    assert [row[:2] for row in accuracy.rows if row[0] == "dense"] == [["dense", "none"]]
    assert flops.rows[-1] == ["dense", "none", "1.00x", "1.00x", "1.00x", "2"]
    assert flops.rows[0][2:5] == ["0.40x", "0.55x", "0.55x"], "one of 3 epochs is dense"


def test_a_method_that_lacks_a_budget_is_named_and_has_no_point_there(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path)
    for run in folders[1].glob("gmp-*"):
        shutil.rmtree(run)
    report = composed(folders)
    assert "No complete run of GMP over 6 epochs, at 90 % zeros and 95 % zeros." in report.notes
    gmp = next(row for row in report.tables[0].rows if row[0] == "GMP")
    assert gmp[3] == "–"
    assert gmp[2] != "–"
    budgets = budgets_of(report.runs)
    line = next(line for line in panels_of(budgets)[0].lines if line.name == "GMP")
    assert [point.budget.epochs for point in line.points] == [3, 12]
    figure = report.charts[0].draw(False)
    assert {"GMP", "AC/DC"} <= {*names_in(figure, 0)}
    widths = [len(np.unique(line.get_xdata())) for line in figure.axes[0].lines]
    assert sorted(widths)[-3:] == [1, 3, 3], "AC/DC and dense; no chord over the budget that GMP lacks"


def test_dense_training_may_be_of_some_budgets_or_none(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path)
    for run in [*folders[0].glob("dense-*"), *folders[1].glob("dense-*")]:
        shutil.rmtree(run)
    assert "No complete run of dense over 3 and 6 epochs." in composed(folders).notes
    for run in folders[2].glob("dense-*"):
        shutil.rmtree(run)
    report = composed(folders)
    assert not [note for note in report.notes if "No complete" in note]
    assert {*names_in(report.charts[0].draw(False), 0)} == {"AC/DC", "GMP"}


def test_a_sparsity_of_one_budget_alone_is_in_the_table_and_has_no_panel(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path)
    for folder in folders[:2]:
        for run in folder.glob("*-95-*"):
            shutil.rmtree(run)
    report = composed(folders)
    assert len(report.charts[0].draw(False).axes) == 1
    assert not [note for note in report.notes if "No complete" in note], "nobody has it over 3 or 6 epochs"
    (gmp,) = (row for row in report.tables[0].rows if row[:2] == ["GMP", "95 %"])
    assert gmp[2:4] == ["–", "–"]
    assert gmp[4] != "–"


def test_a_single_seed_has_no_deviation_and_no_bar(tmp_path: Path) -> None:
    report = composed(make_budgets(tmp_path, seeds=(0,)))
    assert report.tables[0].rows[0][2:] == ["89.02", "92.35", "94.02", "1"]
    assert "bars" not in report.charts[0].draw(False).axes[0].get_xlabel()


def test_runs_that_crashed_are_named_with_their_comparison(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path, seeds=(0, 1, 2))
    lost, cut = folders[0] / "gmp-90-seed1", folders[1] / "gmp-90-seed1"
    for file in ("metrics.jsonl", "result.json"):
        (lost / file).unlink()
    lost.with_name(f"{lost.name}.log").write_text("acdc: the loss is not finite\n")
    (cut / "result.json").unlink()
    path, notes = make(folders, tmp_path / "report.html")
    assert (
        "budget-3/gmp-90-seed1 is left out: none of its epochs has ended; its log ends: acdc: the loss is not finite"
        in notes
    )
    assert "budget-6/gmp-90-seed1 is left out: it has finished epoch 6 of 6" in notes
    assert '<figure id="budget"' in path.read_text(encoding="utf-8")
    complete = composed([*folders[2:], folders[1]])
    rows = {row[0]: row for row in complete.tables[0].rows if row[1] == "90 %"}
    assert rows["GMP"][-1] == "2–3"
    assert rows["AC/DC"][-1] == "3"


def test_a_collapse_is_shown_at_the_edge_and_compresses_nothing(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path, sparsities=(0.9,))
    for folder in folders:
        for file in folder.glob("*/result.json"):
            result = json.loads(file.read_text())
            for model in result["models"]:
                collapsed = "acdc" in file.parent.name and folder is folders[0]
                model["test_accuracy"] = 0.1 if collapsed else model["test_accuracy"] - 0.2
            file.write_text(json.dumps(result))
    (axes,) = composed(folders).charts[0].draw(False).axes
    assert axes.get_ylim()[0] > 60
    assert "▽: below" in axes.get_title("left")
    assert budget_lines._lowest_in_sight([0.1, 0.1, 0.7, 0.75, 0.8, 0.9]) == 0.7
    assert budget_lines._lowest_in_sight([0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) == 0.4


def test_ticks_that_would_touch_are_left_out(tmp_path: Path) -> None:
    folders = [make_comparison(tmp_path / f"{n}", ["acdc", "gmp"], [0.9], [0], epochs=n) for n in (4, 30, 31, 40)]
    axes = composed(folders).charts[0].draw(False).axes[0]
    shown = [text.get_text().partition("\n")[0] for text in axes.get_xticklabels()]
    assert shown[:2] == ["4", "30"]
    assert "31" not in shown


def test_a_budget_in_two_folders_has_the_seeds_of_both(folders: list[Path], tmp_path: Path) -> None:
    more = make_comparison(tmp_path / "more", ["acdc"], [0.9], [2], epochs=6)
    report = composed([*folders, more])
    rows = {tuple(row[:2]): row for row in report.tables[0].rows}
    assert rows["AC/DC", "90 %"][-1] == "2–3"
    assert report.commands[-1] == "acdc report runs/budget-3 runs/budget-6 runs/more runs/budget-12"
    assert report.commands[0] == "acdc compare-methods digits --out runs/budget-3"


def test_what_else_differs_between_budgets_is_said(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path, names=["acdc", "dense"], seeds=(0,))
    assert differing_settings(panels_of(budgets_of(read_runs(expand(folders))))) == []
    for file in folders[0].glob("*/config.json"):
        config = json.loads(file.read_text())
        config["recipe"]["optimizer"]["lr"] = 0.05
        file.write_text(json.dumps(config))
    assert "Not only epochs differ between budgets, but also optimizer.lr." in composed(folders).notes


def test_other_models_and_one_budget_are_no_sweep_over_budgets(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path, names=["acdc", "gmp"], seeds=(0,))
    assert not has_budgets(read_runs(expand(folders[:1])))
    assert composed(folders[:1]).charts[0].name == "frontier"
    for file in folders[0].glob("*/config.json"):
        config = json.loads(file.read_text())
        config["recipe"]["model"]["options"] = {"width": 7}
        file.write_text(json.dumps(config))
    assert not has_budgets(read_runs(expand(folders)))
    assert composed(folders).charts[0].name == "frontier"


def test_a_page_is_written_again_as_a_budget_grows_and_not_for_others(tmp_path: Path) -> None:
    folders = make_budgets(tmp_path, names=["acdc", "gmp"], seeds=(0,))
    path, _ = make(folders, tmp_path / "report.html")
    shutil.rmtree(folders[0] / "gmp-90-seed0")
    make(folders, path)
    assert "No complete run of GMP over 3 epochs" in path.read_text(encoding="utf-8")
    with pytest.raises(ReportError, match="a report of other runs"):
        make(folders[:2], path)


def test_the_figure_by_itself(folders: list[Path], tmp_path: Path) -> None:
    for name in ("budget", "budget-flops"):
        path, _ = make(folders, tmp_path / f"{name}.svg", "svg", name)
        content = path.read_bytes()
        make(folders, path, "svg", name)
        assert path.read_bytes() == content, "the same figure from the same runs"
    with pytest.raises(ReportError, match="--figure frontier: expected one of budget, budget-flops"):
        make(folders, tmp_path / "x.svg", "svg", "frontier")


def test_markdown_and_json_have_the_same(folders: list[Path], tmp_path: Path) -> None:
    text = make(folders, tmp_path / "report.md", "md")[0].read_text(encoding="utf-8")
    assert "| AC/DC | 90 % | 89.12 ± 0.14 | 92.45 ± 0.14 | 94.12 ± 0.14 | 2 |" in text
    found = json.loads(make(folders, tmp_path / "report.json", "json")[0].read_text(encoding="utf-8"))
    assert len({group["label"] for group in found["groups"]}) == len(found["groups"]) == 21
    assert "GMP, 90 % sparse, 6 epochs" in {group["label"] for group in found["groups"]}
