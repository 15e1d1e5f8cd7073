"""The theorems beside what happens: rates, the concentrated PL condition, noise floors.

Each experiment returns rows of plain numbers. Sizes shrink with `quick`, for a trial.
"""

from dataclasses import dataclass

import numpy as np

from acdc.theory.bounds import strongly_convex, theorem_1
from acdc.theory.hard_thresholding import IHTResult, iht
from acdc.theory.instances import (
    Planted,
    conditioned_design,
    gaussian_design,
    planted_classification,
    planted_rank_one,
    planted_regression,
)
from acdc.theory.problems import Problem
from acdc.theory.step_sizes import ConstantStep
from acdc.theory.truncation import largest
from benchmarks.record import Row


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    seeds: int
    quick: bool

    def of(self, usual: int, trial: int) -> int:
        return trial if self.quick else usual


# Linear convergence


def convergence(size: Size) -> list[Row]:
    """Least squares of three condition numbers: ‖θ − θ*‖² at each iteration beside the bound's geometric line."""
    features, rows = size.of(800, 60), []
    for condition, k in ((2.0, 16), (4.0, 64), (8.0, 300)):
        k = min(k, features // 2)
        bound = strongly_convex(alpha=1.0, beta=condition, k=k, k_star=4)
        curves = []
        for seed in range(size.seeds):
            rng = np.random.default_rng(seed)
            planted = planted_regression(conditioned_design(features + 50, features, condition, rng), 4, rng)
            result = iht(planted.problem, k, iterations=60, tolerance=0, keep_points=True, certificate=False,
                         step=ConstantStep(1 / condition))  # fmt: skip
            curves.append(_distances(result, planted))
        mean = np.mean([curve / curve[0] for curve in curves], axis=0)
        rows.append(
            {"problem": "least squares", "condition": condition, "k": k, "k_star": 4, "features": features,
             "k_needed": bound.k_needed, "applies": bound.applies, "bound_rate": bound.rate,
             "measured_rate": _slope(mean), "curve": rounded(mean), "n": size.seeds}
        )  # fmt: skip
    return rows


def logistic_convergence(size: Size) -> list[Row]:
    """Iterations until logistic regression with a ridge is as good as the best found on k* features."""
    features, samples, ridge, k_star = size.of(400, 60), size.of(4000, 400), 0.25, 4
    measured, promised, needed, beta = [], [], 0.0, []
    k = size.of(120, 40)
    for seed in range(size.seeds):
        rng = np.random.default_rng(seed)
        planted = planted_classification(gaussian_design(samples, features, rng), k_star, rng, ridge=ridge)
        constants = planted.problem.constants(features)
        assert constants.alpha is not None
        assert constants.beta is not None
        rival = planted.problem.refine(planted.theta, steps=1000)
        bound = strongly_convex(
            alpha=constants.alpha.value, beta=constants.beta.value, k=k, k_star=k_star, minimiser=False
        )
        needed = max(needed, bound.k_needed)
        beta.append(constants.beta.value)
        result = iht(planted.problem, k, constants=constants, iterations=400, tolerance=0, certificate=False)
        target = planted.problem.value(rival) + 1e-6
        measured.append(next((i for i, value in enumerate(result.history.values) if value <= target), -1))
        gap = (constants.beta.value - constants.alpha.value) / 2 * rival.norm**2  # at θ = 0
        promised.append(bound.iterations(gap, 1e-6))
    return [{"problem": "logistic", "features": features, "samples": samples, "ridge": ridge, "k": k, "k_star": k_star,
             "beta": float(np.mean(beta)), "k_needed": needed, "applies": k > needed, "iterations": measured,
             "bound_iterations": promised, "n": size.seeds}]  # fmt: skip


def concentrated(size: Size) -> list[Row]:
    """Where Theorem 1 stands: the CPL constant at all k-sparse points, along IHT's path, and the k it asks for."""
    rows: list[Row] = []
    features, k_star = size.of(400, 60), 4
    for k in (16, 40):
        paths, rates = [], []
        for seed in range(size.seeds):
            rng = np.random.default_rng(seed)
            planted = planted_regression(conditioned_design(features + 50, features, 2.0, rng), k_star, rng)
            paths.append(_path_alpha(planted.problem, iht(planted.problem, k, **_FOLLOW), k_star, 0.0))
            rates.append(_slope(np.array(iht(planted.problem, k, **_FOLLOW).history.values)))
        everywhere = 4 * 1.0 * k_star / (k + k_star)  # strong convexity 1, k-sparse points
        rows.append(_cpl_row("least squares", features, k, k_star, everywhere, paths, 2.0, rates))
    for k in (16, 40):
        paths, rates, everywhere, beta = [], [], 0.0, 0.0
        for seed in range(size.seeds):
            rng = np.random.default_rng(seed)
            problem, planted = planted_rank_one(features, k_star, rng)
            start = planted.dense() + 0.2 * rng.standard_normal(features) / np.sqrt(features)
            result = iht(problem, k, start=start, **_FOLLOW)
            constants = problem.cpl(k_star, k)
            assert constants.alpha is not None
            assert constants.beta is not None
            everywhere, beta = constants.alpha.value, constants.beta.value
            paths.append(_path_alpha(problem, result, k_star, 0.0))
            rates.append(_slope(np.array(result.history.values)))
        rows.append(_cpl_row("rank one", features, k, k_star, everywhere, paths, beta, rates))
    return rows


_FOLLOW = {"iterations": 40, "tolerance": 0.0, "keep_points": True, "certificate": False}


def _cpl_row(
    problem: str, features: int, k: int, k_star: int, everywhere: float, paths: list[float], beta: float,
    rates: list[float],
) -> Row:  # fmt: skip
    path = min(paths)
    return {
        "problem": problem, "features": features, "k": k, "k_star": k_star, "beta": beta,
        "alpha_everywhere": everywhere, "alpha_on_path": path, "measured_rate": float(np.mean(rates)),
        "k_needed_everywhere": theorem_1(alpha=everywhere, beta=beta, k=k, k_star=k_star).k_needed,
        "k_needed_on_path": theorem_1(alpha=path, beta=beta, k=k, k_star=k_star).k_needed, "n": len(paths),
    }  # fmt: skip


def _path_alpha(problem: Problem, result: IHTResult, r: int, lowest: float) -> float:
    """Return the least 2‖T_r(∇f)‖²/(f − f*) over the iterates, as long as f is well above f*."""
    values, alphas = result.history.values, []
    for point, value in zip(result.history.points, values, strict=True):
        if value - lowest > 1e-10 * (values[0] - lowest):
            gradient = problem.gradient(point)
            top = gradient[largest(gradient, r)]
            alphas.append(2 * float(top @ top) / (value - lowest))
    return min(alphas)


# Noise


def noise_floor(size: Size) -> list[Row]:
    """E[f − f*] once it has settled, for σ² and α over orders of magnitude, beside the bound's floor."""
    features, k_star, k, condition, rows = size.of(200, 40), 4, 72, 2.0, []
    k, iterations = min(k, features // 2), size.of(600, 100)
    for alpha in (0.25, 1.0, 4.0)[: size.of(3, 1)]:
        for sigma2 in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
            found = []
            for seed in range(size.seeds):
                rng = np.random.default_rng(seed)
                design = np.sqrt(alpha) * conditioned_design(features + 20, features, condition, rng)
                planted = planted_regression(design, k_star, rng)
                result = iht(planted.problem, k, noise=sigma2**0.5, iterations=iterations, certificate=False,
                             step=ConstantStep(1 / (2 * alpha * condition)), seed=seed)  # fmt: skip
                found.append(float(np.mean(result.history.values[iterations // 2 :])))
            bound = strongly_convex(alpha=alpha, beta=alpha * condition, k=k, k_star=k_star, sigma2=sigma2)
            rows.append({"alpha": alpha, "sigma2": sigma2, "condition": condition, "k": k, "k_star": k_star,
                         "features": features, "floor": float(np.mean(found)), "bound": bound.floor,
                         "paper": 2 * sigma2 / alpha, "applies": bound.applies, "n": size.seeds})  # fmt: skip
    return rows


def batch_steps(size: Size) -> list[Row]:
    """Mini-batches with the theorem's step 1/2β and with the shorter default: bounded variance is not met by them."""
    features, rows = size.of(200, 40), []
    for batch in (8, 32, 128):
        for name in ("1/2β", "default"):
            ends = []
            for seed in range(size.seeds):
                rng = np.random.default_rng(seed)
                planted = planted_regression(conditioned_design(features + 200, features, 2.0, rng), 4, rng)
                step = ConstantStep(0.25) if name == "1/2β" else None
                result = iht(planted.problem, 72 if features > 100 else 20, batch=batch, iterations=150, step=step,
                             certificate=False, seed=seed)  # fmt: skip
                ends.append(result.value / result.history.values[0])
            rows.append({"batch": batch, "step": name, "features": features, "n": size.seeds,
                         "f_over_start": float(np.median(ends))})  # fmt: skip
    return rows


def _distances(result: IHTResult, planted: Planted) -> np.ndarray:
    return np.array([point.distance(planted.theta) ** 2 for point in result.history.points])


def _slope(curve: np.ndarray) -> float:
    """Return the factor an iteration, over the part of a curve that is well above rounding."""
    above = curve[curve > 1e-18 * curve[0]]
    return float((above[-1] / above[0]) ** (1 / max(1, len(above) - 1)))


def rounded(curve: np.ndarray) -> list[float]:
    """Return the curve with four digits, as results keep it."""
    return [float(f"{value:.4g}") for value in curve]
