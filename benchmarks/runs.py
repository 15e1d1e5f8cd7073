"""Real training runs kept under results/runs, and the table that compares them with the paper's values.

python -m benchmarks.runs RUN [RUN ...]    keep these run folders of `acdc train`, without weights and checkpoints
"""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from acdc.flops.training import epoch_flops
from acdc.io import write_json
from acdc.recipes import load
from acdc.recipes.paper import row_for
from acdc.recipes.schema import PaperRow, Recipe
from acdc.runs.json_files import read_lines, require
from acdc.runs.quality import ACCURACY
from acdc.runs.records import EpochRow, RunConfig, RunResult
from benchmarks.console import run, say
from benchmarks.keeping import copy_run, settings_of
from benchmarks.record import RESULTS

Kept = dict[str, Any]
_LAST = 30  # epochs that the docs compare runs by
CHOSEN = "of the final phase (dense training: of all epochs), chosen on the test set, as the paper does"


def keep(source: Path, results: Path = RESULTS, commit: str | None = None, *, unfinished: bool = False) -> Path:
    """Copy a complete run's small files to results/runs, with the commit of the code that ran, if given.

    A run that is kept already is not overwritten. With `unfinished`, one that ended early is kept, under a name that
    says so, and counts in no table.
    """
    settings = settings_of(source)
    recipe, complete = load.from_dict(settings["recipe"]), (source / "result.json").is_file()
    if complete == unfinished:
        if unfinished:
            raise FileExistsError(f"{source} has a result.json: it is complete; keep it without --unfinished")
        raise FileNotFoundError(f"{source} has no result.json: only complete runs are kept, or --unfinished ones")
    name = name_of(recipe, lowers_dropout=lowers_dropout(settings))
    target = results / "runs" / (f"{name}-{len(_rows(source))}of{recipe.epochs}" if unfinished else name)
    copy_run(source, target, commit)
    return target


def record_commit(kept: Path, commit: str) -> None:
    config = require(RunConfig, kept / "config.json")
    write_json(kept / "config.json", {**config.settings, "commit": commit})


def lowers_dropout(settings: Mapping[str, Any]) -> bool:
    """Return True if the method of these settings lowered dropout in its final phase, as the default does now."""
    return (settings.get("method") or {}).get("dropout") == "scaled"


def name_of(recipe: Recipe, *, lowers_dropout: bool = False) -> str:
    sparsity = f"-{100 * recipe.method.sparsity:g}" if recipe.method.sparsity and recipe.method.name != "dense" else ""
    schedule = f"-{recipe.method.schedule}" if isinstance(recipe.method.schedule, str) else f"-{recipe.epochs}ep"
    phases = "" if recipe.method.name == "dense" else schedule
    return f"{recipe.name}{phases}{sparsity}{'-less-dropout' * lowers_dropout}-seed{recipe.run.seeds[0]}"


def read_all(results: Path = RESULTS) -> list[Kept]:
    """Return every kept run, with what the table needs."""
    return [_read(folder) for folder in sorted((results / "runs").glob("*")) if (folder / "result.json").is_file()]


def _read(folder: Path) -> Kept:
    config, result = require(RunConfig, folder / "config.json"), require(RunResult, folder / "result.json")
    models = {Path(model.file).stem: asdict(model) for model in result.models}
    recipe = load.from_dict(config.recipe.settings)
    return {
        "folder": folder.name,
        "recipe": recipe,
        "lowers_dropout": lowers_dropout(config.settings),
        "paper": row_for(recipe),
        "models": models,
        "training": training_cost(folder, recipe, result.models[0].dense_flops),
        "hardware": config.hardware,
        "versions": config.versions,
        "started": config.started,
        "commit": config.commit or "an unknown commit",
        "seconds": result.seconds,
    }


def training_cost(folder: Path, recipe: Recipe, dense: int) -> float:
    """Return the FLOPs of the epochs there are, as a fraction of as many of dense training."""
    stage = [row for row in _rows(folder) if row.run != "finetune"]
    method = recipe.build_method()
    sparse = method.sparse_flops if method else None
    each = [row.size_share * epoch_flops(row.kind, row.flops, dense, sparse=sparse) for row in stage]
    return sum(each) / (3 * dense * len(stage))


