"""Longer is better for sparse networks (arXiv:2308.02060): ResNet20 on CIFAR-10 at 1x, 2x, 4x, with its tricks or not.

python -m benchmarks.longer --data DIR --device cuda --jobs 6 --out DIR    train; the same command again resumes it
python -m benchmarks.longer --keep DIR [DIR ...] --commit HASH             keep it under results/longer
python -m benchmarks.longer --scale small --data DIR --jobs 2 --out DIR    for a CPU, kept in results/longer-small

The recipe cifar10-resnet20, AC/DC as it chooses its phases for the number of steps, and dense training, each at every
length. "plain" is the recipe's own cosine; "smooth" smooths labels by .1, "linear" lets the rate fall along a line,
"growing" begins with images of 20 pixels, "all" does all three. The small scale is longer_small.toml: a narrow net on
10,000 images of half the size. --set run.seeds=[1] trains another seed; folders of several seeds are kept together.
What is kept: result.json, the figures behind the table; runs.tar.xz, every run without its weights.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from acdc.flops.training import epoch_flops
from acdc.io import write_json
from acdc.recipes import load
from acdc.recipes.schema import Recipe
from acdc.runs.json_files import require
from acdc.runs.records import RunResult
from acdc.train import jobs as pool
from acdc.train.prepare import RunOptions
from benchmarks import keeping
from benchmarks.console import print_table, run, say
from benchmarks.record import RESULTS, git_commit, read

SPARSITY = 0.9


@dataclass(frozen=True)
class Scale:
    """A size of the experiment: its recipe, its epochs at 1x, and the pixels of the first images that grow."""

    recipe: str
    about: str
    epochs: int
    first_size: int
    folder: str

    @property
    def tricks(self) -> dict[str, tuple[str, ...]]:
        """Return, by the tricks' name, what to set on the recipe."""
        alone = {
            "smooth": ("train.label_smoothing=0.1",),
            "linear": ("rate.shape=linear",),
            "growing": (f"data.first_size={self.first_size}",),
        }
        return {"plain": (), **alone, "all": tuple(setting for settings in alone.values() for setting in settings)}


SCALES = {
    "full": Scale("cifar10-resnet20", "resnet20 on cifar10", 100, 20, "longer"),
    "small": Scale(
        str(Path(__file__).with_name("longer_small.toml")),
        "a narrow ResNet on 10,000 images of cifar10 at 16 x 16",
        10,
        10,
        "longer-small",
    ),
}
FULL = SCALES["full"]
TRIED = tuple(FULL.tricks)
METHODS = {
    "acdc": ("method.schedule=", f"method.sparsity={SPARSITY}"),
    "dense": ("method.name=dense", "method.sparsity=", "method.schedule="),
}
HOW = ("precision", "channels_last", "threads", "deterministic", "compile", "cuda_graphs")  # it is run; not what
_TITLES = {
    "plain": "plain",
    "smooth": "labels smoothed",
    "linear": "linear decay",
    "growing": "images that grow",
    "all": "all three",
}

Kept = dict[str, Any]
Table = tuple[str, list[str], list[list[str]], str]


def settings_of(epochs: int, tried: Sequence[str], times: Sequence[int], scale: Scale = FULL) -> dict[str, list[str]]:
    """Return, by the run's name, what to set on the recipe."""
    shared = ["run.finetune=false", f"train.epochs={epochs}"]
    return {
        f"{method}-{name}-{n}x": [*METHODS[method], *shared, f"train.times={n}", *scale.tricks[name]]
        for method, name, n in product(METHODS, tried, times)
    }


def parts_of(name: str) -> tuple[str, str, int]:
    """Return the method, the tricks and the length in a run's name."""
    method, tricks, times = name.split("-")
    return method, tricks, int(times.removesuffix("x"))


# Keeping


