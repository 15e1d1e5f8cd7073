"""acdc compare-methods: methods x sparsities x seeds on one recipe, by the same loop and the same counting.

Every run is a folder of its own, so that a comparison that was stopped goes on where it was: type the same again.
"""

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acdc import methods
from acdc.cli import common, pool, variants
from acdc.cli.equal import at_equal_flops
from acdc.cli.errors import UsageError
from acdc.cli.facts import Facts, facts_of
from acdc.cli.train import Place, load
from acdc.cli.variants import Variant
from acdc.report import several
from acdc.report.comparison import cells as compared
from acdc.report.comparison import rows
from acdc.report.comparison import tables as comparing
from acdc.report.read import read as read_run
from acdc.train import folder, reading
from acdc.train.distributed import World
from acdc.train.recipe import Recipe, read_pattern

DEFAULT = "acdc,gmp,rigl"
EXAMPLES = """examples:
  acdc compare-methods digits --methods acdc,gmp,rigl,dense --sparsities 0.9,0.95 --seeds 0,1,2
  acdc compare-methods digits --methods acdc,gmp --set gmp.every=1ep          # for one method alone
  acdc compare-methods digits --methods acdc,dense --variant distilled=acdc:train.distill=0.5
  acdc compare-methods digits --methods acdc --variant str7=str:optimizer.weight_decay=7e-4,rate.warmup=1

a variant is a method under a name of its own with settings of its own, METHOD's knobs (no table) or any of the recipe;
it runs beside --methods, at every sparsity unless training decides that. Tables and figures end up in DIR: report.html.
"""


@dataclass(frozen=True)
class Cell:
    """One method, or a variant of it, at one sparsity, for one seed."""

    variant: Variant
    sparsity: float | None  # None for dense training, and where training decides it
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        share = f"-{100 * self.sparsity:g}" if self.sparsity is not None else ""
        return f"{self.variant.name}{share}-seed{self.seed}"

    def told(self) -> dict[str, Any]:
        said = {"variant": self.variant.name, "method": self.variant.method, "settings": list(self.variant.settings)}
        return {**said, "sparsity": self.sparsity, "seed": self.seed}


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare-methods",
        help="train several methods on one recipe and compare them",
        description="Train methods x sparsities x seeds on one recipe, several at a time, at equal epochs or at equal "
        "training FLOPs; then a table and a page of figures. Typed again it goes on where it was stopped; with more "
        "methods, sparsities or seeds, these join it.",
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
    device, why = common.read_device(args.device)
    jobs = pool.read_jobs(args.jobs)
    settings, own = _by_method(common.settings(args))
    base = common.read(args.recipe, [s for s in settings if not s.startswith("method.")])
    cells = plan(args, base, settings, own)
    place = Place(
        device=device, why_device=why, root=args.data, workers=common.read_workers(args.workers), world=World(), log=()
    )
    load(base, place).close()  # data that is missing leaves nothing behind
    out = Path(args.out or f"runs/compare-{base.name}")
    _claim(out, base, cells, _typed(args))
    made = [pool.Job(cell.name, out / cell.name) for cell in cells]
    for cell, job in zip(cells, made, strict=True):
        pool.prepare(cell.recipe, job.folder)
    print(f"{len(cells)} runs, {jobs} at a time, in {out}; each one's output is in its .log", flush=True)
    ended = pool.run_all(made, place, jobs, "the same command")
    if not ended.stopped:
        summarise(out)
    return ended.code


# What is run


