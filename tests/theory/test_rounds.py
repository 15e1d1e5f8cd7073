"""AC/DC's rounds: one dense pass is one step of IHT, and phases keep their supports."""

from typing import Any

import numpy as np
import pytest

from acdc.errors import ArgumentError
from acdc.theory import acdc_rounds, iht
from acdc.theory.instances import Planted, correlated_design, planted_classification, planted_regression


def regression() -> Planted:
    rng = np.random.default_rng(0)
    return planted_regression(correlated_design(400, 40, 0.4, rng), 4, rng)


def test_rounds_find_the_support() -> None:
    planted = regression()
    variants: list[dict[str, Any]] = [{}, {"sparse_passes": 1}, {"refine": 10}, {"passes": 2, "length": 2.0}]
    for settings in variants:
        result = acdc_rounds(planted.problem, 8, rounds=40, batch=40, **settings)
        assert planted.recall(result.theta) == 1
        assert len(result.theta.indices) == 8
        assert result.value < 0.05 * result.history.values[0]


def test_a_damped_dense_phase_is_about_one_full_step() -> None:
    planted = regression()
    whole = iht(planted.problem, 8, iterations=10, tolerance=0).history.values
    rounds = acdc_rounds(planted.problem, 8, rounds=10, batch=4).history.values
    np.testing.assert_allclose(np.log(rounds[1:6]), np.log(whole[1:6]), atol=0.7)


def test_passes_are_counted() -> None:
    planted = regression()
    assert acdc_rounds(planted.problem, 8, rounds=3, batch=40, sparse_passes=2).gradients == pytest.approx(9)


def test_more_rounds_lower_a_logistic_loss() -> None:
    rng = np.random.default_rng(0)
    planted = planted_classification(correlated_design(300, 30, 0.4, rng), 3, rng, ridge=0.01)
    result = acdc_rounds(planted.problem, 6, rounds=30, batch=30, sparse_passes=1, keep_points=True)
    assert result.value < 0.8 * result.history.values[0]
    assert len(result.history.points) == len(result.history.values) == 31
    assert result.certificate is not None
    assert result.certificate.gap is not None


@pytest.mark.parametrize(
    ("name", "value"), [("k", 0), ("rounds", 0), ("batch", 0), ("passes", 0), ("refine", -1), ("length", 0.0)]
)
def test_refused(name: str, value: float) -> None:
    with pytest.raises(ArgumentError) as refused:
        acdc_rounds(regression().problem, **{"k": 4, name: value})  # pyright: ignore[reportArgumentType]
    assert refused.value.argument == name
