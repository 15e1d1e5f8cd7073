"""The agreement of two models: how often they give the same answer, and how surprised one is by the other's.

    top1               share of samples to which both assign the same class
    cross_entropy_ab   mean over samples of −Σ softmax(a) · log softmax(b): the surprise of b at the answers of a
    cross_entropy_ba   the other way round

The paper (§4) reports both for a sparse model and its dense twin, but does not say in which direction; with the sparse
model as a, ours is first −Σ p_sparse · log p_dense. A model's cross-entropy with itself is its entropy, not 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from acdc.errors import ArgumentError, Shown

_SUMS = ("samples", "agree", "ab", "ba", "right_a", "right_b", "both", "not_finite", "no_class")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The measured agreement, as shares of `samples`. Without labels, what needs them is None."""

    samples: int
    classes: int
    top1: float
    cross_entropy_ab: float
    cross_entropy_ba: float
    accuracy_a: float | None = None
    accuracy_b: float | None = None
    both_right: float | None = None
    only_a_right: float | None = None
    only_b_right: float | None = None
    flips: Mapping[int, int] | None = None  # samples of each true class whose two answers differ


def agreement(logits_a: Tensor, logits_b: Tensor, labels: Tensor | None = None) -> Agreement:
    """Measure the agreement of (samples, classes) logits in the same order."""
    counter = AgreementCounter()
    counter.add(logits_a, logits_b, labels)
    return counter.result()


class AgreementCounter:
    """The agreement over many batches. Sums stay on the device of the logits until `result` reads them, once.

    A label below 0 marks a sample without one (an unreadable image), which is left out.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._flips: Tensor | None = None
        self._labelled: bool | None = None
        self._classes = 0

    @torch.no_grad()
    def add(self, logits_a: Tensor, logits_b: Tensor, labels: Tensor | None = None) -> None:
        """Count a batch."""
        self._check(logits_a, logits_b, labels)
        device = logits_a.device
        a, b = logits_a.float(), logits_b.to(device).float()
        truth = None if labels is None else labels.to(device)
        counts = torch.ones(len(a), dtype=torch.bool, device=device) if truth is None else truth >= 0
        log_a, log_b = a.log_softmax(1), b.log_softmax(1)
        class_a, class_b = a.argmax(1), b.argmax(1)
        differ = (class_a != class_b) & counts
        right_a, right_b = ((guess == truth) & counts if truth is not None else differ for guess in (class_a, class_b))
        finite = (a.isfinite() & b.isfinite()).all(1)
        each = (
            counts,
            counts & ~differ,
            -(log_a.exp() * log_b).sum(1) * counts,
            -(log_b.exp() * log_a).sum(1) * counts,
            right_a,
            right_b,
            right_a & right_b,
            counts & ~finite,
            differ & False if truth is None else truth >= self._classes,
        )
        sums = torch.stack([values.double().sum() for values in each])
        self._sums = sums if self._sums is None else self._sums + sums.to(self._sums.device)
        if truth is not None:
            flips = torch.zeros(self._classes + 1, dtype=torch.int64, device=device)
            flips.scatter_add_(
                0, torch.where(differ, truth, self._classes).clamp(max=self._classes).long(), differ.long()
            )
            self._flips = flips if self._flips is None else self._flips + flips.to(self._flips.device)

    def result(self) -> Agreement:
        """Return the agreement over all batches so far."""
        if self._sums is None:
            raise ArgumentError("logits", allowed="there are none yet", instead="add the logits of at least one sample")
        sums = dict(zip(_SUMS, self._sums.tolist(), strict=True))
        samples = round(sums["samples"])
        if not samples:
            raise ArgumentError("labels", allowed="every label is below 0", instead="pass samples that have labels")
        if sums["no_class"]:
            raise ArgumentError(
                "labels",
                allowed=f"{round(sums['no_class']):,} labels are {self._classes} or more, but the logits have only "
                "that many classes",
                instead="pass the labels of these samples",
            )
        if sums["not_finite"]:
            raise ArgumentError(
                "logits",
                allowed=f"the logits of {round(sums['not_finite']):,} of {samples:,} samples are not finite: these are "
                "not predictions",
                instead="evaluate the models again in a wider number format",
            )
        share = {name: value / samples for name, value in sums.items()}
        labelled = {}
        if self._flips is not None:
            labelled = {
                "accuracy_a": share["right_a"],
                "accuracy_b": share["right_b"],
                "both_right": share["both"],
                "only_a_right": (sums["right_a"] - sums["both"]) / samples,
                "only_b_right": (sums["right_b"] - sums["both"]) / samples,
                "flips": dict(enumerate(self._flips.tolist()[: self._classes])),
            }
        return Agreement(
            samples=samples,
            classes=self._classes,
            top1=share["agree"],
            cross_entropy_ab=share["ab"],
            cross_entropy_ba=share["ba"],
            **labelled,
        )

    def _check(self, a: Tensor, b: Tensor, labels: Tensor | None) -> None:
        if a.ndim != 2 or a.shape != b.shape or 0 in a.shape:
            received = Shown(f"tensors of shapes {tuple(a.shape)} and {tuple(b.shape)}")
            allowed = "expected two tensors of shape (samples, classes), for the same samples in the same order"
            raise ArgumentError("logits", received, allowed)
        if labels is not None and labels.shape != a.shape[:1]:
            received = Shown(f"a tensor of shape {tuple(labels.shape)}")
            raise ArgumentError("labels", received, f"expected one for each of {len(a):,} samples")
        if self._classes not in (0, a.shape[1]) or self._labelled not in (None, labels is not None):
            allowed = "batches differ in their number of classes, or only some have labels"
            raise ArgumentError("logits", allowed=allowed, instead="add batches of the same kind")
        self._classes, self._labelled = a.shape[1], labels is not None


def describe_flips(flips: Mapping[int, int]) -> str:
    """Return the three classes that two models differ on most, with the images of each: "3 (12 images), 5 (…)"."""
    order = sorted((index for index in flips if flips[index]), key=lambda index: -flips[index])[:3]
    return ", ".join(f"{index} ({flips[index]:,} image{'s' if flips[index] > 1 else ''})" for index in order)
