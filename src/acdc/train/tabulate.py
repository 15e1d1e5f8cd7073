"""Tables on a console that never truncate a number: columns without room continue below, with the first repeated."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console as Terminal

_BETWEEN = 3  # characters that the table's frame takes for each column
_WORDS = 24  # characters at which a column of words may wrap


def plain(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> Iterator[str]:
    """Yield lines of any width, for logs and pipes. The first `text` columns are words, the others numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    yield f"\n{title}"
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [f"{c:{'<' if i < text else '>'}{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()


def show(
    terminal: "Terminal", title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1
) -> None:
    """Print a table as wide as the terminal."""
    from rich import box
    from rich.table import Table

    for number, columns in enumerate(blocks(header, rows, text, terminal.width)):
        cells = {index: [row[index] for row in rows] for index in columns}
        whole = {index: max(map(len, [header[index], *cells[index]])) for index in columns}
        tight = sum(whole.values()) + _BETWEEN * len(columns) - 1 > terminal.width
        heading = f"\n{title}" if not number else None
        table = Table(title=heading, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
        for index in columns:
            fixed = _needed(index, header[index], cells[index], text) - _BETWEEN if tight else whole[index]
            side, width = "left" if index < text else "right", None if 0 < index < text else fixed
            table.add_column(header[index], justify=side, width=width, overflow="fold")
        for row in rows:
            table.add_row(*(row[index] for index in columns))
        terminal.print(table, markup=False, highlight=False)


def blocks(header: Sequence[str], rows: Sequence[Sequence[str]], text: int, width: int) -> list[list[int]]:
    """Return the columns that fit side by side, left to right; each later block repeats the first column."""
    needed = [_needed(index, header[index], [row[index] for row in rows], text) for index in range(len(header))]
    split, room = [[0]], width + 1 - needed[0]
    for index in range(1, len(header)):
        if needed[index] > room and len(split[-1]) > 1:
            split.append([0])
            room = width + 1 - needed[0]
        split[-1].append(index)
        room -= needed[index]
    return split


def _needed(index: int, name: str, cells: Sequence[str], text: int) -> int:
    """Return the width a column needs: headers and words wrap between words, but a number and its ± do not."""
    longest = max(map(len, cells), default=0)
    if 0 < index < text:
        longest = min(longest, _WORDS)
    return max(longest, *(len(word) for word in name.split() or [""]), 0) + _BETWEEN
