"""What becomes of random labels: shares by hand, views as in training, and the paper's four panels."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acdc.data.images import ImageData, Images, hold_out
from acdc.data.labels import corrupt
from acdc.measure.memorization import Curve, Memorization, draw_panels, read_curves


def data(count: int = 40) -> ImageData:
    """Every image is of one brightness, and that is its number."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    images = Images(pixels, torch.arange(count) % 5)
    return ImageData(name="grey", classes=5, train=images, test=images, mean=(0.0,), std=(1.0,), scale=1.0)


class Says(nn.Module):
    """Answers by a table over image numbers, read from the middle of the image."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table, self.bn = nn.functional.one_hot(table, 5).float(), nn.BatchNorm1d(1)
        self.views: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.views.append(images)
        return self.table[images[:, 0, 2, 2].round().long()]


def spoiled(kind: str = "always-wrong", count: int = 10) -> ImageData:
    return corrupt(data(), count, seed=1, kind=kind)  # pyright: ignore[reportArgumentType]


def table_of(found: ImageData, memorised: int, true: int) -> Tensor:
    """The first samples as the random label says, the next as the truth, the rest as neither."""
    index, given, real = (found.corrupted[key] for key in ("index", "given", "true"))
    table = torch.zeros(40, dtype=torch.int64)
    for place, (sample, wrong, right) in enumerate(zip(index, given, real, strict=True)):
        neither = next(label for label in range(5) if label not in (wrong, right))
        table[sample] = wrong if place < memorised else right if place < memorised + true else neither
    return table


# Measuring


def test_shares_by_hand() -> None:
    found = spoiled()
    shares = Memorization(found).measure(Says(table_of(found, 5, 3)))
    assert shares == {"memorised": 0.5, "true": 0.3, "other": pytest.approx(0.2)}


def test_random_labels_that_are_true_are_left_out() -> None:
    found = spoiled("uniform", 40)
    same = int((found.corrupted["given"] == found.corrupted["true"]).sum())
    assert same
    looked = Memorization(found)
    assert looked.samples == 40 - same
    table = torch.zeros(40, dtype=torch.int64).scatter(0, found.corrupted["index"], found.corrupted["given"])
    assert looked.measure(Says(table)) == {"memorised": 1, "true": 0, "other": 0}


def test_samples_set_aside_for_validation_are_not_looked_at() -> None:
    assert Memorization(hold_out(spoiled(count=30), 10)).samples < 30


def test_augmented_views_where_training_augments() -> None:
    found = spoiled()
    model = Says(table_of(found, 5, 3))
    looked = Memorization(found, crop=1, flip=True, seed=3)
    shares = looked.measure(model, epoch=7)
    assert list(shares) == ["memorised", "true", "other", "memorised_augmented", "true_augmented", "other_augmented"]
    assert [shares[f"{key}_augmented"] for key in ("memorised", "true")] == [0.5, 0.3]
    plain, augmented = model.views
    assert (plain == plain[:, :, :1, :1]).all(), "whole images"
    assert not (augmented == augmented[:, :, 2:3, 2:3]).all(), "moved, with black at an edge"
    for epoch, same in ((7, True), (8, False)):
        looked.measure(model, epoch=epoch)
        assert torch.equal(model.views[-1], augmented) == same


def test_it_leaves_the_model_and_random_numbers_as_they_were() -> None:
    found = spoiled()
    model = Says(table_of(found, 5, 3)).train()
    model.bn.eval()
    random, entered = torch.get_rng_state(), []

    @contextmanager
    def noted():
        entered.append(True)
        yield

    Memorization(found, flip=True).measure(model, autocast=noted)
    assert (model.training, model.bn.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), random)
    assert entered == [True, True]


def test_the_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.measure.test_dynamics import counting_reads

    found = spoiled()
    looked, model = Memorization(found, crop=1), Says(table_of(found, 5, 3))
    with counting_reads(monkeypatch) as reads:
        looked.measure(model)
    assert reads == ["tolist"]


def test_data_without_random_labels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grey has no random labels, .*: set data.corrupt"):
        Memorization(data())


# Panels


def run_folder(
    folder: Path, sparsity: float, seed: int = 0, *, crop: int = 0, baseline: bool = True, shift: float = 0.0
) -> Path:
    """Two dense epochs and two compressed ones, after four of the baseline."""
    folder.mkdir()
    recipe = {
        "data": {"crop": crop, "flip": False},
        "method": {"sparsity": sparsity},
        "run": {"seeds": [seed]},
    }
    (folder / "config.json").write_text(json.dumps({"recipe": recipe}))
    rows = []
    for stage in ("dense", "acdc", "finetune")[0 if baseline else 1 :]:
        for epoch in range(4):
            kind = "sparse" if stage == "acdc" and epoch > 1 else "dense"
            shares = {
                "memorised": (0.2 if kind == "sparse" else 0.9) + shift,
                "true": 0.7 if kind == "sparse" else 0.05,
            }
            rows.append({"run": stage, "epoch": epoch, "kind": kind, "memorization": shares})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    assert [c.name for c in curves[:3]] == ["dense", "50 % sparse", "95 % sparse"]


def test_a_line_cut_short_ends_the_curve(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 0.9, baseline=False)
    text = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(text[:3]) + text[3][:20])
    assert len(read_curves([run])[0].true) == 3


def test_runs_without_memorization_are_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "a", 0.9)
    (run / "metrics.jsonl").write_text('{"run": "acdc", "epoch": 0, "kind": "dense", "memorization": null}\n')
    with pytest.raises(ValueError, match="says nothing of memorization"):
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


def test_four_panels_whose_titles_say_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (drawn.append(self), real(self, *args, **kw)))
    draw_panels(CURVES, tmp_path / "panels.svg")
    draw_panels(CURVES, tmp_path / "again.svg")
    assert (tmp_path / "panels.svg").read_text() == (tmp_path / "again.svg").read_text()
    axes = drawn[0].axes
    titles = [" ".join(panel.get_title(loc="left").split("\n")) for panel in axes]
    assert titles == [
        "Without augmentation: 75 % in their true class at 90 % sparsity dense baseline 0 %, last dense phase 10 %",
        "With augmentation: 90 % in their true class at 90 % sparsity dense baseline 30 %, last dense phase 70 %",
        "Without augmentation: 12 % memorised at 90 % sparsity dense baseline 100 %, last dense phase 90 %",
        "With augmentation: 5 % memorised at 90 % sparsity dense baseline 60 %, last dense phase 10 %",
    ]
    assert [len(panel.lines) for panel in axes] == [2] * 4
    assert [len(panel.patches) for panel in axes] == [2] * 4, "each compressed phase is shaded"
    assert all(panel.get_ylabel().endswith("(% of samples)") for panel in axes[::2])


@pytest.mark.parametrize("curves", [CURVES[:1], CURVES[1:2], CURVES[2:]])
def test_some_of_the_panels(curves: list[Curve], tmp_path: Path) -> None:
    draw_panels(curves, tmp_path / "some.svg")
    assert (tmp_path / "some.svg").stat().st_size > 1000


def test_no_curves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no curves to draw"):
        draw_panels([], tmp_path / "none.svg")