def grouped(kept: Sequence[Kept]) -> list[list[Kept]]:
    """Group runs that differ only in the seed."""
    groups: dict[str, list[Kept]] = {}
    for one in kept:
        key = name_of(one["recipe"], lowers_dropout=one["lowers_dropout"]).rpartition("-seed")[0]
        groups.setdefault(key, []).append(one)
    return [sorted(group, key=lambda one: one["recipe"].run.seeds[0]) for _, group in sorted(groups.items())]


def runs_table(kept: Sequence[Kept]) -> tuple[str, list[str], list[list[str]], str]:
    header = ["recipe", "seeds", "zeros", "last epoch", "best epoch*", "paper", "last, best* − paper",
              "BN recalibrated", "inference", "training", "of the paper", "dense twin", "fine-tuned",
              "paper's twin"]  # fmt: skip
    cells = []
    for group in grouped(kept):
        first, paper = group[0], group[0]["paper"] or PaperRow()
        main, (value, said) = main_model(group), published(group)
        last, top = of(group, main), best(group, main)
        cells.append(
            [
                first["folder"].rpartition("-seed")[0],
                str(len(group)),
                f"{first['models'][main]['sparsity']:.1%}",
                percent(last),
                percent(top),
                said,
                ", ".join(beside(values, value) for values in (last, top)),
                accuracy(group, f"{main}-recalibrated"),
                f"{statistics.mean(of(group, main, 'flops_ratio')):.2f}x",
                f"{statistics.mean(one['training'] for one in group):.2f}x",
                "–" if paper.inference is None else f"{paper.inference:g}x, {paper.training:g}x",
                accuracy(group, "dense"),
                accuracy(group, "finetuned"),
                "–" if paper.twin is None else f"{paper.twin:g} → {paper.finetuned:g}",
            ]
        )
    gpus = sorted({one["hardware"].get("gpu") or one["hardware"]["cpu"] for one in kept})
    torches = sorted({one["versions"]["torch"] for one in kept})
    commits = sorted({one["commit"] for one in kept})
    note = (
        f"{', '.join(gpus)}; torch {', '.join(torches)}; acdc at {', '.join(commits)}. * {CHOSEN}. Accuracies in "
        "%, costs as fractions of dense training and inference."
    )
    return "Image classification against the paper", header, cells, note


def main_model(group: Sequence[Kept]) -> str:
    return "sparse" if "sparse" in group[0]["models"] else "baseline"


def published(group: Sequence[Kept]) -> tuple[float | None, str]:
    """Return the paper's accuracy for these runs' main model, as a number and as text."""
    paper = group[0]["paper"] or PaperRow()
    value = paper.sparse if main_model(group) == "sparse" else paper.dense
    return value, "–" if value is None else f"{value:.1f}{f' ± {paper.std:g}' if paper.std else ''}"


def beside(ours: Sequence[float], paper: float | None) -> str:
    """Return by how many points our mean is above the paper's value, as text."""
    return "–" if paper is None or not ours else f"{100 * statistics.mean(ours) - paper:+.2f}".replace("-", "−")


def seeds(group: Sequence[Kept]) -> str:
    numbers = [str(one["recipe"].run.seeds[0]) for one in group]
    return f"seed {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} seeds"


def percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def accuracy(group: Sequence[Kept], model: str) -> str:
    """Format the accuracy of a model, with the number of seeds that have it if not all do."""
    values = of(group, model)
    return percent(values) + (f" ({len(values)} of {len(group)} seeds)" if 0 < len(values) < len(group) else "")


def of(group: Sequence[Kept], model: str, key: str = "test_accuracy") -> list[float]:
    return [one["models"][model][key] for one in group if model in one["models"]]


def best(group: Sequence[Kept], model: str) -> list[float]:
    return [one["models"][model]["best"]["accuracy"] for one in group if one["models"][model].get("best")]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="folders that `acdc train` wrote")
    parser.add_argument("--commit", help="of the code that ran, where that was a copy outside git")
    parser.add_argument(
        "--unfinished", action="store_true", help="keep runs that ended early, under a name that says so"
    )
    parser.add_argument(
        "--final",
        metavar="NAME",
        help="show how test accuracy moved in the phases of a kept run, especially the final one, and how fast it ran",
    )
    parser.add_argument(
        "--spans",
        metavar="E,E",
        default="",
        help="with --final: also show means from each of these epochs to the next, such as where the rate falls",
    )
    options = parser.parse_args(arguments)
    for source in options.runs:
        say(f"kept: {keep(source, commit=options.commit, unfinished=options.unfinished)}")
    if options.final:
        folder = RESULTS / "runs" / options.final
        edges = [int(edge) for edge in options.spans.split(",") if edge]
        for line in (*phase_ends(folder), *spans(folder, edges), *final_phase(folder), speed(folder)):
            say(line)
    return 0


