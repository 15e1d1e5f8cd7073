"""acdc compare-methods: methods x sparsities x seeds on one recipe, by the same loop and the same counting.

Every run is a folder of its own, so that a comparison that was stopped goes on where it was: type the same again.
"""

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from acdc.cli import common
from acdc.errors import Problems, UsageError
from acdc.io import write_json
from acdc.recipes.schema import Recipe
from acdc.report import several
from acdc.report.comparison import cells as compared
from acdc.report.comparison import rows
from acdc.report.comparison import tables as comparing
from acdc.report.read import ReportError
from acdc.report.read import read as read_run
from acdc.runs import differences, folder
from acdc.runs.folder import ComparisonFolder, RunFolder
from acdc.runs.json_files import RecordError
from acdc.runs.records import Comparison
from acdc.train import pool
from acdc.train.cells import Cell, by_method, plan
from acdc.train.distributed import World
from acdc.train.facts import Facts
from acdc.train.loading import Problem
from acdc.train.place import Place, fit, load

DEFAULT = "acdc,gmp,rigl"
EXAMPLES = """examples:
  acdc compare-methods digits --methods acdc,gmp,rigl,dense --sparsities 0.9,0.95 --seeds 0,1,2
  acdc compare-methods digits --methods acdc,gmp --set gmp.every=1ep          # for one method alone
  acdc compare-methods digits --methods acdc,dense --variant distilled=acdc:train.distill=0.5
  acdc compare-methods digits --methods acdc --variant str7=str:optimizer.weight_decay=7e-4,rate.warmup=1

a variant is a method under a name of its own with settings of its own, METHOD's knobs (no table) or any of the recipe;
it runs beside --methods, at every sparsity unless training decides that. Tables and figures end up in DIR/report.html.
"""


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare-methods",
        description="Train methods x sparsities x seeds on one recipe, several at a time, at equal epochs or at equal\n"
        "training FLOPs; then a table and a page of figures. Typed again it goes on where it was stopped; with\n"
        "more methods, sparsities or seeds, these join it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    common.add_recipe(parser, default="digits")
    common.add_place(parser)
    listed = "from acdc ls methods, dense too (default %(default)s)"
    parser.add_argument("--methods", default=DEFAULT, metavar="A,B", help=listed)
    said = "a method with settings of its own, under a name of its own; repeatable"
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=METHOD:a=X,b.c=Y", help=said)
    parser.add_argument("--sparsities", default="0.9", metavar="S,S", help="default %(default)s")
    parser.add_argument("--equal", default="epochs", choices=("epochs", "flops"), help="default %(default)s")
    parser.add_argument("--like", default="acdc", metavar="METHOD", help="with --equal flops: whose cost all get")
    parser.add_argument("--jobs", default="1", metavar="N", help="runs at the same time (default 1)")
    parser.add_argument("--out", metavar="DIR", help="made, or gone on with (default runs/compare-RECIPE)")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    problems = Problems()  # all that is found before anything is made, and before the first of them is trained
    settings, own = by_method(common.readable_settings(args, problems))
    shared = [s for s in settings if not s.startswith("method.") or s.startswith("method.schedule")]
    examined = common.examine_with(args.recipe, shared)
    base = examined.recipe  # whose epochs all have
    problems[:0] = examined.problems
    jobs = problems.attempt(pool.read_jobs, args.jobs)
    device = problems.attempt(common.read_device, args.device)
    place = Place(
        device=(device or common.read_device("auto"))[0],
        why_device=device[1] if device else "",
        root=args.data,
        workers=problems.attempt(common.read_workers, args.workers),
        world=World(),
        log=(),
        settings=tuple(differences.free(settings)[0]),
    )
    cells = plan(args, base, settings, own, problems)
    found, warnings = _fit(cells, place, examined.problems)
    out = Path(args.out or f"runs/compare-{Path(args.recipe).stem}")
    problems += [*found, *_bad_out(out, base, cells)]
    if problems or base is None or jobs is None:
        raise UsageError(list(dict.fromkeys(problems)))
    _claim(out, base, cells, _typed(args))
    made = [pool.Job(cell.name, out / cell.name, tuple(differences.free(cell.variant.settings)[0])) for cell in cells]
    for cell, job in zip(cells, made, strict=True):
        pool.prepare(cell.recipe, job.folder)
    for text in warnings:
        print(f"warning: {text}")
    print(f"{len(cells)} runs, {jobs} at a time, in {out}; each one's output is in its .log", flush=True)
    ended = pool.run_all(made, place, jobs, args.typed)
    if not ended.stopped:
        summarise(out)
        for text in warnings:
            print(f"warning: {text}")
    return ended.code


