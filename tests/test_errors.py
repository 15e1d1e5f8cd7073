"""What was suggest, said in one way wherever a name is not known."""

from pathlib import Path

import pytest

import acdc
from acdc.errors import did_you_mean, suggest

KNOWN = ("digits_net", "resnet20", "wrn28_10")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("resnet2", "; did you mean resnet20?"),
        ("ResNet-20", "; did you mean resnet20?"),
        ("WRN-28-10", "; did you mean wrn28_10?"),
        ("transformer", ""),
        (20, ""),
    ],
)
def test_the_nearest_word_whatever_its_capitals_and_hyphens(typed: object, said: str) -> None:
    assert did_you_mean(typed, KNOWN) == said


def test_several_that_are_near_nearest_first() -> None:
    assert did_you_mean("conv3", ("conv1", "fc", "conv33"), most=2) == "; did you mean conv33 or conv1?"
    assert suggest(()) == ""


def test_nothing_says_it_otherwise() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(acdc.__file__).parent.rglob("*.py")}
    assert [name for name, text in texts.items() if "did you mean" in text or "difflib" in text] == ["errors.py"]
