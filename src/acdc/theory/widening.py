"""IHT that escapes bad supports: widen the budget, optimise, truncate again, keep what is better.

AC/DC's alternation carried over to sparse regression. A support of k entries that IHT is stuck on is given up to
`factor`·k entries to work with; those that explain the target better grow there, and the truncation back to k has
another support to go on from. f never rises over cycles, as a cycle that does not lower it is dropped and ends the
search. On strongly correlated features it finds supports that plain IHT and OMP miss (docs/theory.md).
"""

from typing import Any

from acdc.errors import ArgumentError, check_whole
from acdc.theory.hard_thresholding import IHTResult, iht
from acdc.theory.linear_models import LinearModel

_BETTER = 1e-9  # relative: a cycle that lowers f by less ends the search


def widened_iht(
    problem: LinearModel, k: int, *, cycles: int = 5, factor: float = 2.0, polish: int = 1000, **settings: Any
) -> tuple[IHTResult, int]:
    """Run IHT, then cycles of a wider and a narrow run; return the best, its support optimised, and all iterations.

    The wide run has factor·k entries. `polish` is the number of products with the Hessian that compare supports at
    their best; the settings are those of `iht`.
    """
    check_whole("cycles", cycles, 0, "type cycles=5, or 0 for plain IHT")
    if not factor > 1:
        raise ArgumentError("factor", factor, "expected a number above 1", "type factor=2.0")
    best = iht(problem, k, **settings)
    iterations, wide = best.iterations, min(max(int(factor * k), k + 1), problem.size)
    theta = problem.refine(best.theta, steps=polish)
    value = problem.value(theta)
    for _ in range(cycles if wide > k else 0):
        wider = iht(problem, wide, **{**settings, "start": theta})
        narrow = iht(problem, k, **{**settings, "start": wider.theta})
        iterations += wider.iterations + narrow.iterations
        trial = problem.refine(narrow.theta, steps=polish)
        reached = problem.value(trial)
        if reached >= value - _BETTER * abs(value):
            break
        best, theta, value = narrow, trial, reached
    history = best.history
    history.values.append(value)
    fields = {**vars(best), "theta": theta, "history": history}
    return IHTResult(**fields), iterations
