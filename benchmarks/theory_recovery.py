"""Support recovery of IHT, OMP, Lasso and an L0 local search on the same data, and what IHT costs at scale."""

import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
from scipy import sparse
from sklearn.linear_model import OrthogonalMatchingPursuit, lars_path

from acdc.theory.estimators import SparseIHTRegressor
from acdc.theory.hard_thresholding import iht
from acdc.theory.instances import Entries, correlated_design, planted_regression
from acdc.theory.linear_models import LeastSquares
from acdc.theory.step_sizes import AdaptiveStep, ConstantStep
from acdc.theory.truncation import SparseVector, largest
from benchmarks.record import Row
from benchmarks.theory_experiments import Size

Solver = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def by_iht(design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    return SparseIHTRegressor(k=k, fit_intercept=False, normalize=False).fit(design, targets).coef_


def by_plain_iht(design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    return SparseIHTRegressor(k=k, fit_intercept=False, normalize=False, cycles=0).fit(design, targets).coef_


def by_omp(design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    return OrthogonalMatchingPursuit(n_nonzero_coefs=k, fit_intercept=False).fit(design, targets).coef_


def by_lasso(design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    """Return the Lasso path's first point with k features; its k largest where it jumps past k."""
    _, _, coefs = lars_path(design, targets, method="lasso", max_iter=4 * k)
    counts = (coefs != 0).sum(axis=0)
    reached = coefs[:, int(np.argmax(counts >= k))] if (counts >= k).any() else coefs[:, -1]
    kept = np.zeros_like(reached)
    places = largest(reached, k)
    kept[places] = reached[places]
    return kept


def by_local_search(design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    """Coordinate descent on ½‖y − Xθ‖² + λ‖θ‖₀ down a path of λ, then swaps of one feature, as L0Learn does."""
    norms = (design**2).sum(axis=0)
    theta, residual = np.zeros(design.shape[1]), targets.astype(float).copy()
    best = float(((design.T @ targets) ** 2 / norms).max()) / 2
    for penalty in best * 0.8 ** np.arange(60):
        _descend(design, norms, theta, residual, penalty)
        if np.count_nonzero(theta) >= k:
            break
    chosen = [int(place) for place in largest(theta, k)]
    return _swap(design, targets, chosen)


def _descend(design: np.ndarray, norms: np.ndarray, theta: np.ndarray, residual: np.ndarray, penalty: float) -> None:
    """Change one coefficient at a time to its best value or 0, the strongest first, until none changes much."""
    for _ in range(50):
        moved = 0.0
        order = np.argsort(-np.abs(design.T @ residual + norms * theta) / np.sqrt(norms))
        for j in order[: max(50, 4 * np.count_nonzero(theta))]:
            full = theta[j] + design[:, j] @ residual / norms[j]
            new = full if full**2 * norms[j] / 2 > penalty else 0.0
            if new != theta[j]:
                residual -= design[:, j] * (new - theta[j])
                moved, theta[j] = max(moved, abs(new - theta[j])), new
        if moved <= 1e-6 * max(1e-12, np.abs(theta).max(initial=0)):
            return


def _swap(design: np.ndarray, targets: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Exchange one feature for another as long as the residual falls, at most once for each feature."""

    def fit(support: list[int]) -> tuple[np.ndarray, np.ndarray]:
        values = np.linalg.lstsq(design[:, support], targets, rcond=None)[0]
        return values, targets - design[:, support] @ values

    values, residual = fit(chosen)
    for _ in range(len(chosen)):
        weakest = np.argsort(np.abs(values))[:5]
        trials = []
        for place in weakest:
            rest = [one for index, one in enumerate(chosen) if index != place]
            gains = np.abs(design.T @ fit(rest)[1])
            gains[rest] = 0
            trial = [*rest, int(gains.argmax())]
            trials.append((float(np.linalg.norm(fit(trial)[1])), trial))
        error, trial = min(trials)
        if error >= np.linalg.norm(residual) * (1 - 1e-9):
            break
        chosen = trial
        values, residual = fit(chosen)
    theta = np.zeros(design.shape[1])
    theta[chosen] = values
    return theta


SOLVERS: dict[str, Solver] = {
    "IHT, cycles": by_iht,
    "IHT": by_plain_iht,
    "OMP": by_omp,
    "Lasso": by_lasso,
    "L0 local search": by_local_search,
}


def recovery(size: Size) -> list[Row]:
    """Exact recovery and recall over the number of samples, on independent and on correlated features."""
    features, k, rows = size.of(400, 60), size.of(20, 5), []
    cases: list[tuple[float, Entries]] = [(0.0, "signs"), (0.0, "normal"), (0.7, "signs"), (0.9, "normal")]
    for correlation, entries in cases[: size.of(len(cases), 1)]:
        for samples in size.of(1, 0) * (60, 80, 100, 130, 170, 240) or (40,):
            found = {name: ([], []) for name in SOLVERS}
            for seed in range(size.seeds):
                rng = np.random.default_rng(seed)
                design = correlated_design(samples, features, correlation, rng)
                planted = planted_regression(design, k, rng, noise=0.1, entries=entries)
                for name, solve in SOLVERS.items():
                    began = time.perf_counter()
                    theta = quietly(solve, design, planted.problem.targets, k)
                    found[name][1].append(time.perf_counter() - began)
                    found[name][0].append(planted.recall(SparseVector.from_dense(theta)))
            for name, (recalls, seconds) in found.items():
                rows.append({"correlation": correlation, "entries": entries, "samples": samples, "features": features,
                             "k": k, "solver": name, "exact": float(np.mean([r == 1 for r in recalls])),
                             "recall": float(np.mean(recalls)), "seconds": statistics.median(seconds),
                             "n": size.seeds})  # fmt: skip
    return rows


def against_omp(size: Size) -> list[Row]:
    """k = 1,000: CPU seconds and recall of IHT and OMP on the same data, one after the other for each seed."""
    k, features, samples, rows = size.of(1000, 20), size.of(10_000, 200), size.of(5000, 100), []
    cases: list[tuple[float, Entries]] = [(0.0, "signs"), (0.0, "normal"), (0.5, "normal")]
    for correlation, entries in cases:
        names = ("IHT, cycles", "IHT", "OMP")
        recalls: dict[str, list[float]] = {name: [] for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(min(size.seeds, 3)):  # half a minute of CPU each, for OMP alone
            rng = np.random.default_rng(seed)
            design = np.asfortranarray(correlated_design(samples, features, correlation, rng))
            planted = planted_regression(design, k, rng, noise=0.1, entries=entries)
            for name in names:
                began = time.process_time()
                theta = quietly(SOLVERS[name], design, planted.problem.targets, k)
                seconds[name].append(time.process_time() - began)
                recalls[name].append(planted.recall(SparseVector.from_dense(theta)))
        ratios = {
            name: [omp / ours for omp, ours in zip(seconds["OMP"], seconds[name], strict=True)] for name in names[:2]
        }
        rows.append({"k": k, "features": features, "samples": samples, "correlation": correlation, "entries": entries,
                     "recall": recalls, "seconds": seconds, "ratios": ratios, "n": len(seconds["OMP"])})  # fmt: skip
    return rows


def at_scale(size: Size) -> list[Row]:
    """1,000,000 features x 10,000 samples, 10,000,000 entries: an iteration against its products, taking turns."""
    features, samples, each, k = size.of(10**6, 2000), size.of(10**4, 300), 10, size.of(300, 20)
    rng = np.random.default_rng(0)
    places = np.sort(rng.integers(samples, size=(features, each), dtype=np.int32), axis=1)
    entries = (rng.standard_normal(features * each), places.ravel(), np.arange(0, features * each + 1, each))
    design = sparse.csc_array(entries, shape=(samples, features))
    theta = SparseVector(features, np.sort(rng.choice(features, k, replace=False)), rng.choice([-1.0, 1.0], k))
    targets = design[:, theta.indices] @ theta.values + 0.1 * rng.standard_normal(samples)
    problem = LeastSquares(design, targets)
    beta = problem.constants(features).beta
    assert beta is not None
    rules = {"constant step": (ConstantStep(1 / beta.value), 0), "adaptive step": (AdaptiveStep(), 0),
             "adaptive step, 3 products to refine": (AdaptiveStep(), 3)}  # fmt: skip
    iterations, rounds = size.of(20, 3), size.of(7, 2)
    times: dict[str, list[float]] = {name: [] for name in ("products", *rules)}
    for _ in range(rounds):
        times["products"].append(_products(problem, theta, iterations))
        for name, (rule, refine) in rules.items():
            result = iht(problem, k, step=rule, refine=refine, iterations=iterations, tolerance=0, certificate=False)
            times[name].append(result.seconds / max(1, result.iterations))
    rows = []
    whole = iht(problem, k, step=AdaptiveStep(), refine=3, certificate=False)
    found = float(np.isin(theta.indices, whole.theta.indices).mean())
    for name in rules:
        ratios = [mine / alone for mine, alone in zip(times[name], times["products"], strict=True)]
        rows.append({"rule": name, "features": features, "samples": samples, "entries": features * each, "k": k,
                     "products_seconds": statistics.median(times["products"]), "ratios": ratios,
                     "iteration_seconds": statistics.median(times[name]), "median": statistics.median(ratios),
                     "recall_whole_fit": found, "iterations_whole_fit": whole.iterations,
                     "seconds_whole_fit": whole.seconds, "iterations": iterations, "n": rounds})  # fmt: skip
    return rows


def _products(problem: LeastSquares, theta: SparseVector, times: int) -> float:
    """Return the seconds of the products that an iteration cannot do without: the support's columns, and back."""
    began = time.perf_counter()
    for _ in range(times):
        problem.design.back(problem.design.forward(theta))
    return (time.perf_counter() - began) / times


def quietly(solve: Solver, design: np.ndarray, targets: np.ndarray, k: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of solvers that stop early: what they found is what is judged
        return solve(design, targets, k)
