"""Reports and comparisons of language models: perplexity, of which less is better, with what stands beside it."""

import json
from pathlib import Path

import pytest

from acdc.cli import main
from acdc.report.compose import compose
from acdc.report.groups import check_same_data, group_runs
from acdc.report.read import read
from acdc.report.standings import leaders, standings_of
from tests.cli import in_process
from tests.data.texts import folder

SMALL = ("model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "data.length=16", "data.steps=4",
         "train.epochs=4", "run.baseline=false")  # fmt: skip


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    """Dense training and AC/DC, two seeds each, and what the command said."""
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    in_process.patch(monkeypatch)
    typed = [part for setting in SMALL for part in ("--set", setting)]
    text, out = folder(tmp_path / "text"), tmp_path / "compared"
    arguments = ["--data", str(text), "--methods", "acdc,dense", "--sparsities", "0.8", "--seeds", "0,1"]
    assert main(["compare-methods", "text-quick", *arguments, "--out", str(out), *typed]) == 0
    return out, capsys.readouterr().out


def test_a_comparison_is_by_perplexity(compared: tuple[Path, str]) -> None:
    out, said = compared
    for column in ("test perplexity", "bits per byte", "average parameters"):
        assert column in said
    assert "accuracy" not in said
    rows = {row["method"]: row for row in json.loads((out / "result.json").read_text())["methods"]}
    assert rows["dense"]["test_perplexity"] > 1
    assert rows["acdc"]["average_parameters"] < rows["dense"]["average_parameters"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Test perplexity by method" in page
    assert "test accuracy" not in page.lower()

    runs = [read(out / name) for name in ("dense-seed0", "dense-seed1", "acdc-80-seed0", "acdc-80-seed1")]
    standings = standings_of(group_runs(runs))
    assert [one.group.method for one in standings] == ["acdc", "dense"]
    better = min(standings, key=lambda one: one.score.mean)
    assert leaders([better])[0].rank == better.score.mean


def test_a_run_s_page_has_what_only_language_models_have(compared: tuple[Path, str]) -> None:
    run = compared[0] / "acdc-80-seed0"
    report = compose([read(run)])
    assert "sparse at perplexity" in report.title
    assert {"also", "parameters"} <= {name for card in report.cards for name, _ in card.rows}
    models = report.tables[0]
    assert {"test perplexity", "bits per byte", "perplexity per word", "average in training"} <= {*models.header}
    assert "per token" in models.note
    assert report.notes == [], "no predictions are missing: none are kept for text"
    assert "--data text" in report.commands[0]
    (environment,) = (table for table in report.details if table.name == "environment")
    assert any(name == "measured tokens per second" for name, _ in environment.rows)


def test_what_was_evaluated_after_an_epoch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best epoch is that of the beginning of the validation part, whose perplexity is not the test part's."""
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    typed = [part for setting in (*SMALL, "data.epoch_evaluation=100") for part in ("--set", setting)]
    arguments = ["--data", str(folder(tmp_path / "text")), "--out", str(tmp_path / "run"), "--no-report"]
    assert main(["train", "text-quick", *arguments, *typed]) == 0
    report = compose([read(tmp_path / "run")])
    told = "After each epoch only the first 100 tokens of a part are evaluated; the final models on all."
    assert told in report.remarks
    (best,) = {value for card in report.cards for name, value in card.rows if name == "best"}
    assert best.startswith("epoch 4 on the validation set, at ")
    assert report.tables[0].note.endswith("chosen on the validation set, with its value there.")


def test_a_page_needs_no_bits_per_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words that a vocabulary lacks hide their bytes."""
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    typed = [part for setting in (*SMALL, "data.tokens=words", "data.size=6") for part in ("--set", setting)]
    arguments = ["--data", str(folder(tmp_path / "text")), "--out", str(tmp_path / "run")]
    assert main(["train", "text-quick", *arguments, *typed]) == 0
    assert "no report" not in capsys.readouterr().out
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "in validation" in page
    assert " bits per byte," not in page


def test_models_of_different_widths_are_measured_on_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layer with masks need not have an output for each token: here the embedding computes the logits."""
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    text, runs = folder(tmp_path / "text"), []
    for width in (16, 8):
        settings = [*SMALL, "train.epochs=1", "method.name=dense", "method.sparsity=", f"model.width={width}"]
        typed = [part for setting in settings for part in ("--set", setting)]
        out = tmp_path / str(width)
        assert main(["train", "text-quick", "--data", str(text), "--out", str(out), "--no-report", *typed]) == 0
        runs.append(read(out))
    check_same_data(runs)
    assert {run.config.data.vocabulary for run in runs} == {runs[0].config.data.vocabulary}
