"""A schedule drawn as a line of text."""

import math
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from acdc.duration import number, round_half_up

if TYPE_CHECKING:
    from acdc.schedule import Schedule


def draw(schedule: "Schedule") -> str:
    """Title, bar, ruler and legend; the bar is to scale where all phases share a unit."""
    phases, compressions = schedule.phases, sum(phase.kind == "sparse" for phase in schedule.phases)
    if len({phase.length.unit for phase in phases}) > 1:
        edges = [Fraction(edge) for edge in range(len(phases) + 1)]
        labels = [str(phase.length) for phase in phases]
        title, legend = f"{len(phases)} phases in mixed units", "length of each phase, not to scale"
    else:
        word = "epoch" if schedule.unit == "ep" else "step"
        edges = list(accumulate((phase.length.value for phase in phases), initial=Fraction(0)))
        values = (*edges, schedule.dense_length.value, schedule.sparse_length.value)
        *labels, total, dense, sparse = (f"{int(v):,}" if v.denominator == 1 else number(v) for v in values)
        title, legend = f"{total} {word}s, {dense} dense, {sparse} compressed", f"first {word} of each phase"
    title += f", {compressions} compression{'s' if compressions > 1 else ''}"

    exact = math.lcm(*((edge / edges[-1]).denominator for edge in edges))  # with so many columns nothing is rounded
    width = 72 // exact * exact or 72
    columns = [round_half_up(edge * width / edges[-1]) for edge in edges]
    crowded = any(left == right for left, right in pairwise(columns))
    bar = ""
    for phase, (start, end), (left, right) in zip(phases, pairwise(edges), pairwise(columns), strict=True):
        hidden = crowded and (end - start) * width < edges[-1]
        bar += ("▒" if hidden else "█" if phase.kind == "sparse" else "░") * (right - left)
    hint = "▒ both, too short to draw  " if crowded else ""

    ruler = [" "] * 100
    for label, left in [(labels[-1], columns[-2]), *zip(labels, columns, strict=False)]:  # the last one always shows
        right = left + len(label)
        if not "".join(ruler[max(0, left - 1) : right + 1]).strip():
            ruler[left:right] = label
    legend = f"░ dense  █ compressed  {hint}(numbers: {legend})"
    return f"schedule: {title}\n{bar}\n{''.join(ruler).rstrip()}\n{legend}"
