"""The fate of training samples with a random label: memorised, or assigned to their true class all the same.

    memorised   share predicted as their random label
    true        share predicted as their true class
    other       the rest

The paper (§4, ResNet20 on CIFAR-10 with 1,000 random labels) finds that dense phases memorise and that compressed
phases, at 90 % and more, return most of the samples to their true class. Its four panels:
report/figures/memorization_panels.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from acdc.data.images import ImageData, Images, InMemory
from acdc.errors import ArgumentError, Shown

_KEYS = ("memorised", "true", "other")
_BATCH = 1000


class Memorization:
    """A measurement on the corrupted samples of `data`, as they are and, if training augments, in augmented views.

    `crop`, `flip` and `seed` are those of training. Random labels that happen to be the true one are left out.
    """

    def __init__(
        self, data: ImageData, *, crop: int = 0, flip: bool = False, seed: int = 0, channels_last: bool = False
    ) -> None:
        if not data.corrupted:
            raise ArgumentError(
                "data",
                Shown(data.name),
                "it has no random labels, so there is nothing to memorise",
                "set data.corrupt, or call acdc.data.random_labels.corrupt first",
            )
        wrong = data.corrupted["given"] != data.corrupted["true"]
        index, given, true = (data.corrupted[key][wrong] for key in ("index", "given", "true"))
        self.samples = len(index)
        if not self.samples:
            allowed = "every random label is the true one"
            raise ArgumentError("data", Shown(data.name), allowed, "corrupt more, or with kind='always-wrong'")
        device = data.train.pixels.device
        self._given, self._true = given.to(device), true.to(device)
        pixels = data.train.pixels[index.to(device)]
        places = Images(pixels, torch.arange(self.samples, device=device))  # the labels identify the sample
        shared: dict[str, Any] = {"batch_size": _BATCH, "seed": seed, "channels_last": channels_last}
        self._views = {"": InMemory(places, data, **shared)}
        if crop or flip:
            self._views["_augmented"] = InMemory(places, data, train=True, crop=crop, flip=flip, **shared)

    @torch.no_grad()
    def measure(
        self, model: nn.Module, *, epoch: int = 0, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> dict[str, float]:
        """Return shares in evaluation mode: memorised, true, other; and, if different, the same with suffix _augmented.

        `epoch` determines the augmented views, `autocast` the precision. The device is read once.
        """
        training = {module: module.training for module in model.modules()}
        model.eval()
        counts: list[Tensor] = []
        for views in self._views.values():
            for images, places in views.batches(epoch):
                with autocast():
                    guess = model(images).argmax(1)
                counts += [(guess == self._given[places]).sum(), (guess == self._true[places]).sum()]
        for module, mode in training.items():
            module.training = mode
        sums = torch.stack(counts).view(len(self._views), -1, 2).sum(1).tolist()
        return {
            f"{key}{suffix}": count / self.samples
            for suffix, (memorised, true) in zip(self._views, sums, strict=True)
            for key, count in zip(_KEYS, (memorised, true, self.samples - memorised - true), strict=True)
        }
