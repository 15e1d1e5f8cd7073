"""The measure of a task by which models are compared: accuracy, or perplexity, of which less is better."""

from collections.abc import Sequence
from dataclasses import dataclass

from acdc import formatting as fmt
from acdc.runs.records import BestEpoch, EpochRow, ModelResult


@dataclass(frozen=True)
class Quality:
    """A measure: its names, which direction is better, and how it is written."""

    name: str  # in prose: "test accuracy"
    key: str  # in JSON
    symbol: str  # " %" or ""
    unit: str  # that a model and its costs are measured for: "image" or "token"
    higher_is_better: bool

    # Values

    def of(self, record: EpochRow | ModelResult) -> float:
        """Return a record's value on the test set."""
        value = record.test_accuracy if self is ACCURACY else record.language and record.language.test.perplexity
        assert value is not None, "records.py accepts no record without the measure of its task"
        return value

    def best(self, best: BestEpoch) -> float:
        """Return the value of a best epoch."""
        value = best.accuracy if self is ACCURACY else best.perplexity
        assert value is not None, "records.py accepts no record without the measure of its task"
        return value

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.higher_is_better else value < than

    def rank(self, value: float) -> float:
        """Return a number that is lower the better the value is, to sort by."""
        return -value if self.higher_is_better else value

    # Text

    def scaled(self, value: float) -> float:
        """Return the value in the unit that people read: accuracies in %."""
        return 100 * value if self is ACCURACY else value

    def text(self, value: float, digits: int = 2) -> str:
        """Write a value for people, such as "98.75%" or "20.65"."""
        if self is ACCURACY:
            return f"{value:.{digits}%}"
        return f"{value:,.{digits if value < 1000 else 0}f}" if value < fmt.LONG else f"{value:.{digits}e}"

    def shown(self, value: float, digits: int = 1) -> str:
        """Write a value for a report, such as "98.8 %" or "20.65": perplexities with a digit more."""
        return fmt.percent(value, digits) if self is ACCURACY else fmt.fixed(value, max(2, digits))

    def number(self, value: float, digits: int = 1) -> str:
        """Write a value without its unit."""
        return fmt.fixed(self.scaled(value), digits if self is ACCURACY else max(2, digits))

    def mean_std(self, values: Sequence[float], digits: int = 2) -> str:
        return fmt.mean_std(values, scale=self.scaled(1.0), digits=digits if self is ACCURACY else max(2, digits))

    @property
    def axis(self) -> str:
        """Return the label of an axis."""
        return f"{self.name} (%)" if self is ACCURACY else self.name

    @property
    def column(self) -> str:
        """Return the header of a column of plain numbers."""
        return f"{self.name}, %" if self is ACCURACY else self.name

    @property
    def title(self) -> str:
        return self.name.capitalize()

    @property
    def superlative(self) -> str:
        """Return where the best one ends."""
        return "highest" if self.higher_is_better else "lowest"

    @property
    def bound(self) -> str:
        """Return the words before the best of several values that are level."""
        return "up to" if self.higher_is_better else "down to"

    # Comparisons

    def gap(self, value: float, other: float, noun: str, *, uncertainty: float = 0.0, limited_by: str = "") -> str:
        """Describe how far a value is from another: "0.2 points below its dense twin", "1.09x its dense twin's"."""
        if self is ACCURACY:
            return fmt.gap(value, other, noun, uncertainty=uncertainty, limited_by=limited_by)
        if fmt.fixed(value, 2) == fmt.fixed(other, 2) or abs(value - other) <= uncertainty:
            return f"level with {noun}"
        return f"at {value / other:.3f}x the perplexity of {noun}"

    def uncertainty(self, values: Sequence[float], others: Sequence[float], samples: int | None) -> float:
        """Return how far apart two means may be without it meaning anything; see formatting.uncertainty.

        Tokens are not drawn independently, so for perplexities only several seeds tell.
        """
        return fmt.uncertainty(values, others, samples if self is ACCURACY else None)

    def indistinguishable(self, values: Sequence[float], others: Sequence[float], samples: int | None) -> bool:
        """Return True if the means of two lists look the same, or are too close to tell apart."""
        if self is ACCURACY:
            return fmt.indistinguishable(values, others, samples)
        one, other = (sum(some) / len(some) for some in (values, others))
        return self.number(one) == self.number(other) or abs(one - other) <= self.uncertainty(values, others, None)


ACCURACY = Quality("test accuracy", "test_accuracy", " %", "image", higher_is_better=True)
PERPLEXITY = Quality("test perplexity", "test_perplexity", "", "token", higher_is_better=False)


def quality_of(record: EpochRow | ModelResult) -> Quality:
    """Return the measure of a record's task."""
    return ACCURACY if record.language is None else PERPLEXITY
