"""Kept runs, and the table that sets them beside the paper."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.record import RESULTS, read

from benchmarks import pages, runs, throughput

KEPT = RESULTS / "runs" / "cifar100-wrn28-10-cifar100_20-90-seed0"
DENSE = RESULTS / "runs" / "cifar100-wrn28-10-dense-seed0"


def copy(to: Path, **changes: object) -> Path:
    """A kept run as it came from training, with some of its recipe's settings changed."""
    shutil.copytree(KEPT, to)

    def change(config: dict) -> None:
        for path, value in changes.items():
            table, _, key = path.partition("__")
            config["recipe"][table][key] = value

    edit(to / "config.json", change)
    return to


def edit(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_run_is_kept_once_without_its_weights(tmp_path: Path) -> None:
    source = copy(tmp_path / "run")
    (source / "sparse.safetensors").write_bytes(b"large")
    target = runs.keep(source, tmp_path / "results", "abc123")
    assert json.loads((target / "config.json").read_text())["commit"] == "abc123"
    assert target.name == KEPT.name
    assert {path.name for path in target.iterdir()} == {path.name for path in KEPT.iterdir()}
    with pytest.raises(FileExistsError):
        runs.keep(source, tmp_path / "results")
    (source / "result.json").unlink()
    with pytest.raises(FileNotFoundError, match="only complete runs are kept"):
        runs.keep(source, tmp_path / "elsewhere")


def test_a_run_that_ended_early_is_kept_apart_and_in_no_table(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="it is complete"):
        runs.keep(KEPT, tmp_path, unfinished=True)
    source = copy(tmp_path / "run")
    (source / "result.json").unlink()
    rows = (KEPT / "metrics.jsonl").read_text().splitlines(keepends=True)
    (source / "metrics.jsonl").write_text("".join(rows[:195]))
    target = runs.keep(source, tmp_path, unfinished=True)
    assert target.name == f"{KEPT.name}-195of200"
    assert runs.read_all(tmp_path) == []
    assert runs.speed(target) == "ended after 195 of 200 epochs; 0.524 of the FLOPs of as many dense ones"
    assert len(runs.final_phase(target)) == 1, "25 epochs of its final phase: the last 30 would reach beyond it"


def test_seeds_are_one_row_beside_the_paper_s(tmp_path: Path) -> None:
    for seed in (0, 1):
        runs.keep(copy(tmp_path / str(seed), run__seeds=[seed]), tmp_path)
    edit(tmp_path / "runs" / KEPT.name / "result.json", lambda result: result["models"].pop())
    runs.keep(copy(tmp_path / "other", method__sparsity=0.95), tmp_path)
    _, header, rows, note = runs.runs_table(runs.read_all(tmp_path))
    assert [row[header.index("seeds")] for row in rows] == ["2", "1"]
    ninety = dict(zip(header, rows[0], strict=True))
    assert ninety["last epoch"] == "78.12 ± 0.00"
    assert (ninety["paper"], ninety["of the paper"]) == ("79.1 ± 0.07", "0.14x, 0.51x")
    assert ninety["training"] == "0.51x"
    assert ninety["last, best* − paper"] == "−0.98, −0.20"
    assert rows[1][header.index("paper")] == "78.2 ± 0.12"
    assert ninety["BN recalibrated"] == "–"
    assert (ninety["dense twin"], ninety["fine-tuned"]) == ("78.34 ± 0.00", "78.19 (1 of 2 seeds)")
    assert "NVIDIA H200" in note


def test_runs_that_lowered_dropout_are_a_row_of_their_own(tmp_path: Path) -> None:
    phases = {"method__schedule": None, "train__epochs": 200}
    runs.keep(copy(tmp_path / "kept", **phases), tmp_path)
    lowered = copy(tmp_path / "lowered", **phases)
    edit(lowered / "config.json", lambda config: config["method"].update(dropout="scaled"))
    assert runs.keep(lowered, tmp_path).name == "cifar100-wrn28-10-200ep-90-less-dropout-seed0"
    lines = [line for line in pages._all_runs(tmp_path).splitlines() if "seed 0" in line]
    named = [line.partition(" |")[0].rpartition(", dropout ")[2] for line in lines]
    assert named == ["kept, seed 0", "lowered, seed 0"]


def test_the_distance_to_the_paper_is_told_and_not_judged() -> None:
    assert [runs.beside(ours, 79.1) for ours in ([0.78, 0.782], [0.7915], [])] == ["−1.00", "+0.05", "–"]
    assert runs.beside([0.79], None) == "–"


def test_dense_training_stands_below_with_its_recalibrated_model(tmp_path: Path) -> None:
    for name in (DENSE, KEPT):
        runs.keep(name, tmp_path)
    _, header, rows, _ = runs.runs_table(runs.read_all(tmp_path))
    dense = next(dict(zip(header, row, strict=True)) for row in rows if "dense" in row[0])
    assert (dense["last epoch"], dense["BN recalibrated"], dense["paper"]) == ("79.42", "81.11", "79.0 ± 0.25")
    lines = [line for line in pages._all_runs(tmp_path).splitlines() if "seed 0" in line]
    assert ["dense" in line for line in lines] == [False, True]


def test_another_experiment_gets_no_value_of_the_paper(tmp_path: Path) -> None:
    runs.keep(copy(tmp_path / "run", optimizer__lr=0.3), tmp_path)
    (one,) = runs.read_all(tmp_path)
    assert one["paper"] is None


@pytest.mark.long  # ResNet20 on a CPU, for 18 epochs
def test_throughput_measures_a_small_recipe(tmp_path: Path, capsys) -> None:
    file = tmp_path / "throughput.jsonl"
    arguments = ["--recipes", "cifar10-resnet20", "--images", "130", "--compile", "off", "--results", str(file)]
    assert throughput.main(arguments) == 0
    (row,) = read(file)
    assert row["images_per_second"] > 0
    assert len(row["pairs"]) == 3
    assert [kind for kind, *_ in row["epoch_seconds"]] == [*["dense"] * 3, *["sparse"] * 3] * 3
    assert "cifar10-resnet20" in capsys.readouterr().out


def test_spans_of_epochs_have_their_means() -> None:
    rows = [json.loads(line) for line in (DENSE / "metrics.jsonl").read_text().splitlines()]
    first, last = runs.spans(DENSE, [76, 116, 200])
    mean = sum(row["test_accuracy"] for row in rows[76:116]) / 40
    assert first.startswith(f"epochs 77 to 116: test accuracy {100 * mean:.2f}, ")
    assert last.endswith(f"training loss {sum(row['loss'] for row in rows[116:200]) / 84:.4f}")


def test_where_each_phase_ends_is_told() -> None:
    lines = runs.phase_ends(KEPT)
    assert len(lines) == 10
    assert lines[6] == (
        "decompressed, to epoch 130: mean of the last 10 78.41, standard deviation 0.21, training loss 0.0352"
    )
    assert [line.partition(":")[0] for line in runs.phase_ends(DENSE)] == ["dense, to epoch 200"]


def test_a_run_s_speed_leaves_out_the_epoch_that_compiles(tmp_path: Path) -> None:
    folder = copy(tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[:3]]
    lines = [json.dumps({**row, "seconds": seconds}) for row, seconds in zip(rows, (90.0, 4.0, 6.0), strict=True)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    edit(folder / "result.json", lambda result: result.update(seconds=150.0))
    assert runs.speed(folder).startswith("10,000 images/s from the second epoch on, evaluation included; 1,000 of ")
