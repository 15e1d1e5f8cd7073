"""What AC/DC chooses by itself: phases by epochs and steps, the rise of the sparsity, and what it says of them."""

import copy
import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import acdc
from acdc.core.context import MethodContext
from acdc.core.optimizers import combine
from acdc.errors import ArgumentError
from acdc.methods._choice import LONG, RECOVERY, SHORT, choose
from acdc.methods._rise import Rise, is_watched, watch_rate
from tests.warned import SMALL_NETS


def lengths(method: acdc.ACDC) -> list[str]:
    return [f"{phase.kind} {phase.length}" for phase in method.schedule.phases]


# Phases


@pytest.mark.parametrize(
    ("epochs", "phases"),
    [
        (10, ["dense 1ep", "sparse 2ep", "dense 1ep", "sparse 6ep"]),
        (20, ["dense 2ep", "sparse 2ep", "dense 1ep", "sparse 2ep", "dense 1ep", "sparse 12ep"]),
        (100, ["dense 10ep", "sparse 10ep", "dense 5ep", "sparse 10ep", "dense 5ep", "sparse 60ep"]),
    ],
)
def test_phases_of_runs_with_steps_enough(epochs: int, phases: list[str]) -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=epochs)
    assert lengths(method) == phases, "before the number of steps is known"
    assert lengths(method.for_steps(10_000)) == phases


HALVES = [
    (3, ["dense 0.3ep", "sparse 0.3ep", "dense 0.15ep", "sparse 0.3ep", "dense 0.15ep", "sparse 1.8ep"]),
    (4, ["dense 0.5ep", "sparse 0.5ep", "dense 0.5ep", "sparse 2.5ep"]),
    (5, ["dense 0.5ep", "sparse 1ep", "dense 0.5ep", "sparse 3ep"]),
]


@pytest.mark.parametrize(("epochs", "phases"), HALVES)
def test_phases_are_of_parts_of_an_epoch_where_there_are_few(epochs: int, phases: list[str]) -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=epochs)
    assert lengths(method.for_steps(400)) == phases
    assert lengths(method.for_steps(400, whole_epochs=True)) == ["dense 1ep", f"sparse {epochs - 1}ep"]


@pytest.mark.parametrize("epochs", [2, 3, 4, 5, 6, 9])
def test_a_dense_phase_ends_with_an_epoch_where_the_best_twin_is_kept(epochs: int) -> None:
    schedule = acdc.ACDC(sparsity=0.9, epochs=epochs, twin="best").for_steps(101).schedule
    assert any(schedule.phase_at(epoch * 101 - 1, 101).kind == "dense" for epoch in range(1, epochs + 1))


