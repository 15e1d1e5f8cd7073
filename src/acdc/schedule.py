"""The phases of a run, as a pure function from training step to phase.

AC/DC trains densely for a warm-up Δ_w, then alternates compressed phases Δ_s with decompressed phases Δ_d (the
last one Δ_D), and ends compressed:

    Δ_w dense | Δ_s sparse | Δ_d dense | … | Δ_s sparse | Δ_D dense | final sparse

A Schedule holds these lengths and no counter: a step goes in, a phase comes out, so resuming is passing a number.
Epochs and steps count from 0; a transition happens before the first batch of the epoch, or the step, it names.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, Self, cast

from acdc.errors import ArgumentError, ArgumentTypeError, check_whole
from acdc.schedules import PaperSchedules, draw

Unit = Literal["ep", "st", "%"]
Kind = Literal["dense", "sparse"]

_DURATION = re.compile(r"(-?[0-9]+(?:\.[0-9]+|/[1-9][0-9]*)?)(ep|st|%)")
_LONGEST = 40  # characters; a fraction such as 1000/3 ep is far shorter
_UNITS: dict[Unit, str] = {"ep": "for epochs", "st": "for optimizer steps", "%": "of the total"}
ABSOLUTE: tuple[Unit, ...] = ("ep", "st")


@dataclass(frozen=True, repr=False)
class Duration:
    """A length of training with its unit: "10ep" (epochs), "500st" (optimizer steps) or "10%" (of the total)."""

    value: Fraction
    unit: Unit

    def __post_init__(self) -> None:
        if not isinstance(self.value, Fraction) or self.unit not in _UNITS:
            allowed = 'expected a Fraction and one of "ep", "st", "%"'
            raise ArgumentTypeError("Duration", (self.value, self.unit), allowed, 'write Duration.parse("10ep")')
        if self.value < 0 or (self.unit == "st" and self.value.denominator > 1):
            Duration.parse(str(self))  # raises, and says why

    @classmethod
    def parse(
        cls, value: "str | Duration", argument: str = "duration", units: Sequence[Unit] = tuple(_UNITS)
    ) -> "Duration":
        """Read "10ep", "500st" or "2.5%" (a Duration passes through); errors call it `argument`."""
        readable = isinstance(value, str | Duration)
        match = _DURATION.fullmatch(str(value)) if readable else None
        if len(str(value)) > _LONGEST:
            allowed = f"durations have at most {_LONGEST} characters"
        elif not match:
            allowed = "a duration needs a unit"
        elif match[1].startswith("-"):
            allowed = "a duration cannot be negative"
        elif match[2] == "st" and Fraction(match[1]).denominator > 1:
            allowed = "optimizer steps are whole numbers"
        elif match[2] not in units:
            allowed = "it cannot be a percentage"
        else:
            return cls(Fraction(match[1]), cast(Unit, match[2]))
        digits = re.search(r"[0-9]+(\.[0-9]+)?", str(value))
        amount = digits[0] if digits and len(digits[0]) <= _LONGEST else "10"
        spellings = {"ep": amount, "st": max(1, round_half_up(Fraction(amount))), "%": amount}
        *choices, last = (f'"{spellings[unit]}{unit}" {_UNITS[unit]}' for unit in units)
        instead = f"write {', '.join(choices)} or {last}"
        kind = ArgumentError if readable else ArgumentTypeError
        received = str(value) if isinstance(value, Duration) else value
        raise kind(argument, received=received, allowed=allowed, instead=instead)

    def resolve(self, total: "Duration | None") -> tuple[Fraction, Unit]:
        """Return value and unit, with a percentage expressed in the unit of the total."""
        return (self.value * total.value / 100, total.unit) if self.unit == "%" and total else (self.value, self.unit)

    def __str__(self) -> str:
        return f"{number(self.value)}{self.unit}"

    def __repr__(self) -> str:
        return f"Duration.parse({str(self)!r})"


Length = str | Duration


@dataclass(frozen=True)
class Phase:
    """A stretch of training with the mask on (sparse) or off (dense). Schedule builds its own phases."""

    kind: Kind
    length: Duration
    index: int
    final: bool

    @property
    def name(self) -> str:
        """Return the paper's name for the phase."""
        if self.kind == "sparse":
            return "final compressed" if self.final else "compressed"
        return {-1: "untrained", 0: "warm-up"}.get(self.index, "decompressed")


