"""The standings of methods at each sparsity: accuracy, costs and agreement as means and deviations over seeds.

The console's table, result.json, the page's tables and its figures all read these.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from acdc import formatting as fmt
from acdc.measure.agreement import agreement
from acdc.report import facts
from acdc.report.facts import Model
from acdc.report.groups import Group, Level, levels_of
from acdc.report.read import Run
from acdc.runs.predictions import Kept, why_not_of_same_images


@dataclass(frozen=True)
class Spread:
    """Values over seeds. False if there are none."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Return the sample standard deviation (n − 1); 0 for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __bool__(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A method at one sparsity."""

    group: Group
    level: Level  # the first that it belongs to
    score: Spread  # accuracy or perplexity, by the quality of its runs
    zeros: Spread
    inference: Spread  # FLOPs, as fractions of the dense model's
    training: Spread  # FLOPs, as fractions of dense training over the reference's epochs
    epochs: int
    twin: Spread  # the score of the method's own dense twin, if it has one
    with_twin: Spread  # top-1 agreement of the sparse model and that twin
    with_dense: Spread  # and with the dense run of the same seed; for dense runs, with those of other seeds
    parameters: Spread  # of language models: non-zero ones on average over training
    bits_per_byte: Spread

    @property
    def rank(self) -> float:
        """Return a number that is lower the better the method is, to sort by."""
        return self.group.quality.rank(self.score.mean)

    @property
    def seeds(self) -> list[int | None]:
        """Return the seeds of its runs."""
        return [run.seed for run in self.group.runs]


def reference_epochs(groups: Sequence[Group]) -> int:
    """Return the epochs of the dense training that costs are compared with: the comparison's, or the longest run's."""
    runs = [run for group in groups for run in group.runs]
    epochs = {run.cell.epochs if run.cell else None for run in runs}
    only = epochs.pop() if len(epochs) == 1 else None
    return only if only is not None else max(run.planned for run in runs)


def standings_of(groups: Sequence[Group]) -> list[Standing]:
    """Return the standing of each group: the sparsest first, then the best; dense training last."""
    epochs, agreements = reference_epochs(groups), _agreements(groups)
    level_of = {group.number: level for level in reversed(levels_of(groups)) for group in level.groups}
    standings = [_standing(group, level_of[group.number], epochs, *agreements[group.number]) for group in groups]
    return sorted(standings, key=lambda one: (one.group.is_dense, -(one.level.sparsity or 0), one.rank))


def _standing(group: Group, level: Level, epochs: int, with_twin: Spread, with_dense: Spread) -> Standing:
    def over_seeds(role: str, value: Callable[[Model], float | None]) -> Spread:
        return Spread(tuple(group.values(role, value)))

    training = [
        model.training * run.planned / epochs
        for run in group.runs
        if (model := facts.model_of(run, group.main)) and model.training is not None
    ]
    return Standing(
        group=group,
        level=level,
        score=over_seeds(group.main, lambda model: model.score),
        zeros=over_seeds(group.main, lambda model: model.sparsity),
        inference=over_seeds(group.main, lambda model: model.ratio),
        training=Spread(tuple(training)),
        epochs=group.runs[0].planned,
        twin=over_seeds("twin", lambda model: model.score),
        with_twin=with_twin,
        with_dense=with_dense,
        parameters=over_seeds(group.main, lambda model: model.language and model.language.average_parameters),
        bits_per_byte=over_seeds(group.main, lambda model: model.language and model.language.test.bits_per_byte),
    )


def leaders(standings: Sequence[Standing]) -> list[Standing]:
    """Return the sparse methods that end best, the best first: several if they are too close to tell apart."""
    sparse = [one for one in standings if not one.group.is_dense] or standings
    ranked = sorted(sparse, key=lambda one: one.rank)
    best, first = ranked[0].score.values, ranked[0].group
    return [one for one in ranked if first.quality.indistinguishable(one.score.values, best, first.images)]


def name_leaders(level: Level, standings: Sequence[Standing]) -> str:
    """Return the names of leaders and, if there are several, that they are too close to tell apart."""
    names = fmt.join_names([level.name(one.group) for one in standings])
    return f"{names}, too close to tell apart" if len(standings) > 1 else names


def as_json(standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """Return the contents of a comparison's result.json."""
    return [
        {
            "method": one.group.method,
            "asked": one.group.requested,
            "seeds": one.seeds,
            "epochs": one.epochs,
            "values": list(one.score.values),
            **_mean_and_std(one.group.quality.key, one.score, std="std"),
            **_mean_and_std("sparsity", one.zeros),
            **_mean_and_std("inference", one.inference),
            **_mean_and_std("training", one.training),
            **_mean_and_std(f"twin_{one.group.quality.name.removeprefix('test ')}", one.twin),
            **_mean_and_std("bits_per_byte", one.bits_per_byte),
            **_mean_and_std("average_parameters", one.parameters),
            **_mean_and_std("agreement_with_twin", one.with_twin),
            **_mean_and_std("agreement_with_dense", one.with_dense),
        }
        for one in standings
    ]


def _mean_and_std(name: str, spread: Spread, std: str | None = None) -> dict[str, float | None]:
    """Return the mean and deviation as fields; nothing without values, and no deviation for a single one."""
    several = len(spread.values) > 1
    return {name: spread.mean, std or f"{name}_std": spread.std if several else None} if spread else {}


# Agreement of sparse and dense models: the fraction of test images to which both give the same class


def _agreements(groups: Sequence[Group]) -> dict[int, tuple[Spread, Spread]]:
    """Return, by group number, the agreement with a run's own twin and with the dense run of the same seed.

    The own twin is the dense model of the same run (AC/DC's last dense phase, GMP's dense start). The dense run of the
    same seed has the same initial weights, batches and epochs. For dense training it is each dense run and those of
    other seeds: how much two dense models differ anyway. Of several dense settings the first is the reference, plain
    "dense" before all others.
    """
    dense = [group for group in groups if group.is_dense]
    reference = min(dense, key=lambda group: group.method != "dense", default=None)
    kept = {run.seed: run.kept["baseline"] for run in reference.runs if "baseline" in run.kept} if reference else {}
    among = [_agreement(a, b, groups[0].runs[0].test_images) for a, b in combinations(kept.values(), 2)]
    return {
        group.number: (
            _spread([_within(run, "dense") for run in group.runs]),
            _spread(among if group is reference else _with_dense(group, kept)),
        )
        for group in groups
    }


def _with_dense(group: Group, dense: Mapping[int | None, Kept]) -> list[float | None]:
    shares = []
    for run in group.runs:
        share = _within(run, "baseline")  # trained by the run itself
        if share is None and run.seed in dense:
            own = run.kept.get("baseline" if group.is_dense else "sparse")
            share = _agreement(own, dense[run.seed], run.test_images)
        shares.append(share)
    return shares


def _within(run: Run, other: str) -> float | None:
    return next((pair.top1 for pair in run.pairs if pair.models == ("sparse", other)), None)


def _spread(shares: Sequence[float | None]) -> Spread:
    return Spread(tuple(share for share in shares if share is not None))


def _agreement(a: Kept | None, b: Kept, test: int | None) -> float | None:
    if a is None or why_not_of_same_images(a, b, test):
        return None
    try:
        return agreement(a.logits(), b.logits()).top1
    except ValueError:  # not finite: nothing to compare
        return None
