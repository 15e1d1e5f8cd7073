"""Each benchmark runs at its smallest size and writes what the tables read. Nothing here looks at the clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import (
    digits,
    jpeg,
    jpeg_training,
    language,
    memory,
    overhead,
    pages,
    rivals,
    scale,
    select,
    sharded,
    tables,
    theory_page,
)
from tests import processes
from tests.warned import SMALL_NETS

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
RUN = subprocess.run
SMALL = rivals.round_size(0)
COMMON = {"run", "device", "device_name", "cpu", "cores", "torch", "python", "acdc", "commit", "benchmark", "method"}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def forked(command, **options):
    """In place of subprocess.run, for the processes of a benchmark; git is started as ever."""
    if command[0] != sys.executable:
        return RUN(command, **options)
    assert options.keys() <= {"cwd", "check", "stdout", "capture_output", "text"}
    done = processes.run(command, cwd=options.get("cwd"))
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long  # a process for each of the methods, whose memory is measured
def test_select_writes_a_line_for_each_method(tmp_path, monkeypatch):
    monkeypatch.setattr(memory.subprocess, "run", forked)
    file = tmp_path / "select.jsonl"
    assert select.main(["--sizes", "100K", "--rounds", "2", "--results", str(file)]) == 0

    rows = {row["method"]: row for row in lines(file)}
    assert set(rows) == set(rivals.METHODS)
    for row in rows.values():
        assert set(row) >= COMMON | {"size", "k", "kept", "ties", "median", "seconds", "peak_bytes"}
        assert row["n"] == len(row["seconds"]) == 2
        assert row["peak_bytes"] is None or row["peak_bytes"] >= 0  # so little may fit in memory held already
    ours = rows[rivals.OURS]
    assert ours["kept"] == ours["k"]
    assert ours["ties"]["kept"] == ours["ties"]["k"]

    assert tables.main(["--results", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert f"{ours['size']:,} weights" in page
    assert page.count("| torch.kthvalue |") == 1


@SMALL_NETS
def test_overhead_writes_a_line_for_each_way_to_train(tmp_path):
    file = tmp_path / "overhead.jsonl"
    assert overhead.main(["--quick", "--results", str(file)]) == 0

    rows = lines(file)
    assert {row["net"] for row in rows} == set(overhead.NETS)
    assert len(rows) == 3 * len(overhead.NETS)
    for row in rows:
        assert set(row) >= COMMON | {"ratios", "median", "quartiles", "n", "batch", "optimizer"}
        assert row["n"] == len(row["ratios"]) == len(row["plain_seconds"]) == 2
        assert ("compression_seconds" in row) == ("compressed" in row["method"])

    full = [{**row, "quick": False} for row in rows if row["net"] == "gpt"]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *full]))
    tables.main(["--results", str(tmp_path)])
    page = (tmp_path / "README.md").read_text()
    assert "### gpt" in page
    assert "### resnet20" not in page, "a trial run is not a measurement"


@SMALL_NETS
def test_language_writes_a_line_for_each_step_and_selection(tmp_path):
    file = tmp_path / "language.jsonl"
    assert language.main(["--only", "throughput", "--quick", "--results", str(file)]) == 0
    rows = lines(file)
    assert [(row["part"], row["variant"]) for row in rows] == [
        *(("attention", name) for name in (language.FUSED, language.REFERENCE)),
        *(("phases", name) for name in (language.PLAIN, language.DENSE, language.COMPRESSED)),
        *(("selection", name) for name in ("linear layers", "all weights with the embeddings")),
        *(("data", name) for name in (language.SAME, language.TEXT)),
    ]
    for row in rows:
        assert set(row) >= COMMON - {"method"} | {"seconds", "median", "parameters", "batch"}
        assert row["n"] == len(row["seconds"]) == 2
        assert row.get("ratio", 1) == 1 or row["variant"] not in (language.REFERENCE, language.PLAIN)
    file.write_text("".join(json.dumps({**row, "quick": False}) + "\n" for row in rows))
    assert tables.main(["--results", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.count("### transformer-xl: ") == 4
    with pytest.raises(SystemExit):
        language.main(["--batch", "0"])


def test_jpeg_writes_a_line_for_each_loader_and_step(tmp_path):
    file = tmp_path / "jpeg.jsonl"
    sizes = ("--images", "4", "--rounds", "1", "--workers", "1", "--batch", "2", "--parts", "2")
    command = [sys.executable, "-m", "benchmarks.jpeg", *sizes, "--results", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = lines(file)
    loaders = [row for row in rows if "part" not in row]
    assert {row["loader"] for row in loaders} == {jpeg.OURS, jpeg.RAW, jpeg.PLAIN}
    assert {(row["part"], row["loader"]) for row in rows if "part" in row} == {
        (part, loader)
        for part in ("decode", "crop, resize", "float, normalise, stack")
        for loader in (jpeg.PLAIN, jpeg.OURS)
    }
    for row in loaders:
        assert set(row) >= COMMON - {"method"} | {"images_per_second", "speed_of_plain", "quartiles", "bytes_each"}
        assert row["n"] == len(row["seconds"]) == 1


def test_sharded_selections_are_the_unsharded_one_and_the_model_of_scale_counts_their_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded.subprocess, "run", forked)
    file = tmp_path / "sharded.jsonl"
    assert sharded.main(["--sizes", "200K", "--shards", "3", "--rounds", "1", "--results", str(file)]) == 0
    (row,) = lines(file)
    assert row["same_masks"]
    assert row["kept"] == row["k"]
    assert row["all_reduces"] == [8 << 16, 8 << 15], "of random weights, which seldom tie"
    model = scale.Model("of the benchmark", row["size"], blocks=1)
    modelled = scale.cost(model, 3, speed=scale.Speed(0.0, 1.0), added=1.0).all_reduces[-2:]
    assert [size * row["layers"] for size in modelled] == [
        size * model.layers for size in row["all_reduces_all_equal"][2:]
    ]
    assert scale.block(tmp_path) == "", "before anything was measured on a GPU"
    gpu = {"device": "cuda", "device_name": "a GPU", "method": rivals.OURS, "n": 3, "run": "", "torch": ""}
    points = [{**gpu, "size": 10**9, "median": 0.11}, {**gpu, "size": 10**8, "median": 0.02}]
    (tmp_path / "select.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    first, *_ = (line for line in scale.block(tmp_path).splitlines() if line.startswith("| selection"))
    times = [0.01 + weights / gpus / 1e10 for weights in (7e9, 70e9) for gpus in (64, 1024)]
    expected = [seconds * max(1.0, row["ratio"]) for seconds in times]
    assert first == f"| selection | {' | '.join(map(scale._time, expected))} |"
    with pytest.raises(ValueError, match="NaN or infinite"):  # and no thread waits for ever
        sharded.select_sharded([{"a": torch.ones(4)}, {"a": torch.full((4,), torch.nan)}], 2)


def test_digits_collects_the_tables_of_its_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(digits.subprocess, "run", forked)
    file = tmp_path / "digits.jsonl"
    assert digits.main(["--seeds", "0", "1", "--epochs", "4", "--results", str(file)]) == 0
    rows = lines(file)
    assert {(row["seed"], row["model"]) for row in rows} >= {(0, "dense baseline"), (1, "AC/DC, sparse")}
    assert all(row["quick"] for row in rows), "a trial stays out of the tables"
    file.write_text("".join(json.dumps({**row, "quick": False}) + "\n" for row in rows))

    blocks = {
        "README.md": ["runs", "speed"],
        "docs/wrn.md": ["runs"],
        "docs/methods-compared.md": ["frontier", "digits", "broad", "budgets"],
        "docs/costs.md": ["overhead", "select"],
        "docs/export.md": ["sizes"],
        "docs/faults.md": ["faults"],
        "docs/integrations.md": ["hosts"],
        "docs/sharded.md": ["sharded"],
        "docs/scale.md": ["scale"],
        "docs/theory.md": [*theory_page.TABLES, "cpl"],
        "runtime/README.md": ["speed"],
    }
    for folder in ("docs", "runtime"):
        (tmp_path / folder).mkdir()
    for page, names in blocks.items():
        markers = [f"<!-- results:{name} -->\nold\n<!-- /results:{name} -->\n" for name in names]
        (tmp_path / page).write_text("".join(markers))
    filled = pages.filled(tmp_path, tmp_path)
    assert {str(page.relative_to(tmp_path)) for page in filled} == {*blocks}
    assert not any("old" in text for text in filled.values())
    text = filled[tmp_path / "docs" / "methods-compared.md"]
    assert "2 seeds" in text
    sparse = [row["test_accuracy"] for row in rows if row["model"] == "AC/DC, sparse"]
    assert f"{50 * sum(sparse):.2f} ±" in text
    (tmp_path / "README.md").write_text("no markers")
    with pytest.raises(ValueError, match=r"README\.md has 0 blocks"):
        pages.filled(tmp_path, tmp_path)


@pytest.mark.parametrize("method", rivals.METHODS)
def test_every_method_selects_the_same_weights(method):
    weights = rivals.make_weights(SMALL, CPU)
    k = rivals.kept_of(SMALL)
    wanted = rivals.METHODS[rivals.OURS](weights, k)()
    for _ in range(2):  # nothing may be left of the first
        masks = rivals.METHODS[method](weights, k)()
        assert all(torch.equal(masks[name] != 0, wanted[name] != 0) for name in weights)
        assert all(mask.element_size() == 1 for mask in masks.values())


def test_layers_are_uneven_and_sum_to_the_size():
    sizes = rivals.sizes_of_layers(rivals.round_size(25_000_000))
    assert sum(sizes) == rivals.round_size(25_000_000)
    assert len(sizes) == rivals.LAYERS
    assert max(sizes) > 50 * min(sizes) > 0


def test_what_does_not_fit_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 1_000_000)
    monkeypatch.setattr(memory, "measure", lambda method, size: {"peak_bytes": 50 * size, "kept": 0})
    rows = select.measure_size(SMALL, ["torch.topk"], CPU, rounds=1)
    assert "50 bytes per weight" in rows[0]["skipped"]
    assert "skipped: needs about" in tables.markdown(tables.select_table([{**_anywhere(), **rows[0]}]))


def test_the_newest_run_of_each_configuration_is_shown():
    old, new = ({**_anywhere(), "size": 1, "run": f"2024-01-0{day}T00:00:00Z", "method": "a"} for day in (1, 2))
    other = {**old, "size": 2}
    assert tables.newest([new, old, other], "size") == [[new], [other]]


def test_check_tells_a_stale_page(tmp_path, capsys):
    assert tables.main(["--check", "--results", str(tmp_path)]) == 1
    assert "stale" in capsys.readouterr().err
    assert tables.main(["--results", str(tmp_path)]) == 0
    assert tables.main(["--check", "--results", str(tmp_path)]) == 0


def test_the_page_of_results_is_fresh():
    assert tables.main(["--check"]) == 0


@pytest.mark.parametrize(("text", "size"), [("25M", 25 * 10**6), ("1e9", 10**9), ("0.5G", 5 * 10**8), ("300", 300)])
def test_sizes_are_read(text, size):
    assert select.parse_size(text) == size


def _anywhere():
    return {
        **{"device": "cpu", "device_name": "a CPU", "cpu": "a CPU", "cores": 1, "threads": 1, "load": 0.0},
        **{"torch": "2", "python": "3", "acdc": "0", "commit": None, "run": "2024-01-01T00:00:00Z"},
    }


def test_training_from_jpegs_is_measured_against_the_step_alone(tmp_path):
    file = tmp_path / "jpeg_training.jsonl"
    numbers = {"size": 32, "images": 20, "batch": 4, "steps": 2, "rounds": 1, "workers": 1, "parts": 4}
    sizes = [f"--{name}={number}" for name, number in numbers.items()]
    where = ["--device", "cpu", "--model", "resnet18", "--precision", "fp32", "--results", str(file)]
    assert jpeg_training.main([*sizes, *where]) == 0
    rows = {row["source"]: row for row in lines(file)}
    assert set(rows) == {jpeg_training.STEP, jpeg_training.LOADER, jpeg_training.BOTH}
    for row in rows.values():
        assert row["images_per_second"] == pytest.approx(4 / row["seconds"][0])
        assert row["of_step"] == pytest.approx(rows[jpeg_training.STEP]["seconds"][0] / row["seconds"][0])
    with pytest.raises(SystemExit):
        jpeg_training.main(["--images", "2", "--batch", "4"])
