"""Several runs: seeds together, settings apart, and nothing compared that cannot be."""

import json
import statistics
from pathlib import Path

import pytest

from acdc.report import facts, group_tables
from acdc.report.compose import compose
from acdc.report.figures import frontier
from acdc.report.groups import check_same_data, group_runs, say_once
from acdc.report.read import ReportError, expand, read, read_runs
from acdc.report.write import make
from tests.report.runs import add_remarks, make_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three seeds of one setting in a folder of their own, and another setting."""
    for seed, accuracy in enumerate((0.95, 0.96, 0.97)):
        make_run(tmp_path / "all" / f"seed-{seed}", seed=seed, sparse=accuracy)
    (tmp_path / "all" / "config.json").write_text(json.dumps({"recipe": {}}))
    other = make_run(tmp_path / "other", settings=["method.sparsity=0.95"], sparse=0.94)
    return [tmp_path / "all", other]


def test_runs_that_differ_only_in_the_seed_are_one_group(runs: list[Path]) -> None:
    found = group_runs(read_runs(expand(runs)))
    assert [(group.label, len(group.runs)) for group in found] == [("90 % sparse", 3), ("95 % sparse", 1)]
    assert [run.seed for run in found[0].runs] == [0, 1, 2]


def test_one_seed_twice_is_no_second_seed(tmp_path: Path) -> None:
    """Two trainings of one seed, or a copy: each stands by itself, and there is no deviation between them."""
    made = [make_run(tmp_path / name, seed=seed) for name, seed in (("one", 0), ("two", 1), ("again", 0))]
    found = group_runs(read_runs(made))
    assert [[run.name for run in group.runs] for group in found] == [["one", "two"], ["again"]]
    assert ["(one)" in found[0].label, "(again)" in found[1].label] == [True, True]


def test_how_often_a_run_was_saved_makes_no_other_setting(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one")
    other = make_run(tmp_path / "other", seed=1, settings=['run.checkpoint_every="3ep"'])
    assert len(group_runs([read(one), read(other)])) == 1


def test_a_setting_that_came_after_a_run_has_its_default_there(tmp_path: Path) -> None:
    """As in a config.json that an older version wrote: beside a newer run nothing differs but the seed."""
    new = make_run(tmp_path / "new", settings=["run.recalibrate=true"])
    old = make_run(tmp_path / "old", seed=1)
    config = json.loads((old / "config.json").read_text())
    recipe = config["recipe"]
    del recipe["rate"]["rewarm"], recipe["train"]["distill"], config["method"]["revive"]
    (old / "config.json").write_text(json.dumps(config))
    (one,) = group_runs([read(new), read(old)])
    assert [run.seed for run in one.runs] == [0, 1]


def test_a_knob_that_became_the_default_after_a_run_was_off_there(tmp_path: Path) -> None:
    new = make_run(tmp_path / "new", settings=["method.schedule="])
    old = make_run(tmp_path / "old", seed=1, settings=["method.schedule="])
    config = json.loads((old / "config.json").read_text())
    assert config["method"].pop("dropout") == "scaled"
    (old / "config.json").write_text(json.dumps(config))
    labels = [group.label for group in group_runs([read(new), read(old)])]
    assert labels == ["dropout scaled", "dropout kept"]


def test_a_label_names_no_more_than_it_needs(tmp_path: Path) -> None:
    """Of the knobs that follow from chosen phases only the one that two runs differ in."""
    paper = make_run(tmp_path / "paper", settings=['method.schedule="paper"'])
    lowered = make_run(tmp_path / "lowered", settings=["method.schedule="])
    kept = make_run(tmp_path / "kept", settings=["method.schedule="])
    config = json.loads((kept / "config.json").read_text())
    del config["method"]["dropout"]
    (kept / "config.json").write_text(json.dumps(config))
    labels = [group.label for group in group_runs([read(run) for run in (paper, lowered, kept)])]
    assert labels == [
        "schedule paper, dropout kept", "chosen phases, dropout scaled", "chosen phases, dropout kept"
    ]  # fmt: skip


def test_labels_say_what_differs(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", settings=["optimizer.lr=0.05"])
    other = make_run(tmp_path / "other", settings=["train.epochs=20", 'method.reset="all"'])
    labels = [group.label for group in group_runs([read(one), read(other)])]
    assert labels[0].startswith("12 epochs, ")
    assert "lr 0.05" in labels[0]
    assert "reset momentum" in labels[0]
    assert "reset all" in labels[1]


def test_labels_leave_out_what_follows_from_the_phases(tmp_path: Path) -> None:
    """The knobs of chosen phases are no settings of the runs, unless nothing else tells them apart."""
    paper = make_run(tmp_path / "paper", settings=['method.schedule="paper"'])
    chosen = make_run(tmp_path / "chosen", settings=["method.schedule="])
    edited = make_run(tmp_path / "edited", settings=["method.schedule=", "method.ramp=0.5"])
    assert [group.label for group in group_runs([read(paper), read(chosen)])] == ["schedule paper", "chosen phases"]
    labels = [group.label for group in group_runs([read(paper), read(chosen), read(edited)])]
    assert labels == ["schedule paper, ramp 0.0", "chosen phases, ramp 0.2", "chosen phases, ramp 0.5"]


def test_the_table_has_mean_and_deviation(runs: list[Path]) -> None:
    table = group_tables.all_settings(group_runs(read_runs(expand(runs))))
    assert table.sortable
    first = dict(zip(table.header, table.rows[0], strict=True))
    assert first["seeds"] == "3"
    assert first["sparse"] == f"96.00 ± {100 * statistics.stdev([0.95, 0.96, 0.97]):.2f}"
    assert first["inference FLOPs"] == "0.100x"
    assert dict(zip(table.header, table.rows[1], strict=True))["sparse"] == "94.00"


def test_the_page_of_several_has_its_figures(runs: list[Path], tmp_path: Path) -> None:
    path, notes = make(runs, tmp_path / "report.html")
    text = path.read_text()
    assert notes == []
    for name in ("curves", "frontier", "losses", "masks"):
        assert f'<figure id="{name}"' in text
    assert '<table class="sortable">' in text
    assert text.count('<article class="card"') == 2
    report = compose(read_runs(expand(runs)))
    assert report.title == "90 % sparse reaches 96.0 ± 1.0 % over 3 seeds, 2.5 points below the best dense model"


def test_seeds_alone_are_several_runs(runs: list[Path]) -> None:
    path, _ = make(runs[:1])
    assert path == runs[0] / "report.html"
    assert "3 seeds end within 2.0\u00a0points of each other" in path.read_text()


@pytest.mark.parametrize("kind", ["md", "json", "csv"])
def test_several_runs_in_other_forms(runs: list[Path], tmp_path: Path, kind: str) -> None:
    path, _ = make(runs, tmp_path / f"r.{kind}", kind)
    assert b"seed-2" in path.read_bytes()


def test_runs_of_other_data_are_refused_by_naming_the_difference(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", data="cifar10")
    with pytest.raises(
        ReportError, match=r'data\.name is "digits" in one and "cifar10" in the other; report them separately'
    ):
        make([one, other], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_runs_of_other_classes_are_refused(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", classes=20)
    with pytest.raises(ReportError, match="the number of classes is 10 in one and 20 in the other"):
        check_same_data([read(one), read(other)])


def test_runs_with_other_test_images_are_refused(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other", test=500)
    with pytest.raises(ReportError, match="the number of test images is 400 in one and 500 in the other"):
        check_same_data([read(one), read(other)])


def test_the_frontier_is_what_nothing_cheaper_equals(tmp_path: Path) -> None:
    good = make_run(tmp_path / "good", sparse=0.96, twin=0.95, baseline=0.98)
    bad = make_run(tmp_path / "bad", settings=["optimizer.lr=0.3"], sparse=0.90, twin=0.90, baseline=0.91)
    found = group_runs([read(good), read(bad)])
    front = frontier.best_points(frontier.points(found))
    assert [(point.group.number, point.role) for point in front] == [(0, "sparse"), (0, "baseline")]
    chart = frontier.setting_frontier(found)
    assert chart is not None
    assert "ends 2.0 points below the best dense model, with 0." in chart.title


def test_a_shorter_run_is_a_cheaper_one(tmp_path: Path) -> None:
    found = group_runs([read(make_run(tmp_path / str(n), settings=[f"train.epochs={n}"])) for n in (12, 24)])
    costs = {(p.group.number, p.role): p.cost for p in frontier.points(found)}
    assert costs[0, "baseline"] == pytest.approx(0.5)
    assert costs[1, "baseline"] == pytest.approx(1.0)


def test_a_note_says_of_which_run_it_is(runs: list[Path], tmp_path: Path) -> None:
    (runs[1] / "result.json").unlink()
    _, notes = make(runs, tmp_path / "report.html")
    assert any(note.startswith("other: This run is not complete") for note in notes)


def test_a_remark_is_made_once_with_the_runs_it_is_of(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in ("one", "other")]
    for unread, folder in zip((0, 3), folders, strict=True):
        add_remarks(folder, "it may surprise", unread=unread)
    assert say_once(read_runs(folders), facts.remarks) == [
        "Warning at start: it may surprise.",
        "other: Accuracies cover 397 of 400 test images: 3 cannot be read.",
    ]
