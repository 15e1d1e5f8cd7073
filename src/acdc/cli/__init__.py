"""The command line: one module for each verb. Exit codes: 0 done, 1 failed, 2 refused before it began, 130 Ctrl-C.

Only the module of the verb in use is imported: torch takes seconds to import, and not every verb needs it.
"""

import argparse
import contextlib
import errno
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from acdc._version import __version__
from acdc.errors import UsageError
from acdc.runs.json_files import RecordError

# In the order of the help text, each with its line there.
_VERBS = {
    "train": "train a recipe, or resume a run that was stopped",
    "check": "check a recipe and predict its cost, without training",
    "eval": "measure the models of a run on the test images",
    "compare": "see how far two models agree",
    "analyze": "ask of a run's models what the theory assumes of them",
    "compare-methods": "train several methods on one recipe and compare them",
    "report": "show runs on one page: figures, tables, settings",
    "export": "write a run's model as ONNX, packed safetensors or for torch",
    "bench": "time an exported model with every engine installed",
    "ls": "list recipes, models, data sets, schedules, methods or criteria",
    "show": "show a recipe: its settings, timeline, and the paper's results",
    "cp": "copy a recipe to a file, for editing",
    "doctor": "check this machine: versions, device, packages, data",
}


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        _import_from_here()
    try:
        return _run(argv)
    except (UsageError, RecordError) as error:
        with _on_local_rank_zero():
            print(f"acdc: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # even while torch is being imported
        with _on_local_rank_zero():
            print("\nacdc: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output is gone, as in `acdc train | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or error.filename is None:
            raise
        with _on_local_rank_zero():
            name = str(error.filename)
            print(
                f"acdc: {name[:80]}…: a name of {len(name):,} characters is too long; use a shorter one",
                file=sys.stderr,
            )
        return 2


def _import_from_here() -> None:
    """Make the current folder importable, as `python -m acdc` does: a recipe may name the user's own modules."""
    with contextlib.suppress(FileNotFoundError):  # it is gone
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.insert(0, here)


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="acdc",
        description="Sparse training: train once, keep an accurate sparse model and its dense twin.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"acdc {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    arguments = sys.argv[1:] if argv is None else list(argv)
    for name, summary in _VERBS.items():
        if name in arguments[:1]:
            import_module(f"acdc.cli.{name.replace('-', '_')}").add_to(verbs)
        else:
            verbs.add_parser(name, help=summary)
    with _on_local_rank_zero():
        args = parser.parse_args(arguments, argparse.Namespace(typed=shlex.join(["acdc", *arguments])))
    if "verb" not in args:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal is no reason to stop
    return args.verb(args)


@contextlib.contextmanager
def _on_local_rank_zero() -> Iterator[None]:
    """Silence all but the first process that torchrun starts on a machine: they would all print the same."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
