"""Agreement of two models' answers: worked by hand, in batches, and what is refused."""

import math

import pytest
import torch
from torch import Tensor

from acdc.measure.agreement import AgreementCounter, agreement, describe_flips


def of_probabilities(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


A = of_probabilities([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
B = of_probabilities([0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1])


def test_by_hand() -> None:
    """A answers 0 1 0 2 and B 0 1 1 0; the truth is 0 2 1 2."""
    found = agreement(A, B, torch.tensor([0, 2, 1, 2]))
    assert (found.samples, found.classes, found.top1) == (4, 3, 0.5)
    same = -(0.5 * math.log(0.8) + 0.5 * math.log(0.1))
    other = -(0.25 * math.log(0.8) + 0.75 * math.log(0.1))
    assert found.cross_entropy_ab == pytest.approx((2 * same + 2 * other) / 4, rel=1e-6)
    same = -(0.8 * math.log(0.5) + 0.2 * math.log(0.25))
    other = -(0.8 * math.log(0.25) + 0.1 * math.log(0.25) + 0.1 * math.log(0.5))
    assert found.cross_entropy_ba == pytest.approx((2 * same + 2 * other) / 4, rel=1e-6)
    assert (found.accuracy_a, found.accuracy_b) == (0.5, 0.5)
    assert (found.both_right, found.only_a_right, found.only_b_right) == (0.25, 0.25, 0.25)
    assert found.flips == {0: 0, 1: 1, 2: 1}


def test_the_directions_are_each_other_s() -> None:
    forth, back = agreement(A, B), agreement(B, A)
    assert (forth.cross_entropy_ab, forth.cross_entropy_ba) == (back.cross_entropy_ba, back.cross_entropy_ab)
    assert forth.cross_entropy_ab != forth.cross_entropy_ba


def test_with_itself_a_model_agrees_and_is_left_with_its_entropy() -> None:
    found = agreement(A, A)
    assert found.top1 == 1
    assert found.cross_entropy_ab == found.cross_entropy_ba == pytest.approx(1.5 * math.log(2), rel=1e-6)


def test_without_labels_nobody_is_right() -> None:
    found = agreement(A, B)
    assert found.top1 == 0.5
    assert (found.accuracy_a, found.both_right, found.only_b_right, found.flips) == (None,) * 4


def test_batches_add_up() -> None:
    torch.manual_seed(0)
    a, b, labels = torch.randn(103, 7), torch.randn(103, 7), torch.randint(7, (103,))
    counter = AgreementCounter()
    for part in torch.arange(103).split(10):
        counter.add(a[part], b[part], labels[part])
    parts, whole = vars(counter.result()), vars(agreement(a, b, labels))
    assert {key: pytest.approx(value) for key, value in whole.items()} == parts
    assert sum(whole["flips"].values()) == round(103 * (1 - whole["top1"]))
    assert whole["only_a_right"] == pytest.approx(whole["accuracy_a"] - whole["both_right"])


def test_halves_are_computed_in_float32() -> None:
    torch.manual_seed(0)
    a, b = (8 * torch.randn(50, 100)).half(), (8 * torch.randn(50, 100)).half()
    assert agreement(a, b) == agreement(a.float(), b.float())
    p, q = a.double().softmax(1), b.double().log_softmax(1)
    assert agreement(a, b).cross_entropy_ab == pytest.approx(-(p * q).sum(1).mean().item(), rel=1e-5)
    assert agreement(a.bfloat16(), b.bfloat16()).samples == 50


def test_samples_without_a_label_are_left_out() -> None:
    labels = torch.tensor([0, -1, 1, -1])
    assert agreement(A, B, labels) == agreement(A[::2], B[::2], labels[::2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((A, B[:3]), r"shapes \(4, 3\) and \(3, 3\): expected two tensors"),
        ((A, B[:, :2]), r"shapes \(4, 3\) and \(4, 2\)"),
        ((A[0], B[0]), r"shapes \(3,\) and \(3,\)"),
        ((A[:0], B[:0]), r"shapes \(0, 3\)"),
        ((A, B, torch.zeros(3)), r"labels=a tensor of shape \(3,\): expected one for each of 4 samples"),
        ((A, B, torch.full((4,), -1)), "every label is below 0"),
        ((A, B, torch.tensor([0, 1, 2, 3])), "1 labels are 3 or more"),
        ((A, torch.where(torch.eye(4, 3) > 0, torch.nan, B)), "logits of 3 of 4 samples are not finite"),
        ((A, torch.where(torch.eye(4, 3) > 0, torch.inf, B)), "logits of 3 of 4 samples are not finite"),
    ],
)
def test_refused(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agreement(*arguments)


def test_nothing_and_unlike_batches_are_refused() -> None:
    counter = AgreementCounter()
    with pytest.raises(ValueError, match="logits: there are none yet; add"):
        counter.result()
    counter.add(A, B)
    with pytest.raises(ValueError, match="batches differ"):
        counter.add(A, B, torch.zeros(4).long())
    with pytest.raises(ValueError, match="batches differ"):
        counter.add(A[:, :2], B[:, :2])


def test_classes_are_counted_in_words() -> None:
    assert describe_flips({0: 0, 1: 1, 2: 1200, 3: 0}) == "2 (1,200 images), 1 (1 image)"
