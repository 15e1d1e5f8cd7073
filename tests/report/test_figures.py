"""Figures say what they show, in words that follow from the data."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from acdc.report.compose import compose
from acdc.report.facts import Phase
from acdc.report.figures import bars, run_curves, theme, zeros
from acdc.report.figures.annotate import space_out
from acdc.report.figures.axes import name_phases
from acdc.report.figures.chart import Chart, inline_svg
from acdc.report.read import Run, read
from tests.report.runs import make_run, read_lines, write_lines


def titles(folder: Path) -> dict[str, str]:
    return {chart.name: chart.title for chart in compose([read(folder)]).charts}


def test_titles_state_the_finding(run: Path) -> None:
    said = titles(run)
    assert said["signature"] == "90 % sparse ends 2.5 points below the dense baseline: 96.0 % against 98.5 %"
    assert said["loss"] == "Training loss ends at 0.167, test loss at 0.183 (lowest 0.183 after epoch 12)"
    assert said["mask-change"] == (
        "The support settles: 25 % of the kept weights are new at compression 2, 10 % at the last"
    )
    assert re.fullmatch(
        r"The sparse model runs with 0\.10x of the dense FLOPs and was trained with 0\.\d\dx", said["flops"]
    )
    assert said["inactive"] == "10 % of the weights stay zero through the last dense phase; 5 % of the filters are dead"
    assert said["layers"] == "All layers end with 90 % zeros"
    assert said["magnitudes"].startswith("The last compression cuts at |w| = ")
    assert said["agreement"] == "The sparse model and its dense twin agree on 90.0 % of the test images"
    assert "memorization" not in said


def test_without_a_baseline_the_twin_is_what_sparse_is_set_against(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", sparse=0.981, twin=0.98)
    write_lines(run / "metrics.jsonl", [row for row in read_lines(run / "metrics.jsonl") if row["run"] != "dense"])
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text.replace("baseline.safetensors", "baseline-ema.safetensors"))
    assert titles(run)["signature"] == (
        "90 % sparse ends level with its dense twin, as far as one seed and 400 images can tell: 98.1 % against 98.0 %"
    )


def test_a_run_under_way_stands_and_does_not_end(run: Path) -> None:
    (run / "result.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[: 12 + 6]) + "\n")
    assert " stands " in titles(run)["signature"]
    assert "so far (epoch 6)" in titles(run)["signature"]


def test_dense_training_has_no_figures_of_masks(run: Path) -> None:
    write_lines(run / "metrics.jsonl", [row for row in read_lines(run / "metrics.jsonl") if row["run"] == "dense"])
    for name in ("phases.jsonl", "result.json", "predictions.safetensors"):
        (run / name).unlink()
    said = titles(run)
    assert set(said) == {"signature", "loss"}
    assert said["signature"].startswith("Dense training stands at 98.5 %")


def test_masks_that_keep_moving_are_not_said_to_settle(run: Path) -> None:
    ends = read_lines(run / "phases.jsonl")
    for end in ends:
        end["regrown"] = 0.3 if end["regrown"] is not None else None
    write_lines(run / "phases.jsonl", ends)
    assert titles(run)["mask-change"].startswith("The support keeps moving: 30 %")


def test_masks_inside_one_another_do_not_move(run: Path) -> None:
    """As while the sparsity rises: positions change, though no kept weight is new; the axis has room for them."""
    ends = read_lines(run / "phases.jsonl")
    for end in ends:
        if end["regrown"] is not None:
            end["regrown"], end["mask_change"] = 0.0, 24.7
    write_lines(run / "phases.jsonl", ends)
    chart = next(chart for chart in compose([read(run)]).charts if chart.name == "mask-change")
    assert chart.title == "No weight enters the support again: every mask is a part of the one before"
    assert chart.draw(False).axes[0].get_ylim()[1] > 24.7


@pytest.mark.parametrize(("sparsities", "patched"), [((0.9, 0.9), False), ((0.1, 0.7), True)])
def test_a_phase_is_named_on_what_fills_it_or_on_a_patch(sparsities: tuple[float, float], patched: bool) -> None:
    phase = Phase(name="compressed", kind="sparse", first=0, last=9, score=0.9, best=0.9, sparsity=sparsities[-1],
                  flops=1, seconds=1.0, end=None)  # fmt: skip
    figure = Figure(figsize=(6, 1))
    axes = figure.add_axes((0, 0, 1, 1))
    name_phases(axes, [phase], 50, fills=[[100 * share for share in sparsities]])
    assert (axes.texts[0].get_bbox_patch() is not None) == patched


def test_weights_that_all_come_back_are_said_so(run: Path) -> None:
    rows = read_lines(run / "metrics.jsonl")
    for row in rows:
        row["sparsity"] = 0.0 if row["kind"] == "dense" else row["sparsity"]
    write_lines(run / "metrics.jsonl", rows)
    ends = read_lines(run / "phases.jsonl")
    for end in ends:
        end["dead_filters"] = dict.fromkeys(end["size"], 0)
    write_lines(run / "phases.jsonl", ends)
    report = compose([read(run)])
    assert "inactive" not in {chart.name for chart in report.charts}  # an empty axis shows nothing
    (phases,) = (table for table in report.tables if table.name == "phases")
    assert "Every weight came back to life in the dense phases after the first, and no filter died." in phases.note
    ends[2]["dead_filters"] = dict.fromkeys(ends[2]["size"], 1)
    write_lines(run / "phases.jsonl", ends)
    assert titles(run)["inactive"].startswith("Every weight comes back to life in the last dense phase; ")


def test_an_axis_of_few_dead_weights_fits_them(run: Path) -> None:
    rows, ends = read_lines(run / "metrics.jsonl"), read_lines(run / "phases.jsonl")
    for row in rows:
        row["sparsity"] = 0.0004 if row["kind"] == "dense" else row["sparsity"]
    for end in ends:
        end["dead_filters"] = dict.fromkeys(end["size"], 0)
    write_lines(run / "metrics.jsonl", rows)
    write_lines(run / "phases.jsonl", ends)
    chart = run_curves.inactive(read(run))
    assert chart is not None
    assert chart.draw(False).axes[0].get_ylim()[1] < 0.1


def test_an_accuracy_axis_over_the_error_s_logarithm_says_so(run: Path) -> None:
    above = run_curves.signature(read(run)).draw(False).axes[0]
    said = above.get_title("left")
    assert (above.get_yscale() == "log") == said.endswith(", log scale of the error")
    rows = read_lines(run / "metrics.jsonl")
    for number, row in enumerate(rows):
        row["test_accuracy"] = 0.91 + 0.08 * number / len(rows)
    write_lines(run / "metrics.jsonl", rows)
    above = run_curves.signature(read(run)).draw(False).axes[0]
    assert above.get_yscale() == "log"
    assert above.get_title("left") == "test accuracy (%), log scale of the error"


@pytest.mark.parametrize("narrow", [False, True])
def test_a_heat_map_has_its_numbers_on_a_phone_too(run: Path, narrow: bool) -> None:
    chart = zeros.layers(read(run))
    assert chart is not None
    said = [text.get_text() for text in chart.draw(narrow).axes[0].texts]
    assert "90" in said


def test_no_single_cut_is_claimed_where_layers_have_their_own(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"distribution": "global"', '"distribution": "uniform"'))
    assert titles(run)["magnitudes"] == "Kept weights are the large ones: 90 % are 0"


def test_memorization_is_drawn_where_it_was_measured(run: Path) -> None:
    rows = read_lines(run / "metrics.jsonl")
    for row in rows:
        row["memorization"] = {"memorised": 0.1 if row["kind"] == "sparse" else 0.7, "true": 0.25, "other": 0.05}
    write_lines(run / "metrics.jsonl", rows)
    assert titles(run)["memorization"] == "Dense phases memorise 70 % of the random labels, compressed ones 10 %"


FIGURES: list[Callable[[Run], Chart | None]] = [
    run_curves.signature,
    run_curves.loss,
    run_curves.inactive,
    zeros.mask_change,
    zeros.layers,
    zeros.magnitudes,
    run_curves.flops,
    bars.agreement,
    run_curves.memorization,
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_every_figure_is_a_picture_with_words(run: Path, figure: Callable[[Run], Chart | None]) -> None:
    rows = read_lines(run / "metrics.jsonl")
    for row in rows:
        row["memorization"] = {"memorised": 0.1, "true": 0.25, "other": 0.65}
    write_lines(run / "metrics.jsonl", rows)
    chart = figure(read(run))
    assert chart is not None
    svg = inline_svg(chart)
    drawn = re.findall(r"<svg.*?</svg>", svg, re.DOTALL)
    assert len(drawn) == (2 if chart.wide else 1)
    for one in drawn:
        root = ElementTree.fromstring(one)  # well-formed by itself
        assert root.get("role") == "img"
        assert root.get("aria-label") == f"{chart.title}. {chart.alt}"
        assert root.findtext("desc") == f"{chart.title}. {chart.alt}"
        letters = " ".join(element.text or "" for element in root.iter("text"))
        assert "epoch" in letters or "compression" in letters or "(" in letters, "an axis says what it counts"
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert not colours, f"each colour follows the theme, these do not: {colours}"
    assert "DejaVu" not in svg, "letters are of the reader's own font"


def test_ids_of_a_page_s_figures_do_not_meet(run: Path) -> None:
    """A clip path that is hidden with its figure would hide another figure's lines."""
    text = "".join(inline_svg(chart) for chart in compose([read(run)]).charts)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([\w-]+)', text)) <= set(ids)


def test_the_same_run_gives_the_same_figure(run: Path) -> None:
    one, other = (inline_svg(run_curves.signature(read(run))) for _ in range(2))
    assert one == other


# Colours


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_letters_and_lines_can_be_seen_in_both_themes(colours: dict[str, str]) -> None:
    for name in ("ink", "muted", "sparse", "dense", "finetuned"):
        for ground in ("page", "panel", "shade"):
            assert contrast(colours[name], colours[ground]) >= 4.4, (name, ground)
    for name in [name for name in colours if name.startswith("series-")]:
        assert contrast(colours[name], colours["page"]) >= 4.5, name


def test_a_colour_has_one_name() -> None:
    assert len(set(theme.LIGHT.values())) == len(theme.LIGHT)
    assert theme.LIGHT.keys() == theme.DARK.keys()


# Labels


@pytest.mark.parametrize("wanted", [[0, 0, 0], [95, 96, 97], [0, 50, 100], [10, 12, 60], [99, 99]])
def test_labels_are_moved_apart_and_stay_inside(wanted: list[float]) -> None:
    placed = space_out(wanted, 12, 100)
    assert all(other - one >= 12 - 1e-9 for one, other in pairwise(placed))
    assert max(placed) <= 100
