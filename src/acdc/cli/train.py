"""acdc train: a recipe, or the rest of a run that was stopped.

Exit codes: 0 done, 1 failed, 2 refused before it began, 130 and 143 stopped by Ctrl-C or SIGTERM after a checkpoint.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from acdc.cli import common
from acdc.cli.errors import UsageError
from acdc.train import checkpoint, distributed, experiment, folder, loading, reading, step, stopping
from acdc.train.checkpoint import CheckpointError, Found
from acdc.train.console import Console, open_console
from acdc.train.distributed import World
from acdc.train.loop import DivergedError, Setting
from acdc.train.recipe import Recipe


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "train",
        help="train a recipe, or take a run up where it stopped",
        description="Train a recipe (the digits, if none is named) and write a run folder: checkpoints, models, "
        "metrics, a final table. Start it under torchrun to use several processes.",
        allow_abbrev=False,
    )
    common.add_recipe(parser, default="digits")
    common.add_place(parser)
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default runs/RECIPE-0001, -0002, ...)")
    parser.add_argument("--resume", metavar="RUN", help="go on from the newest whole checkpoint of this run folder")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why_device = common.read_device(args.device)
    workers = common.read_workers(args.workers)
    with distributed.join(device.type) as world:
        if args.resume is not None:
            return _resume(args, device, why_device, workers, world)
        recipe = common.read_recipe(args)
        out = Path(args.out) if args.out else None
        if out is not None and world.first and (reason := folder.why_not(out)):
            hint = f"type another folder, or leave --out out for the next free runs/{recipe.name}-NNNN"
            resume = f" (to go on with it: acdc train --resume {out})" if (out / "checkpoints").is_dir() else ""
            raise UsageError([f"--out {out}: {reason}; {hint}{resume}"])
        job = _Job(recipe, device, why_device, args.data, workers, world)
        problem = job.load()
        try:
            claimed = folder.claim(out, recipe.name) if world.first else None
        except OSError as error:
            problem_text = f"--out {out or 'runs'}: {error.strerror}; type another folder after --out"
            raise UsageError([problem_text]) from None
        out = Path(world.same(str(claimed)))
        return job.seeds(problem, out)


def _resume(args: argparse.Namespace, device: Any, why_device: str, workers: int | None, world: World) -> int:
    out = Path(args.resume)
    if args.out or args.set or args.recipe != "digits" or common.settings(args):
        raise UsageError([f"--resume {out}: it goes on with its own recipe and folder; leave the other settings out"])
    if not (out / "config.json").is_file():
        raise UsageError([f"--resume {out}: there is no run (no config.json) in this folder; type the run's folder"])
    if (out / "result.json").is_file():
        raise UsageError([f"--resume {out}: this run is complete; its table is in {out / 'result.json'}"])
    try:
        recipe = reading.from_dict(folder.read_json(out / "config.json")["recipe"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError([f"--resume {out}: config.json cannot be read ({error})"]) from None
    job = _Job(recipe, device, why_device, args.data, workers, world)
    return job.seeds(job.load(), out, resume=True)


class _Job:
    """A recipe on a device."""

    def __init__(
        self, recipe: Recipe, device: Any, why_device: str, root: str | None, workers: int | None, world: World
    ) -> None:
        self.recipe, self.device, self.why_device, self.world = recipe, device, why_device, world
        self.root, self.workers = root, workers
        if recipe.train.precision == "fp16" and device.type != "cuda":
            raise UsageError(['train.precision = "fp16": it needs a GPU; on a CPU write "bf16" or "fp32"'])

    def load(self, seed: int | None = None) -> loading.Problem:
        recipe = self.recipe.with_seed(seed if seed is not None else self.recipe.run.seeds[0])
        try:
            return loading.load(recipe, self.device, root=self.root, workers=self.workers, world=self.world)
        except (ModuleNotFoundError, ValueError, OSError) as error:
            raise UsageError([str(error)]) from None

    def seeds(self, problem: loading.Problem, out: Path, *, resume: bool = False) -> int:
        """One run for each seed; several get a folder each."""
        seeds = self.recipe.run.seeds
        if len(seeds) == 1:
            return self._one(self.recipe, problem, out, resume)
        settings = {"command": "train", "recipe": self.recipe.to_dict(), "seeds": list(seeds)}
        if self.world.first and not resume:
            folder.write_json(out / "config.json", settings)
        for seed in seeds:
            inner = out / f"seed-{seed}"
            if (inner / "result.json").is_file():
                continue
            if self.world.first:
                inner.mkdir(exist_ok=True)
            problem = self.load(seed)
            print(f"\nseed {seed}") if self.world.first else None
            code = self._one(self.recipe.with_seed(seed), problem, inner, (inner / "config.json").is_file(), out)
            if code:
                return code
        if self.world.first:
            _over_seeds(out, seeds)
        return 0

    def _one(self, recipe: Recipe, problem: loading.Problem, out: Path, resume: bool, shown: Path | None = None) -> int:
        try:
            plan = experiment.plan(recipe)
            steps = sum(len(planned.kinds) for planned in plan.values()) * problem.loaders.train.steps
            try:
                execution = step.choose(recipe.train, self.device, steps=steps, world=self.world.size)
            except ValueError as error:
                raise UsageError([str(error)]) from None
            found = self._found(recipe, out) if resume else None
            with stopping.listening() as stop, open_console(plan, _done(plan, found), self.world.first) as console:
                setting = Setting(
                    device=self.device,
                    execution=execution,
                    checkpoints=out / "checkpoints",
                    world=self.world,
                    stop=stop,
                    watch=console.watch,
                )
                self._introduce(console, recipe, problem, setting, out, found)
                said = {"command": "train", "dataset": recipe.data.name, "model": recipe.model.name}
                outcomes = experiment.run(recipe, problem, setting, out, console, resume=found, settings=said)
                _show(console, outcomes, problem, out)
        except (stopping.Stopped, KeyboardInterrupt, DivergedError, CheckpointError, OSError) as error:
            return self._ended(error, out, shown or out, recipe)
        finally:
            problem.close()
        return 0

    def _found(self, recipe: Recipe, out: Path) -> Found | None:
        """The checkpoint to go on from; None where the run stopped before its first."""
        if not (out / "checkpoints").is_dir():
            if self.world.first:
                folder.trim_metrics(out, list(experiment.plan(recipe)), -1, 0)
            return None
        found = checkpoint.newest(out / "checkpoints")
        if difference := _difference(found.state["extra"]["recipe"], recipe.to_dict()):
            raise UsageError([f"--resume {out}: {found.path.name} is of another recipe: {difference}"])
        if found.state["extra"]["world"] != self.world.size:
            raise UsageError(
                [
                    f"--resume {out}: it ran as {found.state['extra']['world']} processes, and these are "
                    f"{self.world.size}; start torchrun with --nproc-per-node {found.state['extra']['world']}"
                ]
            )
        steps = found.state["epoch"] * found.state["steps_per_epoch"] + found.state["batch"]
        if self.world.first:
            folder.trim_metrics(out, list(experiment.plan(recipe)), found.state["stage"], steps)
        return found

    def _ended(self, error: BaseException, out: Path, shown: Path, recipe: Recipe) -> int:
        """Say how a run ended early, and how to go on."""

        def say(text: str) -> None:
            if self.world.first:
                print(f"acdc: {text}", file=sys.stderr, flush=True)

        hint = f"go on with: acdc train --resume {shown}"
        if isinstance(error, stopping.Stopped):
            say(f"stopped by {error}, with a checkpoint; {hint}")
            return error.exit_code
        if isinstance(error, KeyboardInterrupt):
            say(f"stopped at once; the epochs so far are in {out / 'metrics.jsonl'}; {hint}")
            return 130
        if isinstance(error, DivergedError):
            say(f"{error}; type a lower --lr, such as --lr {recipe.optimizer.lr / 10:g}")
            return 1
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        say(f"{text}; what is in {out} is whole: make room or mend it, then {hint}")
        return 1

    def _introduce(
        self, console: Console, recipe: Recipe, problem: loading.Problem, setting: Setting, out: Path, found: Found | None
    ) -> None:
        loaders, (channels, height, width) = problem.loaders, problem.shape
        held = f", {loaders.validation.samples:,} validation" if loaders.validation else ""
        console.say(
            f"{recipe.data.name}: {loaders.train.samples:,} training{held} and {loaders.test.samples:,} test images of "
            f"{channels} x {height} x {width}, {problem.classes} classes"
        )
        for note in problem.notes:
            console.say(f"note: {note}")
        model = problem.new_model(recipe)
        size = sum(param.numel() for param in model.parameters())
        console.say(f"model: {recipe.model.name}, {size:,} parameters")
        method = recipe.build_method()
        if method:
            layers = method.layers(model)
            console.say(f"pruned: {layers.size:,} weights in {len(layers.weights)} layers")
            for name, reason in layers.left_dense.items():
                console.say(f"left dense: {name} ({reason})")
        threads = f", {recipe.train.threads} thread" if self.device.type == "cpu" and recipe.train.threads else ""
        several = f", {self.world.size} processes" if self.world.size > 1 else ""
        console.say(f"device: {self.device.type} ({self.why_device}){threads}{several}")
        for why in setting.execution.why:
            console.say(why)
        if method:
            console.say(f"sparsity: {method.sparsity or 0:.4g}, {method.pattern}; seed {recipe.run.seeds[0]}")
            console.say(str(method.schedule))
        else:
            console.say(f"dense training, {recipe.epochs} epochs; seed {recipe.run.seeds[0]}")
        if found:
            for reason in found.skipped:
                console.say(f"skipped: {reason}")
            console.say(f"resumed from: {found.path}")
        console.say(f"folder: {out}\n")


def _done(plan: Any, found: Found | None) -> int:
    """Epochs that need not run again."""
    if found is None:
        return 0
    stages = list(plan.values())
    before = sum(len(planned.kinds) for planned in stages[: found.state["stage"]])
    return before + found.state["epoch"] - stages[found.state["stage"]].first


def _difference(saved: Any, now: Any, name: str = "") -> str | None:
    """The first setting that differs, in words."""
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in now.keys() | saved.keys():
            if key not in ("paper", "about", "name") or name:
                path = f"{name}.{key}" if name else str(key)
                if (found := _difference(saved.get(key), now.get(key), path)) is not None:
                    return found
        return None
    plain = tuple(saved) if isinstance(saved, list) else saved
    other = tuple(now) if isinstance(now, list) else now
    return None if plain == other else f"{name} was {saved!r} and is {now!r}"


def _show(console: Console, outcomes: list[experiment.Outcome], problem: loading.Problem, out: Path) -> None:
    header = ("model", "test accuracy", "sparsity", "inference FLOPs", "of dense")
    rows = [
        (o.model, f"{o.test_accuracy:.2%}", f"{o.sparsity:.2%}", _flops(o.flops), f"{o.flops_ratio:.2f}x")
        for o in outcomes
    ]
    console.table(f"Test accuracy on {problem.loaders.test.samples:,} images; FLOPs in theory, per image", header, rows)
    console.say(f"\nmodels, metrics and settings are in {out}")


def _flops(flops: int) -> str:
    return f"{flops / 1e9:.3f} G" if flops >= 1e9 else f"{flops / 1e6:.3f} M"


def _over_seeds(out: Path, seeds: tuple[int, ...]) -> None:
    """Mean ± standard deviation of every model over the seeds."""
    results = [folder.read_json(out / f"seed-{seed}" / "result.json")["models"] for seed in seeds]
    models = []
    print(f"\nmean ± std of test accuracy over seeds {', '.join(map(str, seeds))}")
    for same in zip(*results, strict=True):
        values = [row["test_accuracy"] for row in same]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        models.append({"model": same[0]["model"], "test_accuracy": mean, "std": std, "values": values})
        print(f"  {same[0]['model']:<24} {100 * mean:.2f} ± {100 * std:.2f} %")
    folder.write_json(out / "result.json", {"seeds": list(seeds), "models": models})
