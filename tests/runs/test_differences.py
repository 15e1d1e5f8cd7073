"""What differs between the settings a run began with and those of now."""

import json
from typing import Any

import pytest

from acdc.recipes import load
from acdc.runs import differences


def recipe(*settings: str) -> dict[str, Any]:
    """As a file has it."""
    return json.loads(json.dumps(load.read("digits", settings).to_dict()))


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        ([], [], None),
        (["run.keep=7"], [], None),
        (["optimizer.lr=0.2"], [], "optimizer.lr was 0.2 there and is 0.1 here"),
        (["method.reset=all"], ["method.reset=nothing"], "method.reset was 'all' there and is 'nothing' here"),
        (["method.reset=all"], [], "method.reset was 'all' there and is None here"),
        ([], ["method.reset=all"], "method.reset was None there and is 'all' here"),
        (
            ["rate.milestones=[1, 2]"],
            ["rate.milestones=[1, 3]"],
            "rate.milestones was [1.0, 2.0] there and is [1.0, 3.0] here",
        ),
    ],
)
def test_the_first_difference_in_words(saved: list[str], now: list[str], said: str | None) -> None:
    assert differences.first(recipe(*saved), recipe(*now)) == said
