"""The commands that README and docs show, in blocks and within sentences."""

import re
import shlex
from dataclasses import dataclass

from tests.docs import blocks

_PLACES = {"$epochs": "5", "$seed": "0"}  # variables of the loops on the pages
_SPAN = re.compile(r"(?<!`)`((?:acdc|make|python -m|torchrun) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def every() -> list[Command]:
    """Return each command once for each page; abbreviated ones (with …) only stand for a command, and are left out."""
    found: dict[Command, None] = {}
    for page in blocks.PAGES:
        for line in (*_lines(page), *_spans(page)):
            for part in re.split(r" && | \| ", line):
                if "…" not in part and (words := _words(part)):
                    found[Command(page, tuple(words))] = None
    return list(found)


def _lines(page: str) -> list[str]:
    texts = [block.text for block in blocks.read(page) if block.language in ("", "sh")]
    return [line for text in texts for line in text.replace("\\\n", " ").splitlines()]


def _spans(page: str) -> list[str]:
    text = (blocks.ROOT / page).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [" ".join(span.split()) for span in _SPAN.findall(prose)]


def _words(line: str) -> list[str] | None:
    """Return the words of a command of ours, from its program on, or None for other lines."""
    for variable, value in _PLACES.items():
        line = line.replace(variable, value)
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote in a sentence: not a command
        return None
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[:1] == ["torchrun"] and "-m" in words:
        words = words[words.index("-m") + 1 :]
    return words if words[:1] in (["acdc"], ["make"]) or words[:2] == ["python", "-m"] else None
