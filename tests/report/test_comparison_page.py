"""The page of a comparison: its figures and tables, within bounds, and whole where a run is not."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from acdc.report.compose import compose
from acdc.report.figures import axes as figure_axes
from acdc.report.figures import frontier, theme
from acdc.report.figures.annotate import Box, Mark, label_marks
from acdc.report.groups import group_runs
from acdc.report.read import ReportError, Run, expand, read, read_runs
from acdc.report.standings import standings_of
from acdc.report.write import make
from tests.report.comparisons import make_comparison


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("comparison") / "c")


@pytest.fixture(scope="module")
def runs(out: Path) -> list[Run]:
    return read_runs(expand([out]))


def test_the_page_of_54_runs_has_everything_and_is_small(out: Path) -> None:
    path, notes = make([out])
    assert path == out / "report.html"
    assert path.stat().st_size < 2_000_000
    assert [note for note in notes if "phases.jsonl" not in note] == []
    text = path.read_text(encoding="utf-8")
    assert re.findall(r'<figure id="([\w-]+)"', text) == ["frontier", "by-method", "curves", "losses"]
    for name in ("several", "agreement", "settings", "own", "seeds"):
        assert f'id="table-{name}"' in text
    assert text.count('<table class="sortable">') == 3
    assert "acdc compare-methods digits" in text


def test_titles_say_the_finding(runs: list[Run]) -> None:
    report = compose(runs)
    assert report.title == (
        "At 90 % zeros AC/DC ends highest, with 93.8 ± 0.2 %; at 95 % zeros AC/DC with 93.6 ± 0.2 %; dense training "
        "with 98.7 ± 0.2 %"
    )
    assert report.subtitle == "54 runs: 10 methods, 3 seeds each, digits_net on digits, 12 epochs"
    titles = {chart.name: chart.title for chart in report.charts}
    assert titles["frontier"].endswith("at 90 % zeros AC/DC (93.8 % for 0.55x); at 95 % zeros AC/DC (93.6 % for 0.53x)")
    assert titles["curves"] == (
        "Test accuracy over the epochs: at 90 % zeros AC/DC ends highest, at 93.8 %; at 95 % zeros AC/DC ends highest, "
        "at 93.6 %; dense training ends at 98.7 %"
    )
    assert titles["by-method"].startswith("Test accuracy by method: from best to worst 3.2 points at 90 % zeros")


def test_the_same_page_for_the_folder_and_for_its_runs(out: Path, runs: list[Run]) -> None:
    whole = compose(runs)
    each = compose(read_runs(expand(sorted(path.parent for path in out.glob("*/config.json")))))
    assert whole.title == each.title
    assert len(each.groups) == len(whole.groups)


def test_a_run_of_a_comparison_by_itself_has_the_page_of_a_run(out: Path) -> None:
    assert make([out / "acdc-90-seed0"])[0].read_text().count('<figure id="signature"') == 1


def test_the_frontier_is_what_nothing_cheaper_equals(runs: list[Run]) -> None:
    standings = standings_of(group_runs(runs))
    at_90 = [one for one in standings if one.level.sparsity == 0.9]
    front = frontier.best_methods(at_90, frontier.training_cost([one.group for one in standings]))
    assert [one.group.name for one in front] == ["STR", "GMP", "AC/DC", "dense"]


def test_accuracy_can_be_set_against_another_cost(runs: list[Run]) -> None:
    standings = standings_of(group_runs(runs))
    inference = frontier.Cost("inference FLOPs", "fraction of dense", "its inference FLOPs", lambda one: one.inference)
    chart = frontier.method_frontier(standings, inference)
    assert chart is not None
    assert chart.title.startswith("Most accurate, and its inference FLOPs: at 90 % zeros AC/DC (93.8 % for 0.10x)")
    assert {axes.get_xlabel() for axes in chart.draw(False).axes} == {"inference FLOPs (fraction of dense)"}


def test_a_run_that_failed_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    out = make_comparison(tmp_path / "c", ["acdc", "gmp"], [0.9])
    (out / "gmp-90-seed1" / "result.json").unlink()
    (out / "gmp-90-seed2" / "metrics.jsonl").unlink()
    (out / "gmp-90-seed2" / "result.json").unlink()
    (out / "gmp-90-seed2.log").write_text("acdc: the loss is not finite\n")
    path, notes = make([out])
    assert "gmp-90-seed1 is left out: it has finished epoch 12 of 12" in notes
    assert "gmp-90-seed2 is left out: none of its epochs has ended; its log ends: acdc: the loss is not finite" in notes
    text = path.read_text()
    assert "gmp-90-seed2 is left out" in text
    assert '<figure id="frontier"' in text
    report = compose([read(out / name) for name in ("acdc-90-seed0", "gmp-90-seed0", "gmp-90-seed1")])
    assert [len(group.runs) for group in report.groups] == [1, 1]


def test_runs_that_have_not_begun_are_named_in_one_line(tmp_path: Path) -> None:
    out = make_comparison(tmp_path / "c", ["acdc", "gmp", "set", "static"], [0.9])
    for name in ("gmp", "set", "static"):
        for file in ("metrics.jsonl", "result.json"):
            (out / f"{name}-90-seed1" / file).unlink()
            if name != "static":
                (out / f"{name}-90-seed2" / file).unlink(missing_ok=file == "result.json")
    (out / "acdc-90-seed1" / "result.json").unlink()
    path, notes = make([out])
    assert (
        "Left out because they have not begun: gmp-90-seed1, gmp-90-seed2, set-90-seed1, set-90-seed2, static-90-seed1"
        in notes
    )
    assert sum("not begun" in note for note in notes) == 1
    assert path.read_text().count("gmp-90-seed1") == 1


def test_many_notes_are_folded(tmp_path: Path) -> None:
    out = make_comparison(tmp_path / "c", ["acdc", "gmp", "set"], [0.9])
    for name in ("gmp", "set"):
        for seed in range(3):
            (out / f"{name}-90-seed{seed}" / "result.json").unlink()
    path, notes = make([out])
    assert len(notes) > 4
    assert f"<summary>{len(notes) - 4} more</summary>" in path.read_text()


def test_a_comparison_with_nothing_complete_has_no_page(tmp_path: Path) -> None:
    out = make_comparison(tmp_path / "c", ["acdc"], [0.9], [0])
    (out / "acdc-90-seed0" / "result.json").unlink()
    with pytest.raises(ReportError, match="no run of this comparison is complete yet"):
        make([out])


@pytest.mark.parametrize("names", [["dense"], ["acdc"], ["str"]])
def test_one_method_alone_has_a_page(tmp_path: Path, names: list[str]) -> None:
    path, _ = make([make_comparison(tmp_path / "c", names, [0.9], [0])])
    assert 'id="table-several"' in path.read_text()


def test_a_page_is_replaced_as_the_comparison_grows_and_by_no_other(tmp_path: Path) -> None:
    out = make_comparison(tmp_path / "c", ["acdc"], [0.9], [0])
    path, _ = make([out])
    held = json.loads((out / "comparison.json").read_text())
    (out / "comparison.json").write_text(json.dumps(held | {"commands": ["again"]}))
    make([out])
    (out / "comparison.json").write_text(json.dumps(held | {"started": "2027"}))
    with pytest.raises(ReportError, match="a report of other runs"):
        make([out], path)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_frontier_by_itself_is_as_wide_as_a_readme(out: Path, tmp_path: Path, kind: str) -> None:
    path, _ = make([out], tmp_path / f"frontier.{kind}", kind, "frontier")
    content = path.read_bytes()
    make([out], tmp_path / f"frontier.{kind}", kind, "frontier")
    if kind == "png":
        width, _ = struct.unpack(">II", content[16:24])
        assert width == pytest.approx(2 * 800, abs=40)
    else:
        assert path.read_bytes() == content, "the same figure from the same runs"
        width = re.search(rb'width="([\d.]+)pt"', content)
        assert width is not None
        assert float(width[1]) == pytest.approx(800, abs=20)


def test_a_figure_that_is_not_there_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="--figure layers: expected one of frontier, by-method, curves, losses"):
        make([out], tmp_path / "x.svg", "svg", "layers")


@pytest.mark.parametrize("crowd", [1, 6, 12])
def test_names_cover_neither_each_other_nor_a_mark(crowd: int) -> None:
    """Twelve methods, `crowd` of them all but in one place."""
    style: Any = theme.STYLE  # matplotlib's stub lists every key
    with mpl.rc_context(style):
        figure = figure_axes.new_figure(480, 340)
        axes = figure_axes.add_panel(figure, "", left=36, right=8, top=24, height=280)
        axes.set_xlim(0, 1.1)
        axes.set_ylim(0, 100)
        places = [(0.1 + 0.001 * n, 80 + 0.3 * n) if n < crowd else (0.2 + 0.07 * n, 20 + 5 * n) for n in range(12)]
        marks = [Mark(x, y, f"Method {n}", "black", (x, x, y - 1, y + 1)) for n, (x, y) in enumerate(places)]
        boxes = label_marks(axes, marks)
    for index, box in enumerate(boxes):
        assert box.excess(axes.bbox.width, axes.bbox.height) == 0, index
        assert all(box.overlap(other) == 0 for other in boxes[index + 1 :]), index
        for mark in marks:
            x, y = axes.transData.transform((mark.x, mark.y)) - (axes.bbox.x0, axes.bbox.y0)
            assert box.overlap(Box(x - 4, x + 4, y - 4, y + 4)) == 0, (index, mark.text)
