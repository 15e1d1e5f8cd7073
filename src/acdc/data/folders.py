"""Trees of images, root/train/CLASS/* and root/val/CLASS/*: their classes, their files and their errors."""

import os
from collections.abc import Sequence
from pathlib import Path

SPLITS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_EXPECTED = "expected root/train/CLASS/*.JPEG and root/val/CLASS/*.JPEG"


def list_classes(root: Path, count: int | None) -> list[str]:
    """Return the names of the classes, sorted: the same in both splits, and `count` of them if given."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"root={str(root)!r}: no such folder; {_EXPECTED}. Pass the folder that holds train and val, "
            "such as root='/data/imagenet' (on the command line: --data DIR)"
        )
    missing = [split for split in SPLITS if not (root / split).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"root={str(root)!r}: it holds {_some(sorted(os.listdir(root)))} but no folder {' or '.join(missing)}; "
            f"{_EXPECTED}. Rename the two folders (or link to them), or pass the folder that holds them (on the "
            "command line: --data DIR)"
        )
    train, val = (_folders(root, split) for split in SPLITS)
    if train != val:
        differences = [
            (a, sorted({*x} - {*y}), b) for a, x, b, y in (("train", train, "val", val), ("val", val, "train", train))
        ]
        absent = "; ".join(
            f"{a} has {len(names)} that {b} does not: {_some(names)}" for a, names, b in differences if names
        )
        raise ValueError(
            f"root={str(root)!r}: train has {len(train)} classes and val has {len(val)}, but not the same ones; "
            f"{absent}. Both must have the same class folders: unpack the missing ones, or remove the others"
        )
    if count is not None and len(train) != count:
        raise ValueError(
            f"classes={count}: {str(root)!r} has {len(train)} class folders; expected as many as the recipe says. "
            f"Add the missing folders, or set classes={len(train)} (data.classes in a recipe)"
        )
    return train


def list_files(root: Path, split: str, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return file names relative to the split's folder, by class and sorted within it, and the label of each."""
    names: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    for label, folder in enumerate(classes):
        with os.scandir(root / split / folder) as entries:
            files = sorted(entry.name for entry in entries if _is_image(entry))
        if not files:
            empty.append(folder)
        names += [f"{folder}/{file}" for file in files]
        labels += [label] * len(files)
    if empty:
        raise ValueError(
            f"root={str(root)!r}: {len(empty)} of the {len(classes)} class folders in {split} hold no images: "
            f"{_some(empty)}; every class needs at least one ({', '.join(SUFFIXES)}). Unpack these classes again, "
            "or remove their folders from train and val"
        )
    return names, labels


def _folders(root: Path, split: str) -> list[str]:
    with os.scandir(root / split) as entries:
        listed = [(entry.name, entry.is_dir(), _is_image(entry)) for entry in entries]
    folders = sorted(name for name, is_folder, _ in listed if is_folder and name[0] != ".")
    if not folders:
        images = sum(is_image for _, _, is_image in listed)
        raise ValueError(
            f"root={str(root)!r}: {split} holds {images} images but no class folders; {_EXPECTED}. Move each image "
            "into a folder named after its class (for ImageNet's val: the valprep.sh that PyTorch's examples mention)"
        )
    return folders


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Return True if the name is an image's. Hidden files, such as ._NAME.JPEG in macOS archives, are not images."""
    return entry.name[0] != "." and entry.name.lower().endswith(SUFFIXES) and entry.is_file()


def _some(names: Sequence[str]) -> str:
    listing = ", ".join(names[:3]) or "nothing"
    return listing + (f" and {len(names) - 3} more" if len(names) > 3 else "")
