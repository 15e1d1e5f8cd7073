"""The predictions of a run: each model's logits on the test images, tied to the model file that made them.

RUN/predictions.safetensors has a tensor for each model, with a row for each test image that could be read, in the order
of the test set. Its metadata names each model's file, by a checksum, and the images that have no row.
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
    """The state of the file that predictions were made from, as text for a JSON report."""

    TIED = "tied"  # it exists, unchanged
    GONE = "gone"
    OTHER = "other"  # it was replaced or truncated


@dataclass(frozen=True)
class Made:
    """New predictions of a model, to be stored."""

    logits: Tensor
    unread: Sequence[int] = ()  # indices of test images without a row


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Stored predictions of a model, described without reading them."""

    model: Path
    shape: tuple[int, ...]
    unread: tuple[int, ...]  # indices of test images without a row
    made_from: str | None

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def classes(self) -> int:
        return self.shape[1]

    @cached_property
    def source(self) -> Source:
        """Compare the checksums; this reads the whole file, once."""
        if not self.model.is_file():
            return Source.GONE
        return Source.TIED if self.made_from == checksum(self.model) else Source.OTHER

    def why_unknown(self, test: int | None) -> str | None:
        """Return why it is unknown which of `test` images these are for: some were skipped, and nothing says which."""
        if test is None or self.rows + len(self.unread) == test:
            return None
        return f"it has {self.rows:,} predictions for {test:,} test images, and nothing says for which"

    def logits(self) -> Tensor:
        with safe_open(self.model.with_name(PREDICTIONS), framework="pt") as file:
            return file.get_tensor(self.model.stem)


def add(run: Path, made: Mapping[str, Made]) -> None:
    """Add models' predictions, by name, to those that the run stores: all or none, since the file is rewritten.

    A file that has changed raises an IntegrityError; otherwise the damage would get a valid digest.
    """
    path = RunFolder(run).predictions
    tensors, sources = dict[str, Tensor](), dict[str, PredictionSource]()
    if path.exists():
        verify_safetensors(path)
        tensors, sources = load_file(path), _sources(path)
    for name, one in made.items():
        tensors[name] = one.logits
        sources[name] = PredictionSource(made_from=checksum(_model(run, name)), unread=tuple(one.unread))
    write_safetensors({path: tensors}, asdict(PredictionDetails(models=dict(sorted(sources.items())))))


def kept(run: Path) -> dict[str, Kept]:
    """Return a run's stored predictions, by model. A file that cannot be read raises a ValueError."""
    path = RunFolder(run).predictions
    if not path.is_file():
        return {}
    try:
        verify_safetensors(path)
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        sources = _sources(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: it could not be read ({error})") from None
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
    """Return why two sets of predictions are for different ones of `test` images (if known); None if they are not."""
    if why := next((why for one in (a, b) if (why := one.why_unknown(test))), None):
        return why
    if a.unread != b.unread:
        return f"one lacks {without(a.unread)}, the other lacks {without(b.unread)}"
    return None


def without(unread: Sequence[int]) -> str:
    """Describe the test images that could not be read, counted from 1."""
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
    """Read the file of each model, and the images that have no row."""
    with safe_open(path, framework="pt") as file:
        details = safetensors_details(file.metadata())
    try:
        return decode(PredictionDetails, details).models
    except DataError as error:
        raise RecordError(path, f"its metadata: {error}") from None
