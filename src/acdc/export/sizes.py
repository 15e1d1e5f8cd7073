"""Compares a model's size before and after shrinking, layer by layer."""

from dataclasses import dataclass

from torch import nn

from acdc.formatting import si


@dataclass(frozen=True)
class LayerSizes:
    """Holds the shape of a layer's weight before and after shrinking."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class SizeComparison:
    """Lists what was removed: the layers that became smaller, and parameters in total. `print` shows a table."""

    layers: tuple[LayerSizes, ...]
    parameters_before: int
    parameters_after: int
    bytes_before: int
    bytes_after: int
    biases_added: tuple[str, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, shapes and the share of weights left, for each layer that became smaller."""
        return [(one.name, _shape(one.before), _shape(one.after), _left(one)) for one in self.layers]

    def summary(self) -> str:
        """Return one line with the parameters and bytes before and after."""
        if not self.layers:
            return f"nothing to remove: {self.parameters_before:,} parameters, {si(self.bytes_before, 'B')}"
        share = self.parameters_after / self.parameters_before
        count = len(self.biases_added)
        biases = f"; biases added to {count} {'layer' if count == 1 else 'layers'}" if count else ""
        return (
            f"{self.parameters_before:,} parameters became {self.parameters_after:,} ({share:.1%}), "
            f"{si(self.bytes_before, 'B')} became {si(self.bytes_after, 'B')}{biases}"
        )

    def __str__(self) -> str:
        rows = [HEADER, *self.rows()] if self.layers else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.summary()])


HEADER = ("layer", "before", "after", "weights left")


def compare_sizes(before: nn.Module, after: nn.Module) -> SizeComparison:
    """Compare a model with its shrunk copy."""
    one, other = dict(before.named_parameters()), dict(after.named_parameters())
    layers = tuple(
        LayerSizes(name.removesuffix(".weight"), tuple(weight.shape), tuple(other[name].shape))
        for name, weight in one.items()
        if name in other and weight.ndim > 1 and weight.shape != other[name].shape
    )
    return SizeComparison(
        layers=layers,
        parameters_before=sum(weight.numel() for weight in one.values()),
        parameters_after=sum(weight.numel() for weight in other.values()),
        bytes_before=_bytes(before),
        bytes_after=_bytes(after),
        biases_added=tuple(sorted(other.keys() - one.keys())),
    )


def _bytes(model: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in model.state_dict().values())


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _left(one: LayerSizes) -> str:
    before, after = 1, 1
    for size, left in zip(one.before, one.after, strict=True):
        before, after = before * size, after * left
    return f"{after / before:.1%}"
