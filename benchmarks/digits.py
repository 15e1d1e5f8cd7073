"""The default run over several seeds: `acdc train --seed N` for each, and the final tables of all of them."""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from acdc.runs.json_files import require
from acdc.runs.records import RunConfig, RunResult
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, append, environment
from benchmarks.tables import digits_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--epochs", type=int, help="fewer than the default run's: a trial, left out of the tables")
    parser.add_argument("--results", type=Path, default=RESULTS / "digits.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    shared = environment(torch.device("cpu"), options.commit)
    rows = []
    with progress("digits", len(options.seeds)) as begin, tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            begin(f"seed {seed}")
            out = Path(folder) / f"seed-{seed}"
            command = [sys.executable, "-m", "acdc", "train", "--no-report", "--device", "cpu"]
            command += ["--seed", str(seed), "--out", str(out)]
            if options.epochs:
                command += ["--epochs", str(options.epochs)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            result = require(RunResult, out / "result.json")
            recipe = require(RunConfig, out / "config.json").recipe.settings
            for model in result.models:
                row = {**shared, "benchmark": "digits", "seed": seed, "recipe": recipe, "quick": bool(options.epochs)}
                rows.append({**row, "dataset": "digits", **asdict(model), "seconds": result.seconds})
    append(options.results, rows)
    print_table(*digits_table(rows))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
