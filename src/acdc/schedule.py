"""When to compress: the phases of a run, as a pure function from training step to phase.

AC/DC trains densely for a warm-up Δ_w, then alternates compressed phases Δ_s with decompressed phases Δ_d (the
last one Δ_D), and ends compressed:

    Δ_w dense | Δ_s sparse | Δ_d dense | … | Δ_s sparse | Δ_D dense | final sparse

A Schedule holds these lengths and no counter: a step goes in, a phase comes out, so resuming is passing a number.
Epochs and steps count from 0; a transition happens before the first batch of the epoch, or the step, it names.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

from acdc.duration import ABSOLUTE, Duration, Unit, check_whole, number, round_half_up, wrong
from acdc.timeline import draw

__all__ = ["Duration", "Phase", "Schedule"]

Kind = Literal["dense", "sparse"]


@dataclass(frozen=True)
class Phase:
    """A stretch of training with the mask on (sparse) or off (dense). Made by Schedule, read by everyone."""

    kind: Kind
    length: Duration
    index: int
    final: bool

    @property
    def name(self) -> str:
        """The paper's word for it."""
        if self.kind == "sparse":
            return "final compressed" if self.final else "compressed"
        return {-1: "untrained", 0: "warm-up"}.get(self.index, "decompressed")


Length = str | Duration


def _sum(lengths: Sequence[tuple[Fraction, str]], declared: Duration | None) -> Duration | None:
    """The summed length, which must be the declared one; where units mix, the declared one, on trust."""
    units: set[Any] = {unit for _, unit in lengths} | ({declared.unit} if declared else set())
    if len(units) != 1:
        return declared
    value, unit = sum((value for value, _ in lengths), Fraction(0)), units.pop()
    if declared and value != declared.value:
        verb, miss = "lengthen" if value < declared.value else "shorten", number(abs(value - declared.value))
        instead = f"{verb} them by {miss}{unit}, or change total"
        raise wrong("total", declared, f"the phases sum to {number(value)}{unit}", instead)
    return Duration(value, unit)


