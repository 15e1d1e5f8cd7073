"""acdc compare-methods: train methods x sparsities x seeds on one recipe, by the same loop and the same counting.

Every run has its own folder, so that a comparison that was stopped resumes where it was: repeat the same command.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import draw_report, show_table
from acdc.errors import Problems, UsageError, did_you_mean
from acdc.io import write_json
from acdc.report import group_tables, standings
from acdc.report.groups import group_runs
from acdc.report.read import ReportError, comparison_runs, log_end
from acdc.report.read import read as read_run
from acdc.runs import differences
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import RecordError
from acdc.train.cells import Grid, Variant, known_methods, plan_cells, read_variants, split_settings
from acdc.train.comparison import check_cells, check_folder, claim_folder
from acdc.train.jobs import read_jobs, run_all
from acdc.train.prepare import RunOptions, read_recipe

DEFAULT = "acdc,gmp,rigl"
EXAMPLES = """examples:
  acdc compare-methods digits --methods acdc,gmp,rigl,dense --sparsities 0.9,0.95 --seeds 0,1,2
  acdc compare-methods digits --methods acdc,gmp --set gmp.every=1ep          # for one method alone
  acdc compare-methods digits --methods acdc,dense --variant distilled=acdc:train.distill=0.5
  acdc compare-methods digits --methods acdc --variant str7=str:optimizer.weight_decay=7e-4,rate.warmup=1
  for e in 5 20 80; do acdc compare-methods digits --epochs $e --out runs/budget-$e; done  # then accuracy by budget:
  acdc report runs/budget-5 runs/budget-20 runs/budget-80

