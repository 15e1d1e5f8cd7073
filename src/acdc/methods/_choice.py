"""The phases that AC/DC chooses for a run by itself, from its length in epochs and in steps.

    dense 10 to 20 % | compressed, decompressed, twice, up to 40 % | compressed to the end

The sparsity rises all the while, so that the first decompressions bring few weights back, and none comes later,
when the learning rate has usually fallen. docs/decompression.md has the measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from acdc.errors import ArgumentError, check_whole
from acdc.schedule import Schedule, number, round_half_up

RECOVERY = 50  # steps after a decompression until the loss is back where it was; see docs/decompression.md
RISE, SHORT_RISE = 0.75, 0.6  # of the run, by which the sparsity has reached its target: usually, and in short runs
LATE_RISE = 0.85  # in short runs under a constant learning rate
SHORT = 1500  # steps; a quarter of a shorter run is too little to train at the target while the rate falls
FLOOR = 0.75  # of its ERK share that a layer keeps in a run that is not long; magnitudes still show the beginning
_CYCLES = 2
_BEGIN, _LATEST_BEGIN, _MIDDLE = Fraction(1, 10), Fraction(1, 5), Fraction(2, 5)  # of the run: compressions begin, end
DENSE_STEPS = 4000  # before the first compression, where they are between these shares of the run
LONG = 6000  # steps; a shorter run begins early all the same, and has a floor
_LATE = (Fraction(3, 4), Fraction(17, 20))  # the late dense phase, for the sake of the twin


@dataclass(frozen=True)
class Choice:
    """Phases over `epochs`, with the number of cycles in them and why there are not more, the rise, and the floor."""

    schedule: Schedule
    cycles: int
    rise: float
    late_rise: float  # 0 where the learning rate makes no difference
    floor: float
    shortest: str = ""  # why there are fewer cycles than usual; "" where there are not
    late: bool | None = None  # whether the late dense phase that was asked for found room; None if none was


def choose(
    epochs: int,
    steps_per_epoch: int | None,
    *,
    begin: float | None,
    cycles: int | None,
    late: bool,
    whole_epochs: bool = False,
) -> Choice:
    """Return phases of whole epochs, or of parts of one, with as many cycles as are worth it.

    In less than ten epochs phases are of half ones once the number of steps is known, in three or less of twentieths,
    or of steps if an epoch has fewer; unless `whole_epochs` are asked for. A cycle is worth it if its dense phase lasts
    RECOVERY steps. `begin` is the share of the run before the first compression; `cycles` asks for a number of them;
    `late` for one more dense phase near the end.
    """
    check_whole("epochs", epochs, 1, "write epochs=1 or more")
    if steps_per_epoch is not None:
        check_whole("steps_per_epoch", steps_per_epoch, 1, "write steps_per_epoch=len(loader)")
    parts = 20 if epochs <= 3 else 2 if epochs <= 9 and steps_per_epoch is not None else 1
    if whole_epochs and epochs > 1:
        parts = 1
    unit = Fraction(1, min(parts, steps_per_epoch or parts))  # of an epoch
    total = int(epochs / unit)
    if total < 2:
        allowed = "with steps_per_epoch=1 the run has one step, and AC/DC needs a dense one and a compressed one"
        raise ArgumentError("epochs", received=epochs, allowed=allowed, instead="write epochs=2 or more")
    steps = epochs * steps_per_epoch if steps_per_epoch is not None else None
    share = _begin(steps) if begin is None else Fraction(begin)
    first = min(max(1, round_half_up(share * total)), total - 1)
    middle = max(first, round_half_up(_MIDDLE * total))
    fit = (middle - first) // 2 if total > 4 else 0
    usual = 1 if parts == 2 else _CYCLES  # as in ten whole epochs
    wanted = usual if cycles is None else cycles
    n, shortest = min(wanted, fit), ""
    if n < wanted:
        shortest = f"{epochs} epochs leave no room for more" if epochs > 1 else "1 epoch leaves no room for more"
    while n and cycles is None and (few := _shortest_dense(first, middle, n, unit, steps_per_epoch)) < RECOVERY:
        dense = f"a dense phase of {few} step{'s' * (few != 1)}"
        n, shortest = n - 1, f"{dense} ends before the loss has recovered, about {RECOVERY} steps"
    edges = _edges(first, middle, n) if n else [first]
    if late:
        edges += [round_half_up(share * total) for share in _LATE]
    ends = [*edges, total]
    room = ends == sorted(set(ends))
    if not room:  # a short run has no late phase of its own, nor one that begins late
        ends = [*(_edges(first, middle, n) if n else [first]), total]
    phases, before = [], 0
    for index, end in enumerate(ends):
        phases.append(("sparse" if index % 2 else "dense", f"{number((end - before) * unit)}ep"))
        before = end
    rise, late_rise = (SHORT_RISE, LATE_RISE) if steps is not None and steps < SHORT else (RISE, 0.0)
    floor = FLOOR if steps is not None and steps < LONG else 0.0
    if begin is not None:  # half of what is left, at least
        rise = max(rise, (1 + first / total) / 2)
        late_rise = late_rise if late_rise > rise else 0.0
    return Choice(Schedule.from_phases(phases), n, rise, late_rise, floor, shortest, late=room if late else None)


def _begin(steps: int | None) -> Fraction:
    """Return the share of the run before the first compression."""
    if steps is None or steps < LONG:
        return _BEGIN
    return min(max(Fraction(DENSE_STEPS, steps), _BEGIN), _LATEST_BEGIN)


def _edges(begin: int, middle: int, cycles: int) -> list[int]:
    """Return where compressions and decompressions take turns: of each cycle two thirds are compressed."""
    edges = [begin]
    for index in range(cycles):
        start = begin + round_half_up(Fraction(index * (middle - begin), cycles))
        end = begin + round_half_up(Fraction((index + 1) * (middle - begin), cycles))
        dense = max(1, round_half_up(Fraction(end - start, 3)))
        edges += [end - dense, end]
    return edges


def _shortest_dense(begin: int, middle: int, cycles: int, unit: Fraction, steps_per_epoch: int | None) -> float:
    if steps_per_epoch is None:
        return float("inf")
    edges = _edges(begin, middle, cycles)
    return min(int((b - a) * unit * steps_per_epoch) for a, b in zip(edges[1::2], edges[2::2], strict=True))


def describe(
    choice: Choice,
    epochs: int,
    target: str,
    *,
    rise: float | None,
    late_rise: float | None,
    ramp: float | None,
    keeps: bool,
    gradual: bool = False,
    ease: float = 0.0,
    floor: float | None = None,
    preconditioned: bool = False,
    idle: Sequence[str] = (),
) -> tuple[str, str]:
    """Return in two lines what was chosen, and why; `idle` are knobs that were given and have nothing to do."""
    compress, decompress = choice.schedule.transitions
    parts = [f"dense up to epoch {_epoch(compress[0])}"]
    parts += [f"decompressed at epoch {', '.join(map(_epoch, decompress))}" if decompress else ""]
    parts += [f"compressed from epoch {_epoch(compress[-1])} on"]
    at_once = (
        f"sparsity rising to {target} from compression to compression" if gradual else f"sparsity {target} at once"
    )
    late = f", or {late_rise * epochs:.3g} under a constant learning rate" if late_rise and late_rise != rise else ""
    parts += [f"sparsity rising to {target} by epoch {rise * epochs:.3g}{late}" if rise else at_once]
    parts += [f"no layer below {floor:.0%} of what distribution='erk' gives it" if floor else ""]
    parts += ["weights ranked by |θ|, under Adam by |θ|·v^¼ (v: its mean squared gradients)" if preconditioned else ""]
    parts += [f"each compression eased into over {ease:.0%} of its phase" if ease else ""]
    parts += [f"weights that come back ramp up over {ramp:.0%} of a dense phase" if decompress and ramp else ""]
    parts += ["momentum kept" if decompress and keeps else ""]
    why = "decompressions late or at the full sparsity cost accuracy"
    if choice.shortest:
        several = f"{choice.cycles} decompression{'s' * (choice.cycles > 1)}"
        alone = "gradual pruning alone" if rise else "one compression alone"
        early = several if choice.cycles else "no early decompression" if choice.late else alone
        why = f"{early}, as {choice.shortest}; {why}"
    if floor and floor == choice.floor:
        why += "; in so short a run magnitudes still show the initialisation"
    if preconditioned:
        why += "; Adam moves weights as fast whatever their gradients are, so size alone tells less there"
    if choice.late is not None:
        why += "; the late one is for the twin" if choice.late else f"; twin='late' found no room in {epochs} epochs"
    if idle:
        why += f"; {' and '.join(idle)} {'have' if len(idle) > 1 else 'has'} no effect without a decompression"
    return (
        f"AC/DC over {epochs} epoch{'s' * (epochs > 1)}: {'; '.join(filter(None, parts))}.",
        f"Why: {why}. The paper's phases: ACDC.paper(...).",
    )


def _epoch(at: int | Fraction) -> str:
    return f"{round(float(at), 3):g}"
