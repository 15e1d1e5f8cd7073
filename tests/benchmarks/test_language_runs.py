"""Runs on text as they are kept, and what the tables and pictures of docs/language.md say of them."""

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.language_groups import Experiment
from benchmarks.language_runs import keep, place_of, read_all
from benchmarks.record import ROOT

from acdc.cli import main as acdc
from acdc.formatting import si
from acdc.report.read import read
from benchmarks import keeping, language_results, language_runs, language_spikes, pages, tables
from tests.data.texts import folder, sentences
from tests.report.runs import make_run

TINY = ("model.layers=1", "model.width=16", "model.heads=2", "model.context=12", "data.tokens=characters", "data.size=",
        "data.length=12", "data.steps=10", "data.epoch_evaluation=50", "train.epochs=6", "train.batch_size=4",
        "train.precision=fp32", "optimizer.lr=3e-3")  # fmt: skip
DENSE = ("method.name=dense", "method.sparsity=", "run.finetune=false")
RUNS = {
    "acdc-50": ("method.schedule=paper", "method.sparsity=0.5"),
    "dense-0": DENSE,
    "dense-1": (*DENSE, "run.seeds=[1]"),
    "gmp-50": ("method.name=gmp", "method.sparsity=0.5", "run.finetune=false"),
    "small": (*DENSE, "model.width=8"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of wiki-gpt-30m with a very small model, each in a folder of its name."""
    place = tmp_path_factory.mktemp("trained")
    text = folder(place / "text", train=100, held_out=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACDC_CACHE", str(place / "cache"))
        for name, settings in RUNS.items():
            assert train(text, place / name, *settings) == 0
            (place / f"{name}.log").write_text(f"folder: {place / name}\nmodels are in {place / name}\n")
    return place


def train(text: Path, out: Path, *settings: str) -> int:
    typed = [part for setting in (*TINY, *settings) for part in ("--set", setting)]
    return acdc(["train", "wiki-gpt-30m", "--data", str(text), "--out", str(out), "--no-report", *typed])


@pytest.fixture(scope="module")
def results(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    named = [str(trained / name) for name in RUNS]
    assert language_runs.main([*named, "--commit", "abc123", "--results", str(results)]) == 0
    return results


@pytest.fixture(scope="module")
def experiment(results: Path) -> Experiment:
    (experiment,) = read_all(results)
    return experiment


def edit(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


# Keeping


def test_runs_are_kept_by_recipe_without_weights_and_places(trained: Path, results: Path) -> None:
    kept = place_of("wiki-gpt-30m", results)
    assert {path.name for path in kept.iterdir()} == {keeping.ARCHIVE, "loss.svg", "parameters.svg"}
    with tarfile.open(kept / keeping.ARCHIVE) as archive:
        files = {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name))}
    kinds = ("/config.json", "/metrics.jsonl", "/phases.jsonl", "/result.json", ".log")
    assert set(files) == {f"{name}{kind}" for name in RUNS for kind in kinds}
    assert not [name for name, content in files.items() if str(trained).encode() in content]
    assert json.loads(files["small/config.json"])["commit"] == "abc123"


def test_a_run_may_join_and_none_is_replaced(trained: Path, results: Path, tmp_path: Path) -> None:
    keep([trained / "dense-0"], "abc123", tmp_path)
    (alone,) = keep([trained / name for name in RUNS if name != "dense-0"], "abc123", tmp_path)
    together = place_of("wiki-gpt-30m", results)
    assert (alone / keeping.ARCHIVE).read_bytes() == (together / keeping.ARCHIVE).read_bytes()
    with pytest.raises(ValueError, match=r"a run small is kept or named already; rename the folder to keep both"):
        keep([trained / "small"], "def456", tmp_path)


def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished, other = tmp_path / "unfinished", tmp_path / "other"
    for copy in (unfinished, other):
        shutil.copytree(trained / "small", copy)
    (unfinished / "result.json").unlink()
    edit(other / "config.json", lambda config: config["data"].update(text="another checksum"))
    images = make_run(tmp_path / "images")
    sources = [str(path) for path in (trained / "small", unfinished, images, other)]
    assert language_runs.main([*sources, "--commit", "abc123", "--results", str(tmp_path / "results")]) == 1
    said = capsys.readouterr().err
    for reason in (
        "nothing is kept:",
        "unfinished: no result.json; only complete runs are kept",
        "images: not trained on text; python -m benchmarks.runs keeps runs on images",
        "other and small were trained on different texts; keep one of them",
    ):
        assert reason in said
    assert not (tmp_path / "results").exists()
    with pytest.raises(SystemExit):
        language_runs.main([str(trained / "small")])
    assert "add --commit HASH" in capsys.readouterr().err


def test_runs_with_other_tokens_are_not_kept_together(trained: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text(sentences(200) + "ÄÖÜ\n" * 20, encoding="utf-8")
    assert train(text, tmp_path / "other", *DENSE, "train.epochs=1") == 0
    with pytest.raises(ValueError, match=r"measured on different data: the vocabulary is"):
        keep([trained / "small", tmp_path / "other"], "abc123", tmp_path)


# Tables


def test_the_table_has_a_row_for_each_setting_and_each_twin(trained: Path, experiment: Experiment) -> None:
    title, header, rows, note = language_results.perplexities(experiment)
    sizes = {name: results_of(trained / name)[0]["language"]["all_parameters"] for name in RUNS}
    assert title == f"`wiki-gpt-30m` on the text text: gpt-30m, {si(sizes['dense-0'])} parameters"
    assert [row[0] for row in rows] == [
        "dense",
        f"dense, {si(sizes['small'])}, `model.width=8`",
        'AC/DC at 50 %, `method.schedule="paper"`',
        "↳ its dense twin",
        "↳ its dense twin, fine-tuned",
        "GMP at 50 %",
    ]
    assert [row[1] for row in rows] == ["2", "1", "1", "1", "1", "1"]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    (sparse, *_) = results_of(trained / "acdc-50")
    ours, language = table['AC/DC at 50 %, `method.schedule="paper"`'], sparse["language"]
    dense = [results_of(trained / f"dense-{seed}")[0]["language"]["test"]["perplexity"] for seed in (0, 1)]
    assert ours["test perplexity"] == f"{language['test']['perplexity']:.2f}"
    assert ours["validation perplexity"] == f"{language['validation']['perplexity']:.2f}"
    assert ours["bits per byte"] == f"{language['test']['bits_per_byte']:.3f}"
    assert ours["non-zero parameters"] == si(language["parameters"])
    assert ours["on average in training"] == si(language["average_parameters"])
    assert ours["perplexity / dense"] == f"{language['test']['perplexity'] / (sum(dense) / 2):.3f}"
    assert table["dense"]["test perplexity"].startswith(f"{sum(dense) / 2:.2f} ± ")
    assert "`train.epochs=6`" in note
    assert "`model.width=16`" in note, "of the full size"
    assert "4 × 12 tokens; 60 steps, 2.88 k tokens" in note
    assert "seeds: 0, 1." in note
    assert "acdc at abc123" in note


def test_training_flops_are_of_the_full_size_and_count_the_twins_tuning(trained: Path, experiment: Experiment) -> None:
    """By hand: 3 forward passes for each token and epoch, by the non-zero weights of the epoch's end."""
    _, header, rows, _ = language_results.perplexities(experiment)
    costs = {row[0]: row[header.index("training FLOPs")] for row in rows}
    small, full = (results_of(trained / name)[0]["dense_flops"] for name in ("small", "dense-0"))
    assert costs["dense"] == "1.00x"
    assert costs[next(label for label in costs if label.startswith("dense, "))] == f"{small / full:.2f}x"
    run = read(trained / "acdc-50")
    main, tuning = run.stage("acdc"), run.stage("finetune")
    last = max(row.epoch for row in main if row.kind == "dense")
    epochs = [row.flops / full if row.kind == "sparse" else 1 for row in main]
    assert 0 < last < 5
    assert len(tuning) == 5 - last
    assert costs["↳ its dense twin"] == f"{sum(epochs[: last + 1]) / 6:.2f}x"
    assert costs["↳ its dense twin, fine-tuned"] == f"{(sum(epochs[: last + 1]) + len(tuning)) / 6:.2f}x"


def test_the_spikes_table_has_the_largest_of_each_run(trained: Path, experiment: Experiment) -> None:
    table = language_spikes.table(experiment)
    assert table is not None
    _, header, rows, note = table
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert cells["dense"]["at compressions"] == "–"
    run = read(trained / "acdc-50")
    found = language_spikes.spikes(run.stage(run.main))
    ours = cells['AC/DC at 50 %, `method.schedule="paper"`']
    for place in ("compression", "decompression"):
        assert found[place]
        cell = re.fullmatch(r"(\S+) \((\d)\)", ours[f"at {place}s"].replace("−", "-"))
        assert cell is not None
        percent, count = cell.groups()
        assert float(percent) == pytest.approx(100 * max(found[place]), abs=0.051)
        assert int(count) == len(found[place])
    assert "no loss curve" not in note


def test_runs_without_loss_curves_are_named_as_such(trained: Path, tmp_path: Path) -> None:
    """As those of earlier versions: the table stands, without what it cannot tell."""
    for name in ("acdc-50", "dense-0"):
        shutil.copytree(trained / name, tmp_path / name)
    metrics = tmp_path / "acdc-50" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "losses"}) + "\n" for row in rows))
    place_of("wiki-gpt-30m", tmp_path).mkdir(parents=True)
    (place_of("wiki-gpt-30m", tmp_path) / "loss.svg").write_text("of runs that are not kept any more")
    named = [str(tmp_path / name) for name in ("acdc-50", "dense-0")]
    assert language_runs.main([*named, "--commit", "abc123", "--results", str(tmp_path)]) == 0
    assert not (place_of("wiki-gpt-30m", tmp_path) / "loss.svg").exists()
    (experiment,) = read_all(tmp_path)
    table = language_spikes.table(experiment)
    assert table is not None
    assert table[2][1][1:] == ["0", "–", "–", "–", "–"]
    assert "6 of 12 epochs have no loss curve and are left out." in table[3]