@pytest.mark.parametrize(
    ("steps", "epochs"), [(LONG - 100, 10), (LONG, 20), (20_000, 20), (30_000, 13), (40_000, 10), (10**6, 10)]
)
def test_the_first_compression_waits_for_dense_steps(steps: int, epochs: int) -> None:
    """For 4,000 of them, but a tenth of the run at least, and a fifth at most; short runs do not wait."""
    assert lengths(acdc.ACDC(sparsity=0.9, epochs=100).for_steps(steps // 100))[0] == f"dense {epochs}ep"


def test_few_epochs_are_cut_into_twentieths() -> None:
    phases = ["dense 0.1ep", "sparse 0.1ep", "dense 0.05ep", "sparse 0.1ep", "dense 0.05ep", "sparse 0.6ep"]
    assert lengths(acdc.ACDC(sparsity=0.9, epochs=1).for_steps(10**5)) == phases


def test_fewer_steps_make_fewer_cycles() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=20)
    assert [len(method.for_steps(steps).schedule.phases) for steps in (RECOVERY, RECOVERY - 1, 10)] == [6, 4, 2]


@given(
    st.integers(1, 300),
    st.integers(1, 2000),
    st.none() | st.floats(0, 1, exclude_max=True),
    st.none() | st.integers(0, 20),
    st.booleans(),
)
def test_any_length_has_phases_that_fit(
    epochs: int, steps: int, begin: float | None, cycles: int | None, late: bool
) -> None:
    assume(epochs * steps > 1)
    choice = choose(epochs, steps, begin=begin, cycles=cycles, late=late)
    schedule = choice.schedule
    assert schedule.boundaries(steps)[-1] == epochs * steps, "and no phase is without a step"
    assert choice.late is None if not late else isinstance(choice.late, bool)
    assert schedule.total is not None
    assert schedule.total.value == epochs
    assert schedule.phases[-1].kind == "sparse"
    assert schedule.phases[0].length.value / epochs < choice.rise, "the sparsity has time to rise"
    decompressed = [phase for phase in schedule.phases if phase.name == "decompressed"]
    assert len(decompressed) in (choice.cycles, choice.cycles + late)
    parts = {phase.length.value.denominator for phase in schedule.phases}
    assert epochs <= 3 or parts <= ({1} if epochs > 9 else {1, 2}), "whole epochs, if that is a tenth of the run"
    if cycles is None and choice.cycles:
        assert all(phase.length.value * steps >= RECOVERY - 1 for phase in decompressed[: choice.cycles])


def test_a_late_dense_phase_that_was_asked_for_may_be_short() -> None:
    phases = choose(24, 17, begin=None, cycles=None, late=True).schedule.phases
    assert [float(phase.length.value) * 17 for phase in phases if phase.name == "decompressed"] == [51, 34]


def test_cycles_can_be_asked_for() -> None:
    assert len(acdc.ACDC(sparsity=0.9, epochs=100, cycles=4).for_steps(2).schedule.phases) == 10
    assert lengths(acdc.ACDC(sparsity=0.9, epochs=100, cycles=0)) == ["dense 10ep", "sparse 90ep"]


def test_the_first_dense_phase_can_be_asked_for() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=100, begin=0.2).for_steps(400)
    assert lengths(method) == ["dense 20ep", "sparse 7ep", "dense 3ep", "sparse 7ep", "dense 3ep", "sparse 60ep"]
    assert method.rise == 0.75
    late = acdc.ACDC(sparsity=0.9, epochs=100, begin=0.8).for_steps(400)
    assert (lengths(late), late.rise) == (["dense 80ep", "sparse 20ep"], 0.9)


def test_a_late_dense_phase_is_paid_for_by_twin() -> None:
    plain, late = (acdc.ACDC(sparsity=0.9, epochs=100, twin=twin).for_steps(400) for twin in ("last", "late"))
    assert lengths(late) == [*lengths(plain)[:-1], "sparse 35ep", "dense 10ep", "sparse 15ep"]
    assert late.twin == "last"


# The words


def test_two_lines_say_what_was_chosen_and_why() -> None:
    what, why = acdc.ACDC(sparsity=0.9, epochs=100).for_steps(400).choices_made()
    assert what.startswith("AC/DC over 100 epochs: dense up to epoch 10; decompressed at epoch 20, 35; ")
    assert "sparsity rising to 0.9 by epoch 75" in what
    assert "ACDC.paper" in why
    _, why = acdc.ACDC(sparsity=0.9, epochs=100).for_steps(5).choices_made()
    assert why.startswith("Why: 1 decompression, as a dense phase of 25 steps ends before the loss has recovered, ")
    _, why = acdc.ACDC(sparsity=0.9, epochs=10).for_steps(400).choices_made()
    assert why.startswith("Why: 1 decompression, as 10 epochs leave no room for more")
    _, why = acdc.ACDC(sparsity=0.9, epochs=4).for_steps(1).choices_made()
    assert why.startswith("Why: gradual pruning alone, as 4 epochs leave no room for more")


def test_a_given_schedule_says_nothing() -> None:
    assert acdc.ACDC.paper(0.9, epochs=100).for_steps(400).choices_made() == ()


def attach(method: acdc.ACDC, *, quiet: bool = False) -> acdc.Sparsifier:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return acdc.attach(model, optimizer, method, steps_per_epoch=2, quiet=quiet)


def test_attach_prints_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    sparsifier = attach(acdc.ACDC(sparsity=0.5, epochs=4))
    assert capsys.readouterr().err.splitlines() == list(sparsifier.choices)
    assert len(sparsifier.choices) == 2
    attach(acdc.ACDC(sparsity=0.5, epochs=4), quiet=True)
    attach(acdc.ACDC.paper(0.5, epochs=4))
    assert capsys.readouterr().err == ""


