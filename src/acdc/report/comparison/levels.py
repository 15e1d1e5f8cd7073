"""Which settings stand beside each other: those of one sparsity, and dense training beside all of them."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acdc import methods
from acdc.report import words
from acdc.report.several import Group
from acdc.report.theme import DASHES, LIGHT, SERIES_LIGHT

_NEAR = 1.3  # a sparsity that training made belongs to one asked for if the weights left differ by no more
_MARKS = "o^DvPX<>ph*"


@dataclass(frozen=True)
class Level:
    """Settings at one sparsity, as it was asked for. None: what training made of it, near none of those."""

    sparsity: float | None
    groups: Sequence[Group]  # dense ones too, last

    @property
    def title(self) -> str:
        return f"{words.share(self.sparsity)} zeros" if self.sparsity is not None else "zeros as learned"

    def name(self, group: Group) -> str:
        """The method, with its zeros where they are not the level's."""
        zeros = reached(group)
        if dense(group) or (self.sparsity is not None and abs(zeros - self.sparsity) < 0.005):
            return group.name
        return f"{group.name} ({words.share(zeros)})"


@dataclass(frozen=True)
class Style:
    colour: str
    mark: str
    dash: Any


def dense(group: Group) -> bool:
    return group.main == "baseline"


def reached(group: Group) -> float:
    return statistics.fmean(group.values(group.main, lambda model: model.sparsity))


def levels(groups: Sequence[Group]) -> list[Level]:
    """The sparsities asked for, rising, and one for all that is near none of them."""
    asked = sorted({group.asked for group in groups if group.asked is not None and not dense(group)})
    members: dict[float | None, list[Group]] = {share: [] for share in asked}
    for group in groups:
        if not dense(group):
            members.setdefault(group.asked if group.asked is not None else _near(reached(group), asked), []).append(
                group
            )
    everywhere = [group for group in groups if dense(group)]
    if not members:
        return [Level(None, everywhere)]
    return [Level(share, [*found, *everywhere]) for share, found in members.items()]


def _near(share: float, asked: Sequence[float]) -> float | None:
    """The weights left count: from 98 to 99 % is as far as from 80 to 90 %."""
    if share >= 1:
        return None
    far = {level: abs(math.log((1 - share) / (1 - level))) for level in asked if level < 1}
    best = min(far, key=far.__getitem__, default=None)
    return best if best is not None and far[best] <= math.log(_NEAR) else None


def styles(groups: Sequence[Group]) -> dict[str, Style]:
    """By method, the same in every figure and at every sparsity: AC/DC first, in whatever order runs were named."""
    known = methods.names()
    groups = sorted(groups, key=lambda g: (known.index(g.method) if g.method in known else len(known), g.number))
    names = list(dict.fromkeys(group.name for group in groups if not dense(group)))
    found = {
        name: Style(SERIES_LIGHT[n % len(SERIES_LIGHT)], _MARKS[n % len(_MARKS)], DASHES[n // len(SERIES_LIGHT) % 4])
        for n, name in enumerate(names)
    }
    grey = [group.name for group in groups if dense(group)]
    return found | {name: Style(LIGHT["baseline"], "s", DASHES[n % 4]) for n, name in enumerate(grey)}
