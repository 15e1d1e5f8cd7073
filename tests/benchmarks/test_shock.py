"""The study of decompressions: what is measured around a step, when a loss is back, and that runs are not repeated."""

from pathlib import Path

import pytest
from benchmarks.record import read

from benchmarks import remedies, shock, small_problems


def rows(after: list[float]) -> list[dict]:
    before = [{"step": step, "probe": 1.0} for step in range(-5, 0)]
    return [*before, *({"step": step, "probe": value} for step, value in enumerate([1.0, *after]))]


@pytest.mark.parametrize(
    ("after", "back"),
    [
        ([1.0] * 30, 0),
        ([3.0] * 5 + [1.0] * 30, 15),  # the mean of ten steps: .9 · 1 + .1 · 3 is too much, and ten of 1 are not
        ([3.0] * 30, None),
    ],
)
def test_a_loss_is_back_where_the_mean_of_ten_steps_is(after: list[float], back: int | None) -> None:
    assert shock.recovery(rows(after)) == (1.0, max(after), back)


def test_steps_before_and_after_a_decompression_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"STEPS": 4, "_WARM_UP": 3, "_SPARSE": 3, "_BEFORE": 2}.items():
        monkeypatch.setattr(shock, name, value)
    monkeypatch.setattr(shock, "draw", lambda rows, folder: [])
    file = tmp_path / "shock.jsonl"
    typed = ["--problems", "mlp", "--seeds", "0", "--remedies", "paper", "ramp", "--results", str(file)]
    for _ in range(2):
        assert shock.main([*typed, "--figures", str(tmp_path), "--commit", "none"]) == 0
    assert len(read(file)) == 4, "two rates, two remedies, measured once"
    high = [row for row in shock.rows_of(file) if row["rate"] == "high"]
    paper, ramp = ([row for row in high if row["remedy"] == remedy] for remedy in ("paper", "ramp"))
    assert [row["step"] for row in paper] == [-2, -1, 0, 1, 2, 3]
    assert [row["step_returning"] == 0 for row in paper] == [True, True, False, False, False, False]
    assert ramp[2]["step_returning"] == pytest.approx(paper[2]["step_returning"] / 4, rel=1e-3)
    assert ramp[2]["step_survivors"] == paper[2]["step_survivors"]


def test_remedies_go_on_where_they_stopped(tmp_path: Path) -> None:
    file = tmp_path / "remedies.jsonl"
    typed = ["--problems", "mlp", "--sparsities", "0.9", "--epochs", "4", "--results", str(file), "--commit", "none"]
    assert remedies.main([*typed, "--seeds", "0", "--variants", "default", "dense"]) == 0
    assert remedies.main([*typed, "--seeds", "0", "1", "--variants", "default", "paper + norms restored"]) == 0
    found = [(row["variant"], row["seed"]) for row in read(file)]
    assert sorted(found) == sorted(
        [("default", 0), ("dense", 0), ("default", 1), ("paper + norms restored", 0), ("paper + norms restored", 1)]
    )
    default, dense = read(file)[:2]
    assert default["zeros"] == pytest.approx(0.9, abs=1e-3)
    assert (dense["training"], dense["sparsity"]) == (1.0, 0.0)
    assert default["training"] < 0.6


@pytest.mark.parametrize("variant", [name for name in remedies.VARIANTS if name != "dense"])
def test_every_variant_can_be_built(variant: str) -> None:
    method, _ = remedies.build(variant, 0.9, 12)
    assert method is not None
    assert method.sparsity == 0.9


def test_cifar_needs_a_place() -> None:
    with pytest.raises(ValueError, match="cifar needs --data DIR"):
        small_problems.load("cifar")
