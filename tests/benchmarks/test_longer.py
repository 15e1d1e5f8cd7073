"""The experiment on longer training: its runs, what is kept of them, and the table."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from acdc.recipes import load
from benchmarks import longer, tables
from tests.report.runs import row

DENSE = 1000


def make(
    out: Path, seed: int = 0, *, epochs: int = 10, times: tuple[int, ...] = (1, 2), scale: longer.Scale = longer.FULL
) -> Path:
    """A folder as the runs leave it, less what is large: half of the FLOPs in sparse epochs."""
    for name, said in longer.settings_of(epochs, ["plain", "all"], times, scale).items():
        recipe = load.read(scale.recipe, [*said, f"run.seeds=[{seed}]"])
        method, tricks, n = longer.parts_of(name)
        run = out / name
        run.mkdir(parents=True)
        config = {
            "recipe": recipe.to_dict(),
            "started": "2026-01-02T03:04:05+00:00",
            "hardware": {"cpu": "a CPU", "gpu": "a GPU"},
            "versions": {"torch": "2.11.0"},
        }
        accuracy = 0.8 + n / 100 + seed / 100 + (tricks == "all") / 50
        rows: list[dict[str, Any]] = [
            {
                **row(method, epoch, "x", "sparse" if method == "acdc" else "dense", 0.0, accuracy, recipe.epochs),
                "flops": DENSE // 2 if method == "acdc" else DENSE,
                "size_share": 0.5 if tricks == "all" and epoch < recipe.epochs // 2 else 1.0,
            }
            for epoch in range(recipe.epochs)
        ]
        model = {
            "model": "main", "file": "sparse.safetensors", "test_accuracy": accuracy, "test_loss": 1.0, "sparsity": 0.9,
            "flops": DENSE // 2, "dense_flops": DENSE, "flops_ratio": 0.5,
        }  # fmt: skip
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        (run / "phases.jsonl").write_text("")
        (run / "result.json").write_text(json.dumps({"models": [model], "seconds": 1.0}))
    return out


def test_each_run_is_the_recipe_with_its_tricks_and_length() -> None:
    runs = longer.settings_of(100, list(longer.TRIED), (1, 4))
    assert len(runs) == 2 * 5 * 2
    recipes = {name: load.read(longer.FULL.recipe, said) for name, said in runs.items()}
    whole, plain = recipes["acdc-all-4x"], recipes["dense-plain-1x"]
    tricks = [(one.train.label_smoothing, one.rate.shape, one.data.first_size) for one in (whole, plain)]
    assert tricks == [(0.1, "linear", 20), (0.0, "cosine", None)]
    assert (whole.epochs, whole.stretched_rate().warmup, plain.epochs) == (400, 20, 100)
    assert plain.build_method() is None
    assert whole.method.schedule is None, "AC/DC chooses its own phases"


def test_seeds_are_kept_together_and_averaged(tmp_path: Path) -> None:
    zero, two = make(tmp_path / "0"), make(tmp_path / "2", seed=2)
    assert longer.main(["--keep", str(zero), str(two), "--commit", "abc123", "--results", str(tmp_path / "r")]) == 0
    kept = longer.read_kept(tmp_path / "r")
    assert kept is not None
    _, header, body, note = longer.table(kept)
    assert header[1:] == ["1x: 10 epochs", "2x: 20 epochs"]
    assert body == [
        ["AC/DC 90%, plain", "82.00 ± 1.41 (0.50x)", "83.00 ± 1.41 (1.00x)"],
        ["AC/DC 90%, all three", "84.00 ± 1.41 (0.38x)", "85.00 ± 1.41 (0.75x)"],
        ["dense, plain", "82.00 ± 1.41 (1.00x)", "83.00 ± 1.41 (2.00x)"],
        ["dense, all three", "84.00 ± 1.41 (0.75x)", "85.00 ± 1.41 (1.50x)"],
    ]
    assert note.startswith("a GPU; torch 2.11.0; acdc at abc123; 2026-01-02. bf16; seeds 0, 2; last epoch")
    assert "## Longer training" in tables.page(tmp_path / "r")
    assert "| dense, plain | 82.00 ± 1.41 (1.00x) |" in longer.block(tmp_path / "r", tables.markdown)


def test_nothing_is_said_where_nothing_is_kept(tmp_path: Path) -> None:
    assert "Nothing is kept yet" in longer.block(tmp_path, tables.markdown)
    assert "## Longer training" not in tables.page(tmp_path)


def test_the_small_scale_is_another_recipe_with_tricks_of_its_size(tmp_path: Path) -> None:
    small = longer.SCALES["small"]
    recipe = load.read(small.recipe, longer.settings_of(small.epochs, ["all"], (2,), small)["acdc-all-2x"])
    assert (recipe.epochs, recipe.data.first_size, recipe.train.label_smoothing) == (20, 10, 0.1)
    source = make(tmp_path / "0", times=(1,), scale=small)
    assert longer.main(["--keep", str(source), "--commit", "abc123", "--results", str(tmp_path / "r")]) == 1
    assert not (tmp_path / "r").exists(), "not kept as runs of the full scale"
    typed = ["--scale", "small", "--keep", str(source), "--commit", "abc123", "--results", str(tmp_path / "r")]
    assert longer.main(typed) == 0
    assert longer.read_kept(tmp_path / "r") is None
    assert "| dense, plain | 81.00 (1.00x) |" in longer.block(tmp_path / "r", tables.markdown, small)


def test_what_is_not_the_experiment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, whole = tmp_path / "r", make(tmp_path / "0")

    def refused(*sources: Path) -> str:
        arguments = ["--keep", *map(str, sources), "--commit", "abc123", "--results", str(results)]
        assert longer.main(arguments) == 1
        return capsys.readouterr().err

    assert "they hold the same seed" in refused(whole, whole)
    assert "no runs there" in refused(tmp_path)
    assert "1x is 10 and 20 epochs" in refused(whole, make(tmp_path / "other", seed=1, epochs=20))
    spoiled = Path(shutil.copytree(whole, tmp_path / "spoiled"))
    (spoiled / "acdc-plain-1x" / "result.json").unlink()
    config = spoiled / "dense-all-2x" / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    said = refused(spoiled)
    assert "acdc-plain-1x: no result.json; only complete runs are kept" in said
    assert "dense-all-2x: a trial, or another experiment: optimizer.lr is 0.2, the experiment's 0.1" in said
    assert not results.exists()
    assert longer.main(["--keep", str(whole), "--commit", "abc123", "--results", str(results)]) == 0
    assert "is there already" in refused(whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "x", "--tricks", "plain,none"], "--tricks none: expected some of plain, smooth"),
        (["--out", "x", "--times", "1,0"], "--times 0: expected whole numbers above 0"),
        (["--keep", "x"], "add --commit HASH"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        longer.main(arguments)
    assert said in capsys.readouterr().err
