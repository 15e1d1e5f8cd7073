"""How far sparse models and dense ones name the same class: top-1 agreement on the test images, from kept predictions.

twin     the sparse model and the dense twin that the same run left (AC/DC's last dense phase, GMP's dense start)
dense    the sparse model and the dense run of the same seed: the same initial weights, batches and epochs. For a dense
         run, it and each dense run of another seed: what two dense models differ by anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from acdc.measure.agreement import agreement
from acdc.report.comparison.levels import dense
from acdc.report.read import Run
from acdc.report.several import Group
from acdc.runs.predictions import Kept, why_not_of_same_images


@dataclass(frozen=True)
class Agreed:
    twin: tuple[float, ...]  # a share for each seed that has one
    dense: tuple[float, ...]


def found(groups: Sequence[Group]) -> dict[int, Agreed]:
    """By the groups' numbers. Of several dense settings the first is the reference, plain "dense" before all."""
    plain = min((group for group in groups if dense(group)), key=lambda group: group.method != "dense", default=None)
    known = {run.seed: run.kept["baseline"] for run in plain.runs if "baseline" in run.kept} if plain else {}
    among = [_agree(a, b, groups[0].runs[0].test_images) for a, b in combinations(known.values(), 2)]
    return {
        group.number: Agreed(_with_twin(group), _there(among) if group is plain else _with_dense(group, known))
        for group in groups
    }


def _with_twin(group: Group) -> tuple[float, ...]:
    return _there([_pair(run, "dense") for run in group.runs])


def _with_dense(group: Group, known: Mapping[int | None, Kept]) -> tuple[float, ...]:
    shares = []
    for run in group.runs:
        share = _pair(run, "baseline")  # trained by the run itself
        if share is None and run.seed in known:
            share = _agree(run.kept.get("baseline" if dense(group) else "sparse"), known[run.seed], run.test_images)
        shares.append(share)
    return _there(shares)


def _pair(run: Run, other: str) -> float | None:
    return next((pair.top1 for pair in run.pairs if pair.models == ("sparse", other)), None)


def _there(shares: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(share for share in shares if share is not None)


def _agree(a: Kept | None, b: Kept, test: int | None) -> float | None:
    if a is None or why_not_of_same_images(a, b, test):
        return None
    try:
        return agreement(a.logits(), b.logits()).top1
    except ValueError:  # not finite: nothing to say
        return None