# The paper's

PRUNED = acdc.Schedule.from_phases([("dense", "2ep"), ("sparse", "2ep")])


def test_the_paper_is_one_word_away() -> None:
    paper = acdc.ACDC.paper(0.9, epochs=100)
    assert paper == acdc.ACDC(sparsity=0.9, schedule=acdc.Schedule.imagenet())
    assert paper == acdc.ACDC.paper(0.9, schedule="imagenet")
    assert paper == acdc.ACDC(sparsity=0.9, schedule="imagenet")
    assert (paper.rise, paper.ramp, paper.reset, paper.gradual, paper.revive) == (0, 0, "momentum", False, False)
    assert not {"cycles", "rise", "ramp", "own_timesteps"} & set(paper.config()), "checkpoints of before still fit"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "epochs=None: it needs either epochs or a schedule, and received neither"),
        ({"epochs": 9, "schedule": "imagenet"}, "epochs=9: it needs either epochs or a schedule, and received both"),
        ({"epochs": 3}, "so write epochs=4 or more"),
        ({"schedule": "imagent"}, "schedule='imagent': .*did you mean imagenet"),
        (
            {"schedule": "imagenet", "cycles": 2},
            "cycles=2: a schedule has its own phases, .*omit cycles or schedule",
        ),
        (
            {"schedule": "imagenet", "begin": 0.2},
            "begin=0.2: a schedule has its own phases, .*omit begin or schedule",
        ),
        ({"schedule": "imagenet", "twin": "late"}, "twin='late': a schedule has its own phases"),
        (
            {"schedule": "imagenet", "rise": 0.05},
            "rise=0.05: schedule compresses for the first time after 10% of the run",
        ),
        ({"schedule": "imagenet", "rise": 0.5, "gradual": True}, "rise=0.5: gradual=True raises the sparsity"),
        ({"schedule": PRUNED, "ramp": 0.5}, "ramp=0.5: .*weights that come back, and schedule has no decompression"),
        ({"schedule": PRUNED, "own_timesteps": True}, "own_timesteps=True: .*schedule has no decompression"),
        ({"schedule": PRUNED, "revive": True}, "revive=True: .*schedule has no decompression; omit revive or schedule"),
        ({"schedule": PRUNED, "gradual": True}, "gradual=True: it raises the sparsity .*schedule has no decompression"),
        (
            {"schedule": "imagenet", "floor": 0.5, "distribution": "erk"},
            "floor=0.5: distribution='erk' gives each layer its own share, .*omit floor or distribution",
        ),
        ({"schedule": "imagenet", "floor": 75}, "floor=75: expected a fraction of a layer's"),
        ({"schedule": "imagenet", "rise": 2}, "rise=2: expected a fraction of the run"),
        ({"schedule": "imagenet", "ramp": -1}, "ramp=-1: expected a fraction of a dense phase"),
        ({"schedule": "imagenet", "ease": 1.5}, "ease=1.5: expected a fraction of a compressed phase"),
    ],
)
def test_refusals(knobs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        acdc.ACDC.paper(0.9, **knobs)


@pytest.mark.parametrize("knob", [{"ramp": 0.3}, {"own_timesteps": True}, {"revive": True}, {"gradual": True}])
def test_remedies_of_decompressions_are_refused_where_none_is_wanted(knob: dict) -> None:
    (name,) = knob
    with pytest.raises(ArgumentError, match=rf"{name}=.*cycles=0 has no decompression; omit {name} or cycles"):
        acdc.ACDC(sparsity=0.9, epochs=20, cycles=0, **knob)
    assert len(acdc.ACDC(sparsity=0.9, epochs=20, cycles=0, twin="late", **knob).for_steps(100).schedule.phases) == 4
    plain = acdc.ACDC(sparsity=0.9, epochs=20, cycles=0)
    assert dataclasses.replace(plain, sparsity=0.8) == acdc.ACDC(sparsity=0.8, epochs=20, cycles=0)


def test_a_run_too_short_to_decompress_prunes_gradually_whatever_was_wanted() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=20, gradual=True, revive=True, own_timesteps=True)
    short, long = method.for_steps(10), method.for_steps(1000)
    assert (short.gradual, short.revive, short.own_timesteps, short.ramp, short.rise) == (False, False, False, 0, 0.6)
    assert (long.gradual, long.revive, long.own_timesteps, long.ramp, long.rise) == (True, True, True, 0.2, 0)
    assert "sparsity rising to 0.9 from compression to compression" in long.choices_made()[0]
    assert "; own_timesteps and revive have no effect without a decompression. " in short.choices_made()[1]
    assert "no effect" not in long.choices_made()[1]
    _, why = acdc.ACDC(sparsity=0.9, epochs=4, revive=True).for_steps(10).choices_made()
    assert "; revive has no effect without a decompression. " in why


