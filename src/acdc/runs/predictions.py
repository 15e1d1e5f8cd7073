"""Keeps predictions of a run: each model's logits on the test images, tied to the file of the model that made them.

RUN/predictions.safetensors has a tensor for each model, with a row for each test image that could be read, in the order
of the test set. Its metadata says of each model which file it was, by a checksum, and which images have no row.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from acdc.io import safetensors_details, verify_safetensors, write_safetensors
from acdc.runs.folder import PREDICTIONS, RunFolder
from acdc.runs.json_files import RecordError
from acdc.runs.records import PredictionDetails, PredictionSource
from acdc.typed_data import DataError, decode


class Source(StrEnum):
    """Says what became of the file that predictions were made from. Text, as a report in JSON says it."""

    TIED = "tied"  # it is there, as it was
    GONE = "gone"
    OTHER = "other"  # another one is in its place, or only a part of it


@dataclass(frozen=True)
class Made:
    """A model's predictions, to be kept."""

    logits: Tensor
    unread: Sequence[int] = ()  # places of test images without a row


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Describes a model's predictions without reading them."""

    model: Path
    shape: tuple[int, ...]
    unread: tuple[int, ...]  # places of test images without a row
    made_from: str | None

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def classes(self) -> int:
        return self.shape[1]

    @cached_property
    def source(self) -> Source:
        """Compare the checksums: this reads the whole file, once."""
        if not self.model.is_file():
            return Source.GONE
        return Source.TIED if self.made_from == checksum(self.model) else Source.OTHER

    def why_unknown(self, test: int | None) -> str | None:
        """Return why these could be of any of `test` images: some were skipped, and nothing says which."""
        if test is None or self.rows + len(self.unread) == test:
            return None
        return f"{self.rows:,} predictions of {test:,} test images, and nothing says of which"

    def logits(self) -> Tensor:
        with safe_open(self.model.with_name(PREDICTIONS), framework="pt") as file:
            return file.get_tensor(self.model.stem)


def add(run: Path, made: Mapping[str, Made]) -> None:
    """Add those of models, by name, to those the run keeps: all or none, as the file is written anew.

    A file that is not as it was written raises an IntegrityError: its damage would be given a digest of its own.
    """
    path = RunFolder(run).predictions
    held, sources = dict[str, Tensor](), dict[str, PredictionSource]()
    if path.exists():
        verify_safetensors(path)
        held, sources = load_file(path), _sources(path)
    for name, one in made.items():
        held[name] = one.logits
        sources[name] = PredictionSource(made_from=checksum(_model(run, name)), unread=tuple(one.unread))
    write_safetensors({path: held}, asdict(PredictionDetails(models=dict(sorted(sources.items())))))


def kept(run: Path) -> dict[str, Kept]:
    """Return what a run keeps, by model, if it keeps any. A file that cannot be read raises a ValueError in words."""
    path = RunFolder(run).predictions
    if not path.is_file():
        return {}
    try:
        verify_safetensors(path)
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        sources = _sources(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: could not be read ({error})") from None
    return {
        name: Kept(
            model=_model(run, name),
            shape=shape,
            unread=sources.get(name, PredictionSource()).unread,
            made_from=sources.get(name, PredictionSource()).made_from,
        )
        for name, shape in shapes.items()
        if len(shape) == 2
    }


def why_not_of_same_images(a: Kept, b: Kept, test: int | None) -> str | None:
    """Return why two are not of the same of `test` images, where that number is known; None if they are."""
    if why := next((why for one in (a, b) if (why := one.why_unknown(test))), None):
        return why
    if a.unread != b.unread:
        return f"one is without {without(a.unread)}, the other without {without(b.unread)}"
    return None


def without(unread: Sequence[int]) -> str:
    """Name the test images that could not be read, counted from 1."""
    if not unread:
        return "none"
    numbers = ", ".join(f"{place + 1:,}" for place in unread[:5])
    return f"number {numbers}{f' and {len(unread) - 5:,} more' if len(unread) > 5 else ''}"


def checksum(path: Path) -> str:
    """Return the digest of a whole file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _model(run: Path, name: str) -> Path:
    return run / f"{name}.safetensors"


def _sources(path: Path) -> dict[str, PredictionSource]:
    """Read which file each model was, and which images have no row."""
    with safe_open(path, framework="pt") as file:
        details = safetensors_details(file.metadata())
    try:
        return decode(PredictionDetails, details).models
    except DataError as error:
        raise RecordError(path, f"its metadata: {error}") from None