def _cycles(lengths: Sequence[Duration], total: Duration) -> int:
    """The n of Schedule.alternating; where no whole n makes the total, an error that offers the nearest fit."""
    warm, on, off, last_off, final = (length.of(total)[0] for length in lengths)
    spare, cycle = total.value - (warm + on + last_off + final), on + off
    fewest = max(0, spare // cycle)
    gaps = {n: spare - n * cycle for n in (fewest, fewest + 1)}
    n = min(gaps, key=lambda n: (final + gaps[n] <= 0, abs(gaps[n])))  # prefer a gap final_sparse can absorb
    gap, unit, percent = gaps[n], total.unit, any(length.unit == "%" for length in lengths)
    if gap == 0:
        return n
    made = f"{number(total.value - gap)}{unit}"
    fits = [] if percent else [f'total="{made}"']  # percentages would move with the total
    if final + gap > 0:
        share = f"{number((final + gap) * 100 / total.value)}%" if percent else f"{number(final + gap)}{unit}"
        fits.append(f'final_sparse="{share}"')
    allowed = (
        "warmup + n x (sparse + dense) + sparse + last_dense + final_sparse makes it for some whole n >= 0, "
        f"but n = {n} makes {made}, {number(abs(gap))}{unit} too {'little' if gap > 0 else 'much'}"
    )
    raise wrong("total", total, allowed, f"write {' or '.join(fits) or 'shorter phases'}")


def _along_cosine(pairs: Sequence[tuple[Duration, Duration]], total: Duration) -> list[tuple[Duration, Duration]]:
    """Sparse phases from nearly 0 to nearly twice their length, and dense ones the rest, by whole epochs or steps."""
    lengths = [(on.of(total)[0], off.of(total)[0]) for on, off in pairs]
    swing = min(chain.from_iterable(lengths))
    most = max(swing - 1, Fraction(0))  # each phase keeps one unit, or what it has where that is less
    moved = []
    for index, pair in enumerate(lengths):
        more = Fraction(-math.cos(math.pi * (index + 0.5) / len(pairs))) * swing
        shift = min(Fraction(round_half_up(abs(more))), most) * (1 if more > 0 else -1)
        shares = [Duration(value * 100 / total.value, "%") for value in (pair[0] + shift, pair[1] - shift)]
        moved.append((shares[0], shares[1]))  # of the total: percentages of steps need not be whole
    return moved


@dataclass(frozen=True, repr=False)
class Schedule:
    """Phases that alternate and end compressed. Use a constructor below: from lengths, transitions or phases.

    `total` is the sum of the phases. Where units mix, the sum needs steps_per_epoch: `total` is then what the user
    declared, or None, and boundaries() holds the phases to it.
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
                raise wrong(where, phase, "Schedule makes its phases", "use Schedule.from_phases", TypeError)
            if phase.kind not in ("dense", "sparse"):
                raise wrong(where, phase.kind, "a phase is of one of two kinds", 'write "dense" or "sparse"')
            if not phase.length.value or phase.length.unit == "%":
                allowed = f"the {phase.name} phase lasts some epochs or steps"
                raise wrong(where, phase.length, allowed, "make it longer or leave it out")
            if index and phase.kind == kinds[index - 1]:
                allowed = f"kinds alternate, and phases[{index - 1}] is {phase.kind} too"
                raise wrong(where, phase.kind, allowed, "merge the two phases")
        if kinds[-1:] != ["sparse"]:
            raise wrong("phases", kinds, "a schedule ends compressed", 'add a last phase such as ("sparse", "15ep")')
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
    ) -> "Schedule":
        """warmup, (sparse, dense) x n, sparse, last_dense, final_sparse, with the n >= 0 that makes `total`.

        The paper's Δ_w, Δ_s, Δ_d, Δ_D. Lengths are in total's unit or in "%" of it; warmup may be "0ep".
        shape="cosine", not in the paper: early compressed phases are short and late ones long, along half a cosine;
        each dense phase gives what the compressed one before it takes, so that both kinds keep their sums.
        """
        if shape not in ("even", "cosine"):
            raise wrong("shape", shape, "phases have one length, or follow a cosine", 'write "even" or "cosine"')
        whole = Duration.parse(total, "total", ABSOLUTE)
        given = {"warmup": warmup, "sparse": sparse, "dense": dense}
        given |= {"last_dense": dense if last_dense is None else last_dense, "final_sparse": final_sparse}
        lengths = {name: Duration.parse(length, name) for name, length in given.items()}
        for name, length in {"total": whole, **lengths}.items():
            if length.unit not in (whole.unit, "%"):
                instead = f'write it in "{whole.unit}" or "%", or mix units with Schedule.from_phases'
                raise wrong(name, length, f'total="{whole}" sets the unit', instead)
            if not length.value and name != "warmup":
                raise wrong(name, length, "only warmup may be zero", f'write "1{length.unit}" or more')
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
    ) -> "Schedule":
        """The paper's lists: epochs (plain ints) or points ("500st") before which to compress and decompress."""

        def point(value: Any, argument: str) -> Duration:
            is_epoch = isinstance(value, int) and not isinstance(value, bool)
            length: Any = f"{value}ep" if is_epoch else value
            return Duration.parse(length, argument, ABSOLUTE)

        on, off = [point(at, "compress") for at in compress], [point(at, "decompress") for at in decompress]
        whole, others = point(total, "total"), f"decompress={list(decompress)!r}"
        if len(on) != len(off) + 1:
            allowed = f"training starts dense and ends compressed, so it has one entry more than {others}"
            raise wrong("compress", list(compress), allowed, "add a compress or drop a decompress")
        points = [*chain.from_iterable(zip(on, off, strict=False)), on[-1], whole]
        for before, after in pairwise(points):
            if before.unit != after.unit or before.value >= after.value:
                allowed = f'it takes turns with {others}, rising in one unit up to total="{whole}"'
                raise wrong("compress", list(compress), allowed, f"{after} follows {before}, so change one of them")
        phases = [("dense", points[0])] if points[0].value else []
        for index, (before, after) in enumerate(pairwise(points)):
            phases.append(("dense" if index % 2 else "sparse", Duration(after.value - before.value, whole.unit)))
        return cls.from_phases(phases, whole)

    @classmethod
    def from_phases(cls, phases: Iterable[tuple[str, Length]], total: Length | None = None) -> "Schedule":
        """Explicit (kind, length) pairs, such as ("dense", "10ep"); units may mix, percentages need `total`."""
        whole = None if total is None else Duration.parse(total, "total", ABSOLUTE)
        kinds, lengths = [], []
        for index, pair in enumerate(phases):
            where = f"phases[{index}]"
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise wrong(where, pair, "a phase is a pair", 'write ("dense", "10ep")', TypeError)
            length = Duration.parse(pair[1], where)
            if length.unit == "%" and not whole:
                raise wrong(where, length, "a percentage needs a total", 'add total="100ep"')
            kinds.append(pair[0])
            lengths.append(length.of(whole))
        _sum(lengths, whole)
        # A percentage of steps may end between two: positions are rounded, not lengths, so the sum stays exact.
        reached, made = Fraction(0), []
        for index, (kind, (value, unit)) in enumerate(zip(kinds, lengths, strict=True)):
            if unit == "st":
                reached += value
                value = Fraction(round_half_up(reached) - round_half_up(reached - value))
            made.append(Phase(kind, Duration(value, unit), index, final=index == len(kinds) - 1))
        return cls(tuple(made), whole)

    @classmethod
    def for_epochs(cls, epochs: int) -> "Schedule":
        """The ImageNet proportions in whole epochs: 10 % warm-up, 5 % phases, last dense 10 %, final 15 %."""
        needs = "AC/DC needs a warm-up, a compressed, a decompressed and a final compressed epoch"
        check_whole("epochs", epochs, 4, f"{needs}, so write epochs=4 or more")
        tenth, final = (max(1, round_half_up(Fraction(percent * epochs, 100))) for percent in (10, 15))
        middle = epochs - tenth - tenth - final
        count = min(13, middle - 1 + middle % 2)  # 13 phases of 5 %, or fewer, from compressed to compressed
        edges = [tenth + round_half_up(Fraction(middle * edge, count)) for edge in range(count + 1)]
        return cls.from_transitions(compress=[*edges[::2], epochs - final], decompress=edges[1::2], total=epochs)

    # The paper's schedules. Those marked inferred are not printed epoch by epoch; they fit the figures that are.

    @classmethod
    def _paper(cls, *epochs: int) -> "Schedule":
        """Δ_w, Δ_s, Δ_d, Δ_D, the final compressed phase and the total, in epochs."""
        names = ("warmup", "sparse", "dense", "last_dense", "final_sparse", "total")
        lengths: dict[str, Any] = {name: f"{count}ep" for name, count in zip(names, epochs, strict=True)}
        return cls.alternating(**lengths)

    @classmethod
    def imagenet(cls) -> "Schedule":
        """ImageNet, 100 epochs, half of them compressed (paper and published code)."""
        return cls._paper(10, 5, 5, 10, 15, 100)

    @classmethod
    def imagenet_150(cls) -> "Schedule":
        """ImageNet extended to 150 epochs (paper and published code)."""
        return cls._paper(10, 5, 5, 10, 15, 150)

    @classmethod
    def imagenet_200(cls) -> "Schedule":
        """ImageNet at twice the epochs (published code)."""
        return cls._paper(10, 5, 5, 10, 15, 200)

    @classmethod
    def imagenet_short_dense(cls) -> "Schedule":
        """ImageNet with 2-epoch dense phases, the last one not longer (paper; epochs inferred, 70 compressed)."""
        return cls._paper(10, 5, 2, 2, 20, 100)

    @classmethod
    def imagenet_130_10_10(cls) -> "Schedule":
        """ImageNet, 130 epochs, phases of 10 (paper; epochs inferred from its .7x training FLOPs)."""
        return cls._paper(10, 10, 10, 10, 20, 130)

    @classmethod
    def imagenet_130_5_10(cls) -> "Schedule":
        """ImageNet, 130 epochs, phases of 5 compressed and 10 dense (paper; epochs inferred from its .85x)."""
        return cls._paper(10, 5, 10, 10, 15, 130)

    @classmethod
    def cifar100_20(cls) -> "Schedule":
        """CIFAR-100 AC/DC-20, 200 epochs (paper and published code)."""
        return cls._paper(10, 20, 20, 20, 30, 200)

    @classmethod
    def cifar100_14(cls) -> "Schedule":
        """CIFAR-100 AC/DC-14, 225 epochs (paper; dense phases last 13 epochs in the published code)."""
        return cls._paper(10, 20, 13, 13, 50, 225)

    @classmethod
    def cifar100_7(cls) -> "Schedule":
        """CIFAR-100 AC/DC-7, 240 epochs (paper; epochs inferred)."""
        return cls._paper(10, 20, 7, 7, 68, 240)

    @classmethod
    def cifar10_memorization(cls) -> "Schedule":
        """CIFAR-10 with random labels, 200 epochs (published code)."""
        return cls._paper(10, 20, 20, 20, 30, 200)

    @classmethod
    def transformer_xl(cls) -> "Schedule":
        """Transformer-XL on WikiText-103, 48 epochs, 100k steps (paper; counting epochs from 0 is inferred)."""
        return cls._paper(5, 3, 3, 7, 9, 48)

    @classmethod
    def named(cls) -> "dict[str, Callable[[], Schedule]]":
        """The paper's schedules by name."""
        constructors = [cls.imagenet, cls.imagenet_150, cls.imagenet_200, cls.imagenet_short_dense]
        constructors += [cls.imagenet_130_10_10, cls.imagenet_130_5_10, cls.cifar100_20, cls.cifar100_14]
        constructors += [cls.cifar100_7, cls.cifar10_memorization, cls.transformer_xl]
        return {constructor.__name__: constructor for constructor in constructors}

    # From step to phase.

    def boundaries(self, steps_per_epoch: int | None = None) -> tuple[int, ...]:
        """The step at which each phase ends. Positions are rounded, not lengths, so that the sum stays exact."""
        lengths = (phase.length for phase in self.phases)
        if steps_per_epoch is not None or any(x and x.unit == "ep" for x in (self.total, *lengths)):
            check_whole("steps_per_epoch", steps_per_epoch, 1, "write steps_per_epoch=len(loader)")
        if steps_per_epoch not in self._ends:
            scale = {"ep": steps_per_epoch or 0, "st": 1}
            exact = list(accumulate(phase.length.value * scale[phase.length.unit] for phase in self.phases))
            if self.total and exact[-1] != self.total.value * scale[self.total.unit]:
                allowed = f"with steps_per_epoch={steps_per_epoch} the phases sum to {number(exact[-1])}st"
                raise wrong("total", self.total, allowed, "change a phase, or leave total out")
            ends = tuple(map(round_half_up, exact))
            for phase, (start, end) in zip(self.phases, pairwise((0, *ends)), strict=True):
                if start == end:
                    allowed = f"with steps_per_epoch={steps_per_epoch} this {phase.name} phase has no step"
                    raise wrong(f"phases[{phase.index}]", phase.length, allowed, 'write "1st" or more')
            self._ends[steps_per_epoch] = ends
        return self._ends[steps_per_epoch]

    def starts(self, steps_per_epoch: int | None = None) -> list[tuple[int, Phase]]:
        """The first step of each phase."""
        return list(zip((0, *self.boundaries(steps_per_epoch)[:-1]), self.phases, strict=True))

    def total_steps(self, steps_per_epoch: int | None = None) -> int:
        return self.boundaries(steps_per_epoch)[-1]

    @property
    def untrained(self) -> Phase:
        """The dense model before the first step, for schedules that start compressed."""
        return Phase("dense", Duration(Fraction(0), self.phases[0].length.unit), index=-1, final=False)

    def phase_at(self, step: int, steps_per_epoch: int | None = None) -> Phase:
        """The phase of the training step about to run, counted from 0; past the end, the final phase."""
        check_whole("step", step, 0, "count training steps from 0")
        ends = self.boundaries(steps_per_epoch)
        return self.phases[min(bisect_right(ends, step), len(ends) - 1)]

    # Facts about the phases, where they share a unit.

    @property
    def unit(self) -> Unit:
        """The unit of every phase; an error where they mix."""
        units = sorted({phase.length.unit for phase in self.phases})
        if len(units) > 1:
            raise wrong("units", units, "this needs one unit", "use boundaries(steps_per_epoch), which takes any")
        return self.phases[0].length.unit

    @property
    def dense_length(self) -> Duration:
        return self._length("dense")

    @property
    def sparse_length(self) -> Duration:
        return self._length("sparse")

    def _length(self, kind: Kind) -> Duration:
        values = (phase.length.value for phase in self.phases if phase.kind == kind)
        return Duration(sum(values, Fraction(0)), self.unit)

    @property
    def transitions(self) -> tuple[tuple[int | Fraction, ...], tuple[int | Fraction, ...]]:
        """When to compress and when to decompress, in the schedule's unit: the paper's two lists."""
        _ = self.unit  # refuses mixed units
        ends = accumulate(phase.length.value for phase in self.phases)
        starts = [int(at) if at.denominator == 1 else at for at in (Fraction(0), *ends)]
        points = list(zip(self.phases, starts, strict=False))
        compress = tuple(at for phase, at in points if phase.kind == "sparse")
        return compress, tuple(at for phase, at in points if phase.name == "decompressed")

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings, for JSON and state dicts."""
        phases = [[phase.kind, str(phase.length)] for phase in self.phases]
        return {"phases": phases, "total": str(self.total) if self.total else None}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Schedule":
        if not isinstance(state, Mapping) or set(state) != {"phases", "total"}:
            raise wrong("state", state, "it has the keys phases and total", "pass what to_dict() returned")
        return cls.from_phases(state["phases"], state["total"])

    def __repr__(self) -> str:
        phases = [(phase.kind, str(phase.length)) for phase in self.phases]
        return f"Schedule.from_phases({phases}, total={str(self.total) if self.total else None!r})"

    def __str__(self) -> str:
        return draw(self)
