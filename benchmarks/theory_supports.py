"""Which supports IHT ends with: the k that recovery needs, AC/DC's rounds at equal gradients, stationary points."""

from collections.abc import Callable, Iterable

import numpy as np

from acdc.theory.bounds import near_stationary
from acdc.theory.hard_thresholding import iht
from acdc.theory.instances import Planted, correlated_design, planted_classification, planted_regression, stuck
from acdc.theory.linear_models import LinearModel
from acdc.theory.rounds import acdc_rounds
from acdc.theory.step_sizes import AdaptiveStep, ConstantStep
from acdc.theory.truncation import SparseVector
from benchmarks.record import Row
from benchmarks.theory_experiments import Size, rounded

# The k that recovery needs


def threshold(size: Size) -> list[Row]:
    """The instance on which IHT is stuck: recovery for k around k*((κ − 1)/2)², from three kinds of start."""
    rows, k_star = [], 4
    for condition in size.of(1, 0) * (3.0, 4.0, 6.0, 8.0, 11.0) or (4.0,):
        fails_to, holds_from = k_star * ((condition - 1) / 2) ** 2, k_star * (condition - 1) ** 2
        multiples = (0.25, 0.5, 0.8, 0.95, 1.05, 1.3, 2.0, 4.2, 6.0)
        for k in sorted({max(k_star, round(times * fails_to)) for times in multiples}):
            planted, spurious = stuck(k, k_star, condition)
            rng, found = np.random.default_rng(0), {}
            for name in ("stuck", "zero", "random"):
                seeds = 1 if name == "zero" else size.seeds
                hits = []
                for _ in range(seeds):
                    start = {
                        "stuck": spurious.dense() * (1 + 1e-4 * rng.standard_normal(k + k_star)),
                        "zero": np.zeros(k + k_star),
                        "random": rng.standard_normal(k + k_star),
                    }[name]
                    result = iht(planted.problem, k, start=SparseVector.from_dense(start), iterations=4000,
                                 tolerance=1e-9, step=ConstantStep(1 / condition), certificate=False)  # fmt: skip
                    hits.append(result.value < 1e-6 * planted.problem.value(spurious))
                found[name] = float(np.mean(hits))
            rows.append({"condition": condition, "k": k, "k_star": k_star, "fails_to": fails_to,
                         "holds_from": holds_from, **found, "n": size.seeds})  # fmt: skip
    return rows


