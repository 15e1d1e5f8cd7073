"""What one forward pass costs, by the paper's count (§4): convolutions and linear layers, non-zero weights only.

One multiply-add is 2 FLOPs. Biases, normalisation, activations, pooling, the products inside attention and the
lookups of embeddings count 0. These are theoretical FLOPs: what a kernel saves of them is measured elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from acdc.sparsity.uses import forward_uses


@dataclass(frozen=True)
class Flops:
    """FLOPs per sample with every weight (`dense`) and with the non-zero ones (`actual`)."""

    dense: int
    actual: int

    @property
    def ratio(self) -> float:
        """The paper's "x": the fraction of the dense cost."""
        return self.actual / self.dense


def training_flops(epochs: Iterable[tuple[str, int]], dense: int) -> int:
    """FLOPs per training sample summed over epochs, each given by its kind and its inference FLOPs at its end.

    The paper's rule (§4): 3·F_C in compressed phases; 2·F_D + F in dense ones, where weights that stayed zero save the
    forward pass and half of the backward pass, but not the gradient of the weights.
    """
    return sum(3 * flops if kind == "sparse" else 2 * flops + dense for kind, flops in epochs)


def inference_flops(model: nn.Module, example: Any) -> Flops:
    """FLOPs of one sample. `example` is a batch of any size, or a tuple of arguments; the batch is its first axis."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    dense = actual = 0.0
    for name, uses in forward_uses(model, example).items():
        dense += 2 * uses * parameters[name].numel()
        actual += 2 * uses * int(parameters[name].count_nonzero())
    if not dense:
        raise ValueError(
            f"{type(model).__name__} used no convolution, linear or attention weight in its forward pass: "
            "there are no FLOPs to count. Pass the model and an example of its input"
        )
    return Flops(round(dense), round(actual))
