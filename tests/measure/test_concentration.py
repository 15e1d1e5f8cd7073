"""The gradient's concentration against a slow count, and that measuring leaves the model as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.measure.concentration import measure_concentration, secant_smoothness


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 6, generator=generator), torch.randint(3, (5,), generator=generator)) for _ in range(count)]


def test_against_gradients_one_batch_at_a_time() -> None:
    net, decay = model(), 0.1
    slow, values, each = copy.deepcopy(net).train(), [], []
    for images, labels in batches():
        slow.zero_grad()
        loss = F.cross_entropy(slow(images), labels)
        loss.backward()
        values.append(loss.item())
        each.append(torch.cat([slow[i].weight.grad.flatten().clone() for i in (0, 3)]))  # pyright: ignore
    mean = torch.stack(each).mean(0)
    weights = torch.cat([net[i].weight.detach().flatten() for i in (0, 3)])  # pyright: ignore
    whole = mean + decay * weights
    found, slopes = measure_concentration(net, batches(), [3, 72], weight_decay=decay)
    squares = sum(p.detach().square().sum().item() for p in net.parameters())
    assert found.value == pytest.approx(sum(values) / 4 + decay / 2 * squares, rel=1e-5)
    assert found.gradient == pytest.approx(whole.square().sum().item(), rel=1e-4)
    top = whole.abs().sort(descending=True).values[:3].square().sum().item()
    assert found.largest[3] == pytest.approx(top, rel=1e-4)
    assert found.share(72) == pytest.approx(1)
    assert found.alpha(3) == pytest.approx(2 * top / found.value, rel=1e-4)
    spread = (torch.stack(each) - mean).square().sum(1).mean().item() * 4 / 3
    assert found.variance == pytest.approx(spread, rel=1e-4)
    assert (found.size, found.samples) == (72, 20)
    assert slopes.keys() == {name for name, _ in net.named_parameters()}
    others = sum(part.square().sum().item() for name, part in slopes.items() if name not in ("0.weight", "3.weight"))
    assert found.others == pytest.approx(others, rel=1e-6)


def test_the_model_is_left_as_it_was() -> None:
    net = model()
    net[1].eval()
    before = copy.deepcopy(net.state_dict())
    measure_concentration(net, batches(), [1])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert (net.training, net[1].training) == (True, False)
    assert all(param.grad is None for param in net.parameters())


def test_some_batches_and_images_without_labels() -> None:
    net, some = model(), batches()
    some[0][1][:2] = -1
    found, _ = measure_concentration(net, some, [1], most=2)
    assert found.samples == 8
    with pytest.raises(ArgumentError, match="no image"):
        measure_concentration(net, [], [1])


@pytest.mark.parametrize("r", [0, 73])
def test_r_out_of_range(r: int) -> None:
    with pytest.raises(ArgumentError, match="from 1 to 72"):
        measure_concentration(model(), batches(), [r])


def test_the_secant_of_a_quadratic_is_its_curvature() -> None:
    one, other = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 5.0])}
    slopes = [{"w": 3 * point["w"].double()} for point in (one, other)]
    assert secant_smoothness((one, slopes[0]), (other, slopes[1])) == pytest.approx(3)
    assert secant_smoothness((one, slopes[0]), (one, slopes[0])) is None
