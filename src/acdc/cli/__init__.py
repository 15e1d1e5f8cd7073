"""The command line: one module for each verb. Exit codes: 0 done, 1 failed, 2 refused before it began, 130 Ctrl-C."""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence

from acdc._version import __version__
from acdc.cli import check, compare, compare_methods, cp, doctor, eval, ls, report, show, train
from acdc.cli.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="acdc",
        description="Sparse training: train once, keep an accurate sparse model and its dense twin.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"acdc {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for verb in (train, check, eval, compare, compare_methods, report, ls, show, cp, doctor):
        verb.add_to(verbs)
    with _said_once():
        args = parser.parse_args(argv)
    if "verb" not in args:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal in ASCII is no reason to stop
    try:
        return args.verb(args)
    except UsageError as error:
        with _said_once():
            print(f"acdc: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        with _said_once():
            print("\nacdc: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has gone, as in `acdc train | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


@contextlib.contextmanager
def _said_once() -> Iterator[None]:
    """Of the processes that torchrun starts on a machine, the first speaks: all say the same."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