def _by_method(said: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Settings for all, and those for one method: rigl.drop=0.5 is method.drop=0.5 where the method is RigL."""
    shared, own = [], {name: [] for name in methods.names()}
    for setting in said:
        table, _, rest = setting.partition(".")
        own[table].append(f"method.{rest}") if table in own else shared.append(setting)
    return shared, own


def plan(
    args: argparse.Namespace, base: Recipe, settings: Sequence[str], own: Mapping[str, Sequence[str]]
) -> list[Cell]:
    """Every run. All that is wrong is said before anything is made."""
    problems: list[str] = []
    entries, sparsities = _entries(args, problems), _sparsities(args, problems)
    if args.like != "acdc" and args.equal != "flops":
        problems.append(f"--like {args.like}: it counts with --equal flops only; type that too, or leave --like out")
    if problems:
        raise UsageError(problems)
    facts = _facts(base, args.data) if args.equal == "flops" else None
    cells: list[Cell] = []
    for entry in entries:
        mine = [*settings, *own.get(entry.method, ()), *entry.settings]
        for sparsity, said in _shares(entry.method, mine, sparsities):
            fixed = [f"method.name={entry.method}", "run.finetune=false", "run.baseline=false", said]
            if entry.method != "acdc":
                fixed += ["method.schedule=", f"train.epochs={base.epochs}"]
            try:
                every = [*settings, *own.get(entry.method, ()), *fixed, *entry.settings]
                recipe = reading.read(args.recipe, every)
                if facts is not None:
                    level = sparsity if sparsity is not None else sparsities[0]
                    recipe = at_equal_flops(recipe, facts, args.recipe, args.like, level, settings)
            except reading.RecipeError as error:
                problems.append(f"{entry.name}: {'; '.join(error.problems)}")
                continue
            cells += [Cell(entry, sparsity, seed, recipe.with_seed(seed)) for seed in base.run.seeds]
    names = [cell.name for cell in cells]
    problems += [
        f"{name}: two runs would have this name; name a variant otherwise" for name in names if names.count(name) > 1
    ]
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return cells


def _entries(args: argparse.Namespace, problems: list[str]) -> list[Variant]:
    """Methods as they are, then variants."""
    known = variants.known()
    names = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    problems += [f"--methods {n}: expected some of {', '.join(known)}" for n in names if n not in known]
    if not names and not args.variant:
        problems.append(f'--methods "{args.methods}": expected some of {", ".join(known)}')
    return [*(Variant(name, name) for name in names), *variants.read(args.variant, problems)]


def _sparsities(args: argparse.Namespace, problems: list[str]) -> list[float]:
    if args.sparsity is not None:
        problems.append(
            f"--sparsity {args.sparsity}: methods are compared at --sparsities; type --sparsities {args.sparsity}"
        )
    try:
        return list(dict.fromkeys(float(text) for text in args.sparsities.split(",")))
    except ValueError:
        problems.append(f"--sparsities {args.sparsities}: expected fractions, such as 0.9,0.95")
        return []


def _shares(method: str, said: Sequence[str], sparsities: Sequence[float]) -> list[tuple[float | None, str]]:
    """The sparsities to train at, each with its setting. A pattern such as 2:4 has its own."""
    if method == "dense" or not methods.find(method).needs_sparsity:
        return [(None, "method.sparsity=")]
    patterns = [text.partition("=")[2].strip("\"' ") for text in said if text.startswith("method.pattern=")]
    try:
        fixed = read_pattern(patterns[-1]).sparsity if patterns and patterns[-1] else None
    except ValueError:  # named when the recipe is read
        fixed = None
    return [(s, f"method.sparsity={s}") for s in sparsities] if fixed is None else [(fixed, "method.sparsity=")]


def _facts(base: Recipe, root: str | None) -> Facts:
    try:
        return facts_of(base, root)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise UsageError([str(error)]) from None


# Where it lies


def _claim(out: Path, base: Recipe, cells: Sequence[Cell], typed: str) -> None:
    """A new folder, or the one this very comparison began in."""
    now = {"runs": {cell.name: cell.recipe.to_dict() for cell in cells}}
    now |= {"cells": {cell.name: cell.told() for cell in cells}}
    now, file = json.loads(json.dumps(now)), out / compared.FILE
    if not file.is_file():
        if reason := folder.why_not(out):
            raise UsageError([f"--out {out}: {reason}; type another folder"])
        out.mkdir(parents=True, exist_ok=True)
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        said = {"recipe": base.name, "epochs": base.epochs, "started": began, "commands": [typed]}
        folder.write_json(file, said | now)
        return
    held = folder.read_json(file)
    before = held["runs"]
    if changed := [name for name in before if name in now["runs"] and before[name] != now["runs"][name]]:
        raise UsageError([f"--out {out}: {changed[0]} began with other settings there; type another folder"])
    if (held["recipe"], held["epochs"]) != (base.name, base.epochs):
        there = f"{held['recipe']} over {held['epochs']} epochs is compared there"
        raise UsageError([f"--out {out}: {there}, not {base.name} over {base.epochs}; type another folder"])
    # More methods, sparsities or seeds may join.
    joined = {key: held.get(key, {}) | now[key] for key in now}
    commands = list(dict.fromkeys([*held.get("commands", ()), typed]))
    folder.write_json(file, {**held, **joined, "commands": commands})


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
    for run in compared.runs(out):
        if (run / "result.json").is_file():
            whole.append(read_run(run))
        else:
            missing.append(f"{run.name}{compared.last_words(run)}")
    if whole:
        found = several.groups(whole)
        made = rows.rows(found)
        folder.write_json(out / "result.json", {"methods": rows.as_json(made), "missing": missing})
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