def test_a_run_of_a_few_steps_has_phases_of_steps() -> None:
    assert lengths(acdc.ACDC(sparsity=0.9, epochs=1).for_steps(3)) == ["dense 1/3ep", "sparse 2/3ep"]
    assert lengths(acdc.ACDC(sparsity=0.9, epochs=2).for_steps(1)) == ["dense 1ep", "sparse 1ep"]
    with pytest.raises(ArgumentError, match=r"epochs=1: with steps_per_epoch=1 .* one step.*; write epochs=2"):
        acdc.ACDC(sparsity=0.9, epochs=1).for_steps(1)
    with pytest.raises(ArgumentError, match="steps_per_epoch=0: expected a whole number, 1 or more"):
        acdc.ACDC(sparsity=0.9, epochs=1).for_steps(0)


def test_what_became_of_a_late_phase_is_said() -> None:
    _, why = acdc.ACDC(sparsity=0.9, epochs=2, twin="late").for_steps(10).choices_made()
    assert why.startswith("Why: no early decompression, as a dense phase of 2 steps ends")
    _, why = acdc.ACDC(sparsity=0.9, epochs=2, twin="late").for_steps(5).choices_made()
    assert "as a dense phase of 1 step ends before the loss has recovered, about 50 steps; " in why
    assert "; the late one is for the twin" in why
    _, why = acdc.ACDC(sparsity=0.9, epochs=4, twin="late").for_steps(1).choices_made()
    assert "; twin='late' found no room in 4 epochs" in why


