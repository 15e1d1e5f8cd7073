"""What pages claim about other files is so: tests that exist, figures of other pages, names of the API."""

import ast
import re
import runpy
from importlib import import_module
from typing import Any

import pytest

import acdc
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
SITE = runpy.run_path(str(DOCS / "site" / "pages.py"))


# The tests that docs/guarantees.md and docs/sharded.md name


def named_tests() -> list[tuple[str, str | None]]:
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    return [(file, name or None) for file, name in re.findall(r"`((?:tests|runtime)/[\w/]+\.py)(?:::(\w+))?`", text)]


def test_the_tests_of_each_guarantee_exist() -> None:
    named = named_tests()
    assert len(named) > 40
    for file, name in named:
        nodes = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
        assert name is None or name in functions, f"{file} has no {name}"


def test_every_contract_has_a_guarantee() -> None:
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \*\*(\d)\. ", text, re.M) == list("1234567")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert all("`tests/" in row or row.startswith("| promise") for row in rows)


# The figures of docs/choose.md


def sections(text: str) -> list[str]:
    return re.split(r"^## ", text, flags=re.M)


def figures(text: str) -> list[str]:
    """Return the numbers of a text that have a decimal point, with deviations, outside code and links."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|^```.*?^```$", "", text, flags=re.M | re.S)
    return re.findall(r"\d+\.\d+(?: ± \d+(?:\.\d+)?)?[x%]?", prose)


@pytest.mark.parametrize("page", ["choose.md", "flops.md"])
def test_figures_stand_on_a_page_that_their_section_links_to(page: str) -> None:
    count = 0
    for section in sections((DOCS / page).read_text(encoding="utf-8")):
        linked = [DOCS / target for target in re.findall(r"\]\(([^)#\s]+\.md)", section)]
        source = "".join(path.read_text(encoding="utf-8") for path in linked)
        lost = [one for one in figures(section) if one not in source and one.replace(" 0.", " .") not in source]
        assert not lost, f"{page}, {section.splitlines()[0]}: not on a page linked from there"
        count += len(figures(section))
    assert count > (50 if page == "choose.md" else 5)


# What to write, in the tables that say so


def snippets(page: str, heading: str) -> list[str]:
    """Return what a table's last column says to write: code that is complete, without dots or names in capitals."""
    table = (ROOT / page).read_text(encoding="utf-8").partition(heading)[2].partition("\n\n##")[0]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    complete = [span for span in spans if not re.search(r"\.\.\.|SparsifierCallback|FILE", span)]
    return [span for span in complete if re.match(r"(acdc\.[A-Zm]|\w+=)", span)]


@pytest.mark.parametrize(("page", "heading"), [("README.md", "## How to choose"), ("docs/choose.md", "| you want")])
def test_what_the_tables_say_to_write_can_be_written(page: str, heading: str) -> None:
    written = snippets(page, heading)
    assert len(written) >= 6
    for code in written:
        names = {"acdc": acdc, "N": 20}
        knobs = eval(f"dict({code})", names) if re.match(r"\w+=", code) else {"method": eval(code, names)}
        if "method" not in knobs:
            given: dict[str, Any] = {"epochs": 20, "sparsity": 0.9, **knobs}
            fixed = "sparsity" if isinstance(knobs.get("pattern"), acdc.NM) else "epochs" if "schedule" in knobs else ""
            acdc.ACDC(**{knob: value for knob, value in given.items() if knob != fixed})


# The reference


@pytest.mark.parametrize("package", ["acdc", "acdc.methods", "acdc.criteria", "acdc.export", "acdc.theory"])
def test_the_reference_has_every_public_name(package: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)", pages, re.M))
    packages = {"acdc.methods", "acdc.criteria", "acdc.export", "acdc.theory", "acdc.flops", "acdc.models", "acdc.data",
                "acdc.measure", "acdc.sparsity"}  # fmt: skip
    public = {f"{package}.{name}" for name in import_module(package).__all__} - {"acdc.__version__"}
    twice = {"acdc.methods.ACDC"}  # it is acdc.ACDC
    assert public - packages - twice <= documented
    covered = {name for name in packages if any(one.startswith(f"{name}.") for one in documented)}
    assert covered == packages


# Links, as the site has them


def test_links_to_files_outside_docs_lead_to_their_pages() -> None:
    text, copied = SITE["with_links"](
        "[a](../results/README.md#start-up) [b](export.md) [c](#d) [e](https://f.g)", "docs/x.md"
    )
    assert text == "[a](measurements.md#start-up) [b](export.md) [c](#d) [e](https://f.g)"
    assert not copied


def test_programs_figures_and_folders() -> None:
    text, copied = SITE["with_links"](
        "[a](../examples/mlp.py) ![b](../results/comparisons/frontier/frontier.svg) [results/runs](../results/runs)",
        "docs/x.md",
    )
    figure = "results/comparisons/frontier/frontier.svg"
    assert text == f"[a](examples/mlp.md) ![b](files/{figure}) results/runs"
    assert copied == {figure}


def test_code_is_left_alone() -> None:
    code = "```python\nx[a](../results/README.md)\n```\n"
    assert SITE["with_links"](code, "docs/x.md")[0] == code


def test_pages_from_elsewhere_link_back() -> None:
    assert SITE["with_links"]("[a](../docs/wrn.md)", "results/README.md")[0] == "[a](wrn.md)"
    assert SITE["with_links"]("[a](start.ipynb)", "docs/notebooks/x.ipynb")[0] == "[a](start.md)"


def test_a_section_of_the_readme_becomes_part_of_the_home_page() -> None:
    page = SITE["with_readme"]((DOCS / "index.md").read_text(encoding="utf-8"))
    assert "<!-- README" not in page
    assert "](compatibility.md)" in page, "links of the README begin at docs/"
    with pytest.raises(ValueError, match="no section"):
        SITE["with_readme"]("<!-- README: What it never promised -->\n")


def test_every_page_of_docs_is_on_the_site() -> None:
    """MkDocs, in strict mode, checks the rest of it: links, anchors and pages that the navigation omits."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    notebooks = {str(path.relative_to(DOCS).with_suffix(".md")) for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert pages | notebooks <= set(re.findall(r"[\w/-]+\.md", nav))
    assert {*SITE["PAGES"].values(), *SITE["PROGRAMS"].values()} <= set(re.findall(r"[\w/-]+\.md", nav))
