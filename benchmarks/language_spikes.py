"""How far the training loss rises at transitions: spikes on the loss curves of runs, and their table.

A spike is the highest mean of WIDTH steps among the AFTER steps that follow a place, by the mean of the BEFORE steps
that precede it, minus 1. Neither window reaches beyond the phases on both sides of a transition. Transitions come where
an epoch begins, and there the loss may move without one: a text that is read in order begins anew, which may be harder
than its end, and with an empty memory. So the noise floor is the same statistic where other epochs begin.

A text that is read in order has easy and hard parts at the same steps of every pass, which look like spikes. There the
curve is that of the loss by dense training's at the same step.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from acdc.formatting import mean_std
from acdc.report.read import Run
from acdc.runs.records import EpochRow, steps_per_loss
from benchmarks.language_groups import Experiment, recipe_of, steps_of, steps_per_epoch

BEFORE, WIDTH, AFTER = 50, 10, 150  # steps
PLACES = {
    "compression": "at compressions",
    "decompression": "at decompressions",
    "rising": "while sparsity rises",
    "elsewhere": "elsewhere",
}
_RISE = 0.001  # of the sparsity over an epoch, from which it counts as rising: a few weights are 0 by chance


def curve_of(rows: Sequence[EpochRow]) -> np.ndarray:
    """Return the training loss of a stage by step, each step with the mean of its point; nan where there is no curve.

    Steps, not points, so that windows mean the same for all: an epoch's last point may have fewer steps than the rest.
    """
    if not rows:
        return np.empty(0)
    each = rows[-1].step // (rows[-1].epoch + 1)
    curve = np.full(rows[-1].step, np.nan)
    for row in rows:
        if row.losses is not None:
            curve[row.step - each : row.step] = np.repeat(row.losses, steps_per_loss(each))[:each]
    return curve


def transitions_of(rows: Sequence[EpochRow]) -> list[tuple[int, str]]:
    """Return the first step of each phase but the first, and whether it is a compression or a decompression."""
    return [
        (before.step, "compression" if after.kind == "sparse" else "decompression")
        for before, after in pairwise(rows)
        if after.kind != before.kind
    ]


def spikes(rows: Sequence[EpochRow], beside: Sequence[EpochRow] = ()) -> dict[str, list[float]]:
    """Return the spikes of a stage by the kind of their place, of PLACES; none where the curve is not complete.

    With rows of another stage of the same length, the curve is that of the loss by the other's.
    """
    curve, transitions = curve_of(rows), dict(transitions_of(rows))
    if beside:
        curve = curve / curve_of(beside)
    edges = [0, *transitions, len(curve)]
    found: dict[str, list[float]] = {place: [] for place in PLACES}
    for before, after in pairwise(rows):
        kind, steps = transitions.get(before.step, "elsewhere"), [before.step]
        if before.kind == after.kind == "sparse" and after.sparsity > before.sparsity + _RISE:
            kind, steps = "rising", list(range(before.step, after.step, AFTER))  # it may be pruned inside an epoch
        for step in steps:
            low, high = max(edge for edge in edges if edge < step), min(edge for edge in edges if edge > step)
            height = _height(curve[max(low, step - BEFORE) : step], curve[step : min(high, step + AFTER)])
            if not np.isnan(height):
                found[kind].append(height)
    return found


def _height(before: np.ndarray, after: np.ndarray) -> float:
    width = min(WIDTH, len(after))
    return float(np.convolve(after, np.ones(width), "valid").max() / width / before.mean() - 1)


# Table


def table(experiment: Experiment) -> tuple[str, list[str], list[list[str]], str] | None:
    """Return the largest spikes of each setting's runs; None if no run has a transition."""
    stages = {one.folder: one.stage(one.main) for one in experiment.runs}
    if not any(map(transitions_of, stages.values())):
        return None
    cells = []
    paired = _is_paired(experiment)
    for entry in experiment.entries:
        measured = []
        for run in entry.group.runs:
            other = _dense_beside(experiment, run) if paired else None
            if paired and other is None:
                continue
            of = spikes(stages[run.folder], stages[other.folder] if other else ())
            if any(of.values()):
                measured.append(of)
        largest = [_largest([of[place] for of in measured]) for place in PLACES]
        cells.append([entry.label, str(len(measured)), *largest])
    header = ["largest spike of the training loss, %", "n", *PLACES.values()]
    return f"{experiment.title}: the loss around transitions", header, cells, _note(experiment)


def _is_paired(experiment: Experiment) -> bool:
    """Return True if the text is read in order, and there is dense training to compare with at the same steps."""
    orders = {(recipe_of(one).data.options or {}).get("order") for one in experiment.runs}
    return orders == {"streams"} and experiment.dense is not None


def _dense_beside(experiment: Experiment, run: Run) -> Run | None:
    """Return dense training over as many steps, other than this run itself: of its seed if there is one."""
    assert experiment.dense is not None
    others = [one for one in experiment.dense.group.runs if one is not run and steps_of(one) == steps_of(run)]
    return min(others, key=lambda one: one.seed != run.seed, default=None)


def _largest(by_run: Sequence[Sequence[float]]) -> str:
    """Format the largest spike of each run, over the runs that have one, and how many spikes it is the largest of."""
    having = [of for of in by_run if of]
    if not having:
        return "–"
    counts = ", ".join(map(str, sorted({len(of) for of in having})))
    return f"{mean_std([max(of) for of in having], digits=1).replace('-', '−')} ({counts})"


def _note(experiment: Experiment) -> str:
    fine = sorted({steps_per_loss(steps_per_epoch(one)) for one in experiment.runs})
    curve = "has every step" if fine == [1] else f"is of means over {' or '.join(map(str, fine))} steps"
    text = (
        f"A spike is the highest mean training loss of {WIDTH} consecutive steps among the {AFTER} after a place, in % "
        f"above the mean of the {BEFORE} steps before it; windows end where another phase begins. The curve {curve}. "
        "Each cell is the largest of a run, mean ± standard deviation over n seeds, and in brackets the number of "
        "places it is the largest of; it is negative where the loss falls at all of them. For methods that prune step "
        f"by step, a compression is where that begins; places while sparsity rises are {AFTER} steps apart. "
        "“Elsewhere” is where all other epochs begin, as transitions do: the noise floor. The largest of many places "
        "is larger than the largest of a few."
    )
    if _is_paired(experiment):
        text += (
            " The text is read in the same order in every pass, with easy and hard parts at the same steps: the loss "
            "is taken relative to that of dense training at the same step (for dense training itself, of another seed)."
        )
    epochs = [row for one in experiment.runs for row in one.stage(one.main)]
    if missing := sum(row.losses is None for row in epochs):
        text += f" {missing:,} of {len(epochs):,} epochs have no loss curve and are left out."
    return text
