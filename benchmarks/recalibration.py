"""The effect of batch norm's statistics on a model's test accuracy, and of which of them.

python -m benchmarks.recalibration RUN --data DIR    models of a run folder of `acdc train`

Each model as it was trained, and with statistics recomputed over the training images, no weight changed:

    the last layer's     of the last batch norm alone: published WRN-28-10 has momentum .9 there
    all, dropout on      every batch counts the same and none is split; activations are those of training
    all                  the same without dropout, as in evaluation: what `run.recalibrate` does
"""

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from acdc.core.running_statistics import norms_of
from acdc.train import saved_models
from acdc.train.evaluate import evaluate, recalibrate
from acdc.train.execution import Setting
from acdc.train.experiment import reproducible
from acdc.train.precision import with_supported_precision
from acdc.train.prepare import RunOptions
from acdc.train.step import Execution
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment
from benchmarks.runs import name_of
from benchmarks.tables import recalibration_table

WAYS = ("as trained", "the last layer's", "all, dropout on", "all")
FILES = ("sparse.safetensors", "dense.safetensors", "finetuned.safetensors", "baseline.safetensors")


def measure(folder: Path, device: torch.device, data: str | None) -> Iterator[Row]:
    recipe = with_supported_precision(saved_models.trained_recipe(folder), device)
    setting = Setting(device=device, execution=Execution(False, False, ()), checkpoints=folder / "checkpoints")
    files = [name for name in FILES if (folder / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{folder}: holds none of {', '.join(FILES)}")
    problem = saved_models.load_run_data(folder, recipe, RunOptions(device=device, root=data))
    with closing(problem), reproducible(recipe, device), progress("recalibration", len(files) * len(WAYS)) as begin:
        for file in files:
            for way in WAYS:
                begin(f"{file}, {way}")
                model = problem.new_model(recipe).to(device)
                saved_models.load_weights(model, folder / file)
                if way != "as trained":
                    torch.manual_seed(0)
                    with _only_the_last(model, way == "the last layer's"), _dropout(model, way == "all, dropout on"):
                        recalibrate(model, problem.loaders.train, precision=recipe.train.precision, setting=setting)
                score = evaluate(model, problem.loaders.test, recipe, setting)
                yield {
                    "benchmark": "recalibration",
                    "name": name_of(recipe),
                    "file": file,
                    "way": way,
                    "test_accuracy": score.accuracy,
                    "test_loss": score.loss,
                    "images": score.samples,
                }


@contextmanager
def _only_the_last(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Let all batch norms but the last keep their statistics."""
    others = norms_of(model)[:-1] if wanted else []
    for norm in others:
        norm.track_running_stats = False
    yield
    for norm in others:
        norm.track_running_stats = True


@contextmanager
def _dropout(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Let dropout act in evaluation mode, too."""
    drops = [module for module in model.modules() if isinstance(module, nn.Dropout)] if wanted else []
    for drop in drops:
        drop.forward = partial(F.dropout, p=drop.p, training=True)
    yield
    for drop in drops:
        del drop.forward


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recalibration", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run", type=Path, help="a folder that `acdc train` wrote, with its models")
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default $ACDC_DATA, or ./data)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="of the code that ran, where that is a copy outside git")
    parser.add_argument("--results", type=Path, default=RESULTS / "recalibration.jsonl")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    shared = environment(device, options.commit)
    rows = [{**shared, **row} for row in measure(options.run, device, options.data)]
    append(options.results, rows)
    print_table(*recalibration_table(rows))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