def typical(size: Size) -> list[Row]:
    """Recovery on correlated designs, whose condition the theorem would have k grow with the square of."""
    features, samples, k_star, rows = size.of(300, 50), size.of(900, 150), 10, []
    for correlation in (0.0, 0.5, 0.8, 0.9, 0.95)[: size.of(5, 1)]:
        for times in (1, 2, 4, 8):
            recalls, conditions = [], []
            for seed in range(size.seeds):
                rng = np.random.default_rng(seed)
                planted = planted_regression(correlated_design(samples, features, correlation, rng), k_star, rng)
                constants = planted.problem.constants(features)
                assert constants.alpha is not None
                assert constants.beta is not None
                conditions.append(constants.beta.value / constants.alpha.value)
                k = min(times * k_star, features // 2)
                result = iht(planted.problem, k, constants=constants, iterations=size.of(1500, 100), tolerance=1e-7,
                             certificate=False)  # fmt: skip
                recalls.append(planted.recall(result.theta))
            condition = float(np.mean(conditions))
            rows.append({"correlation": correlation, "condition": condition, "k": times * k_star, "k_star": k_star,
                         "features": features, "samples": samples, "recall": float(np.mean(recalls)),
                         "k_needed": k_star * (condition - 1) ** 2, "n": size.seeds})  # fmt: skip
    return rows


# Rounds


def rounds(size: Size) -> list[Row]:
    """f above the best found, against passes over the samples: IHT, stochastic IHT and AC/DC's rounds."""
    features, samples, k_star, passes = size.of(400, 50), size.of(1600, 200), 20, size.of(60, 6)
    makers: dict[str, Callable[[np.random.Generator], Planted]] = {
        "least squares": lambda rng: planted_regression(
            correlated_design(samples, features, 0.5, rng), min(k_star, features // 4), rng, noise=0.3
        ),
        "logistic": lambda rng: planted_classification(
            correlated_design(samples, features, 0.5, rng), min(k_star, features // 4), rng, ridge=1e-3
        ),
    }
    rows = []
    for problem, make in makers.items():
        curves: dict[str, list[np.ndarray]] = {}
        for seed in range(size.seeds):
            planted = make(np.random.default_rng(seed))
            k = 2 * len(planted.theta.indices)
            runs = dict(_solvers(planted.problem, k, passes, seed))
            long = iht(planted.problem, k, step=AdaptiveStep(), refine=20, certificate=False)
            best = min(long.value, *(min(values) for _, values in runs.values()))
            for name, (at, values) in runs.items():
                here = np.interp(np.arange(passes + 1), at, np.array(values) - best)
                curves.setdefault(name, []).append(here / (values[0] - best))
        for name, found in curves.items():
            median = np.maximum(np.median(found, axis=0), 1e-12)
            rows.append({"problem": problem, "solver": name, "features": features, "samples": samples,
                         "passes": passes, "curve": rounded(median), "end": float(median[-1]),
                         "n": size.seeds})  # fmt: skip
    return rows


def _solvers(
    problem: LinearModel, k: int, passes: int, seed: int
) -> Iterable[tuple[str, tuple[np.ndarray, list[float]]]]:
    """Yield each solver's passes and values."""
    constants, batch = problem.constants(problem.size), max(8, problem.samples // 16)
    shared = {"constants": constants, "certificate": False}
    whole = iht(problem, k, iterations=passes, tolerance=0, **shared)
    yield "IHT", (np.arange(passes + 1), whole.history.values)
    steps = passes * problem.samples // batch
    some = iht(problem, k, batch=batch, iterations=steps, seed=seed, **shared)
    yield "stochastic IHT", (np.arange(steps + 1) * batch / problem.samples, some.history.values)
    assert constants.beta is not None
    undamped = constants.beta.value / (constants.beta.value + problem.batch_smoothness(batch)) / 2
    for name, dense, sparse, length in (
        ("AC/DC, 1 dense pass", 1, 0, 1.0),
        ("AC/DC, 1 dense + 1 sparse", 1, 1, 1.0),
        ("AC/DC, 1 dense + 1 sparse, undamped", 1, 1, undamped * -(-problem.samples // batch)),
    ):
        count = max(1, passes // (dense + sparse))
        result = acdc_rounds(problem, k, rounds=count, passes=dense, sparse_passes=sparse, batch=batch, length=length,
                             constants=constants, seed=seed)  # fmt: skip
        yield name, (np.arange(count + 1) * (dense + sparse), result.history.values)


# Near-stationary points


def stationary(size: Size) -> list[Row]:
    """Fewer samples than features, supports optimised: ‖∇f‖∞ where IHT ends, beside the bound, for several k."""
    features, samples, rows = size.of(400, 60), size.of(200, 40), []
    for k in (5, 10, 20, 40):
        ratios, used, allowed, papers, ends = [], [], [], [], []
        for seed in range(size.seeds):
            rng = np.random.default_rng(seed)
            planted = planted_regression(correlated_design(samples, features, 0.7, rng), 20, rng, noise=0.5)
            result = iht(planted.problem, min(k, samples // 2), refine=500, iterations=200, keep_points=True)
            assert result.constants is not None
            assert result.constants.beta is not None
            radius = max(float(np.abs(point.values).max(initial=0)) for point in result.history.points)
            slopes = [float(np.abs(planted.problem.gradient(point)).max()) for point in result.history.points]
            on = max(
                float(np.linalg.norm(planted.problem.gradient(point)[point.indices]))
                for point in result.history.points[1:]
            )
            values = result.history.values
            bound = near_stationary(beta=result.constants.beta.value, k=k, radius=radius, epsilon=on,
                                    decrease=values[0] - values[-1])  # fmt: skip
            ratios.append(min(slopes) / bound.gradient)
            papers.append(min(slopes) / bound.in_the_paper)
            ends.append(slopes[-1] / (result.constants.beta.value * result.theta.smallest))
            used.append(next(i for i, slope in enumerate(slopes) if slope <= bound.gradient))
            allowed.append(bound.iterations)
        rows.append({"k": k, "features": features, "samples": samples, "of_bound": float(np.mean(ratios)),
                     "worst_of_bound": float(np.max(ratios)), "of_paper": float(np.mean(papers)),
                     "of_fixed_point": float(np.mean(ends)), "worst_of_fixed_point": float(np.max(ends)),
                     "iterations": float(np.mean(used)), "bound_iterations": float(np.mean(allowed)),
                     "n": size.seeds})  # fmt: skip
    return rows
