"""CIFAR-10 and CIFAR-100 from their official Python files, each checked by its md5. Never downloads.

The files are Python 2 pickles. Nothing in them is executed: a dict, lists, byte strings and one block of pixels are
read, and any other object is refused. numpy is not needed.
"""

import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.data.images import ImageData, Images

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True, kw_only=True)
class Collection:
    """One of the two data sets as published. The md5s are the official ones."""

    name: str
    folder: str
    archive: str
    archive_md5: str
    md5: dict[str, str]  # of every file in the folder
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: bytes  # the key of the labels in a file of images
    class_names: bytes  # the key of the class names in the meta file
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


CIFAR10 = Collection(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    train=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
    test=("test_batch",),
    meta="batches.meta",
    labels=b"labels",
    class_names=b"label_names",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)

CIFAR100 = Collection(
    name="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    train=("train",),
    test=("test",),
    meta="meta",
    labels=b"fine_labels",
    class_names=b"fine_label_names",
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
)


def load_cifar10(root: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> ImageData:
    """Load CIFAR-10 from `root`: the folder cifar-10-batches-py, or one that holds it or its archive."""
    return _load(CIFAR10, root, device)


def load_cifar100(root: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> ImageData:
    """Load CIFAR-100 (fine labels) from `root`: the folder cifar-100-python, or one that holds it or its archive."""
    return _load(CIFAR100, root, device)


def _load(collection: Collection, root: str | os.PathLike[str], device: torch.device | str) -> ImageData:
    files = _read(collection, Path(root).expanduser())
    meta = unpickle(files.pop(collection.meta))
    train = _images([files.pop(name) for name in collection.train], collection.labels)
    test = _images([files.pop(name) for name in collection.test], collection.labels)
    return ImageData(
        name=collection.name,
        classes=len(meta[collection.class_names]),
        train=train.to(device),
        test=test.to(device),
        mean=collection.mean,
        std=collection.std,
    )


def _images(files: list[bytes], key: bytes) -> Images:
    batches = [unpickle(file) for file in files]
    pixels = torch.cat([batch[b"data"].tensor().view(-1, 3, 32, 32) for batch in batches])
    return Images(pixels, torch.tensor([label for batch in batches for label in batch[key]]))


# Finding and checking


def _read(collection: Collection, root: Path) -> dict[str, bytes]:
    """Return the content of every file; raise one error that names all files that are not as published."""
    folders = (root / collection.folder, root)
    folder = next((place for place in folders if any((place / name).is_file() for name in collection.md5)), None)
    archive = root / collection.archive
    if folder is None and archive.is_file():
        return _read_archive(collection, archive)
    if folder is None:
        fault = "is a file, not a folder" if root.exists() else "does not exist"
        if root.is_dir():
            fault = f"holds neither {collection.folder}/ with its files nor {collection.archive}"
        raise FileNotFoundError(f"{collection.name}: root = {str(root)!r} {fault}. {_remedy(collection)}")
    files: dict[str, bytes] = {}
    problems: dict[str, str] = {}
    for name, official in collection.md5.items():
        try:
            files[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            problems[name] = "missing"
        except OSError as error:
            problems[name] = f"cannot be read ({error.strerror})"
        else:
            digest = _md5(files[name])
            if digest != official:
                problems[name] = f"altered: its md5 is {digest}, but the official file's is {official}"
    if problems:
        lines = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
        kind = ValueError if all(problem.startswith("altered") for problem in problems.values()) else FileNotFoundError
        raise kind(
            f"{collection.name}: {len(problems)} of {len(collection.md5)} files in {str(folder)!r} are not the "
            f"official ones:{lines}\n{_remedy(collection)}"
        )
    return files


def _read_archive(collection: Collection, archive: Path) -> dict[str, bytes]:
    """Read the files straight from the .tar.gz. Its md5 vouches for the files inside."""
    whole = archive.read_bytes()
    digest = _md5(whole)
    if digest != collection.archive_md5:
        raise ValueError(
            f"{collection.name}: {str(archive)!r} is altered or incomplete: its md5 is {digest}, but the official "
            f"file's is {collection.archive_md5}. {_remedy(collection)}"
        )
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:gz") as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            content = tar.extractfile(member) if name in collection.md5 else None
            if content is not None:
                files[name] = content.read()
    return files


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _remedy(collection: Collection) -> str:
    return (
        f"Download {collection.archive} from {PAGE}, put it, unpacked or not, in a folder, and pass that folder as "
        "root (on the command line: --data DIR), or in the environment variable ACDC_DATA"
    )


# Reading pickles


class Block:
    """A stand-in for a numpy array in a pickle: takes its state and keeps the bytes."""

    def __init__(self, *_: object) -> None:
        self.shape: tuple[int, ...] = ()
        self.content = b""

    def __setstate__(self, state: Any) -> None:
        match state:
            case (_, tuple(shape), DType(name=b"u1"), False, bytes(content)):
                self.shape, self.content = shape, content
            case _:
                raise pickle.UnpicklingError("expected an array of uint8 in C order")

    def tensor(self) -> Tensor:
        return torch.frombuffer(bytearray(self.content), dtype=torch.uint8).view(self.shape)


class DType:
    """A stand-in for numpy's dtype."""

    def __init__(self, name: bytes, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which mean nothing for uint8."""


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): Block,
    ("numpy", "ndarray"): Block,
    ("numpy", "dtype"): DType,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR file") from None


def unpickle(content: bytes) -> dict[bytes, Any]:
    """Return a CIFAR file's dict: keys and strings are bytes, the array of pixels a Block."""
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()
