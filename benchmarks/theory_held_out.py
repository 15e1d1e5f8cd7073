"""Support recovery on data that no default was chosen on: fresh seeds, and designs of other kinds.

The cycles' defaults (10 wide iterations, a threshold of 0.1, refine=3) were chosen on problems like those of
theory_recovery.py: stationary rows, 400 features, 20 of them planted, seeds 0 to 9. Here every seed is new, and two of
the three families are too.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from acdc.theory.instances import Entries, correlated_design, planted_regression
from acdc.theory.truncation import SparseVector, Vector
from benchmarks.record import Row
from benchmarks.theory_experiments import Size
from benchmarks.theory_recovery import SOLVERS, quietly

_FIRST_SEED = 1000
_FACTORS = 5

Maker = Callable[[int, int, np.random.Generator], Vector]


def factor_design(samples: int, features: int, rng: np.random.Generator) -> Vector:
    """Return columns that all load on a few common factors, which explain half of their variance on average."""
    loadings = rng.standard_normal((_FACTORS, features)) / np.sqrt(_FACTORS)
    return rng.standard_normal((samples, _FACTORS)) @ loadings + rng.standard_normal((samples, features))


def stationary_design(correlation: float) -> Maker:
    """Return a maker of designs whose columns i and j have correlation^|i − j|."""
    return lambda samples, features, rng: correlated_design(samples, features, correlation, rng)


def held_out(size: Size) -> list[Row]:
    """Recall of every solver on three families, at two sample counts each."""
    families: list[tuple[str, Maker, Entries, int, int, tuple[int, ...]]] = [
        ("same family, new seeds", stationary_design(0.9), "normal", 400, 20, (100, 170)),
        ("common factors", factor_design, "normal", 400, 20, (80, 120)),
        ("three times wider", stationary_design(0.8), "signs", 1200, 15, (80, 120)),
    ]
    rows: list[Row] = []
    for family, make, entries, features, k, counts in families:
        features, k = size.of(features, 60), size.of(k, 4)
        for samples in counts[: size.of(len(counts), 1)]:
            recalls: dict[str, list[float]] = {name: [] for name in SOLVERS}
            seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
            for seed in range(_FIRST_SEED, _FIRST_SEED + size.seeds):
                rng = np.random.default_rng(seed)
                design = make(samples, features, rng)
                planted = planted_regression(design, k, rng, noise=0.1, entries=entries)
                for name, solve in SOLVERS.items():
                    began = time.process_time()
                    theta = quietly(solve, design, planted.problem.targets, k)
                    seconds[name].append(time.process_time() - began)
                    recalls[name].append(planted.recall(SparseVector.from_dense(theta)))
            for name in SOLVERS:
                rows.append({"family": family, "entries": entries, "samples": samples, "features": features, "k": k,
                             "solver": name, "recall": float(np.mean(recalls[name])), "recalls": recalls[name],
                             "exact": float(np.mean([one == 1 for one in recalls[name]])),
                             "seconds": statistics.median(seconds[name]), "first_seed": _FIRST_SEED,
                             "n": size.seeds})  # fmt: skip
    return rows
