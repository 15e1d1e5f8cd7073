"""acdc compare-methods: methods x sparsities x seeds on one recipe, by the same loop and the same counting.

Every run is a folder of its own, so that a comparison that was stopped goes on where it was: type the same again.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acdc import methods, models
from acdc.cli import common, pool, predict
from acdc.cli.errors import UsageError
from acdc.cli.facts import Facts, facts_of
from acdc.cli.train import Place, load
from acdc.measure.flops import training_flops
from acdc.sparsity.uses import forward_uses
from acdc.train import experiment, folder, reading
from acdc.train.distributed import World
from acdc.train.recipe import Recipe

DEFAULT = "acdc,gmp,rigl"


@dataclass(frozen=True)
class Cell:
    """One method at one sparsity, for one seed."""

    method: str
    sparsity: float | None  # None for dense training, and where training decides it
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        share = f"-{100 * self.sparsity:g}" if self.sparsity is not None else ""
        return f"{self.method}{share}-seed{self.seed}"


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare-methods",
        help="train several methods on one recipe and compare them",
        description="Train methods x sparsities x seeds on one recipe, several at a time, at equal epochs or at equal "
        "training FLOPs. --set rigl.drop=0.5 is for one method alone. Typed again it goes on where it was stopped.",
        allow_abbrev=False,
    )
    common.add_recipe(parser, default="digits")
    common.add_place(parser)
    listed = "from acdc ls methods, dense too (default %(default)s)"
    parser.add_argument("--methods", default=DEFAULT, metavar="A,B", help=listed)
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
    _claim(out, base, cells)
    made = [pool.Job(cell.name, out / cell.name) for cell in cells]
    for cell, job in zip(cells, made, strict=True):
        pool.prepare(cell.recipe, job.folder)
    print(f"{len(cells)} runs, {jobs} at a time, in {out}; each one's output is in its .log", flush=True)
    code = pool.run_all(made, place, jobs, "the same command")
    if not code:
        summarise(out, base, cells)
    return code


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
    sparsities: list[float] = []
    problems: list[str] = []
    names = list(dict.fromkeys(name.strip() for name in args.methods.split(",") if name.strip()))
    known = (*methods.names(), "dense")
    problems += [f"--methods {n}: expected some of {', '.join(known)}" for n in names if n not in known]
    if not names:
        problems.append(f'--methods "{args.methods}": expected some of {", ".join(known)}')
    if args.sparsity is not None:
        problems.append(
            f"--sparsity {args.sparsity}: methods are compared at --sparsities; type --sparsities {args.sparsity}"
        )
    if args.like != "acdc" and args.equal != "flops":
        problems.append(f"--like {args.like}: it counts with --equal flops only; type that too, or leave --like out")
    try:
        sparsities = list(dict.fromkeys(float(text) for text in args.sparsities.split(",")))
    except ValueError:
        problems.append(f"--sparsities {args.sparsities}: expected fractions, such as 0.9,0.95")
    if problems:
        raise UsageError(problems)
    facts = _facts(base, args.data) if args.equal == "flops" else None
    cells: list[Cell] = []
    for name in names:
        if name == "dense":
            shares: list[float | None] = [None]
        else:
            shares = list(sparsities) if methods.find(name).needs_sparsity else [None]
        for sparsity in shares:
            said = [*settings, *own.get(name, ()), f"method.name={name}", "run.finetune=false", "run.baseline=false"]
            said += [f"method.sparsity={sparsity}"] if sparsity is not None else ["method.sparsity="]
            if name != "acdc":
                said += ["method.schedule=", f"train.epochs={base.epochs}"]
            try:
                recipe = reading.read(args.recipe, said)
                if facts is not None:
                    recipe = _at_equal_flops(recipe, facts, args, sparsity, settings)
            except reading.RecipeError as error:
                problems.append(f"{name}: {'; '.join(error.problems)}")
                continue
            cells += [Cell(name, sparsity, seed, recipe.with_seed(seed)) for seed in base.run.seeds]
    if problems:
        raise UsageError(problems)
    return cells


def _facts(base: Recipe, root: str | None) -> Facts:
    try:
        return facts_of(base, root)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise UsageError([str(error)]) from None


def _at_equal_flops(
    recipe: Recipe, facts: Facts, args: argparse.Namespace, sparsity: float | None, settings: Sequence[str]
) -> Recipe:
    """As many epochs as the predicted cost of `--like` buys; milestones of the learning rate move along."""
    said = [*settings, f"method.name={args.like}", "run.finetune=false", "run.baseline=false"]
    if args.like != "dense":
        said.append(f"method.sparsity={sparsity if sparsity is not None else args.sparsities.split(',')[0]}")
    like = reading.read(args.recipe, said)
    scale = _cost(like, facts) / _cost(recipe, facts)
    epochs = max(4, round(recipe.epochs * scale))
    milestones = [round(m * epochs / recipe.epochs, 3) for m in recipe.rate.milestones]
    changed = recipe.to_dict()
    changed["train"]["epochs"], changed["method"]["schedule"] = epochs, None
    changed["rate"]["milestones"] = milestones
    return reading.from_dict(changed)


def _cost(recipe: Recipe, facts: Facts) -> float:
    """Predicted FLOPs of training, in dense epochs; the middle of two estimates where there are two."""
    said = recipe.model
    model = models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=0, **said.options)
    uses = forward_uses(model, torch.zeros(1, *facts.shape))
    method = recipe.build_method()
    found = predict.compressed(method, method.layers(model)) if method and method.needs_sparsity else None
    flops = predict.inference(model, uses, found)
    costs = predict.training(experiment.plan(recipe), flops, 1)
    each = next(iter(costs.values())) or (3 * flops.dense * recipe.epochs,)
    return statistics.fmean(each) / (3 * flops.dense)


def _claim(out: Path, base: Recipe, cells: Sequence[Cell]) -> None:
    """A new folder, or the one this very comparison began in."""
    now = {cell.name: cell.recipe.to_dict() for cell in cells}
    file = out / "comparison.json"
    if not file.is_file():
        if reason := folder.why_not(out):
            raise UsageError([f"--out {out}: {reason}; type another folder"])
        out.mkdir(parents=True, exist_ok=True)
        folder.write_json(file, {"recipe": base.name, "epochs": base.epochs, "runs": now})
        return
    held = folder.read_json(file)
    before = held["runs"]
    plain = json.loads(json.dumps(now))
    if changed := [name for name in before if name in plain and before[name] != plain[name]]:
        raise UsageError([f"--out {out}: {changed[0]} began with other settings there; type another folder"])
    folder.write_json(file, {**held, "runs": before | plain})  # more methods, sparsities or seeds may join


def summarise(out: Path, base: Recipe, cells: Sequence[Cell]) -> None:
    """Mean ± standard deviation over seeds, and what training cost by the paper's rule."""
    rows, facts = [], []
    for key in dict.fromkeys((cell.method, cell.sparsity) for cell in cells):
        same = [_outcome(out / cell.name, base.epochs) for cell in cells if (cell.method, cell.sparsity) == key]
        accuracy = [one["test_accuracy"] for one in same]
        fact = {
            "method": key[0],
            "asked": key[1],
            "epochs": same[0]["epochs"],
            "test_accuracy": statistics.fmean(accuracy),
            "std": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
            "values": accuracy,
            "sparsity": statistics.fmean(one["sparsity"] for one in same),
            "inference": statistics.fmean(one["flops_ratio"] for one in same),
            "training": statistics.fmean(one["training"] for one in same),
        }
        facts.append(fact)
        spread = f" ± {100 * fact['std']:.2f}" if fact["std"] is not None else ""
        rows.append(
            (
                key[0],
                f"{fact['sparsity']:.2%}",
                f"{100 * fact['test_accuracy']:.2f}{spread}",
                f"{fact['inference']:.2f}x",
                f"{fact['training']:.2f}x",
                str(fact["epochs"]),
                str(len(same)),
            )
        )
    order = sorted(range(len(facts)), key=lambda i: (facts[i]["sparsity"], facts[i]["test_accuracy"]), reverse=True)
    rows = [rows[i] for i in order]
    header = ("method", "zeros", "test accuracy, %", "inference FLOPs", "training FLOPs", "epochs", "seeds")
    title = f"Costs as fractions of the dense model's inference, and of {base.epochs} epochs of dense training"
    common.show_table(title, header, rows)
    folder.write_json(out / "result.json", {"methods": facts})
    print(f"\nthe figures: acdc report {out}/*/")


def _outcome(run: Path, epochs: int) -> dict[str, Any]:
    model = folder.read_json(run / "result.json")["models"][0]
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    spent = training_flops(((row["kind"], row["flops"]) for row in rows), model["dense_flops"])
    return {**model, "epochs": len(rows), "training": spent / (3 * model["dense_flops"] * epochs)}