def test_texts_read_in_order_are_measured_beside_dense_training(trained: Path, tmp_path: Path) -> None:
    for name in ("acdc-50", "dense-0", "dense-1"):
        shutil.copytree(trained / name, tmp_path / name)
        edit(
            tmp_path / name / "config.json", lambda config: config["recipe"]["data"]["options"].update(order="streams")
        )
    keep([tmp_path / name for name in ("acdc-50", "dense-0", "dense-1")], "abc123", tmp_path)
    (experiment,) = read_all(tmp_path)
    table = language_spikes.table(experiment)
    assert table is not None
    _, header, rows, note = table
    cells = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    dense, ours = ((one := read(trained / name)).stage(one.main) for name in ("dense-0", "acdc-50"))
    found = language_spikes.spikes(ours, dense)
    shown = cells['AC/DC at 50 %, `method.schedule="paper"`']["at compressions"]
    assert float(shown.partition(" ")[0].replace("−", "-")) == pytest.approx(100 * max(found["compression"]), abs=0.051)
    assert cells["dense"]["n"] == "2", "each beside the other"
    assert "relative to that of dense training" in note


# Pictures and pages


def test_pictures_are_drawn_again_from_what_is_kept(results: Path) -> None:
    kept = place_of("wiki-gpt-30m", results)
    before = {path.name: path.read_bytes() for path in kept.glob("*.svg")}
    for name in before:
        (kept / name).unlink()
    assert language_runs.main(["--results", str(results)]) == 0
    assert {path.name: path.read_bytes() for path in kept.glob("*.svg")} == before
    picture = before["parameters.svg"].decode()
    assert "AC/DC at 50 %: " in picture, "the description has every mark"
    assert "GMP at 50 %: " in picture
    assert "dense, AC/DC at 50 %." in before["loss.svg"].decode()


