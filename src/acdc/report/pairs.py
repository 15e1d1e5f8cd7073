"""How far two models of a run say the same on the test images: by the predictions it kept, or as `acdc compare` found.

Predictions count where the model's file is the one they were made from, or is gone; a reader is told which.
"""

from collections.abc import Iterable, Mapping
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
_UNCHECKED = {
    Source.GONE: "Agreement is of predictions that were kept: the models that made them are not here to be checked.",
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Of two models: `models` are the names of their files, which code asks for; `a` and `b` what people call them."""

    models: tuple[str, str]
    a: str
    b: str
    top1: float
    ab: float  # cross-entropy, −Σ p_a · log p_b, in nats; and the other way round
    ba: float
    samples: int
    sources: tuple[Source, ...] = ()  # of the predictions


def any_among(result: RunResult) -> bool:
    """Whether a run left two models whose agreement is told."""
    names = {Path(model.file).stem for model in result.models}
    return any(a in names and b in names for a, b, *_ in _PAIRS)


def kept(folder: Path, notes: list[str]) -> dict[str, Kept]:
    """The predictions of a run that are its models' own."""
    try:
        found = predictions.kept(folder)
    except ValueError as error:
        notes.append(f"{error}. Agreement between the models is not shown.")
        return {}
    own = {}
    for name in _MODELS:
        if name in found and found[name].source is Source.OTHER:
            notes.append(
                f"{name}.safetensors is not the file its kept predictions were made from: agreement with it is not "
                f"shown (to run it again: acdc compare {folder})."
            )
        elif name in found:
            own[name] = found[name]
    return own


def agreeing(known: Mapping[str, Kept], test: int | None, notes: list[str]) -> list[Pair]:
    """All pairs of models that a run has predictions of."""
    pairs, logits = [], {name: one.logits() for name, one in known.items()}
    for a, b, a_name, b_name in _PAIRS:
        if a not in known or b not in known:
            continue
        try:
            if why := predictions.why_not_of_same_images(known[a], known[b], test):
                raise ValueError(why)
            found = agreement(logits[a], logits[b])
        except ValueError as error:
            notes.append(f"Agreement of {a_name} and {b_name} is not shown ({error}).")
            continue
        pairs.append(
            Pair(
                models=(a, b),
                a=a_name,
                b=b_name,
                top1=found.top1,
                ab=found.cross_entropy_ab,
                ba=found.cross_entropy_ba,
                samples=found.samples,
                sources=(known[a].source, known[b].source),
            )
        )
    return pairs


def compared(said: AgreementFile) -> tuple[list[Pair], int | None]:
    """What `acdc compare` found while the predictions were there: they are too large to be kept with results."""
    known = {(one.a.model, one.b.model): one for one in said.comparisons if one.a.run == one.b.run}
    pairs = [
        Pair(
            models=(a, b),
            a=a_name,
            b=b_name,
            top1=found.top1,
            ab=found.cross_entropy_ab,
            ba=found.cross_entropy_ba,
            samples=found.samples,
        )
        for a, b, a_name, b_name in _PAIRS
        if (found := known.get((a, b)))
    ]
    return pairs, next((found.classes for found in known.values()), None)


def unchecked(sources: Iterable[Source]) -> str:
    """What a reader must know of agreement from such predictions; nothing where each was checked."""
    found = {*sources}
    return " ".join(text for source, text in _UNCHECKED.items() if source in found)
