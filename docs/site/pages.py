"""Turns files of the repository into pages of the site: where each one goes, and what its links become.

The Markdown files link to each other by their places in the repository, so that they also read well on a code host.
Files outside docs/ get a page or a copy here, and links to them follow. Nothing in this module needs MkDocs.
"""

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files outside docs/ that have a page of their own.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "results/README.md": "measurements.md",
    "runtime/README.md": "runtime.md",
}
PROGRAMS = {
    str(path.relative_to(ROOT).as_posix()): str(path.relative_to(ROOT).with_suffix(".md").as_posix())
    for path in sorted((ROOT / "examples").rglob("*.py"))
}
_FENCED = re.compile(r"(^(?P<fence>`{3,}).*?^(?P=fence)$)", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LINKED_FOLDER = re.compile(r"(?<!!)\[([^\]]*)\]\(<folder>\)")


def place(path: str) -> str:
    """Return where the site has this file of the repository; what has no page is copied under files/."""
    if path.startswith("docs/"):
        uri = path.removeprefix("docs/")
        return uri.removesuffix(".ipynb") + ".md" if uri.endswith(".ipynb") else uri
    return PAGES.get(path) or PROGRAMS.get(path) or f"files/{path}"


def with_links(text: str, source: str) -> tuple[str, set[str]]:
    """Return the text of a file of the repository with links that hold on the site, and the files to copy for them.

    A link to a folder becomes its words: a site has no listing of it.
    """
    here, copied = posixpath.dirname(place(source)), set[str]()

    def moved(target: str) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if (ROOT / path).is_dir():
            return "<folder>"
        uri = place(path)
        if uri.startswith("files/"):
            copied.add(path)
        return posixpath.relpath(uri, here or ".")

    return _LINKED_FOLDER.sub(r"\1", _relinked(text, moved)), copied


def with_readme(text: str) -> str:
    """Return a page of docs/ with sections of README.md in place of its comments `<!-- README: TITLE -->`.

    `<!-- README: TITLE, beginning -->` is a section's first paragraph, `<!-- README: TITLE, rest -->` what follows it.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = _relinked(readme, lambda target: posixpath.relpath(target, "docs"))

    def included(match: re.Match[str]) -> str:
        whole = section(readme, match["title"])
        beginning, _, rest = whole.partition("\n\n")
        return {"beginning": beginning, "rest": rest}.get(match["part"], whole)

    pattern = r"^<!-- README: (?P<title>.+?)(?:, (?P<part>beginning|rest))? -->$"
    return re.sub(pattern, included, text, flags=re.M)


def _relinked(text: str, change: Callable[[str], str]) -> str:
    """Return the text with the target of every relative link changed, but for those in code."""

    def outside_code(text: str) -> str:
        return _LINK.sub(lambda match: change(match[1]) + (match[2] or ""), text)

    parts, last = list[str](), 0
    for block in _FENCED.finditer(text):
        parts += [outside_code(text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, outside_code(text[last:])])


def with_tables(text: str) -> str:
    """Return the text with tables as the site needs them: after an empty line, and with figures that do not wrap."""
    text = re.sub(r"^<!-- /?results:[\w-]+ -->$", "", text, flags=re.M)
    return re.sub(r"^\|.*$", lambda row: re.sub(r"(?<=\d) (±) (?=\.?\d)", "\u00a0\\1\u00a0", row[0]), text, flags=re.M)


def section(text: str, title: str) -> str:
    """Return what a Markdown file says under a heading of level 1 or 2, up to the next such heading."""
    found = re.search(rf"^(##?) {re.escape(title)}\n(.*?)(?=^##? |\Z)", text, re.M | re.S)
    if found is None:
        raise ValueError(f"there is no section {title!r}")
    return found[2].strip()


def of_program(path: str) -> str:
    """Return the page of an example: its source, under its first docstring."""
    source = (ROOT / path).read_text(encoding="utf-8")
    about = re.match(r'"""(.*?)(\n|""")', source, re.S)
    return f"# {path}\n\n{about[1] if about else ''}\n\n```python\n{source}```\n"


def of_notebook(path: str) -> str:
    """Return a notebook as Markdown: its text, its code, and what the code printed."""
    notebook = json.loads((ROOT / path).read_text(encoding="utf-8"))
    parts = [_cell(cell) for cell in notebook["cells"]]
    name, title = posixpath.basename(path), parts[0].partition("\n")
    about = f'This page is a notebook, <a href="{name}" download>{name}</a>, which tests run from top to bottom.'
    if printed_on := notebook["metadata"].get("printed_on"):
        about += f" What is printed below is from one run on {printed_on}."
    parts[0] = f"{title[0]}\n\n{about}\n{title[2]}"
    return "\n\n".join(parts) + "\n"


def _cell(cell: dict) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    printed = "".join(text for output in cell["outputs"] for text in output.get("text", []))
    return f"```python\n{source}\n```" + (f"\n\n```text\n{printed.rstrip()}\n```" if printed else "")