def phase_ends(folder: Path) -> list[str]:
    """Describe the end of each phase: test accuracy over its last 10 epochs, and the last one's training loss."""
    stage = [row for row in _rows(folder) if row.run != "finetune"]
    lines = []
    for phase, found in groupby(stage, key=lambda row: row.phase):
        rows = list(found)
        values = [100 * ACCURACY.of(row) for row in rows[-10:]]
        lines.append(
            f"{phase}, to epoch {rows[-1].epoch + 1}: mean of the last {len(values)} {statistics.mean(values):.2f}, "
            f"standard deviation {statistics.pstdev(values):.2f}, training loss {rows[-1].loss:.4f}"
        )
    return lines


def spans(folder: Path, edges: Sequence[int]) -> list[str]:
    """Describe the epochs from each edge to the next: means of test accuracy, test loss and training loss."""
    stage = [row for row in _rows(folder) if row.run != "finetune"]
    lines = []
    for low, high in pairwise(edges):
        rows = stage[low:high]
        accuracies = [100 * ACCURACY.of(row) for row in rows]
        losses = [statistics.mean(getattr(row, name) for row in rows) for name in ("test_loss", "loss")]
        lines.append(
            f"epochs {low + 1} to {rows[-1].epoch + 1}: test accuracy {statistics.mean(accuracies):.2f}, "
            f"test loss {losses[0]:.3f}, training loss {losses[1]:.4f}"
        )
    return lines


def speed(folder: Path) -> str:
    """Describe the training images per second, including evaluation and everything else in an epoch."""
    images = require(RunConfig, folder / "config.json").data.train or 0
    rows = _rows(folder)
    _, *others = (row.seconds for row in rows)
    if not (folder / "result.json").is_file():
        recipe = load.from_dict(require(RunConfig, folder / "config.json").recipe.settings)
        cost = training_cost(folder, recipe, max(row.flops for row in rows))
        return f"ended after {len(rows)} of {recipe.epochs} epochs; {cost:.3f} of the FLOPs of as many dense ones"
    whole = require(RunResult, folder / "result.json").seconds or math.inf
    return (
        f"{images / statistics.mean(others):,.0f} images/s from the second epoch on, evaluation included; "
        f"{images * (1 + len(others)) / whole:,.0f} of the whole command, with compiling and all that follows"
    )


def _rows(folder: Path) -> list[EpochRow]:
    lines = read_lines(EpochRow, folder / "metrics.jsonl")
    return lines.checked() if lines else []


def final_phase(folder: Path) -> list[str]:
    """Describe how test accuracy moved in the final phase, or over the last _LAST epochs of a run without phases.

    With a fine-tuned twin, also whether that moved along.
    """
    rows = _rows(folder)
    stage = [row for row in rows if row.run != "finetune"]
    last = [row for row in stage if row.phase == "final compressed"]
    name, last = ("final phase", last) if last else ("no phases, the last", stage[-_LAST:])
    final, twin = (
        [100 * ACCURACY.of(row) for row in some] for some in (last, [r for r in rows if r.run == "finetune"])
    )
    lines = [
        f"{name}, {len(final)} epochs: mean {statistics.mean(final):.2f}, standard deviation "
        f"{statistics.pstdev(final):.2f}, last {final[-1]:.2f}, best {max(final):.2f}"
    ]
    if len(final) > _LAST:
        lines.append(
            f"the last {_LAST} of them: mean {statistics.mean(final[-_LAST:]):.2f}, standard deviation "
            f"{statistics.pstdev(final[-_LAST:]):.2f}"
        )
    if len(twin) == len(final) > 2:
        together, shifted = statistics.correlation(final, twin), statistics.correlation(final[1:], twin[:-1])
        lines.append(
            f"correlation with the fine-tuned twin by epoch: {together:.2f}; with its epoch before: {shifted:.2f}"
        )
    return lines


if __name__ == "__main__":
    run(main)
