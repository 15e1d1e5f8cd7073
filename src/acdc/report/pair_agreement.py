"""The agreement of two models of a run on the test images: from stored predictions, or as `acdc compare` measured.

Predictions count if the model's file is the one they were made from, or is gone; the report says which.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from acdc.measure.agreement import agreement
from acdc.runs import predictions
from acdc.runs.predictions import Kept, Source
from acdc.runs.records import AgreementFile, RunResult

_PAIRS = (
    ("sparse", "dense", "the sparse model", "its dense twin"),
    ("sparse", "finetuned", "the sparse model", "the fine-tuned twin"),
    ("sparse", "baseline", "the sparse model", "the dense baseline"),
    ("dense", "baseline", "the dense twin", "the dense baseline"),
)
_MODELS = tuple(dict.fromkeys(name for pair in _PAIRS for name in pair[:2]))
_UNCHECKED = "Agreement comes from stored predictions: the models that made them are not here to check."


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The agreement of two models. `models` are the names of their files; `a` and `b` are their names for people."""

    models: tuple[str, str]
    a: str
    b: str
    top1: float
    ab: float  # cross-entropy, −Σ p_a · log p_b, in nats; and the other way round
    ba: float
    samples: int
    sources: tuple[Source, ...] = ()  # of the predictions


def has_pair(result: RunResult) -> bool:
    """Return True if a run has two models whose agreement is shown."""
    names = {Path(model.file).stem for model in result.models}
    return any(a in names and b in names for a, b, *_ in _PAIRS)


def usable_predictions(folder: Path, notes: list[str], damaged: Collection[str] = ()) -> dict[str, Kept]:
    """Return the stored predictions that still belong to the run's models, except those of damaged ones."""
    try:
        kept = predictions.kept(folder)
    except ValueError as error:
        notes.append(f"{error}. Agreement between the models is not shown.")
        return {}
    usable = {}
    for name in _MODELS:
        if name not in kept or name in damaged:
            continue
        if kept[name].source is Source.OTHER:
            notes.append(
                f"{name}.safetensors is not the file that its stored predictions were made from: agreement with it is "
                f"not shown. To measure it again, run: acdc compare {folder}"
            )
        else:
            usable[name] = kept[name]
    return usable


def from_predictions(kept: Mapping[str, Kept], test: int | None, notes: list[str]) -> list[Pair]:
    """Return all pairs of models that a run has predictions for."""
    pairs, logits = [], {name: one.logits() for name, one in kept.items()}
    for a, b, a_name, b_name in _PAIRS:
        if a not in kept or b not in kept:
            continue
        try:
            if why := predictions.why_not_of_same_images(kept[a], kept[b], test):
                raise ValueError(why)
            measured = agreement(logits[a], logits[b])
        except ValueError as error:
            notes.append(f"Agreement of {a_name} and {b_name} is not shown ({error}).")
            continue
        pairs.append(
            Pair(
                models=(a, b),
                a=a_name,
                b=b_name,
                top1=measured.top1,
                ab=measured.cross_entropy_ab,
                ba=measured.cross_entropy_ba,
                samples=measured.samples,
                sources=(kept[a].source, kept[b].source),
            )
        )
    return pairs


def from_comparisons(file: AgreementFile) -> tuple[list[Pair], int | None]:
    """Return the pairs that `acdc compare` measured while there were predictions, and the number of classes."""
    measured = {(one.a.model, one.b.model): one for one in file.comparisons if one.a.run == one.b.run}
    pairs = [
        Pair(
            models=(a, b),
            a=a_name,
            b=b_name,
            top1=row.top1,
            ab=row.cross_entropy_ab,
            ba=row.cross_entropy_ba,
            samples=row.samples,
        )
        for a, b, a_name, b_name in _PAIRS
        if (row := measured.get((a, b)))
    ]
    return pairs, next((row.classes for row in measured.values()), None)


def caveat(sources: Iterable[Source]) -> str:
    """Return what a reader must know about agreement from such predictions; nothing if each was checked."""
    return _UNCHECKED if Source.GONE in {*sources} else ""
