"""Helps IHT escape bad supports: it widens the budget, optimises, truncates again, and keeps what is better.

AC/DC's alternation carried over to sparse regression. A support of k entries that IHT is stuck on is given up to
`factor`·k entries to work with for a few iterations; those that explain the target better grow there, and the
truncation back to k has another support to go on from. f never rises over cycles, as one that does not lower it is
dropped and ends the search. So does a support that is clear: the best feature left out would explain less than a
hundredth of what the weakest one kept does. On strongly correlated features the cycles find supports that plain IHT
and OMP miss (docs/theory.md).
"""

from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.certificates import certify
from acdc.theory.hard_thresholding import IHTResult, iht
from acdc.theory.linear_models import LinearModel
from acdc.theory.truncation import SparseVector, check_count

_BETTER = 1e-9  # relative: a cycle that lowers f by less ends the search
_CLEAR = 0.1  # its square is a hundredth
_WIDE = 10  # iterations on the wider support: enough for what belongs there to grow


def widened_iht(
    problem: LinearModel, k: int, *, cycles: int = 5, factor: float = 2.0, polish: int = 1000, **settings: Any
) -> tuple[IHTResult, int]:
    """Run IHT, then cycles of a wider and a narrow run; return the best, its support optimised, and all iterations.

    The wide run has factor·k entries. `polish` is the number of products with the Hessian that compare supports at
    their best; the settings are those of `iht`. The result's certificate is of the θ returned, its gradients and
    seconds are those of all runs, and its history is that of the run that led to the best support.
    """
    check_count("cycles", cycles, 0, "type cycles=5, or 0 for plain IHT")
    if not factor > 1:
        raise ArgumentError("factor", factor, "expected a number above 1", "type factor=2.0")
    is_certified, k_star = settings.pop("certificate", True), settings.get("k_star")
    settings["certificate"] = False
    best = iht(problem, k, **settings)
    settings.pop("k_star", None)  # one warning is enough
    gradients, seconds = best.gradients, best.seconds
    iterations, wide = best.iterations, min(max(int(factor * k), k + 1), problem.size)
    theta = problem.refine(best.theta, steps=polish)
    value = problem.value(theta)
    for _ in range(cycles if wide > k else 0):
        if is_clear(problem, theta):
            break
        wider = iht(problem, wide, **{**settings, "start": theta, "iterations": _WIDE})
        narrow = iht(problem, k, **{**settings, "start": wider.theta})
        iterations += wider.iterations + narrow.iterations
        gradients += wider.gradients + narrow.gradients
        seconds += wider.seconds + narrow.seconds
        trial = problem.refine(narrow.theta, steps=polish)
        reached = problem.value(trial)
        if reached >= value - _BETTER * abs(value):
            break
        best, theta, value = narrow, trial, reached
    best.history.values.append(value)
    proved = None
    if is_certified:
        step = best.history.steps[-1] if best.history.steps else 1.0
        proved = certify(problem, theta, step=step, k=k, k_star=k_star or k, constants=best.constants)
    changed = {"theta": theta, "certificate": proved, "gradients": gradients, "seconds": seconds}
    return IHTResult(**{**vars(best), **changed}), iterations


def is_clear(problem: LinearModel, theta: SparseVector) -> bool:
    """Return True if no feature left out comes near the weakest one kept, in what it would explain by itself."""
    if not len(theta.indices):
        return False
    prediction = problem.predict(theta)
    spread = problem.design.column_spreads(problem.weights, centred=problem.intercept)
    left = np.abs(problem.gradient_at(prediction, theta))
    left[theta.indices] = 0.0
    outside = np.divide(left, spread, out=np.zeros_like(left), where=spread > 0)
    weakest = float((np.abs(theta.values) * spread[theta.indices]).min())
    return float(outside.max()) < _CLEAR * weakest * float(problem.curvatures_at(prediction).sum())