def test_all_but_long_runs_keep_layers_above_a_floor() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=20)
    short, long = method.for_steps(LONG // 20 - 1), method.for_steps(LONG // 20)
    assert (short.floor, long.floor) == (0.75, 0.0)
    assert acdc.ACDC(sparsity=0.9, epochs=20, floor=None) == method, "None is chosen"
    assert "; no layer below 75% of what distribution='erk' gives it" in short.choices_made()[0]
    assert "in so short a run magnitudes still show the initialisation" in short.choices_made()[1]
    assert "no layer below" not in long.choices_made()[0]
    assert method.for_steps(None).floor == 0
    assert (acdc.ACDC(sparsity=0.9, epochs=20, floor=0.5).for_steps(10**4)).floor == 0.5
    assert acdc.ACDC(sparsity=0.9, epochs=20, floor=0.0).for_steps(10).floor == 0
    assert acdc.ACDC.paper(0.9, epochs=20).for_steps(10).floor == 0


@pytest.mark.parametrize(
    ("knobs", "floor"),
    [
        ({"sparsity": 0.9}, 0.75),
        ({"sparsity": 0.9, "distribution": {"fc": {"uniform": 0.5}}}, 0.75),  # the other layers are ranked together
        ({"sparsity": 0.9, "distribution": "uniform"}, 0),
        ({"sparsity": 0.9, "distribution": {"fc": 0.5}}, 0),
        ({"pattern": acdc.NM(2, 4)}, 0),
    ],
)
def test_a_floor_is_chosen_where_layers_are_ranked_together(knobs: dict, floor: float) -> None:
    assert acdc.ACDC(epochs=20, **knobs).for_steps(10).floor == floor
    if not floor:
        with pytest.raises(ArgumentError, match=r"floor=0\.5: .* gives e.* its own share"):
            acdc.ACDC(epochs=20, floor=0.5, **knobs)


def test_tiles_have_a_floor_only_if_asked_for() -> None:
    knobs: dict[str, Any] = {"sparsity": 0.9, "epochs": 20, "pattern": acdc.Block(4, 4)}
    assert acdc.ACDC(**knobs).for_steps(10).floor == 0
    assert acdc.ACDC(**knobs, floor=0.5).for_steps(10).floor == 0.5


def test_a_pattern_of_one_sparsity_does_not_rise() -> None:
    assert acdc.ACDC(pattern=acdc.NM(2, 4), epochs=20).rise == 0
    with pytest.raises(ValueError, match=r"rise=0\.5: NM\(n=2, m=4\) has one sparsity only; omit rise"):
        acdc.ACDC(pattern=acdc.NM(2, 4), epochs=20, rise=0.5)
    with pytest.raises(ValueError, match=r"ease=0\.5: NM\(n=2, m=4\) has one sparsity only; omit ease"):
        acdc.ACDC(pattern=acdc.NM(2, 4), epochs=20, ease=0.5)


def test_replacing_a_knob_keeps_the_choice_open() -> None:
    method = dataclasses.replace(acdc.ACDC(sparsity=0.9, epochs=100), sparsity=0.8)
    assert method == acdc.ACDC(sparsity=0.8, epochs=100)
    assert len(method.for_steps(2).schedule.phases) == 2


# The rise


def test_a_rise_that_ends_before_it_begins_is_refused_in_words_of_what_was_given() -> None:
    with pytest.raises(ArgumentError, match=r"rise=0\.05: the first compression comes after 10%.*lower begin"):
        acdc.ACDC(sparsity=0.9, epochs=20, rise=0.05)


def test_a_short_run_has_more_of_its_steps_at_the_target() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=10)
    assert [method.for_steps(steps).rise for steps in (None, SHORT // 10, SHORT // 10 - 1)] == [0.75, 0.75, 0.6]
    assert acdc.ACDC(sparsity=0.9, epochs=10, rise=0.5).for_steps(5).rise == 0.5


def test_only_a_short_run_has_a_late_end_of_the_rise() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=20)
    short, long = method.for_steps(74), method.for_steps(75)
    assert (short.late_rise, long.late_rise) == (0.85, 0)
    assert "sparsity rising to 0.9 by epoch 12, or 17 under a constant learning rate;" in short.choices_made()[0]
    assert "learning rate" not in long.choices_made()[0]
    knobs: list[dict[str, Any]] = [{"rise": 0.5}, {"late_rise": 0.0}, {"begin": 0.8}, {"late_rise": 0.95}]
    assert [acdc.ACDC(sparsity=0.9, epochs=20, **k).for_steps(10).late_rise for k in knobs] == [0, 0, 0, 0.95]
    assert acdc.ACDC(sparsity=0.9, epochs=20, gradual=True).for_steps(2).late_rise == 0.85, "nothing is gradual there"
    assert acdc.ACDC.paper(0.9, epochs=20).for_steps(10).late_rise == 0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rise": 0.6, "late_rise": 0.5}, r"late_rise=0\.5: .* the usual one ends at rise=0\.6; raise or omit it"),
        ({"rise": 0.0, "late_rise": 0.5}, r"late_rise=0\.5: rise=0 is no rise that could end later; omit late_rise"),
        ({"gradual": True, "late_rise": 0.5}, r"late_rise=0\.5: gradual=True leaves no rise"),
        ({"late_rise": 85}, "late_rise=85: expected a fraction of the run"),
        ({"sparsity": None, "pattern": acdc.NM(2, 4), "late_rise": 0.9}, "late_rise=0.9: .*omit late_rise"),
    ],
)
def test_refusals_of_a_late_end(knobs: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        acdc.ACDC(**{"sparsity": 0.9, "epochs": 20, **knobs})


RISING = acdc.Schedule.from_phases([("dense", "10st"), ("sparse", "90st")])


LATE = acdc.ACDC(sparsity=0.9, schedule=RISING, rise=0.6, late_rise=0.85)


def shares(rate: Callable[[int], float], *, bias: bool = False) -> list[float]:
    """Return the sparsity in each of 100 steps, relative to the target, under a rate that is set before each."""
    return [sparsity / 0.9 for sparsity in sparsities(LATE, 100, rate=rate, bias=bias)]


def one_cycle(step: int) -> float:
    return 0.1 * min((step + 1) / 30, (100 - step) / 70)


@pytest.mark.parametrize(
    ("rate", "end"),
    [
        (lambda _: 0.1, 85),
        (lambda step: 0.1 * min(1, (step + 1) / 8), 85),  # after a short warm-up
        (lambda step: 0.1 if step < 50 else 0.01, 85),  # at a quarter nobody knows
        (one_cycle, 60),
        (lambda step: 0.1 * min(1, step / 20), 60),  # after a long one: such rates fall later
        (lambda step: 0.1 * (1 - step / 100), 60),
        (lambda step: 0.1 * 0.5 ** (step // 10), 60),
        (lambda step: 0.1 * min(1, (step + 1) / 15) * (1 - step / 100), 60),  # rising when compression begins
        (lambda _: 0.0, 60),
    ],
)
def test_the_rise_ends_late_under_a_constant_rate(rate: Callable[[int], float], end: int) -> None:
    seen, looks = shares(rate), range(9, 27, 2)  # after each step before one with new masks

    def rise(step: int, end: int) -> float:
        return 1 - (1 - min(1, max(0, step - 10) / (end - 10))) ** 3

    for step in range(12, 100, 2):  # masks are taken in every second one
        rates = [rate(look) for look in looks if look < step]
        constant = rates[0] > 0 and min(rates) > 0.995 * max(rates)
        assert seen[step] == pytest.approx(rise(step, 85 if constant else 60), abs=2e-3), step
    assert seen == sorted(seen), "no weight comes back"
    assert seen[end] == pytest.approx(1, abs=1e-3)
    assert end == 60 or seen[60] < 0.98


@pytest.mark.parametrize("begin", [5, 20, 25, 50])
def test_one_cycle_and_a_falling_rate_are_told_from_a_constant_one_whenever_compression_begins(begin: int) -> None:
    phases = acdc.Schedule.from_phases([("dense", f"{begin}st"), ("sparse", f"{100 - begin}st")])
    method = acdc.ACDC(sparsity=0.9, schedule=phases, rise=0.6, late_rise=0.85)
    assert sparsities(method, 100)[60] < 0.895
    for rate in (one_cycle, lambda step: 0.1 * (1 - step / 100)):
        assert sparsities(method, 100, rate=rate)[60] == pytest.approx(0.9, abs=2e-3)


def test_rates_of_all_groups_count_and_one_that_is_missing_or_0_is_not_constant() -> None:
    assert shares(lambda _: 0.1, bias=True)[60] < 0.98
    assert shares(lambda step: 0.1 * (1 - step / 100), bias=True)[60] == pytest.approx(1, abs=1e-3)
    rise, memory = Rise(10, 60, 85, 2, decided=25), dict[str, Any]()
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    (group,) = optimizer.param_groups
    del group["lr"]
    watch_rate(memory, optimizer, last=False)
    assert (rise.end_of(memory), is_watched(memory)) == (60, False)
    memory.clear()
    group["lr"] = 0.1
    watch_rate(memory, optimizer, last=True)
    assert (rise.end_of(memory), is_watched(memory)) == (60, False), "one look tells nothing"
    memory.clear()
    for rate, last, end in ((torch.tensor(0.1), False, 85), (0.1, False, 85), (0.1, True, 85)):
        group["lr"] = rate
        watch_rate(memory, optimizer, last=last)
        assert (rise.end_of(memory), is_watched(memory)) == (end, not last)


@pytest.mark.parametrize("several", [False, True])
def test_a_rate_with_a_scheduler_is_not_constant(several: bool) -> None:
    """It may fall by steps, later than at a quarter of the run."""
    parts = [torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(1 + several)]

    def end() -> int:
        memory = dict[str, Any]()
        for last in (False, True):
            watch_rate(memory, combine(parts), last=last)
        return Rise(10, 60, 85, 2, decided=25).end_of(memory)

    assert end() == 85
    torch.optim.lr_scheduler.MultiStepLR(parts[-1], [50])
    assert end() == 60
    parts[-1].step = lambda closure=None: None  # pyright: ignore[reportAttributeAccessIssue]
    assert end() == 60, "Accelerate replaces the step that the scheduler had wrapped"


@given(st.integers(2, 60), st.floats(0.02, 0.98), st.floats(0.02, 1), st.integers(0, 99), st.integers(1, 30))
@example(10, 0.2, 0.85, 20, 30)
@example(10, 0.15, 0.85, 20, 30)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
def test_the_target_is_reached_whenever_the_rate_falls(
    first: int, rise: float, late: float, falls: int, each: int
) -> None:
    """Also if it falls after the usual end of the rise, or before the last look at it."""
    assume(first / 100 < rise < late)
    phases = acdc.Schedule.from_phases([("dense", f"{first}st"), ("sparse", f"{100 - first}st")])
    method = acdc.ACDC(sparsity=0.9, schedule=phases, rise=rise, late_rise=late)
    seen = sparsities(method, 100, rate=lambda step: 0.01 if step < falls else 0.001, each=each)
    assert seen[-1] == pytest.approx(0.9, abs=1e-3)


def test_gradients_are_gathered_for_compressions_that_come() -> None:
    """Where the rate has fallen none comes at the late end, which a phase of dense training may hide."""
    phases = acdc.Schedule.from_phases([("dense", "40st"), ("sparse", "200st"), ("dense", "100st"), ("sparse", "60st")])
    criterion = acdc.criteria.Saliency(steps=5)
    method = acdc.ACDC(sparsity=0.9, schedule=phases, rise=0.4, late_rise=0.7, criterion=criterion)
    gathered = {}
    for late in (0.0, 0.7):
        seen = list[int]()

        class Counts(acdc.criteria.Saliency):
            def observe(self, context: MethodContext, seen: list[int] = seen) -> None:
                seen.append(context.step)
                super().observe(context)

        counting = dataclasses.replace(method, late_rise=late, criterion=Counts(steps=5))
        sparsities(counting, 400, rate=lambda step: 1e-3 * (1 - step / 400))
        gathered[late] = seen
    assert gathered[0.7] == gathered[0.0]
    assert gathered[0.0][-5:] == [*range(335, 340)]


def test_a_resumed_run_knows_whether_the_rate_was_constant() -> None:
    """Also one that stopped between the first look at the rate and the decision."""
    for rate in (lambda _: 0.1, one_cycle, lambda step: 0.1 * (1 - step / 100)):
        whole = sparsities(LATE, 100, rate=rate)
        for stop in (1, 15, 25, 26, 27, 30, 32, 60):
            assert sparsities(LATE, 100, rate=rate, stop=stop) == whole, stop


def sparsities(
    method: acdc.ACDC,
    steps: int,
    *,
    rate: Callable[[int], float] = lambda _: 0.1,
    bias: bool = False,
    stop: int | None = None,
    each: int | None = None,
) -> list[float]:
    """Return the sparsity after each step, of `each` to an epoch.

    At `stop` all is built anew, and goes on from what was saved.
    """

    def build() -> tuple[nn.Linear, torch.optim.Optimizer, acdc.Sparsifier]:
        torch.manual_seed(0)
        model = nn.Linear(50, 50, bias=bias)
        groups = [{"params": [param], "lr": 0.1} for param in model.parameters()]
        optimizer = torch.optim.SGD(groups)
        return model, optimizer, acdc.attach(model, optimizer, method, steps_per_epoch=each, quiet=True)

    (model, optimizer, sparsifier), seen = build(), list[float]()
    for step in range(steps):
        if step == stop:
            states = copy.deepcopy([part.state_dict() for part in (model, optimizer, sparsifier)])
            sparsifier.detach()
            model, optimizer, sparsifier = build()
            for part, state in zip((model, optimizer, sparsifier), states, strict=True):
                part.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        model(torch.randn(4, 50)).square().sum().backward()
        optimizer.step()
        seen.append(sparsifier.sparsity)
    assert sparsifier.finish().sparsity == pytest.approx(method.sparsity, abs=1e-3)
    return seen


def test_the_sparsity_rises_with_time_also_inside_phases() -> None:
    """From step 2 on, at the target from step 8 on: s · (1 − (1 − (t − 2) / 6)³)."""
    phases = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "3st"), ("dense", "1st"), ("sparse", "6st")])
    seen = sparsities(acdc.ACDC(sparsity=0.9, schedule=phases, rise=8 / 12), 12)
    expected = [0.9 * (1 - (1 - max(0, t - 2) / 6) ** 3) if t < 8 else 0.9 for t in range(12)]
    expected[0] = expected[1] = 0
    for step in (2, 3, 4, 6, 7, 8, 9, 11):
        assert seen[step] == pytest.approx(expected[step], abs=1e-3), step
    assert seen[5] < 0.1 < seen[4], "decompressed"