def keep(sources: Sequence[Path], commit: str, results: Path = RESULTS, scale: Scale = FULL) -> Path:
    """Keep all complete runs of these folders, or nothing; nothing is overwritten."""
    target = results / scale.folder
    if target.exists():
        raise FileExistsError(f"{target} is there already; to keep more, move it away and name all folders")
    runs = [config.parent for source in sources for config in sorted(source.glob("*-*-*x/config.json"))]
    if problems := [problem for one in runs if (problem := why_not(one, scale))]:
        raise ValueError("\n".join(["nothing is kept:", *problems]))
    named = {f"{one.name}-seed{_recipe(one).run.seeds[0]}": one for one in runs}
    if not runs or len(named) < len(runs):
        why = "no runs there" if not runs else "they hold the same seed"
        raise ValueError(f"nothing is kept of {' and '.join(map(str, sources))}: {why}")
    if len(lengths := {_recipe(one).train.epochs for one in runs}) > 1:
        raise ValueError(f"nothing is kept: 1x is {' and '.join(map(str, sorted(map(str, lengths))))} epochs in them")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / scale.folder
        made.mkdir()
        keeping.pack(made / keeping.ARCHIVE, named)
        write_json(made / "result.json", {"about": scale.about, **collect(runs, commit)})
        shutil.move(made, target)
    return target


def why_not(one: Path, scale: Scale) -> str | None:
    """Return why a run cannot be kept, or None if it is complete and what its name says."""
    if not (one / "result.json").is_file():
        return f"{one}: no result.json; only complete runs are kept"
    method, tricks, times = parts_of(one.name)
    if method not in METHODS or tricks not in TRIED:
        return f"{one}: not a run of this experiment"
    trained = _recipe(one)
    said = settings_of(trained.train.epochs or scale.epochs, [tricks], [times], scale)[one.name]
    meant = load.read(scale.recipe, said).to_dict()
    for table in ("model", "data", "optimizer", "rate", "method", "train"):
        for key, wanted in meant[table].items():
            if key not in HOW and (found := trained.to_dict()[table][key]) != wanted:
                return f"{one}: a trial, or another experiment: {table}.{key} is {found}, the experiment's {wanted}"
    return None


def collect(runs: Sequence[Path], commit: str | None) -> Kept:
    """Return what the table needs of complete runs, and what ran them."""
    recipes = [_recipe(one) for one in runs]
    return {
        "epochs": recipes[0].train.epochs,
        "sparsity": SPARSITY,
        "precision": sorted({recipe.train.precision for recipe in recipes}),
        "seeds": sorted({recipe.run.seeds[0] for recipe in recipes}),
        **keeping.where(runs, commit),
        "runs": [_figures(one) for one in runs],
    }