def _fit(cells: Sequence[Cell], place: Place, told: Sequence[str]) -> tuple[list[str], list[str]]:
    """Every run looked at as `acdc check` does: all that is wrong and not told yet, and what may surprise."""
    problems, warnings = {}, {}  # what is said, and the methods it is said of
    loaded: dict[str, Problem | UsageError] = {}
    for cell in {(cell.variant.name, cell.sparsity): cell for cell in cells}.values():
        recipe, name, wrong = cell.recipe, cell.variant.name, list(map(str, cell.wrong))
        data = repr((recipe.data, recipe.train.batch_size, recipe.train.precision))
        try:
            if data not in loaded and not common.data_is_wrong(cell.wrong):
                loaded[data] = load(recipe, place)
        except UsageError as error:
            loaded[data] = error
        found = loaded.get(data)
        if isinstance(found, UsageError):
            wrong += found.problems
            found = None
        try:
            facts = Facts.of(found) if found else None
            for text in fit(recipe, facts, place.device, wrong=cell.wrong, typed=cell.variant.method):
                warnings.setdefault(text, []).append(name)
        except UsageError as error:
            wrong += error.problems
        for text in wrong:
            if text not in told:
                problems.setdefault(text, []).append(name)
    for found in loaded.values():
        if not isinstance(found, UsageError):
            found.close()
    names = {cell.variant.name for cell in cells}
    return _told(problems, names), _told(warnings, names)


def _told(said: Mapping[str, Sequence[str]], names: Set[str]) -> list[str]:
    """Each thing once, with the methods it is true of, unless it is of all."""
    return [text if {*of} == names else f"{', '.join(dict.fromkeys(of))}: {text}" for text, of in said.items()]


# Where it lies


def _bad_out(out: Path, base: Recipe | None, cells: Sequence[Cell]) -> list[str]:
    """Why this comparison can neither begin nor go on in this folder."""
    held = ComparisonFolder(out).read()
    if held is None:
        return [f"--out {out}: {reason}; type another folder"] if (reason := folder.why_not(out)) else []
    sound = [cell for cell in cells if not cell.wrong]
    now = _runs(sound)
    problems = [
        f"--out {out}: {name} began with other settings there ({changed}); type another folder"
        for name, recipe in held.runs.items()
        if name in now and (changed := differences.first(recipe, now[name]))
    ]
    if base and sound and (held.recipe, held.epochs) != (base.name, base.epochs):
        there = f"{held.recipe} over {held.epochs} epochs is compared there"
        problems.append(f"--out {out}: {there}, not {base.name} over {base.epochs}; type another folder")
    return problems


def _runs(cells: Sequence[Cell]) -> dict[str, Any]:
    """Their recipes by name, as a file holds them."""
    return json.loads(json.dumps({cell.name: cell.recipe.to_dict() for cell in cells}))


def _claim(out: Path, base: Recipe, cells: Sequence[Cell], typed: str) -> None:
    """A new folder, or the one this very comparison began in."""
    there = ComparisonFolder(out)
    held = there.read()
    if held is None:
        out.mkdir(parents=True, exist_ok=True)
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        held = Comparison(recipe=base.name, epochs=base.epochs, started=began)
    # More methods, sparsities or seeds may join.
    there.write(
        replace(
            held,
            commands=tuple(dict.fromkeys([*held.commands, typed])),
            runs={**held.runs, **_runs(cells)},
            cells={**held.cells, **{cell.name: cell.record() for cell in cells}},
        )
    )


def _typed(args: argparse.Namespace) -> str:
    """The command again, without what is only of this machine."""
    words = ["acdc", "compare-methods", args.recipe, "--methods", args.methods, "--sparsities", args.sparsities]
    words += [part for text in args.variant for part in ("--variant", text)]
    words += [part for text in args.set for part in ("--set", text)]
    for option in ("epochs", "lr", "seeds"):
        if getattr(args, option) is not None:
            words += [f"--{option}", getattr(args, option)]
    if args.equal != "epochs":
        words += ["--equal", args.equal, "--like", args.like]
    return shlex.join(words)


# What came of it


def summarise(out: Path) -> None:
    """Mean ± standard deviation over seeds of all that is complete in the folder, the rest by name, and the page."""
    whole, missing = [], []
    for run in ComparisonFolder(out).runs():
        if not RunFolder(run).complete:
            missing.append(f"{run.name}{compared.last_words(run)}")
            continue
        try:
            whole.append(read_run(run))
        except (ReportError, RecordError) as error:  # a file of it is gone or damaged
            missing.append(f"{run.name}; {error}")
    if whole:
        found = several.groups(whole)
        made = rows.rows(found)
        write_json(RunFolder(out).result, {"methods": rows.as_json(made), "missing": missing})
        title = "Costs as fractions of the dense model's inference, and of {} epochs of dense training"
        common.show_table(title.format(rows.reference(found)), comparing.HEADER, comparing.plain_rows(made))
        if agreed := comparing.agreement(made):
            common.show_table(f"{agreed.title}, in %", agreed.header, agreed.rows)
            print(f"\n{agreed.note}")
        print(f"\n{common.report_of(out)}")
    if missing:
        print(f"\nnot complete, and in no table: {len(missing)} of {len(missing) + len(whole)} runs", file=sys.stderr)
        for said in missing:
            print(f"  {said}", file=sys.stderr)
