"""acdc report: show one or more runs on one page, or as Markdown, JSON, CSV or a picture."""

import argparse
import sys
from pathlib import Path
from typing import Any

from acdc.errors import UsageError
from acdc.report import write
from acdc.report.read import ReportError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "report",
        description="Write the contents of run folders as one self-contained file: a page of figures and tables. "
        "Several runs are shown side by side; those that differ only in the seed are averaged. Comparisons of one "
        "recipe over different numbers of epochs are shown as accuracy against budget. An svg or png shows one figure, "
        "the first unless --figure names another.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder that `acdc train` or `acdc compare-methods` wrote"
    )
    parser.add_argument("--out", metavar="FILE", help="default RUN/report.html; ./report.html for several runs")
    parser.add_argument(
        "--format", metavar="KIND", help=f"{', '.join(write.FORMATS)} (default: from FILE's suffix, or html)"
    )
    parser.add_argument("--figure", metavar="NAME", help="for svg and png: the figure to draw, such as frontier")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    out = Path(args.out) if args.out else None
    kind = args.format or (out.suffix[1:].lower() if out and out.suffix else "html")
    if kind not in write.FORMATS:
        option = f"--format {kind}" if args.format else f"--out {out}"
        raise UsageError([f"{option}: expected one of {', '.join(write.FORMATS)}; write --format html"])
    if args.figure and kind not in write.PICTURES:
        raise UsageError([f"--figure {args.figure}: impossible as {kind}; write --format {write.PICTURES[0]}"])
    try:
        path, notes = write.make([Path(folder) for folder in args.runs], out, kind, args.figure)
    except ReportError as error:
        raise UsageError([str(error)]) from None
    for note in notes:
        print(f"acdc: {note}", file=sys.stderr)
    print(f"report: {path} ({path.stat().st_size / 1000:,.0f} kB)")
    return 0
