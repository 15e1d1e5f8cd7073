"""acdc.from_published reads files in the published code's layout for our models, and runs nothing that they name."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.models.mobilenet import MobileNetV1
from acdc.models.resnet import resnet18
from acdc.models.resnet_cifar import resnet20
from acdc.models.wide_resnet import WideResNet


class Wrapped(nn.Module):
    """A layer as the published code saves it: inside `_layer`, with masks as buffers."""

    _weight_mask: Tensor

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self._layer = layer
        self.register_buffer("_bias_mask", None if layer.bias is None else torch.ones_like(layer.bias))
        self.register_buffer("_weight_mask", (torch.rand_like(layer.weight) < 0.25).float())


def tree(**children: nn.Module) -> nn.Module:
    """Return a module with these children, whose names a Sequential does not allow."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def conv(inputs: int, outputs: int, size: int = 3, *, bias: bool = False, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, bias=bias, groups=groups)


def wide_resnet(blocks: int, width: int, classes: int) -> nn.Module:
    net, inputs = tree(conv1=conv(3, 16, bias=True)), 16
    for stage in (1, 2, 3):
        layers, outputs = [], 16 * width * 2 ** (stage - 1)
        for block in range(blocks):
            layers.append(
                tree(
                    bn1=nn.BatchNorm2d(inputs),
                    conv1=conv(inputs, outputs, bias=True),
                    bn2=nn.BatchNorm2d(outputs),
                    conv2=conv(outputs, outputs, bias=True),
                    shortcut=nn.Sequential(*[conv(inputs, outputs, 1, bias=True)] * (block == 0)),
                )
            )
            inputs = outputs
        net.add_module(f"layer{stage}", nn.Sequential(*layers))
    net.add_module("bn1", nn.BatchNorm2d(inputs))
    net.add_module("linear", nn.Linear(inputs, classes))
    return net


def cifar_resnet() -> nn.Module:
    net, inputs = tree(conv1=conv(3, 16), bn1=nn.BatchNorm2d(16)), 16
    for stage, outputs in ((1, 16), (2, 32), (3, 64)):
        layers = []
        for block in range(3):
            layer = tree(conv1=conv(inputs, outputs), bn1=nn.BatchNorm2d(outputs))
            layer.add_module("conv2", conv(outputs, outputs))
            layer.add_module("bn2", nn.BatchNorm2d(outputs))
            if stage > 1 and block == 0:
                layer.add_module("downsample", nn.Sequential(conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)))
            layers.append(layer)
            inputs = outputs
        net.add_module(f"layer{stage}", nn.Sequential(*layers))
    net.add_module("fc", nn.Linear(64, 10))
    return net


def mobilenet(base: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Sequential(conv(3, base), nn.BatchNorm2d(base), nn.ReLU())]
    inputs = base
    for factor in (2, 4, 4, 8, 8, *[16] * 6, 32, 32):
        depthwise = [conv(inputs, inputs, groups=inputs), nn.BatchNorm2d(inputs), nn.ReLU()]
        pointwise = [conv(inputs, factor * base, 1), nn.BatchNorm2d(factor * base), nn.ReLU()]
        layers.append(nn.Sequential(*depthwise, *pointwise))
        inputs = factor * base
    return tree(model=nn.Sequential(*layers, nn.AvgPool2d(7)), fc=nn.Linear(inputs, 7))


def wrap(module: nn.Module) -> nn.Module:
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d | nn.Linear):
            setattr(module, name, Wrapped(child))
        else:
            wrap(child)
    return module


