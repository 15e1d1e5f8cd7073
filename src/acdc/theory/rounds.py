"""Runs AC/DC as its corollary states it: rounds of a dense phase, a truncation, and optimisation of the support.

    dense phase   `passes` over the samples in mini-batches, each a step of η·length/steps: damped, so that the phase
                  as a whole moves θ by about one full gradient step
    truncation    θ ← T_k(θ)
    support       optional: `refine` products with the Hessian on the support, or `sparse_passes` of mini-batch steps

The corollary: O((β/α) ln((f(θ₀) − f*)/ε)) rounds to ε + O(L²/α), L a bound on the gradients of the mini-batches.
"""

import time

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.certificates import certify
from acdc.theory.constants import Constants
from acdc.theory.hard_thresholding import History, IHTResult, check_slopes
from acdc.theory.linear_models import LinearModel
from acdc.theory.truncation import SparseVector, Vector, check_count, check_k, truncate


def acdc_rounds(
    problem: LinearModel,
    k: int,
    *,
    rounds: int = 50,
    batch: int = 32,
    passes: int = 1,
    sparse_passes: int = 0,
    refine: int = 0,
    length: float = 1.0,
    constants: Constants | None = None,
    keep_points: bool = False,
    seed: int | np.random.Generator = 0,
) -> IHTResult:
    """Minimise f under ‖θ‖₀ ≤ k by alternating dense and compressed phases.

    `length` is the sum of a dense phase's steps in units of 1/β. A compressed phase has steps of the same size. The
    history has one value for each round, of the truncated and optimised θ.
    """
    check_k(k, problem.size)
    for name, value, least in (
        ("rounds", rounds, 1), ("batch", batch, 1), ("passes", passes, 1), ("sparse_passes", sparse_passes, 0),
        ("refine", refine, 0),
    ):  # fmt: skip
        check_count(name, value, least, f"type {name}={max(least, 1)}")
    if not (np.isfinite(length) and length > 0):
        raise ArgumentError("length", length, "expected a positive number", "type length=1.0")
    constants = constants or problem.constants(problem.size)
    assert constants.beta is not None
    check_slopes(constants)
    rng, steps = np.random.default_rng(seed), -(-problem.samples * passes // batch)
    step = length / constants.beta.value / steps
    everything = np.arange(problem.size)
    theta, history, gradients, began = np.zeros(problem.size), History(), 0.0, time.perf_counter()
    point = truncate(theta, k)
    history.values.append(problem.value(point))
    if keep_points:
        history.points.append(point)
    for _ in range(rounds):
        for _ in range(steps):
            theta -= step * problem.batch_gradient(SparseVector(problem.size, everything, theta), batch, rng)
        before, point = point, truncate(theta, k)
        point = _compressed(problem, point, sparse_passes, batch, step, rng)
        if refine:
            point = problem.refine(point, steps=refine)
        theta = point.dense()
        gradients += (steps * batch + sparse_passes * problem.samples) / problem.samples + refine
        history.values.append(problem.value(point))
        history.steps.append(step * steps)
        history.moved.append(point.distance(before))
        if keep_points:
            history.points.append(point)
    return IHTResult(
        theta=point, iterations=rounds, converged=False, history=history, constants=constants, gradients=gradients,
        certificate=certify(problem, point, step=1 / constants.beta.value, k=k, k_star=k, constants=constants),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def _compressed(
    problem: LinearModel, point: SparseVector, passes: int, batch: int, step: float, rng: np.random.Generator
) -> SparseVector:
    """Take mini-batch steps on the support alone; pruned entries and their gradients are 0."""
    values: Vector = point.values
    for _ in range(-(-problem.samples * passes // batch)):
        gradient = problem.batch_gradient(SparseVector(point.size, point.indices, values), batch, rng)
        values = values - step * gradient[point.indices]
    return SparseVector(point.size, point.indices, values)
