"""Fuzz tests: short in `make test`, long in `make drills`, and the same mutations each time by their seeds."""

from collections.abc import Callable

import pytest


@pytest.fixture
def mutations(request: pytest.FixtureRequest) -> Callable[..., range]:
    """`for seed in mutations(short=100, long=2_000)`: one mutation for each seed."""

    def choose(*, short: int, long: int) -> range:
        return range(long if request.config.getoption("--long") else short)

    return choose
