"""Progress of long measurements: a bar on a terminal, plain lines elsewhere; and a quiet end on Ctrl-C."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 140)


def say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call when something begins; without a terminal it prints every tenth line."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(title, total=total)
            begun = 0

            def begin(what: str) -> None:
                nonlocal begun
                bar.update(task, description=f"{title}: {what}", completed=begun)
                begun += 1

            yield begin
        return

    done, every = 0, max(1, total // 10)

    def begin_plainly(what: str) -> None:
        nonlocal done
        if done % every == 0:
            say(f"{title}: {what} ({done} of {total})")
            sys.stdout.flush()
        done += 1

    yield begin_plainly


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    table = Table(title=title, caption=note, title_justify="left", caption_justify="left")
    for column, name in enumerate(header):
        table.add_column(name, justify="left" if column == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def run(main: Callable[[], int]) -> None:
    """Exit with main's status; Ctrl-C ends with one line and the status shells expect."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; complete results have been written")
        sys.exit(130)
