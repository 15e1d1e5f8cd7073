"""The paper's memorization experiment: which of 1,000 random labels dense and compressed phases learn.

python -m benchmarks.memorization --data DIR --device cuda --jobs 10 --out DIR

ResNet20 on CIFAR-10, dense and at 50, 75, 90 and 95 %, without augmentation and with it: ten runs, several at a time;
typed again it goes on where it was stopped. Ends with the paper's four panels and a table.
"""

import argparse
import json
import statistics
from pathlib import Path

from acdc.cli import common, pool
from acdc.cli.train import Place
from acdc.report.panels import draw_panels, read_curves
from acdc.train import folder, reading
from acdc.train.distributed import World
from benchmarks.console import print_table, run, say

RECIPE = "cifar10-memorization"
SPARSITIES = (0.5, 0.75, 0.9, 0.95)
AUGMENTATION = {"plain": ("data.crop=0", "data.flip=false"), "augmented": ("data.crop=4", "data.flip=true")}


def settings_of(epochs: int | None) -> dict[str, list[str]]:
    """By the run's name: what to set on the recipe."""
    shared = ["run.baseline=false"] + ([f"train.epochs={epochs}"] if epochs else [])
    runs = {}
    for kind, augment in AUGMENTATION.items():
        dense = ["method.name=dense", "method.sparsity=", "method.schedule=", f"train.epochs={epochs or 200}"]
        runs[f"{kind}-dense"] = [*shared, *augment, *dense]
        for sparsity in SPARSITIES:
            runs[f"{kind}-{100 * sparsity:g}"] = [*shared, *augment, f"method.sparsity={sparsity}"]
    return runs


def table(out: Path, names: list[str]) -> tuple[str, list[str], list[list[str]], str]:
    """Shares of the corrupted images at the end of the last dense and of the final compressed phase."""
    cells = []
    for name in names:
        lines = (out / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        model = folder.read_json(out / name / "result.json")["models"][0]
        ends = [
            max((r for r in rows if r["kind"] == kind), key=lambda r: r["epoch"], default=None)
            for kind in ("dense", "sparse")
        ]
        shares = [f"{end['memorization'][key]:.1%}" if end else "–" for end in ends for key in ("memorised", "true")]
        cells.append([name, *shares, f"{model['test_accuracy']:.2%}"])
    header = [
        "run",
        "dense phase: memorised",
        "true class",
        "compressed phase: memorised",
        "true class",
        "test accuracy",
    ]
    return "Random labels", header, cells, "at the end of the last phase of each kind, on images as they are"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memorization", description=(__doc__ or "").partition("\n")[0]
    )
    common.add_place(parser)
    parser.add_argument("--epochs", type=int, help="fewer than the paper's 200: a trial")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of every run")
    parser.add_argument("--jobs", default="1", help="runs at the same time")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    device, why = common.read_device(options.device)
    place = Place(device=device, why_device=why, root=options.data, workers=None, world=World(), log=())
    runs = {name: [*options.set, *said] for name, said in settings_of(options.epochs).items()}
    jobs = [pool.Job(name, options.out / name) for name in runs]
    for job in jobs:
        pool.prepare(reading.read(RECIPE, runs[job.name]), job.folder)
    code = pool.run_all(jobs, place, pool.read_jobs(options.jobs), "the same command").code
    if code:
        return code
    draw_panels(read_curves([job.folder for job in jobs]), options.out / "memorization.svg")
    print_table(*table(options.out, list(runs)))
    seconds = statistics.fmean(folder.read_json(job.folder / "result.json")["seconds"] for job in jobs)
    say(f"{len(jobs)} runs of {seconds:.0f} s on average; the panels are in {options.out / 'memorization.svg'}")
    return 0


if __name__ == "__main__":
    run(main)