def save(path: Path, model: nn.Module, arch: str) -> None:
    """Write a checkpoint as a run on GPUs does: wrapped, under DataParallel, with pickled classes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = type("StageExponentialLR", (), {"__module__": "optimization.lr_schedulers"})
    modules = {name: ModuleType(name) for name in ("optimization", "optimization.lr_schedulers")}
    modules[scheduler.__module__].__dict__[scheduler.__name__] = scheduler
    sys.modules |= modules
    try:
        torch.save(
            {
                "epoch": 99,
                "model_config": {"arch": arch, "dataset": "cifar100"},
                "model_state_dict": nn.DataParallel(model).state_dict(),
                "optimizer": {"type": type(optimizer), "state_dict": optimizer.state_dict()},
                "lr_scheduler": {"type": scheduler, "state_dict": {"base_lrs": [0.1], "policy": scheduler()}},
            },
            path,
        )
    finally:
        for name in modules:
            del sys.modules[name]


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "wideresnet": (lambda: wide_resnet(2, 2, 10), lambda: WideResNet(16, 2, 10)),
    "resnet20": (cifar_resnet, resnet20),
    "mobilenet": (lambda: mobilenet(8), lambda: MobileNetV1(width=0.25, classes=7)),
    "resnet18": (lambda: resnet18(classes=3), lambda: resnet18(classes=3)),  # ImageNet's have torchvision's names
}


@pytest.mark.parametrize("arch", CASES)
def test_a_checkpoint_fits_our_model(tmp_path: Path, arch: str) -> None:
    torch.manual_seed(0)
    theirs, ours = (build() for build in CASES[arch])
    wrapped = wrap(theirs)
    save(tmp_path / "last_checkpoint.ckpt", wrapped, arch)
    checkpoint = acdc.from_published(tmp_path / "last_checkpoint.ckpt")
    assert (checkpoint.arch, checkpoint.dataset, checkpoint.epoch) == (arch, "cifar100", 99)
    ours.load_state_dict(checkpoint.weights)
    layers = [module for module in wrapped.modules() if isinstance(module, Wrapped)]
    with torch.no_grad():
        sums = sorted(ours.get_parameter(name).double().sum().item() for name in checkpoint.masks)
        assert sums == sorted((layer._layer.weight * layer._weight_mask).double().sum().item() for layer in layers)
    assert set(checkpoint.masks) == {weight.name for weight in acdc.find_prunable(ours).weights}
    for name, mask in checkpoint.masks.items():
        assert mask.dtype is torch.bool
        assert torch.equal(ours.get_parameter(name) != 0, mask)


def test_the_published_wide_resnet_has_our_shapes() -> None:
    """The real one, 36.5 million weights, without memory for them."""
    with torch.device("meta"):
        theirs, ours = wrap(wide_resnet(4, 10, 100)).state_dict(), acdc.models.build("wrn28_10", classes=100)
    names = acdc.from_published({name: torch.zeros(0) for name in theirs}, arch="wideresnet").weights
    assert set(names) == set(ours.state_dict())
    shapes = {name: list(tensor.shape) for name, tensor in theirs.items()}
    assert shapes["layer2.0.shortcut.0._layer.weight"] == list(ours.get_parameter("stages.1.0.shortcut.weight").shape)


def test_files_for_evaluation_and_bare_state_dicts(tmp_path: Path) -> None:
    plain = {"fc.weight": torch.eye(2), "fc.bias": torch.ones(2)}
    config = {"arch": "mobilenet", "dataset": "imagenet"}
    torch.save({"model_config": config, "model_state_dict": plain}, tmp_path / "eval_ready_state_dict.ckpt")
    checkpoint = acdc.from_published(str(tmp_path / "eval_ready_state_dict.ckpt"))
    assert set(checkpoint.weights) == set(plain)
    assert (checkpoint.masks, checkpoint.epoch) == ({}, None)
    checkpoint = acdc.from_published({"module.layer1.0.conv1._layer.weight": torch.ones(1)})
    assert (list(checkpoint.weights), checkpoint.arch) == (["layer1.0.conv1.weight"], None)
    twice = {"a._layer._layer.weight": torch.ones(3), "a._weight_mask": torch.tensor([1.0, 1, 0])}
    twice["a._layer._weight_mask"] = torch.tensor([0.0, 1, 1])
    checkpoint = acdc.from_published(twice)
    assert checkpoint.weights["a.weight"].tolist() == [0, 1, 0] == checkpoint.masks["a.weight"].tolist()
    assert twice["a._layer._layer.weight"].tolist() == [1, 1, 1]  # what was passed is left as it was
    pruned_bias = {"a._layer.bias": torch.ones(2), "a._bias_mask": torch.tensor([1.0, 0.0])}
    assert acdc.from_published(pruned_bias).masks["a.bias"].tolist() == [True, False]


class Runs:
    """An object whose unpickling calls a function."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.reduced = call, args

    def __reduce__(self) -> Any:
        return self.reduced


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "hostile.ckpt", tmp_path / "mark"
    state = {"a._layer.weight": torch.ones(2)}
    torch.save({"model_state_dict": state, "optimizer": Runs(copyfile, __file__, str(mark))}, path)
    assert list(acdc.from_published(path).weights) == ["a.weight"]
    assert not mark.exists()
    torch.save({"model_state_dict": state, "optimizer": Runs(os.system, f"touch {mark}")}, path)
    with pytest.raises(ArgumentError, match=r"hostile.ckpt: torch cannot read it without running code .* save its"):
        acdc.from_published(path)
    assert not mark.exists()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"source=3: expected a path, or the dict"):
        acdc.from_published(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FileNotFoundError):
        acdc.from_published(tmp_path / "absent.ckpt")
    (tmp_path / "text.ckpt").write_text("not a checkpoint")
    with pytest.raises(ArgumentError, match=r"text.ckpt: torch cannot read it"):
        acdc.from_published(tmp_path / "text.ckpt")
    torch.save(nn.Linear(2, 2), tmp_path / "model.ckpt")
    with pytest.raises(ArgumentError, match=r"model.ckpt: it holds a pickled object, perhaps a whole model"):
        acdc.from_published(tmp_path / "model.ckpt")
    torch.save({"conv1": {"weight": torch.ones(2)}}, tmp_path / "masks.ckpt")  # the masks that runs keep beside
    with pytest.raises(ArgumentError, match=r"no model_state_dict of tensors, only conv1; pass a checkpoint"):
        acdc.from_published(tmp_path / "masks.ckpt")
    weight: dict[str, Tensor] = {"a._layer.weight": torch.ones(2)}
    with pytest.raises(ArgumentError, match=r"a mask is 0 or 1 everywhere"):
        acdc.from_published({**weight, "a._weight_mask": torch.tensor([0.5, 1])})
    with pytest.raises(ArgumentError, match=r"its mask has shape \[3\], but the weight is \[2\]"):
        acdc.from_published({**weight, "a._weight_mask": torch.ones(3)})
    with pytest.raises(ArgumentError, match=r"its mask has shape \[2\], but the weight is absent"):
        acdc.from_published({**weight, "b._weight_mask": torch.ones(2)})
    with pytest.raises(ArgumentError, match=r"two of its entries are called a.weight"):
        acdc.from_published({**weight, "a.weight": torch.ones(2)})
