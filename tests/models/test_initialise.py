"""The initial weights of ResNets: He's, or as in the published code."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from acdc.models.resnet import resnet18
from acdc.models.resnet_cifar import resnet20
from tests.models.counting import equal_weights


@pytest.mark.parametrize("make", [resnet18, resnet20])
def test_as_published_the_last_layer_alone_is_as_torch_draws_it(make: Callable[..., Any]) -> None:
    he, published = make(classes=10, seed=1), make(classes=10, seed=1, init="published")
    assert equal_weights(he, make(classes=10, seed=1, init="he"))
    assert equal_weights(published, make(classes=10, seed=1, init="published"))
    differing = [
        name for name, value in he.state_dict().items() if not torch.equal(value, published.state_dict()[name])
    ]
    assert differing == ["fc.weight", "fc.bias"]
    bound = 1 / math.sqrt(published.fc.in_features)
    for values in (published.fc.weight, published.fc.bias):
        assert values.abs().max() <= bound
        assert values.detach().std() == pytest.approx(bound / math.sqrt(3), rel=0.5)
    assert not he.fc.bias.any()


def test_without_a_seed_torch_s_generator_decides() -> None:
    torch.manual_seed(2)
    one = resnet20(init="published")
    torch.manual_seed(2)
    assert equal_weights(one, resnet20(init="published"))
    assert not equal_weights(one, resnet20(init="published"))
