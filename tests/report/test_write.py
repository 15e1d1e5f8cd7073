"""Files: formats, refusals, and nothing of anyone else's overwritten."""

import csv
import json
import os
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from acdc.report import write
from acdc.report.read import ReportError
from acdc.report.write import FORMATS, make, write_report
from tests.report.runs import add_remarks, make_run


def test_the_default_is_a_page_in_the_run_s_folder(run: Path) -> None:
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == [], "no temporary file stays"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_report_of_the_same_run_is_replaced_and_nothing_else(
    run: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"out.{kind}"
    make([run], out, kind)
    monkeypatch.setattr(write, "_render", lambda report, kind, marker, figure: f"the second, {marker}".encode())
    make([run], out, kind)
    assert out.read_bytes().startswith(b"the second")
    other = make_run(tmp_path / "other", seed=5)
    before = out.read_bytes()
    with pytest.raises(ReportError, match="a report of other runs"):
        make([other], out, kind)
    assert out.read_bytes() == before


def test_a_file_that_acdc_did_not_write_stays(run: Path) -> None:
    (run / "report.html").write_text("mine")
    with pytest.raises(ReportError, match="not a report that acdc wrote; choose another name"):
        write_report(run)
    assert (run / "report.html").read_text() == "mine"


def test_a_report_follows_a_run_that_goes_on(run: Path) -> None:
    result = (run / "result.json").read_text()
    (run / "result.json").unlink()
    write_report(run)
    (run / "result.json").write_text(result)
    write_report(run)
    assert "not complete" not in (run / "report.html").read_text()


def test_places_that_cannot_be_written_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="this is a folder"):
        make([run], tmp_path)
    with pytest.raises(ReportError, match="there is no folder"):
        make([run], tmp_path / "nowhere" / "report.html")


def test_a_disk_that_is_full_leaves_the_report_before(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_render", lambda report, kind, marker, figure: f"a page, {marker}".encode())
    path = write_report(run)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match="No space left on device"):
        write_report(run)
    assert path.read_bytes() == before
    assert len(list(run.glob(".report*"))) == 0


def test_missing_libraries_are_named_with_what_to_type(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name))
    with pytest.raises(ReportError, match=r"a report needs jinja2; run: pip install 'acdc-torch\[report\]'"):
        write_report(run)


def test_json_has_the_facts(run: Path, tmp_path: Path) -> None:
    make([run], tmp_path / "r.json", "json")
    content = json.loads((tmp_path / "r.json").read_text())
    (one,) = content["runs"]
    assert [model["role"] for model in one["models"]] == ["baseline", "sparse", "twin", "finetuned"]
    assert one["models"][1]["flops_ratio"] == pytest.approx(0.1)
    assert one["complete"] is True
    assert one["phases"][1]["layer_sparsity"]["fc.weight"] == pytest.approx(0.9)
    assert one["agreement"][0]["top1"] == pytest.approx(0.9)
    assert content["findings"]["agreement"]["title"].endswith("agree on 90.0 % of the test images")
    assert (one["warnings"], one["test_images"]) == ([], {"all": 400, "judged": 400})
    add_remarks(run, "it may surprise", unread=1)
    make([run], tmp_path / "r.json", "json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["runs"][0]["warnings"] == ["it may surprise"]
    assert content["runs"][0]["test_images"] == {"all": 400, "judged": 399}
    assert content["remarks"][0] == "Warning at start: it may surprise."


def test_csv_has_a_line_for_each_model(run: Path, tmp_path: Path) -> None:
    make([run], tmp_path / "r.csv", "csv")
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert [row["role"] for row in rows] == ["baseline", "sparse", "twin", "finetuned"]
    assert float(rows[1]["accuracy"]) == 0.96
    assert rows[2]["best_accuracy"] == ""


def test_markdown_has_findings_and_tables(run: Path, tmp_path: Path) -> None:
    add_remarks(run, "it may surprise")
    make([run], tmp_path / "r.md", "md")
    text = (tmp_path / "r.md").read_text()
    assert "\n\nWarning at start: it may surprise.\n\n" in text
    assert "- 90 % sparse ends 2.5 points below the dense baseline: 96.0 % against 98.5 %." in text
    for block in text.split("\n\n"):
        if block.startswith("| "):
            widths = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(widths) == 1, "every row has as many cells as the header"
    assert "| AC/DC, sparse | 96.00 % |" in text


@pytest.mark.parametrize("figure", [None, "layers"])
def test_a_picture_is_one_figure_with_its_title(run: Path, tmp_path: Path, figure: str | None) -> None:
    for name in ("one.svg", "same.svg"):
        make([run], tmp_path / name, "svg", figure)
    root = ElementTree.parse(tmp_path / "one.svg").getroot()
    description = next(root.iter("{http://purl.org/dc/elements/1.1/}description")).text or ""
    start = "Test accuracy and sparsity" if figure is None else "Zeros of 3 layers"
    assert f" {start}" in description, "the first figure is the one where none is named"
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "same.svg").read_bytes()
    make([run], tmp_path / "one.png", "png", figure)
    content = (tmp_path / "one.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, _ = struct.unpack(">II", content[16:24])
    assert width == pytest.approx(2 * 1040, abs=60)
