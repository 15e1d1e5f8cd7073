"""acdc report."""

from pathlib import Path

import pytest

from acdc.cli import main
from tests.report.runs import make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_a_report_is_written_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"report: {run / 'report.html'} (")
    assert said.err == ""


def test_what_is_missing_is_said_on_stderr(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    (run / "result.json").unlink()
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().err
    assert "acdc: This run is not complete" in said
    assert "acdc: metrics.jsonl has a truncated last line" in said


def test_the_form_is_that_of_the_file_s_name_or_as_asked(run: Path, tmp_path: Path) -> None:
    assert main(["report", str(run), "--out", str(tmp_path / "a.md")]) == 0
    assert (tmp_path / "a.md").read_text().startswith("<!-- acdc-report:")
    assert main(["report", str(run), "--format", "json"]) == 0
    assert (run / "report.json").read_text().startswith("{")
    assert main(["report", str(run), "--out", str(tmp_path / "table"), "--format", "csv"]) == 0
    assert (tmp_path / "table").read_text().startswith("run,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "pdf"], "--format pdf: expected one of html, md, json, csv, png, svg; write --format html"),
        (["--out", "x.docx"], "--out x.docx: expected one of html, md, json, csv, png, svg; write --format html"),
        (["--out", "/nowhere/at/all.html"], "there is no folder /nowhere/at"),
    ],
)
def test_bad_settings_are_refused(
    run: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_no_run_is_refused_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "there is no run (no config.json) in this folder; name a run's folder" in capsys.readouterr().err


def test_several_runs_lie_where_the_command_was_typed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_run(tmp_path / "other", seed=1)
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), str(other)]) == 0
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "its config.json, which says what was run, is gone; restore it"),
        ("{", "config.json: it cannot be read"),
    ],
)
def test_a_run_that_lost_its_config_is_told_so_though_it_has_a_report(
    run: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run)]) == 0
    if content is None:
        (run / "config.json").unlink()
    else:
        (run / "config.json").write_text(content)
    assert main(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "other runs" not in err
