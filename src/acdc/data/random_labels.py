"""Random labels, for measuring what a network memorises (the paper's memorization experiment: 1,000 in CIFAR-10).

A label drawn uniformly from n classes is the true one every n-th time. So the default draws from the other classes, and
for the other kind a note says how many labels really changed.
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from acdc.data.images import ImageData, Images
from acdc.errors import ArgumentError
from acdc.io import write_bytes

Kind = Literal["always-wrong", "uniform"]


@dataclass(frozen=True, kw_only=True)
class RandomLabels:
    """The training samples that have a random label, with that label and the true one."""

    data: str
    samples: int  # in the training set that `index` counts in
    kind: str
    seed: int
    index: Tensor
    given: Tensor
    true: Tensor


def corrupt(data: ImageData, count: int, *, seed: int, kind: Kind = "always-wrong") -> ImageData:
    """Give `count` training samples a random label: among the other classes ("always-wrong") or all ("uniform").

    To keep a validation set's labels true, call hold_out first.
    """
    total = len(data.train)
    if kind not in get_args(Kind):
        allowed = f"random labels are one of {', '.join(map(repr, get_args(Kind)))}"
        raise ArgumentError("kind", received=kind, allowed=allowed, instead="write kind='always-wrong'")
    if not 0 < count <= total:
        allowed = f"{data.name} has {total:,} training images"
        raise ArgumentError("count", received=count, allowed=allowed, instead=f"corrupt 1 to {total} of them")
    if data.classes < 2:
        raise ValueError(
            f"{data.name} has {data.classes} class: there is no other label to give; use 2 classes or more"
        )
    if data.corrupted:
        raise ValueError(
            f"{data.name} already has {len(data.corrupted['index']):,} random labels, whose true ones would be "
            "lost; call corrupt only once, on the data as loaded"
        )
    generator = _generator(seed)
    index = torch.randperm(total, generator=generator)[:count].sort().values
    labels = data.train.labels.cpu()
    true = labels[index]
    if kind == "always-wrong":
        given = (true + torch.randint(1, data.classes, (count,), generator=generator)) % data.classes
    else:
        given = torch.randint(data.classes, (count,), generator=generator)
    labels = labels.index_put((index,), given).to(data.train.labels.device)
    changed = int((given != true).sum())
    note = (
        f"{count:,} of {total:,} training labels are random ({kind}, seed {seed}); {changed:,} differ from the true one"
    )
    return replace(
        data,
        train=Images(data.train.pixels, labels),
        notes=(*data.notes, note),
        corrupted={"index": index, "given": given, "true": true},
        corruption=(kind, seed),
    )


def _generator(seed: int) -> torch.Generator:
    """Return a generator with a separate stream.

    hold_out and the first epoch shuffle the same number of images, often with the same seed.
    """
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"labels {seed}".encode()).digest()[:4], "big"))


def save_indices(data: ImageData, path: str | os.PathLike[str]) -> None:
    """Write the random labels of `data` to a JSON file, atomically."""
    if not data.corrupted or data.corruption is None:
        raise ValueError(f"{data.name} has no random labels to save; call corrupt first")
    kind, seed = data.corruption
    content = {"data": data.name, "samples": len(data.train), "kind": kind, "seed": seed}
    content |= {key: data.corrupted[key].tolist() for key in ("index", "given", "true")}
    write_bytes(Path(path), (json.dumps(content) + "\n").encode())


def read_indices(path: str | os.PathLike[str]) -> RandomLabels:
    """Read a file that save_indices wrote."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        for key in ("index", "given", "true"):
            content[key] = torch.tensor(content[key], dtype=torch.int64)
        labels = RandomLabels(**content)
        lengths = {len(labels.index), len(labels.given), len(labels.true)}
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is not a file of random labels ({error}); pass one that save_indices wrote"
        ) from error
    if len(lengths) > 1:
        raise ValueError(f"{str(path)!r} is damaged: its index, given and true differ in length; save it again")
    return labels
