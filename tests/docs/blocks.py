"""The code of README and docs: every block with its page and line, and why it is not run, where it says so.

A block that cannot run in tests has a comment before it, `<!-- not run: the reason -->`, which no reader sees.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "runtime/README.md",
    "results/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
]
# Sections of docs/integrations.md that need other people's trainers: make test-integrations runs them.
TRAINERS = ("Hugging Face Trainer", "Lightning", "Accelerate", "LoRA on a sparse base")
_REASON = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A block of code: indented ones have no language."""

    page: str
    line: int
    language: str
    text: str
    section: str
    reason: str | None = None  # why it is not run

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> list[Block]:
    """Return the page's blocks of code in their order: fenced ones, and those that four spaces indent."""
    blocks, section, reason = list[Block](), "", None
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line, start = lines[number], number
        if fence := re.match(r"(`{3,})(\w*)", line):
            number = lines.index(fence[1], start + 1)
            blocks.append(_block(page, start + 1, fence[2], lines[start + 1 : number], section, reason))
        elif line.startswith("    ") and (start == 0 or not lines[start - 1].strip()) and not _in_list(lines[:start]):
            while number + 1 < len(lines) and (lines[number + 1].startswith("    ") or not lines[number + 1].strip()):
                number += 1
            blocks.append(_block(page, start, "", [text[4:] for text in lines[start : number + 1]], section, reason))
        elif heading := re.match(r"##? (.+)", line):
            section = heading[1]
        if line.strip():
            marked = _REASON.fullmatch(line)
            reason = marked[1] if marked else None
        number += 1
    return blocks


def _block(page: str, lines_before: int, language: str, lines: list[str], section: str, reason: str | None) -> Block:
    return Block(page, lines_before + 1, language, "\n".join(lines).rstrip() + "\n", section, reason)


def _in_list(before: list[str]) -> bool:
    """Return True if what four spaces indent is the text of a list's item, not code."""
    above = next((line for line in reversed(before) if line.strip() and not line.startswith("    ")), "")
    return bool(re.match(r" *([-*]|\d+\.) |  \S", above))


def every() -> list[Block]:
    return [block for page in PAGES for block in read(page)]


def run(block: Block, namespace: dict) -> None:
    """Run a block in this namespace; one that begins with the name of a file is written to that file instead.

    Lines of a diff run without their signs. Errors point at the line of the page.
    """
    text = re.sub(r"^[+ ] ", "", block.text, flags=re.M) if block.language == "diff" else block.text
    if named := re.match(r"# ([\w/]+\.py)\n", text):
        Path(named[1]).write_text(text, encoding="utf-8")
        return
    exec(compile("\n" * (block.line - 1) + text, str(ROOT / block.page), "exec"), namespace)
