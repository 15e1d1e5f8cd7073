"""The paper's memorization experiment: which of 1,000 random labels dense and compressed phases learn.

python -m benchmarks.memorization --data DIR --device cuda --jobs 10 --out DIR    train
python -m benchmarks.memorization --keep DIR [DIR ...] --commit HASH              keep it under results/memorization
python -m benchmarks.memorization --redraw                                        the panels, from what is kept

ResNet20 on CIFAR-10, dense and at 50, 75, 90 and 95 %, without augmentation and with it: ten runs, several at a time;
the same command again resumes it. Ends with the paper's four panels and a table. What is kept:
memorization.svg, the panels; result.json, the figures behind the table; runs.tar.xz, every run without its weights.
Folders of other seeds (--set run.seeds=[1]) are kept together with the first. --runs plain-dense,plain-90 trains, or
keeps, some of the ten alone.
"""

import argparse
import shutil
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from acdc.io import write_json
from acdc.recipes import load
from acdc.report.figures.memorization_panels import draw_panels, read_curves
from acdc.runs.json_files import require
from acdc.runs.records import RunResult
from acdc.train import jobs as pool
from acdc.train.prepare import RunOptions
from benchmarks import keeping, memorized
from benchmarks.console import print_table, run, say
from benchmarks.record import RESULTS, git_commit

RECIPE = "cifar10-memorization"
FIGURE = "memorization.svg"
SPARSITIES = (0.5, 0.75, 0.9, 0.95)
ALL_PRUNED = 0.5  # at which the published runs pruned the downsampling convolutions too
HOW = ("precision", "channels_last", "threads", "deterministic", "compile", "cuda_graphs")  # it is run; not what
AUGMENTATION = {"plain": ("data.crop=0", "data.flip=false"), "augmented": ("data.crop=4", "data.flip=true")}


def settings_of(epochs: int | None, names: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return, by the run's name, what to set on the recipe, for all runs or those of these `names`."""
    shared = ["run.baseline=false"] + ([f"train.epochs={epochs}"] if epochs else [])
    runs = {}
    for kind, augment in AUGMENTATION.items():
        dense = [
            "method.name=dense",
            *(f"method.{knob}=" for knob in ("sparsity", "schedule", "exclude")),
            f"train.epochs={epochs or 200}",
        ]
        runs[f"{kind}-dense"] = [*shared, *augment, *dense]
        for sparsity in SPARSITIES:
            every_layer = ["method.exclude=[]"] * (sparsity == ALL_PRUNED)
            runs[f"{kind}-{100 * sparsity:g}"] = [*shared, *augment, f"method.sparsity={sparsity}", *every_layer]
    return {name: runs[name] for name in names or runs}


def keep(sources: Sequence[Path], commit: str, results: Path = RESULTS, names: Sequence[str] | None = None) -> Path:
    """Keep the whole experiment, or all of these `names`, or nothing, without overwriting anything."""
    target = results / "memorization"
    if target.exists():
        raise FileExistsError(f"{target} is there already; to keep more seeds, move it away and name all folders")
    runs = [source / name for source in sources for name in settings_of(None, names)]
    if problems := [problem for one in runs if (problem := why_not(one))]:
        raise ValueError("\n".join(["nothing is kept:", *problems]))
    named = {f"{one.name}-seed{memorized.seed_of(one)}": one for one in runs}
    if len(named) < len(runs):
        raise ValueError(f"nothing is kept: {' and '.join(map(str, sources))} hold the same seed")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / target.name
        made.mkdir()
        draw_panels(read_curves(runs), made / FIGURE)
        keeping.pack(made / keeping.ARCHIVE, named)
        write_json(made / "result.json", {"recipe": RECIPE, **memorized.collect(runs, commit)})
        shutil.move(made, target)
    return target


def why_not(one: Path) -> str | None:
    """Return why a run cannot be kept, or None if it exists, is complete, and is the paper's experiment."""
    if not (one / "result.json").is_file():
        return f"{one}: no result.json; only complete runs are kept"
    trained = load.from_dict(keeping.settings_of(one)["recipe"]).to_dict()
    meant = load.read(RECIPE, settings_of(None)[one.name])
    for table in ("model", "data", "optimizer", "rate", "method", "train"):
        for key, wanted in meant.to_dict()[table].items():
            if key not in HOW and (found := trained[table][key]) != wanted:
                return f"{one}: a trial, or another experiment: {table}.{key} is {found}, the experiment's {wanted}"
    measured = [row["epoch"] for row in memorized.rows_of(one) if row["memorization"]]
    if measured != list(range(meant.epochs)):
        return f"{one}: metrics.jsonl has the memorization of {len(measured)} epochs, not of {meant.epochs}"
    return None


def redraw(results: Path = RESULTS) -> Path:
    target = results / "memorization"
    with tempfile.TemporaryDirectory() as place, tarfile.open(target / keeping.ARCHIVE) as archive:
        archive.extractall(place, filter="data")
        draw_panels(read_curves(one for one in sorted(Path(place).iterdir()) if one.is_dir()), target / FIGURE)
    return target / FIGURE


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memorization", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", metavar="DIR", help="folder of CIFAR-10 (default $ACDC_DATA, or ./data)")
    parser.add_argument("--epochs", type=int, help="fewer than the paper's 200: a trial")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of every run")
    parser.add_argument("--jobs", default="1", help="runs at the same time")
    parser.add_argument("--runs", metavar="NAME,NAME", help=f"some of {', '.join(settings_of(None))}")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="train the runs in this folder")
    what.add_argument("--keep", type=Path, nargs="+", metavar="DIR", help="keep these folders, one for each seed")
    what.add_argument("--redraw", action="store_true", help="draw the panels of what is kept again")
    parser.add_argument("--commit", metavar="HASH", help="of the code that ran what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.runs = options.runs.split(",") if options.runs else None
    if unknown := [name for name in options.runs or () if name not in settings_of(None)]:
        parser.error(f"--runs {','.join(unknown)}: expected some of {', '.join(settings_of(None))}")
    if options.keep and not options.commit:
        parser.error("--keep needs to know which code ran: add --commit HASH")
    if options.keep:
        try:
            kept = keep(options.keep, options.commit, options.results, options.runs)
            say(f"kept: {kept}; now run python -m benchmarks.tables")
        except (FileExistsError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if options.redraw:
        say(f"drawn: {redraw(options.results)}")
        return 0
    return train(options)


def train(options: argparse.Namespace) -> int:
    place = RunOptions(device=torch.device(options.device), root=options.data)
    runs = {name: [*options.set, *said] for name, said in settings_of(options.epochs, options.runs).items()}
    jobs = [pool.Job(name, options.out / name) for name in runs]
    for job in jobs:
        pool.make_folder(load.read(RECIPE, runs[job.name]), job.folder)
    code = pool.run_all(jobs, place, pool.read_jobs(options.jobs), "the same command").code
    if code:
        return code
    draw_panels(read_curves([job.folder for job in jobs]), options.out / FIGURE)
    print_table(*memorized.table(memorized.collect([job.folder for job in jobs], git_commit())))
    seconds = statistics.fmean(require(RunResult, job.folder / "result.json").seconds or 0 for job in jobs)
    say(f"{len(jobs)} runs of {seconds:.0f} s on average; the panels are in {options.out / FIGURE}")
    return 0


if __name__ == "__main__":
    run(main)
