"""The paper's four panels of memorization: what is read of runs, and what is drawn and said of them."""

import json
from pathlib import Path

import numpy
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from acdc.report.figures.memorization_panels import Curve, draw_panels, read_curves, title
from tests.report.runs import recipe_of, row, write_lines


def run_folder(
    folder: Path, sparsity: float, seed: int = 0, *, crop: int = 0, baseline: bool = True, shift: float = 0.0
) -> Path:
    """Two dense epochs and two compressed ones, after four of the baseline."""
    folder.mkdir()
    recipe = recipe_of([f"method.sparsity={sparsity}", f"data.crop={crop}", "data.flip=false"], seed)
    (folder / "config.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    rows = []
    for stage in ("dense", "acdc", "finetune")[0 if baseline else 1 :]:
        for epoch in range(4):
            kind = "sparse" if stage == "acdc" and epoch > 1 else "dense"
            shares = {
                "memorised": (0.2 if kind == "sparse" else 0.9) + shift,
                "true": 0.7 if kind == "sparse" else 0.05,
            }
            rows.append({**row(stage, epoch, kind, kind, 0.0, 0.9, 4), "memorization": shares})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def test_curves_of_runs(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / "a", 0.95),
        run_folder(tmp_path / "b", 0.5),
        run_folder(tmp_path / "c", 0.95, seed=1, baseline=False, shift=0.04),
        run_folder(tmp_path / "d", 0.95, crop=4, baseline=False),
    ]
    curves = read_curves(runs)
    assert [(c.augmented, c.sparsity, c.seeds) for c in curves] == [
        (False, 0.0, 1),  # once, though two runs of this seed hold it
        (False, 0.5, 1),
        (False, 0.95, 2),
        (True, 0.95, 1),
    ]
    assert curves[2].memorised == pytest.approx((0.92, 0.92, 0.22, 0.22))
    assert curves[2].kinds == ("dense", "dense", "sparse", "sparse")
    assert [c.name for c in curves[:3]] == ["dense", "50 %", "95 %"]


def test_a_line_cut_short_ends_the_curve(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 0.9, baseline=False)
    text = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(text[:3]) + text[3][:20])
    assert len(read_curves([run])[0].true) == 3


def test_runs_without_memorization_are_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 0.9)
    write_lines(run / "metrics.jsonl", [row("acdc", 0, "dense", "dense", 0.0, 0.9, 4)])
    with pytest.raises(ValueError, match="has no memorization"):
        read_curves([run])


def curve(sparsity: float, augmented: bool, memorised: list[float], true: list[float]) -> Curve:
    kinds = ("dense", "sparse", "dense", "sparse") if sparsity else ("dense",) * 4
    return Curve(sparsity=sparsity, augmented=augmented, kinds=kinds, memorised=tuple(memorised), true=tuple(true))


CURVES = [
    curve(0.0, False, [0.2, 0.9, 1.0, 1.0], [0.5, 0.1, 0.0, 0.0]),
    curve(0.9, False, [0.2, 0.1, 0.9, 0.125], [0.5, 0.8, 0.1, 0.75]),
    curve(0.0, True, [0.1, 0.2, 0.4, 0.6], [0.5, 0.7, 0.5, 0.3]),
    curve(0.9, True, [0.1, 0.05, 0.1, 0.05], [0.5, 0.8, 0.7, 0.9]),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they are written."""
    found: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (found.append(self), real(self, *args, **kw)))
    return found


@pytest.fixture
def figure(tmp_path: Path, drawn: list[Figure]) -> Figure:
    for name in ("panels.svg", "again.svg"):
        draw_panels(CURVES, tmp_path / name)
    assert (tmp_path / "panels.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    return drawn[0]


def test_four_panels_with_units_phases_and_names_at_the_lines(figure: Figure) -> None:
    labels = [panel.get_title(loc="left") for panel in figure.axes]
    assert labels == ["assigned to their true class (%)", "memorised: given their random label (%)"] * 2
    assert [panel.get_xlabel() for panel in figure.axes] == ["", "epochs trained"] * 2
    for panel in figure.axes:
        assert len(panel.lines) == 2
        shades = [shade for shade in panel.patches if isinstance(shade, Rectangle)]
        assert [(shade.get_x(), shade.get_width()) for shade in shades] == [(1, 1), (3, 1)], "compressed"
        words = [text.get_text() for text in panel.texts]
        assert {"dense", "90 %", "sparsity"} <= set(words)
        assert words[-4:] == ["warm-up", "compressed", "decompressed", "compressed"]
    heads = [text.get_text() for text in figure.texts]
    assert heads[:2] == ["Without augmentation", "With augmentation"]
    assert heads[2].endswith("One seed. Shaded: compressed phases.")


def test_short_phases_have_letters_that_are_explained(tmp_path: Path, drawn: list[Figure]) -> None:
    kinds = (("dense",) * 20 + ("sparse",) * 20) * 5
    one = Curve(sparsity=0.9, augmented=False, kinds=kinds, memorised=(0.5,) * 200, true=(0.4,) * 200, seeds=3)
    draw_panels([one], tmp_path / "one.svg")
    assert [text.get_text() for text in drawn[0].axes[0].texts][-10:] == list("WCDCDCDCDC")
    note = " ".join(drawn[0].texts[1].get_text().split())
    assert note.endswith("Means over 3 seeds. Shaded: compressed phases. W: warm-up, C: compressed, D: decompressed.")


def test_the_true_class_is_above_and_without_augmentation_left(figure: Figure) -> None:
    drawn = [[numpy.asarray(line.get_ydata()).tolist() for line in panel.lines] for panel in figure.axes]
    shares = lambda curve, key: [100 * share for share in getattr(curve, key)]  # noqa: E731
    assert drawn == [
        [shares(c, key) for c in side] for side in (CURVES[:2], CURVES[2:]) for key in ("true", "memorised")
    ]
    above, below, right, _ = (panel.get_position() for panel in figure.axes)
    assert above.y0 > below.y1
    assert above.x1 < right.x0


def test_the_title_says_what_the_numbers_are_and_no_more() -> None:
    assert title(CURVES) == (
        "At 90 % sparsity the final compressed phase ends with 75 % of the randomly labelled images in their true "
        "class, the last dense phase with 10 %; with augmentation 90 % and 70 %"
    )
    other = curve(0.9, False, [0.2, 0.9, 0.9, 0.99], [0.5, 0.0, 0.4, 0.01])
    assert "ends with 1 % of the randomly labelled images in their true class, the last dense phase with 40 %" in title(
        [*CURVES[:1], other]
    )
    assert title(CURVES[2:]).startswith("With augmentation, at 90 % sparsity the final compressed phase ends with 90 %")
    assert title(CURVES[:1]) == "Dense training ends with 0 % of the randomly labelled images in their true class"


def test_a_picture_tells_its_numbers_in_words(tmp_path: Path) -> None:
    draw_panels(CURVES, tmp_path / "panels.svg")
    text = (tmp_path / "panels.svg").read_text()
    assert "90 %, without augmentation: the last dense epoch 10 % in their true class and 90 % memorised, " in text
    assert "the last compressed epoch 75 % in their true class and 12.5 % memorised" in text


@pytest.mark.parametrize("curves", [CURVES[:1], CURVES[1:2], CURVES[2:]])
def test_some_of_the_panels(curves: list[Curve], tmp_path: Path) -> None:
    draw_panels(curves, tmp_path / "some.svg")
    assert (tmp_path / "some.svg").stat().st_size > 1000


def test_no_curves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one; pass those of read_curves"):
        draw_panels([], tmp_path / "none.svg")
