"""Measure the theorems on stochastic IHT: results/theory.jsonl, the figures in docs/theory/ and the page's tables.

python -m benchmarks.theory                    everything; half an hour on two busy cores
python -m benchmarks.theory --only threshold   one experiment, and all figures and tables anew
python -m benchmarks.theory --only none        figures and tables from what was measured
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
import torch

from benchmarks import (
    theory_experiments,
    theory_figures,
    theory_held_out,
    theory_page,
    theory_recovery,
    theory_supports,
)
from benchmarks.console import run, say
from benchmarks.record import RESULTS, ROOT, Row, append, environment
from benchmarks.theory_experiments import Size

EXPERIMENTS: dict[str, Callable[[Size], list[Row]]] = {
    "convergence": theory_experiments.convergence,
    "logistic": theory_experiments.logistic_convergence,
    "concentrated": theory_experiments.concentrated,
    "noise": theory_experiments.noise_floor,
    "batches": theory_experiments.batch_steps,
    "threshold": theory_supports.threshold,
    "typical": theory_supports.typical,
    "rounds": theory_supports.rounds,
    "stationary": theory_supports.stationary,
    "recovery": theory_recovery.recovery,
    "held out": theory_held_out.held_out,
    "scale": theory_recovery.at_scale,
    "omp": theory_recovery.against_omp,
}


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    torch.set_num_threads(1)
    shared = environment(torch.device("cpu"), options.commit)
    shared |= {"numpy": np.__version__, "scipy": scipy.__version__, "scikit-learn": sklearn.__version__}
    size = Size(options.seeds or (2 if options.quick else 10), options.quick)
    for name in options.only:
        began = time.perf_counter()
        rows = EXPERIMENTS[name](size)
        taken = {"experiment": name, "quick": options.quick, "seconds_in_all": round(time.perf_counter() - began, 1)}
        append(options.results, [{"benchmark": "theory", **shared, **taken, **_finite(row)} for row in rows])
        say(f"{name}: {len(rows)} rows in {taken['seconds_in_all']} s")
    if options.draw:
        for path in theory_figures.draw(options.results, options.docs / "theory"):
            say(f"drawn: {path}")
        theory_page.fill(options.docs / "theory.md", options.results)
        say(f"written: {options.results}, {options.docs / 'theory.md'}")
    return 0


def _finite(value: Any) -> Any:
    """Return the same with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.theory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*EXPERIMENTS, "none"], default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, help="default 10, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="tiny problems: a trial, not a measurement")
    parser.add_argument("--results", type=Path, default=RESULTS / "theory.jsonl", help="file to append to")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of theory.md and theory/")
    parser.add_argument("--no-draw", dest="draw", action="store_false", help="measure only")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: expected 1 or more")
    if "none" in options.only:
        options.only = []
    return options


if __name__ == "__main__":
    run(main)
