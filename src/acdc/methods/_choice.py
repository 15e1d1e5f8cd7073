"""The phases that AC/DC chooses for a run by itself, from its length in epochs and in steps.

    dense 10 % | compressed, decompressed, twice, up to 40 % | compressed to the end

The sparsity rises all the while, so that the first decompressions bring few weights back, and none comes later,
when the learning rate has usually fallen. docs/decompression.md has the measurements.
"""

from dataclasses import dataclass
from fractions import Fraction

from acdc.errors import check_whole
from acdc.schedule import Schedule, number, round_half_up

RECOVERY = 50  # steps after a decompression until the loss is back where it was; see docs/decompression.md
RISE, SHORT_RISE = 0.75, 0.6  # of the run, by which the sparsity has reached its target: usually, and in short runs
SHORT = 1500  # steps; a quarter of a shorter run is too little to train at the target
_CYCLES = 2
_BEGIN, _MIDDLE = Fraction(1, 10), Fraction(2, 5)  # of the run: the first compression, and the last
_LATE = (Fraction(3, 4), Fraction(17, 20))  # the late dense phase, for the sake of the twin


@dataclass(frozen=True)
class Choice:
    """Phases over `epochs`, with the number of cycles in them and why there are not more, and the end of the rise."""

    schedule: Schedule
    cycles: int
    rise: float
    shortest: str = ""  # why there are fewer cycles than usual; "" where there are not


def choose(epochs: int, steps_per_epoch: int | None, *, cycles: int | None, late: bool) -> Choice:
    """Return phases of whole epochs (of twentieths where there are three or less), with as many cycles as are worth it.

    A cycle is worth it if its dense phase lasts RECOVERY steps. `cycles` asks for a number of them; `late` for one more
    dense phase near the end.
    """
    check_whole("epochs", epochs, 1, "write epochs=1 or more")
    unit = Fraction(1) if epochs > 3 else Fraction(1, 20)  # of an epoch
    total = int(epochs / unit)
    begin = max(1, round_half_up(_BEGIN * total))
    middle = max(begin, round_half_up(_MIDDLE * total))
    fit = (middle - begin) // 2 if total > 4 else 0
    wanted = _CYCLES if cycles is None else cycles
    n, shortest = min(wanted, fit), ""
    if n < wanted:
        shortest = f"{epochs} epoch{'s' * (epochs > 1)} leave no room for more"
    while n and cycles is None and (steps := _shortest_dense(begin, middle, n, unit, steps_per_epoch)) < RECOVERY:
        n, shortest = n - 1, f"a dense phase of {steps} steps ends before the loss has recovered (about {RECOVERY})"
    edges = _edges(begin, middle, n) if n else [begin]
    if late:
        edges += [round_half_up(share * total) for share in _LATE]
    ends = [*edges, total]
    if len(set(ends)) < len(ends):  # a short run has no late phase of its own
        ends = [*(_edges(begin, middle, n) if n else [begin]), total]
    phases, before = [], 0
    for index, end in enumerate(ends):
        phases.append(("sparse" if index % 2 else "dense", f"{number((end - before) * unit)}ep"))
        before = end
    short = steps_per_epoch is not None and epochs * steps_per_epoch < SHORT
    return Choice(Schedule.from_phases(phases), n, SHORT_RISE if short else RISE, shortest)


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
    choice: Choice, epochs: int, target: str, *, rise: float | None, ramp: float | None, keeps: bool
) -> tuple[str, str]:
    """Return in two lines what was chosen, and why."""
    compress, decompress = choice.schedule.transitions
    parts = [f"dense up to epoch {float(compress[0]):g}"]
    parts += [f"decompressed at epoch {', '.join(f'{float(at):g}' for at in decompress)}" if decompress else ""]
    parts += [f"compressed from epoch {float(compress[-1]):g} on"]
    parts += [f"sparsity rising to {target} by epoch {rise * epochs:.3g}" if rise else f"sparsity {target} at once"]
    parts += [f"weights that come back ramp up over {ramp:.0%} of a dense phase" if decompress and ramp else ""]
    parts += ["momentum kept" if decompress and keeps else ""]
    why = "decompressions late or at the full sparsity cost accuracy"
    if choice.shortest:
        several = f"{choice.cycles} decompression{'s' * (choice.cycles > 1)}"
        why = f"{several if choice.cycles else 'gradual pruning alone'}, as {choice.shortest}; {why}"
    return (
        f"AC/DC over {epochs} epoch{'s' * (epochs > 1)}: {'; '.join(filter(None, parts))}.",
        f"Why: {why}. The paper's phases: ACDC.paper(...).",
    )