def test_a_compression_that_is_eased_takes_its_weights_in_ten_parts() -> None:
    """Of 40 compressed steps the first half: after every second one s · (1 − (1 − t / 10)³), t = 1 at its first."""
    phases = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "40st"), ("dense", "3st"), ("sparse", "5st")])
    method = acdc.ACDC(sparsity=0.9, schedule=phases, ease=0.5)
    seen = sparsities(method, 50)
    for step in range(40):
        taken = min(10, step // 2 + 1)
        assert seen[2 + step] == pytest.approx(0.9 * (1 - (1 - taken / 10) ** 3), abs=1e-3), step
    assert seen[42] < seen[41], "decompressed: outputs that kept a weight get others back"
    final = [0.9 * (1 - (1 - taken / 2) ** 3) for taken in (1, 2)]  # two steps are half of five
    assert seen[45:] == pytest.approx([final[0], *[final[1]] * 4], abs=1e-3)
    steps = [step for step in range(50) if method.next_compression(None, step, {}) == step]
    assert steps == [*range(2, 22, 2), 45, 46]


def test_easing_and_rising_multiply() -> None:
    phases = acdc.Schedule.from_phases([("dense", "4st"), ("sparse", "16st")])
    rising, eased = (acdc.ACDC(sparsity=0.9, schedule=phases, rise=0.8, ease=ease) for ease in (0.0, 0.5))
    for step in range(4, 20):
        factor = 1 - (1 - min(8, step - 3) / 8) ** 3
        assert eased._path(None).share(step, {}) == rising._path(None).share(step, {}) * factor
    assert (
        "each compression eased into over 20% of its phase"
        in acdc.ACDC(sparsity=0.9, epochs=20, ease=0.2).for_steps(500).choices_made()[0]
    )


def test_masks_are_taken_forty_times_at_most_where_an_epoch_is_long() -> None:
    method = acdc.ACDC(sparsity=0.9, epochs=1).for_steps(4000)
    steps = [step for step in range(4000) if method.next_compression(4000, step, {}) == step]
    assert steps[0] == 400
    assert steps[-1] == 3000
    assert {later - one for one, later in pairwise(steps)} <= {100, 200, 300}
    assert all(method.schedule.phase_at(step, 4000).kind == "sparse" for step in steps)


@SMALL_NETS
@pytest.mark.parametrize("epochs", [1, 2, 5, 12])
def test_the_default_trains_to_its_target_at_any_length(epochs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    each = 60 // epochs
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=epochs), steps_per_epoch=each)
    for _ in range(epochs * each):
        images = torch.randn(8, 20)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), images[:, :4].argmax(1)).backward()
        optimizer.step()
    result = sparsifier.finish()
    assert result.sparsity == pytest.approx(0.9, abs=1e-3)
    assert result.dense is not None


# Loops that are shorter or longer than was said


def loop(steps: int) -> acdc.Sparsifier:
    sparsifier = attach(acdc.ACDC(sparsity=0.5, epochs=10), quiet=True)
    for _ in range(steps):
        sparsifier._optimizer.step()
    return sparsifier


@pytest.mark.filterwarnings("ignore:the start of a phase was noticed only:acdc.SparsityWarning")
def test_steps_per_epoch_that_is_wrong_by_a_factor_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"finish\(\) at step 1 of 20.* it took 1/20 of the steps planned"):
        loop(1).finish()
    with pytest.raises(RuntimeError, match=r"it took 90.00% of the steps planned; call finish\(early=True\)"):
        loop(18).finish()
    with pytest.raises(RuntimeError, match=r"it took 1/2 of .* write steps_per_epoch=1, not 2"):
        loop(10).finish()
    with pytest.warns(acdc.SparsityWarning, match=r"it took 3 times the steps planned.* steps_per_epoch=6, not 2"):
        loop(60).finish()
    loop(20).finish()
