"""The broad benchmark: problems that train, rows that are not measured twice, and what the table makes of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.record import read

from benchmarks import broad, broad_problems

# They need no files.
OWN = (
    "tabular",
    "friedman",
    "encoder",
    "dropout",
    "waves",
    "sort",
    "denoise",
    "spots",
    "angles",
    *broad_problems.FRESH,
)


@pytest.mark.parametrize("name", OWN)
def test_a_problem_has_batches_that_its_model_and_loss_take(name: str) -> None:
    problem = broad_problems.load(name)
    torch.manual_seed(0)
    model = problem.new_model()
    inputs, targets = next(problem.batches(torch.Generator().manual_seed(0)))
    assert len(inputs) == problem.batch
    before = problem.loss(model(inputs), targets)
    optimizer = problem.new_optimizer(model)
    for _ in range(20):
        optimizer.zero_grad()
        problem.loss(model(inputs), targets).backward()
        optimizer.step()
    assert problem.loss(model(inputs), targets) < before


def test_a_text_and_images_are_asked_for() -> None:
    for name in (*broad_problems.NEED_IMAGES, "letters"):
        with pytest.raises(ValueError, match=f"{name} needs --"):
            broad_problems.load(name)
    with pytest.raises(SystemExit):
        broad.main(["--problems", "vit", "letters"])


def test_letters_are_predicted_from_those_before(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("ab" * 120_000)
    problem = broad_problems.load("letters", text=file)
    inputs, targets = problem.train
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    model = problem.new_model().eval()
    changed = inputs[:1].clone()
    changed[0, -1] += 1
    assert torch.allclose(model(inputs[:1])[0, :-1], model(changed)[0, :-1], atol=1e-6)


@pytest.mark.parametrize("shape", ["cosine", "linear", "steps", "onecycle"])
def test_rates_rise_once_and_fall(shape: Any) -> None:
    rates = [broad_problems.rate(shape, step, 100) for step in range(100)]
    top = max(range(100), key=rates.__getitem__)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0.9 < max(rates) <= 1
    assert rates[-1] < 0.03


def test_rows_are_measured_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    typed = ["--problems", "encoder", "--epochs", "3", "--sparsities", "0.9", "--jobs", "1", "--results", str(file)]
    variants = ["--variants", "default", "GMP, floor", "dense"]
    assert broad.main([*typed, *variants, "--seeds", "0"]) == 0
    assert broad.main([*typed, *variants, "--seeds", "0", "1"]) == 0
    rows = read(file)
    assert len({broad.key(row) for row in rows}) == len(rows) == 6
    zeros = {row["variant"]: row["zeros"] for row in rows}
    assert zeros["dense"] == 0
    assert zeros["default"] == zeros["GMP, floor"] == pytest.approx(0.9, abs=1e-3)
    assert {row["config"]["floor"] for row in rows if row["config"]} == {0.75}
    assert next(row["training"] for row in rows if row["variant"] == "dense") == 1


def row(variant: str, score: float, problem: str = "waves", seed: int = 0) -> dict[str, Any]:
    return {
        **{"problem": problem, "variant": variant, "sparsity": 0.0 if variant == "dense" else 0.9, "epochs": 5},
        **{"seed": seed, "steps": 200, "score": score, "training": 0.5, "commit": "abc"},
        **{"device_name": "a CPU", "torch": "2.13.0"},
    }


def test_the_table_says_where_the_default_stands() -> None:
    rows = [row("default", 80.0), row("default", 82.0, seed=1), row("GMP", 79.0), row("RigL", 81.5), row("dense", 90.0)]
    rows += [row("default", -7.0, "encoder"), row("RigL", -9.0, "encoder")]
    text = broad.block(rows)
    assert "| waves | 200 | 90% | 81.0 ± 1.4 | 79.0 (1) | 81.5 (1) | 90.0 (1) | −1.5 (RigL) |" in text
    assert "| encoder | 200 | 90% | −7.0 | – | −9.0 | – | +2.0 (RigL) |" in text
    assert "**Held out** (waves): the default is above GMP in 1 of 1, RigL in 0 of 1 rows" in text
    assert "above the best of the rivals in 0, lowest −1.5." in text
    assert "mean ± std over 1 or 2 seeds" in text
    assert broad.block([]) == "\nNothing is kept yet.\n"