def _figures(one: Path) -> dict[str, Any]:
    """Return a run's accuracies and its training FLOPs, in dense runs of 1x at full size."""
    method, tricks, times = parts_of(one.name)
    recipe, result = _recipe(one), require(RunResult, one / "result.json")
    main, built = result.models[0], recipe.build_method()
    sparse = built.sparse_flops if built else None
    rows = [row for row in read(one / "metrics.jsonl") if row["run"] == recipe.method.name]
    each = [
        row.get("size_share", 1.0) * epoch_flops(row["kind"], row["flops"], main.dense_flops, sparse=sparse)
        for row in rows
    ]
    return {
        "name": one.name,
        "method": method,
        "tricks": tricks,
        "times": times,
        "seed": recipe.run.seeds[0],
        "test_accuracy": main.test_accuracy,
        "best": main.best.accuracy if main.best else None,
        "training": sum(each) / (3 * main.dense_flops * (recipe.epochs // times)),
    }


def _recipe(one: Path) -> Recipe:
    return load.from_dict(keeping.settings_of(one)["recipe"])


# The table


def read_kept(results: Path, scale: Scale = FULL) -> Kept | None:
    file = results / scale.folder / "result.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def table(kept: Kept) -> Table:
    times = sorted({one["times"] for one in kept["runs"]})
    header = ["test accuracy, % (training FLOPs)", *(f"{n}x: {n * kept['epochs']} epochs" for n in times)]
    body = []
    for method, tricks in product(METHODS, TRIED):
        found = [one for one in kept["runs"] if (one["method"], one["tricks"]) == (method, tricks)]
        if found:
            name = f"AC/DC {kept['sparsity']:.0%}" if method == "acdc" else "dense"
            cells = [_cell([one for one in found if one["times"] == n]) for n in times]
            body.append([f"{name}, {_TITLES[tricks]}", *cells])
    seeds = f"seed{'s' * (len(kept['seeds']) > 1)} {', '.join(map(str, kept['seeds']))}"
    note = (
        f"{keeping.place(kept)} {', '.join(kept['precision'])}; {seeds}; last epoch; n is 1 where no ± is given. "
        "Theoretical training FLOPs, smaller images counted as such, relative to a dense run of 1x at full size."
    )
    return f"{kept['about']}, longer and with the tricks of long training", header, body, note


def _cell(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return "–"
    values = [100 * one["test_accuracy"] for one in runs]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({statistics.fmean(one['training'] for one in runs):.2f}x)"


def block(results: Path, markdown: Callable[[Table], str], scale: Scale = FULL) -> str:
    """Return the table for docs/longer.md, or that nothing is kept."""
    kept = read_kept(results, scale)
    return markdown(table(kept)) if kept else "\nNothing is kept yet: it has not been run.\n"


# Training


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.longer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", metavar="DIR", help="folder of CIFAR-10 (default $ACDC_DATA, or ./data)")
    parser.add_argument("--scale", choices=SCALES, default="full", help="size of the experiment (default %(default)s)")
    parser.add_argument("--epochs", type=int, help="epochs at 1x (default 100, and 10 of the small scale)")
    parser.add_argument("--times", default="1,2,4", metavar="N,N", help="lengths (default %(default)s)")
    parser.add_argument("--tricks", default="plain,all", metavar="NAME,NAME", help=f"some of {', '.join(TRIED)}")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of every run")
    parser.add_argument("--jobs", default="1", help="runs at the same time")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="train the runs in this folder")
    what.add_argument("--keep", type=Path, nargs="+", metavar="DIR", help="keep these folders, one for each seed")
    parser.add_argument("--commit", metavar="HASH", help="of the code that ran what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    scale = SCALES[options.scale]
    tried, times = options.tricks.split(","), options.times.split(",")
    if unknown := [name for name in tried if name not in TRIED]:
        parser.error(f"--tricks {','.join(unknown)}: expected some of {', '.join(TRIED)}")
    if wrong := [n for n in times if not n.isdigit() or not int(n)]:
        parser.error(f"--times {','.join(wrong)}: expected whole numbers above 0, such as --times 1,2,4")
    if options.keep and not options.commit:
        parser.error("--keep needs to know which code ran: add --commit HASH")
    if not options.keep:
        return train(options, scale, settings_of(options.epochs or scale.epochs, tried, [int(n) for n in times], scale))
    try:
        say(f"kept: {keep(options.keep, options.commit, options.results, scale)}; now run python -m benchmarks.tables")
    except (FileExistsError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace, scale: Scale, runs: dict[str, list[str]]) -> int:
    place = RunOptions(device=torch.device(options.device), root=options.data)
    # The longest first, so that no run is left alone at the end.
    jobs = [pool.Job(name, options.out / name) for name in sorted(runs, key=lambda name: -parts_of(name)[2])]
    for job in jobs:
        pool.make_folder(load.read(scale.recipe, [*runs[job.name], *options.set]), job.folder)
    code = pool.run_all(jobs, place, pool.read_jobs(options.jobs), "the same command").code
    if code:
        return code
    print_table(*table({"about": scale.about, **collect([job.folder for job in jobs], git_commit())}))
    return 0


if __name__ == "__main__":
    run(main)
