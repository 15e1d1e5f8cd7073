"""Tables keep every digit, however narrow the terminal."""

import io
import re

import pytest
from rich.console import Console as Terminal

from acdc.train import console, tabulate

HEADER = ("method", "zeros, %", "test accuracy, %", "inference FLOPs", "training FLOPs", "epochs", "seeds")
ROWS = [
    ("Top-KAST", "95.00", "50.92 ± 13.85", "0.05x", "0.05x", "8", "3"),
    ("dense", "0.00", "98.50 ± 0.25", "1.00x", "1.00x", "8", "3"),
]


def shown(width: int, header=HEADER, rows=ROWS, text: int = 1) -> str:
    stream = io.StringIO()
    tabulate.show(Terminal(file=stream, width=width, force_terminal=False), "A title", header, rows, text=text)
    return stream.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_no_number_is_cut_and_no_line_is_too_long(width: int) -> None:
    said = shown(width)
    assert "…" not in said
    for row in ROWS:
        for cell in row:
            assert re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", said), cell
    assert max(map(len, said.splitlines())) <= width


def test_columns_without_room_go_on_below_beside_the_first() -> None:
    assert tabulate.blocks(HEADER, ROWS, 1, 200) == [list(range(7))]
    found = tabulate.blocks(HEADER, ROWS, 1, 40)
    assert len(found) > 1
    assert all(block[0] == 0 for block in found)
    assert [index for block in found for index in block[1:]] == list(range(1, 7))
    assert shown(40).count("Top-KAST") == len(found)


def test_words_wrap() -> None:
    said = shown(50, ("name", "about"), [("digits", "the default run, which takes less than a minute on a laptop")], 2)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 50


def test_plain_lines_are_as_long_as_they_are() -> None:
    title, header, rule, first, _ = tabulate.plain("A title", HEADER, ROWS)
    assert title == "\nA title"
    assert len(header) == len(rule) == len(first)


def test_a_narrow_terminal_shows_fewer_columns_of_the_live_table() -> None:
    assert list(console._fitting(100)) == ["epoch", "phase", "sparsity", "loss", "test"]
    assert list(console._fitting(44)) == ["epoch", "sparsity", "loss", "test"]
    assert list(console._fitting(20)) == ["epoch", "test"]
    assert list(console._fitting(3)) == ["test"]