a variant is a method with its own name and its own settings: METHOD's knobs (no table) or any setting of the recipe;
it runs beside --methods, at every sparsity unless training decides it. Tables and figures are in DIR/report.html.
"""


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare-methods",
        description="Train methods x sparsities x seeds on one recipe, several at a time, at equal epochs or at equal\n"
        "training FLOPs; then show a table and write a page of figures. Repeat the command to resume where it\n"
        "stopped; add methods, sparsities or seeds to extend the comparison.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_recipe(parser, default="digits")
    options.add_place(parser)
    listed = "from acdc ls methods, or dense (default %(default)s)"
    parser.add_argument("--methods", default=DEFAULT, metavar="A,B", help=listed)
    variant = "a method with its own name and settings; repeatable"
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=METHOD:a=X,b.c=Y", help=variant)
    parser.add_argument("--sparsities", default="0.9", metavar="S,S", help="default %(default)s")
    parser.add_argument("--equal", default="epochs", choices=("epochs", "flops"), help="default %(default)s")
    parser.add_argument(
        "--like", default="acdc", metavar="METHOD", help="with --equal flops: the method whose cost all get"
    )
    parser.add_argument("--jobs", default="1", metavar="N", help="runs at the same time (default 1)")
    parser.add_argument("--out", metavar="DIR", help="a new folder, or one to resume (default runs/compare-RECIPE)")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    problems = Problems()  # everything found before any folder is created or any run is trained
    if "," in (args.epochs or ""):
        problems.append(_one_budget(args.epochs))
        args.epochs = None
    settings, own = split_settings(options.readable_settings(args, problems))
    shared = [s for s in settings if not s.startswith("method.") or s.startswith("method.schedule")]
    unreadable: list[str] = []
    base, _ = read_recipe(args.recipe, shared, unreadable)  # all have its epochs
    problems[:0] = unreadable
    at_once = problems.attempt(read_jobs, args.jobs)
    device = problems.attempt(options.read_device, args.device)
    run_options = RunOptions(
        device=(device or options.read_device("auto"))[0],
        why_device=device[1] if device else "",
        root=args.data,
        workers=problems.attempt(options.read_workers, args.workers),
        settings=tuple(differences.free(settings)[0]),
        report=False,  # the comparison has its own page
    )
    sound = not problems
    grid = _read_grid(args, settings, own, problems)
    cells = plan_cells(grid, base, problems, count_flops=sound)
    wrong, warnings = check_cells(cells, run_options, unreadable)
    out = Path(args.out or f"runs/compare-{Path(args.recipe).stem}")
    problems += [*wrong, *check_folder(out, base, cells)]
    if problems or base is None or at_once is None:
        raise UsageError(list(dict.fromkeys(problems)))
    jobs = claim_folder(out, base, cells, _command(args))
    for text in warnings:
        print(f"warning: {text}")
    print(f"{len(cells)} runs, {at_once} at a time, in {out}; the output of each is in its .log", flush=True)
    ended = run_all(jobs, run_options, at_once, args.typed)
    if not ended.stopped:
        summarise(out)
        for text in warnings:
            print(f"warning: {text}")
    return ended.code


def _one_budget(epochs: str) -> str:
    """Return what to type instead of several numbers of epochs."""
    budgets = [text.strip() for text in epochs.split(",") if text.strip()] or ["5"]
    first, folders = budgets[0], " ".join(f"runs/budget-{budget}" for budget in budgets)
    return (
        f"--epochs {epochs}: expected one whole number, as a comparison has one budget; run it once for each, with "
        f"--epochs {first} --out runs/budget-{first} and so on, then: acdc report {folders}"
    )


def _read_grid(args: argparse.Namespace, settings: list[str], own: dict[str, list[str]], problems: list[str]) -> Grid:
    """Read what is to be compared, and add everything wrong with it to `problems`."""
    known = known_methods()
    names = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    expected = f"expected some of {', '.join(known)}"
    problems += [f"--methods {n}: {expected}{did_you_mean(n, known)}" for n in names if n not in known]
    if not names and not args.variant:
        problems.append(f'--methods "{args.methods}": {expected}')
    entries = [*(Variant(name, name) for name in names if name in known), *read_variants(args.variant, problems)]
    return Grid(
        recipe=args.recipe,
        settings=settings,
        own_settings=own,
        entries=entries,
        sparsities=_read_sparsities(args, problems),
        equal_to=_read_like(args, entries, problems),
        data=args.data,
    )


def _read_sparsities(args: argparse.Namespace, problems: list[str]) -> list[float]:
    if args.sparsity is not None:
        problems.append(
            f"--sparsity {args.sparsity}: a comparison uses --sparsities; write --sparsities {args.sparsity}"
        )
    try:
        return list(dict.fromkeys(float(text) for text in args.sparsities.split(",")))
    except ValueError:
        problems.append(f"--sparsities {args.sparsities}: expected fractions, such as 0.9,0.95")
        return []


def _read_like(args: argparse.Namespace, entries: list[Variant], problems: list[str]) -> Variant | None:
    """Return the entry whose training FLOPs all get; None if all get the same epochs."""
    named = {entry.name: entry for entry in (*(Variant(name, name) for name in known_methods()), *entries)}
    if args.like not in named:
        problems.append(f"--like {args.like}: expected one of {', '.join(named)}{did_you_mean(args.like, named)}")
    if args.like != "acdc" and args.equal != "flops":
        problems.append(f"--like {args.like}: it needs --equal flops; add that, or remove --like")
    return named.get(args.like) if args.equal == "flops" else None


def _command(args: argparse.Namespace) -> str:
    """Return the command that would make this comparison anywhere, without what is specific to this machine."""
    words = ["acdc", "compare-methods", args.recipe, "--methods", args.methods, "--sparsities", args.sparsities]
    words += [part for text in args.variant for part in ("--variant", text)]
    words += [part for text in args.set for part in ("--set", text)]
    for option in ("epochs", "lr", "seeds"):
        if getattr(args, option) is not None:
            words += [f"--{option}", getattr(args, option)]
    if args.equal != "epochs":
        words += ["--equal", args.equal, "--like", args.like]
    return shlex.join(words)


# Results


def summarise(out: Path) -> None:
    """Show mean ± standard deviation over seeds of all complete runs in the folder, list the rest, write the page."""
    whole, missing = [], []
    for run in comparison_runs(out):
        if not RunFolder(run).complete:
            missing.append(f"{run.name}{log_end(run)}")
            continue
        try:
            whole.append(read_run(run))
        except (ReportError, RecordError) as error:  # one of its files is gone or damaged
            missing.append(f"{run.name}; {error}")
    if whole:
        settings = group_runs(whole)
        rows = standings.standings_of(settings)
        write_json(RunFolder(out).result, {"methods": standings.as_json(rows), "missing": missing})
        title = "Costs as fractions of the dense model's inference, and of {} epochs of dense training"
        header, lines = group_tables.console_header(rows), group_tables.console_rows(rows)
        show_table(title.format(standings.reference_epochs(settings)), header, lines)
        if agreement := group_tables.method_agreement(rows):
            show_table(f"{agreement.title}, in %", agreement.header, agreement.rows)
            print(f"\n{agreement.note}")
        print(f"\n{draw_report(out)}")
    if missing:
        print(f"\nincomplete, so in no table: {len(missing)} of {len(missing) + len(whole)} runs", file=sys.stderr)
        for text in missing:
            print(f"  {text}", file=sys.stderr)
