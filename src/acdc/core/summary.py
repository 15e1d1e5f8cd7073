"""A summary table of what a sparsifier has done so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from acdc.flops.counting import Flops, count
from acdc.formatting import si
from acdc.sparsity.layers import Layers


@dataclass(frozen=True)
class LayerRow:
    name: str
    shape: tuple[int, ...]
    size: int
    zeros: int
    uses: float | None  # how often one sample uses each weight; None without an example input

    @property
    def sparsity(self) -> float:
        return self.zeros / max(1, self.size)


@dataclass(frozen=True)
class Summary:
    """Per-layer sparsity, phases so far and, where an example input was given, FLOPs per sample. `print` it."""

    headline: str
    layers: tuple[LayerRow, ...]
    left_dense: dict[str, str]
    phases: tuple[Mapping[str, Any], ...]
    dense_flops: float | None
    flops: float | None
    uncounted: tuple[str, ...] = ()  # operations not counted: if there are any, FLOPs are a lower bound

    @classmethod
    def of(
        cls,
        model: nn.Module,
        layers: Layers,
        phases: Sequence[Mapping[str, Any]],
        *,
        nonzeros: Mapping[str, int],
        headline: str,
        example: Any | None,
    ) -> "Summary":
        """Describe a model, given what each layer has that is not 0, with FLOPs if there is an example input."""
        flops, uses = count(model, example) if example is not None else (Flops(0, 0), {})
        rows = tuple(
            LayerRow(
                w.name, tuple(w.param.shape), w.param.numel(), w.param.numel() - nonzeros[w.name], uses.get(w.name)
            )
            for w in layers.weights
        )
        return cls(
            headline=headline,
            layers=rows,
            left_dense=dict(layers.left_dense),
            phases=tuple(dict(phase) for phase in phases),
            dense_flops=flops.dense or None,
            flops=flops.actual if flops.dense else None,
            uncounted=flops.uncounted,
        )

    @property
    def sparsity(self) -> float:
        return sum(row.zeros for row in self.layers) / sum(row.size for row in self.layers)

    def __str__(self) -> str:
        width = max(len("all prunable"), *(len(row.name) for row in self.layers))
        lines = [self.headline, f"{'layer':<{width}}  {'shape':>18}  {'weights':>12}  {'zeros':>7}"]
        for row in self.layers:
            shape = " x ".join(map(str, row.shape))
            lines.append(f"{row.name:<{width}}  {shape:>18}  {row.size:>12,}  {row.sparsity:>7.2%}")
        total = sum(row.size for row in self.layers)
        lines.append(f"{'all prunable':<{width}}  {'':>18}  {total:>12,}  {self.sparsity:>7.2%}")
        if self.dense_flops and self.flops is not None:
            share, least = self.flops / self.dense_flops, "at least " if self.uncounted else ""
            lines.append(f"FLOPs per sample: {least}{si(self.flops)} of {si(self.dense_flops)} dense ({share:.2f}x)")
        if self.uncounted:
            lines.append(f"FLOPs are a lower bound; of unknown layer type, counted as 0: {', '.join(self.uncounted)}")
        lines += [f"left dense: {name}: {reason}" for name, reason in self.left_dense.items()]
        lines += [f"step {p['step']:>8,}: {p['phase']} ({p['sparsity']:.2%} pruned)" for p in self.phases]
        return "\n".join(lines)