def test_the_pages_have_tables_and_pictures_or_say_that_there_are_none(
    trained: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "language.md"
    text = page.read_text(encoding="utf-8")
    nothing = language_results.blocks(tmp_path, page, tables.markdown)
    assert set(nothing.values()) == {"Not measured yet.\n"}
    assert "## Language models" not in tables.page(tmp_path)

    blocks = language_results.blocks(results, results / "docs" / "language.md", tables.markdown)
    assert "](../language/wiki-gpt-30m/parameters.svg)" in blocks["language"]
    assert "](../language/wiki-gpt-30m/loss.svg)" in blocks["language-transitions"]
    filled = pages.insert(text, blocks, page.name)
    assert filled.count("### `wiki-gpt-30m` on the text") == 2
    assert pages.insert(filled, nothing, page.name) == pages.insert(text, nothing, page.name)

    keep([trained / "acdc-50"], "abc123", tmp_path)
    language_runs.main(["--results", str(tmp_path)])
    alone = language_results.blocks(tmp_path, tmp_path / "docs" / "language.md", tables.markdown)
    assert "](../language/wiki-gpt-30m/loss.svg)" in alone["language-alone"], "without dense training to compare with"
    assert alone["language"] == alone["language-transitions"] == "Not measured yet.\n"

    assert tables.main(["--results", str(results)]) == 0
    assert tables.main(["--check", "--results", str(results)]) == 0
    (place_of("wiki-gpt-30m", results) / keeping.ARCHIVE).rename(results / "away")
    assert tables.main(["--check", "--results", str(results)]) == 1, "the tables are of what is kept"
    (results / "away").rename(place_of("wiki-gpt-30m", results) / keeping.ARCHIVE)
    assert "is stale" in capsys.readouterr().err


def results_of(run: Path) -> list[dict]:
    return json.loads((run / "result.json").read_text())["models"]
