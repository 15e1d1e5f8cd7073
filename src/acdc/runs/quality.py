"""The measure of a task by which models are compared: accuracy, or perplexity, of which less is better."""

from dataclasses import dataclass

from acdc.runs.records import BestEpoch, EpochRow, ModelResult


@dataclass(frozen=True)
class Quality:
    """A measure: its names, and which direction is better."""

    name: str  # in prose: "test accuracy"
    key: str  # in JSON
    symbol: str  # " %" or ""
    higher_is_better: bool

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

    def scaled(self, value: float) -> float:
        """Return the value in the unit that people read: accuracies in %."""
        return 100 * value if self is ACCURACY else value

    def text(self, value: float, digits: int = 2) -> str:
        """Write a value for people, such as "98.75%" or "20.65"."""
        return f"{value:.{digits}%}" if self is ACCURACY else f"{value:,.{digits if value < 1000 else 0}f}"

    @property
    def axis(self) -> str:
        """Return the label of an axis or column."""
        return f"{self.name} (%)" if self is ACCURACY else self.name


ACCURACY = Quality("test accuracy", "test_accuracy", " %", higher_is_better=True)
PERPLEXITY = Quality("test perplexity", "test_perplexity", "", higher_is_better=False)


def quality_of(record: EpochRow | ModelResult) -> Quality:
    """Return the measure of a record's task."""
    return ACCURACY if record.language is None else PERPLEXITY
