"""The page is one file, complete and small."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from acdc.report.write import make, write_report
from tests.report.runs import add_remarks, change_config, make_run

KEPT = Path(__file__).parents[2] / "results" / "runs" / "cifar100-wrn28-10-cifar100_20-90-seed0"
VOID = {"meta", "br", "path", "use", "rect", "line", "circle"}


class Page(HTMLParser):
    """Every element with its attributes, and a check that what opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def ids(self, tag: str) -> list[str | None]:
        return [attributes.get("id") for name, attributes in self.elements if name == tag]


def page_of(run: Path) -> str:
    return write_report(run).read_text(encoding="utf-8")


def test_the_page_has_all_its_parts(run: Path) -> None:
    text = page_of(run)
    page = Page(text)
    figures = ["signature", "loss", "mask-change", "flops", "inactive", "layers", "magnitudes", "agreement"]
    assert page.ids("figure") == figures
    tables = ["table-models", "table-phases", "table-agreement", "table-environment", "table-settings"]
    assert [name for name in page.ids("section") if name and name.startswith("table-")] == tables
    assert text.count('<article class="card"') == 4
    assert text.count("<figcaption>") == text.count("<figure ")
    for words in (
        "90.00 % (89.11 % as the paper counts)",
        "0.10x of dense",
        " packed",
        "acdc train digits",
    ):
        assert words.replace(" %", "\u00a0%") in text or words in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    text = page_of(run)
    assert "default-src 'none'" in text
    for tag, attributes in Page(text).elements:
        assert tag not in ("link", "img", "iframe", "object")
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_both_themes_and_print_are_there(run: Path) -> None:
    text = page_of(run)
    assert "prefers-color-scheme: dark" in text
    assert ':root[data-theme="dark"]' in text
    assert "@media print" in text
    assert "@media screen and (max-width: 760px)" in text
    defined = set(re.findall(r"--([\w-]+):", text))
    assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= defined


def test_a_real_run_of_200_epochs_is_small(tmp_path: Path) -> None:
    path, _ = make([KEPT], tmp_path / "report.html")
    assert path.stat().st_size < 2_000_000
    text = path.read_text(encoding="utf-8")
    said = "90\u00a0% sparse ends level with its dense twin, as far as one seed and 10,000 images can tell: 78.1\u00a0%"
    assert said in text
    Page(text)


def test_a_large_network_stays_under_two_megabytes(run: Path, tmp_path: Path) -> None:
    """54 layers, 16 phases, as ResNet50 in the paper's 100 epochs."""
    names = [f"layer{i // 10}.{i % 10}.conv2.weight" for i in range(54)]
    rows, ends = [], []
    template = [json.loads(line) for line in (run / "phases.jsonl").read_text().splitlines()]
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    for epoch in range(100):
        index = epoch // 6
        kind, phase = ("sparse", "compressed") if index % 2 else ("dense", "decompressed")
        rows.append(row | {"run": "acdc", "epoch": epoch, "kind": kind, "phase": phase, "sparsity": 0.9 * (index % 2)})
        if epoch % 6 == 5:
            sizes = {key: dict.fromkeys(names, 1000) for key in ("size", "filters")}
            kept = {"nonzero": dict.fromkeys(names, 100 if index % 2 else 900), "dead_filters": dict.fromkeys(names, 1)}
            change = {"mask_change": 3.0, "regrown": 0.2, "explored": 0.2} if index % 2 else {}
            ends.append(
                template[1] | sizes | kept | change | {"index": index, "kind": kind, "phase": phase, "epoch": epoch}
            )
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (run / "phases.jsonl").write_text("\n".join(map(json.dumps, ends)) + "\n")
    assert write_report(run).stat().st_size < 2_000_000


def test_cut_metrics_are_said_on_the_page(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-30])
    text = page_of(run)
    assert '<aside class="notes"' in text
    assert "metrics.jsonl has a truncated last line" in text


def test_what_was_said_as_a_run_began_and_what_was_judged_are_on_the_page(run: Path) -> None:
    assert 'class="remarks"' not in page_of(run)
    add_remarks(run, "rate.warmup = 5: the run of <4> epochs is all warm-up", unread=13)
    text = page_of(run)
    Page(text)
    assert text.count('class="remarks"') == 1
    assert '<p class="note">Warning at start: rate.warmup = 5: the run of &lt;4&gt; epochs is all warm-up.</p>' in text
    assert '<p class="note">Accuracies cover 387 of 400 test images: 13 cannot be read.</p>' in text
    assert '<aside class="notes"' not in text, "nothing is missing"


@pytest.mark.parametrize("gone", ["phases.jsonl", "predictions.safetensors", "result.json"])
def test_a_run_without_one_of_its_files_has_a_page(run: Path, gone: str) -> None:
    whole = page_of(run).count("<figure ")
    (run / "report.html").unlink(missing_ok=True)
    (run / gone).unlink()
    text = page_of(run)
    Page(text)
    assert 2 <= text.count("<figure ") <= whole
    assert "<h1" in text


def test_a_run_of_one_epoch_has_a_page(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[12] + "\n")
    for name in ("phases.jsonl", "predictions.safetensors", "result.json"):
        (run / name).unlink()
    assert page_of(run).count("<figure ") == 2


def test_names_are_shown_and_not_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    recipe = json.loads((run / "config.json").read_text())["recipe"]
    recipe["name"] = "<script>alert(1)</script>"
    change_config(run, recipe=recipe, hardware={"gpu": '"><img src=x onerror=alert(2)>'})
    text = page_of(run)
    assert text.count("<script>") == 1
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text
