"""The plain loop: what it feeds, what it reports, and that each phase is seen by its own model."""

import math

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.data.digits import Split
from acdc.train.loop import DivergedError, accuracy, batches, sparsity, steps_per_epoch, train
from acdc.train.recipe import Recipe, learning_rate, make_optimizer


def data() -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(50, 1, 4, 4, generator=generator)
    labels = (images.mean((1, 2, 3)) > 0).long()
    return Split(images[:40], labels[:40], images[40:], labels[40:])


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


RECIPE = Recipe(epochs=6, batch_size=16, lr=0.1)


def test_an_epoch_shows_every_image_once_with_its_label() -> None:
    seen = list(batches(data(), RECIPE, 0))
    assert [len(labels) for _, labels in seen] == [16, 16, 8]
    assert steps_per_epoch(data(), RECIPE) == 3
    images, labels = torch.cat([i for i, _ in seen]), torch.cat([t for _, t in seen])
    order = (images[:, None] == data().images[None]).all((2, 3, 4)).int().argmax(1)
    assert sorted(order.tolist()) == list(range(40))
    assert torch.equal(labels, data().labels[order])


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> Tensor:
        return torch.cat([images for images, _ in batches(data(), Recipe(batch_size=16, seed=seed), epoch)])

    torch.manual_seed(1)
    first = order(0, 0)
    torch.manual_seed(2)
    assert torch.equal(first, order(0, 0))
    assert not torch.equal(first, order(0, 1))
    assert not torch.equal(first, order(1, 0))


def test_rows_of_a_dense_run() -> None:
    net = model()
    rows = list(train("dense", net, make_optimizer(RECIPE, net), data(), RECIPE))
    assert [row.epoch for row in rows] == list(range(6))
    assert [row.step for row in rows] == [3, 6, 9, 12, 15, 18]
    assert [row.lr for row in rows] == [learning_rate(RECIPE, epoch) for epoch in range(6)]
    assert {(row.run, row.phase, row.kind, row.sparsity) for row in rows} == {("dense", "dense", "dense", 0.0)}
    assert rows[-1].loss < rows[0].loss
    assert rows[-1].test_accuracy == accuracy(net, data().test_images, data().test_labels)
    assert all(row.seconds > 0 for row in rows)


def test_loss_and_training_accuracy_are_means_over_the_images() -> None:
    net = model()
    with torch.no_grad():
        net[3].weight.zero_()
        net[3].bias.copy_(torch.tensor([0.0, 1.0]))
    still = Recipe(epochs=4, batch_size=16, lr=1e-12, weight_decay=0.0)
    row = next(train("dense", net, make_optimizer(still, net), data(), still))
    ones = data().labels.float().mean().item()
    assert row.train_accuracy == pytest.approx(ones)
    assert row.loss == pytest.approx(math.log(1 + math.e) - ones)


def test_each_epoch_is_evaluated_with_the_model_of_its_own_phase() -> None:
    net = model()
    optimizer = make_optimizer(RECIPE, net)
    schedule = acdc.Schedule.from_transitions(compress=[1, 4], decompress=[2], total=6)
    method = acdc.ACDC(sparsity=0.75, schedule=schedule)
    sparsifier = acdc.attach(net, optimizer, method, steps_per_epoch=steps_per_epoch(data(), RECIPE))
    rows = list(train("acdc", net, optimizer, data(), RECIPE, sparsifier=sparsifier))
    assert [row.kind for row in rows] == ["dense", "sparse", "dense", "dense", "sparse", "sparse"]
    assert [row.phase for row in rows][::2] == ["warm-up", "decompressed", "final compressed"]
    assert [row.sparsity for row in rows] == [0.0, 0.75, 0.0, 0.0, 0.75, 0.75]


def test_a_run_taken_up_later_is_the_run_that_never_stopped() -> None:
    whole, parts = model(), model()
    list(train("dense", whole, make_optimizer(RECIPE, whole), data(), RECIPE))
    optimizer = make_optimizer(RECIPE, parts)
    first = list(train("dense", parts, optimizer, data(), RECIPE, epochs=range(4)))
    rest = list(train("dense", parts, optimizer, data(), RECIPE, epochs=range(4, 6)))
    assert [row.epoch for row in (*first, *rest)] == list(range(6))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    net, wild = model(), Recipe(epochs=6, batch_size=4, lr=1e30)
    with pytest.raises(DivergedError, match=r"dense: the loss of epoch 1 is (nan|inf), with learning rate"):
        list(train("dense", net, make_optimizer(wild, net), data(), wild))


def test_weights_that_are_not_finite_stop_the_run_before_they_are_compressed() -> None:
    """One step an epoch: the loss, taken before the step, is still fine."""
    net, wild = model(), Recipe(epochs=6, batch_size=40, lr=1e38, warmup_epochs=0)
    with torch.no_grad():
        net[3].weight.mul_(1e3)
    with pytest.raises(DivergedError, match="dense: weights of epoch 1 are not finite"):
        list(train("dense", net, make_optimizer(wild, net), data(), wild))


def test_accuracy_is_the_share_classified_right_in_evaluation_mode() -> None:
    net = nn.Sequential(nn.Dropout(0.99), nn.Flatten())
    net.train()
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert accuracy(net, images, torch.tensor([0, 1, 1, 0])) == 0.75


def test_sparsity_counts_the_prunable_weights_only() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        net[0].weight[0].zero_()
        net[0].bias.zero_()
        net[1].weight.zero_()
    assert sparsity(net) == 0.25
