"""The theoretical cost of a training run, by non-zero weights; flops/counting.py counts a forward pass.

    "paper" (§4)   3 · F_C for a sample of a compressed epoch, 2 · F_D + F for one of a dense epoch

F_D leaves out the weights that stayed zero: they save the forward pass and half of the backward pass, but not the
gradient of the weights. "published" is the rule of the published code: 3 · F in both, with its extended F.
"""

from collections.abc import Callable, Iterable

from acdc.flops.counting import Flops, Rule, check_rule, inference_flops

__all__ = ["Flops", "Rule", "SparseRule", "epoch_flops", "inference_flops", "training_flops"]

SparseRule = Callable[[float, float], float]
"""Maps inference FLOPs in a sparse epoch, and the dense model's, to those of training: a method's sparse_flops."""


def epoch_flops(
    kind: str, flops: int, dense: int, *, rule: Rule = "paper", extra: int = 0, sparse: SparseRule | None = None
) -> int:
    """Return the FLOPs of training on one sample in an epoch of this kind, "sparse" or "dense".

    `flops` are those of inference at the end of the epoch, `dense` those of the dense model. `extra` is what
    "published" adds to a forward pass (Flops.extra); `sparse` is for methods that cost more than 3·F.
    """
    check_rule(rule)
    if rule == "published":
        return 3 * (flops + extra)
    if kind == "sparse":
        return round(sparse(flops, dense)) if sparse else 3 * flops
    return 2 * flops + dense


def training_flops(
    epochs: Iterable[tuple[str, int]],
    dense: int,
    *,
    samples: int = 1,
    rule: Rule = "paper",
    extra: int = 0,
    sparse: SparseRule | None = None,
) -> int:
    """Sum the FLOPs over epochs of `samples` samples, each given by its kind and its final inference FLOPs."""
    return samples * sum(
        epoch_flops(kind, flops, dense, rule=rule, extra=extra, sparse=sparse) for kind, flops in epochs
    )