@dataclass(frozen=True, repr=False)
class Schedule(PaperSchedules):
    """Alternating phases that end compressed. Use a constructor below: from lengths, transitions or phases.

    `total` is the sum of the phases. Where units are mixed, the sum needs steps_per_epoch: `total` is then what the
    user declared, or None, and boundaries() checks the phases against it.
    """

    phases: tuple[Phase, ...]
    total: Duration | None = None
    _ends: dict[int | None, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        kinds = [getattr(phase, "kind", phase) for phase in self.phases]
        for index, phase in enumerate(self.phases):
            where, place = f"phases[{index}]", (index, index == len(kinds) - 1)
            if not isinstance(phase, Phase) or (phase.index, phase.final) != place:
                raise ArgumentTypeError(where, phase, "Schedule builds its own phases", "use Schedule.from_phases")
            if phase.kind not in ("dense", "sparse"):
                raise ArgumentError(where, phase.kind, "there are two kinds of phases", 'write "dense" or "sparse"')
            if not phase.length.value or phase.length.unit == "%":
                allowed = f"the {phase.name} phase must last some epochs or steps"
                raise ArgumentError(where, str(phase.length), allowed, "make it longer or remove it")
            if index and phase.kind == kinds[index - 1]:
                allowed = f"kinds must alternate, but phases[{index - 1}] is {phase.kind} too"
                raise ArgumentError(where, phase.kind, allowed, "merge the two phases")
        if kinds[-1:] != ["sparse"]:
            raise ArgumentError(
                "phases", kinds, "a schedule must end compressed", 'add a last phase such as ("sparse", "15ep")'
            )
        lengths = [(phase.length.value, phase.length.unit) for phase in self.phases]
        object.__setattr__(self, "total", _sum(lengths, self.total))

    @classmethod
    def alternating(
        cls,
        *,
        warmup: Length,
        sparse: Length,
        dense: Length,
        last_dense: Length | None = None,
        final_sparse: Length,
        total: Length,
        shape: Literal["even", "cosine"] = "even",
    ) -> Self:
        """Build warmup, (sparse, dense) x n, sparse, last_dense, final_sparse, with the n >= 0 that makes `total`.

        The paper's Δ_w, Δ_s, Δ_d, Δ_D. Lengths are in total's unit or in "%" of it; warmup may be "0ep".
        shape="cosine" (not in the paper) makes early compressed phases short and late ones long, along half a cosine;
        each dense phase makes up for the compressed one before it, so that both kinds keep their total length.
        """
        if shape not in ("even", "cosine"):
            raise ArgumentError(
                "shape", shape, "phases have equal lengths or follow a cosine", 'write "even" or "cosine"'
            )
        whole = Duration.parse(total, "total", ABSOLUTE)
        lengths_by_name = {"warmup": warmup, "sparse": sparse, "dense": dense}
        lengths_by_name |= {"last_dense": dense if last_dense is None else last_dense, "final_sparse": final_sparse}
        lengths = {name: Duration.parse(length, name) for name, length in lengths_by_name.items()}
        for name, length in {"total": whole, **lengths}.items():
            if length.unit not in (whole.unit, "%"):
                instead = f'write it in "{whole.unit}" or "%", or mix units with Schedule.from_phases'
                raise ArgumentError(name, str(length), f'total="{whole}" sets the unit', instead)
            if not length.value and name != "warmup":
                raise ArgumentError(name, str(length), "only warmup may be zero", f'write "1{length.unit}" or more')
        warm, on, off, last_off, final = lengths.values()
        phases = [("dense", warm)] if warm.value else []
        n = _cycles(tuple(lengths.values()), whole)
        pairs = [(on, off)] * n + [(on, last_off)]
        if shape == "cosine":
            pairs = _along_cosine(pairs, whole)
        phases += [(kind, length) for pair in pairs for kind, length in zip(("sparse", "dense"), pair, strict=True)]
        return cls.from_phases([*phases, ("sparse", final)], whole)

    @classmethod
    def from_transitions(
        cls, *, compress: Sequence[int | Length], decompress: Sequence[int | Length], total: int | Length
    ) -> Self:
        """Build it from the paper's lists: epochs or points ("500st") before which to compress, to decompress."""

        def point(value: Any, argument: str) -> Duration:
            is_epoch = isinstance(value, int) and not isinstance(value, bool)
            length: Any = f"{value}ep" if is_epoch else value
            return Duration.parse(length, argument, ABSOLUTE)

        on, off = [point(at, "compress") for at in compress], [point(at, "decompress") for at in decompress]
        whole, others = point(total, "total"), f"decompress={list(decompress)!r}"
        if len(on) != len(off) + 1:
            allowed = f"training starts dense and ends compressed, so it needs one entry more than {others}"
            raise ArgumentError("compress", list(compress), allowed, "add a compress or drop a decompress")
        points = [*chain.from_iterable(zip(on, off, strict=False)), on[-1], whole]
        for before, after in pairwise(points):
            if before.unit != after.unit or before.value >= after.value:
                allowed = f'it must alternate with {others}, rising in one unit up to total="{whole}"'
                raise ArgumentError(
                    "compress", list(compress), allowed, f"{after} follows {before}, so change one of them"
                )
        phases = [("dense", points[0])] if points[0].value else []
        for index, (before, after) in enumerate(pairwise(points)):
            phases.append(("dense" if index % 2 else "sparse", Duration(after.value - before.value, whole.unit)))
        return cls.from_phases(phases, whole)

    @classmethod
    def from_phases(cls, phases: Iterable[tuple[str, Length]], total: Length | None = None) -> Self:
        """Build it from (kind, length) pairs such as ("dense", "10ep"); units may mix, percentages need `total`."""
        whole = None if total is None else Duration.parse(total, "total", ABSOLUTE)
        kinds, lengths = [], []
        for index, pair in enumerate(phases):
            where = f"phases[{index}]"
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ArgumentTypeError(where, pair, "a phase is a pair", 'write ("dense", "10ep")')
            length = Duration.parse(pair[1], where)
            if length.unit == "%" and not whole:
                raise ArgumentError(where, str(length), "a percentage needs a total", 'add total="100ep"')
            kinds.append(pair[0])
            lengths.append(length.resolve(whole))
        _sum(lengths, whole)
        # A percentage may end between two steps: positions are rounded, not lengths, so the sum stays exact.
        reached, rounded = Fraction(0), []
        for index, (kind, (value, unit)) in enumerate(zip(kinds, lengths, strict=True)):
            if unit == "st":
                reached += value
                value = Fraction(round_half_up(reached) - round_half_up(reached - value))
            rounded.append(Phase(kind, Duration(value, unit), index, final=index == len(kinds) - 1))
        return cls(tuple(rounded), whole)

    @classmethod
    def for_epochs(cls, epochs: int) -> Self:
        """Build the ImageNet proportions in whole epochs: 10 % warm-up, 5 % phases, last dense 10 %, final 15 %."""
        needs = "AC/DC needs a warm-up epoch, a compressed one, a decompressed one and a final compressed one"
        check_whole("epochs", epochs, 4, f"{needs}, so write epochs=4 or more")
        tenth, final = (max(1, round_half_up(Fraction(percent * epochs, 100))) for percent in (10, 15))
        middle = epochs - tenth - tenth - final
        count = min(13, middle - 1 + middle % 2)  # 13 phases of 5 %, or fewer, from compressed to compressed
        edges = [tenth + round_half_up(Fraction(middle * edge, count)) for edge in range(count + 1)]
        return cls.from_transitions(compress=[*edges[::2], epochs - final], decompress=edges[1::2], total=epochs)

    def stretched(self, times: int) -> Self:
        """Return the same phases, each `times` as long."""
        check_whole("times", times, 1, "write times=2, or 1 for the same length")
        phases = [(phase.kind, Duration(phase.length.value * times, phase.length.unit)) for phase in self.phases]
        return type(self).from_phases(
            phases, Duration(self.total.value * times, self.total.unit) if self.total else None
        )

    # From step to phase.

    def boundaries(self, steps_per_epoch: int | None = None) -> tuple[int, ...]:
        """Return the step at which each phase ends. Positions are rounded, not lengths, so that the sum stays exact."""
        lengths = (phase.length for phase in self.phases)
        if steps_per_epoch is not None or any(x and x.unit == "ep" for x in (self.total, *lengths)):
            check_whole("steps_per_epoch", steps_per_epoch, 1, "write steps_per_epoch=len(loader)")
        if steps_per_epoch not in self._ends:
            scale = {"ep": steps_per_epoch or 0, "st": 1}
            exact = list(accumulate(phase.length.value * scale[phase.length.unit] for phase in self.phases))
            if self.total and exact[-1] != self.total.value * scale[self.total.unit]:
                allowed = f"with steps_per_epoch={steps_per_epoch} the phases add up to {number(exact[-1])}st"
                raise ArgumentError("total", str(self.total), allowed, "change a phase, or omit total")
            ends = tuple(map(round_half_up, exact))
            for phase, (start, end) in zip(self.phases, pairwise((0, *ends)), strict=True):
                if start == end:
                    allowed = f"with steps_per_epoch={steps_per_epoch} this {phase.name} phase has no steps"
                    raise ArgumentError(f"phases[{phase.index}]", str(phase.length), allowed, 'write "1st" or more')
            self._ends[steps_per_epoch] = ends
        return self._ends[steps_per_epoch]

    def starts(self, steps_per_epoch: int | None = None) -> list[tuple[int, Phase]]:
        """Return each phase with its first step."""
        return list(zip((0, *self.boundaries(steps_per_epoch)[:-1]), self.phases, strict=True))

    def total_steps(self, steps_per_epoch: int | None = None) -> int:
        """Return the number of training steps in all phases."""
        return self.boundaries(steps_per_epoch)[-1]

    @property
    def untrained(self) -> Phase:
        """Return the phase of the dense model before the first step, for schedules that start compressed."""
        return Phase("dense", Duration(Fraction(0), self.phases[0].length.unit), index=-1, final=False)

    def phase_at(self, step: int, steps_per_epoch: int | None = None) -> Phase:
        """Return the phase of the training step about to run, counted from 0; past the end, the final phase."""
        check_whole("step", step, 0, "count training steps from 0")
        ends = self.boundaries(steps_per_epoch)
        return self.phases[min(bisect_right(ends, step), len(ends) - 1)]

    # Facts about the phases, where they share a unit.

    @property
    def unit(self) -> Unit:
        """Return the unit that all phases share; raise if units are mixed."""
        units = sorted({phase.length.unit for phase in self.phases})
        if len(units) > 1:
            raise ArgumentError(
                "units", units, "this needs a single unit", "use boundaries(steps_per_epoch), which accepts any"
            )
        return self.phases[0].length.unit

    @property
    def dense_length(self) -> Duration:
        """Return the summed length of the dense phases."""
        return self._length("dense")

    @property
    def sparse_length(self) -> Duration:
        """Return the summed length of the compressed phases."""
        return self._length("sparse")

    def _length(self, kind: Kind) -> Duration:
        values = (phase.length.value for phase in self.phases if phase.kind == kind)
        return Duration(sum(values, Fraction(0)), self.unit)

    @property
    def transitions(self) -> tuple[tuple[int | Fraction, ...], tuple[int | Fraction, ...]]:
        """Return when to compress and when to decompress, in the schedule's unit: the paper's two lists."""
        _ = self.unit  # raises for mixed units
        ends = accumulate(phase.length.value for phase in self.phases)
        starts = [int(at) if at.denominator == 1 else at for at in (Fraction(0), *ends)]
        points = list(zip(self.phases, starts, strict=False))
        compress = tuple(at for phase, at in points if phase.kind == "sparse")
        return compress, tuple(at for phase, at in points if phase.name == "decompressed")

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and strings, for JSON and state dicts."""
        phases = [[phase.kind, str(phase.length)] for phase in self.phases]
        return {"phases": phases, "total": str(self.total) if self.total else None}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Build the schedule that `to_dict` described."""
        if not isinstance(state, Mapping) or set(state) != {"phases", "total"}:
            raise ArgumentError("state", state, "expected the keys phases and total", "pass what to_dict() returned")
        return cls.from_phases(state["phases"], state["total"])

    def __repr__(self) -> str:
        phases = [(phase.kind, str(phase.length)) for phase in self.phases]
        return f"Schedule.from_phases({phases}, total={str(self.total) if self.total else None!r})"

    def __str__(self) -> str:
        return draw(self)


def round_half_up(value: Fraction) -> int:
    """Round to the nearest whole number, halves up (Python's round would send 0.5 and 2.5 down but 1.5 up)."""
    return math.floor(value + Fraction(1, 2))


def number(value: Fraction) -> str:
    """Write a number as 10, as 2.5 or, where no short decimal is exact, as 1/3."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


def _sum(lengths: Sequence[tuple[Fraction, str]], declared: Duration | None) -> Duration | None:
    """Return the summed length, which must equal the declared one; for mixed units, trust the declared one."""
    units: set[Any] = {unit for _, unit in lengths} | ({declared.unit} if declared else set())
    if len(units) != 1:
        return declared
    value, unit = sum((value for value, _ in lengths), Fraction(0)), units.pop()
    if declared and value != declared.value:
        verb, miss = "lengthen" if value < declared.value else "shorten", number(abs(value - declared.value))
        instead = f"{verb} them by {miss}{unit}, or change total"
        raise ArgumentError("total", str(declared), f"the phases add up to {number(value)}{unit}", instead)
    return Duration(value, unit)


def _cycles(lengths: Sequence[Duration], total: Duration) -> int:
    """Return the n of Schedule.alternating; if none fits the total, raise an error that offers the nearest fit."""
    warm, on, off, last_off, final = (length.resolve(total)[0] for length in lengths)
    spare, cycle = total.value - (warm + on + last_off + final), on + off
    fewest = max(0, spare // cycle)
    gaps = {n: spare - n * cycle for n in (fewest, fewest + 1)}
    n = min(gaps, key=lambda n: (final + gaps[n] <= 0, abs(gaps[n])))  # prefer a gap final_sparse can absorb
    gap, unit, percent = gaps[n], total.unit, any(length.unit == "%" for length in lengths)
    if gap == 0:
        return n
    reached = f"{number(total.value - gap)}{unit}"
    fits = [] if percent else [f'total="{reached}"']  # percentages would move with the total
    if final + gap > 0:
        share = f"{number((final + gap) * 100 / total.value)}%" if percent else f"{number(final + gap)}{unit}"
        fits.append(f'final_sparse="{share}"')
    allowed = (
        "it must equal warmup + n x (sparse + dense) + sparse + last_dense + final_sparse for some whole n >= 0, "
        f"but n = {n} gives {reached}, {number(abs(gap))}{unit} too {'little' if gap > 0 else 'much'}"
    )
    raise ArgumentError("total", str(total), allowed, f"write {' or '.join(fits) or 'shorter phases'}")


def _along_cosine(pairs: Sequence[tuple[Duration, Duration]], total: Duration) -> list[tuple[Duration, Duration]]:
    """Stretch sparse phases from nearly 0 to nearly twice their length, in whole units; dense ones take the rest."""
    lengths = [(on.resolve(total)[0], off.resolve(total)[0]) for on, off in pairs]
    swing = min(chain.from_iterable(lengths))
    most = max(swing - 1, Fraction(0))  # each phase keeps one unit, or what it has where that is less
    moved = []
    for index, pair in enumerate(lengths):
        more = Fraction(-math.cos(math.pi * (index + 0.5) / len(pairs))) * swing
        shift = min(Fraction(round_half_up(abs(more))), most) * (1 if more > 0 else -1)
        shares = [Duration(value * 100 / total.value, "%") for value in (pair[0] + shift, pair[1] - shift)]
        moved.append((shares[0], shares[1]))  # of the total: percentages of steps need not be whole
    return moved
