"""Schedules: the paper's rows, purity of phase_at against a slow reference, and every refusal's words."""

import ast
import copy
import json
import pickle
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import acdc.schedule
from acdc.schedule import Duration, Phase, Schedule

IMAGENET: dict[str, Any] = {
    "warmup": "10ep",
    "sparse": "5ep",
    "dense": "5ep",
    "last_dense": "10ep",
    "final_sparse": "15ep",
    "total": "100ep",
}


def every(start, stop, step):
    return list(range(start, stop + 1, step))


# name, epochs, compress at, decompress at, sparse epochs, dense epochs
PAPER = [
    ("imagenet", 100, [*every(10, 70, 10), 85], [*every(15, 65, 10), 75], 50, 50),
    ("imagenet_150", 150, [*every(10, 120, 10), 135], [*every(15, 115, 10), 125], 75, 75),
    ("imagenet_200", 200, [*every(10, 170, 10), 185], [*every(15, 165, 10), 175], 100, 100),
    ("imagenet_short_dense", 100, every(10, 80, 7), every(15, 78, 7), 70, 30),
    ("imagenet_130_10_10", 130, [10, 30, 50, 70, 90, 110], [20, 40, 60, 80, 100], 70, 60),
    ("imagenet_130_5_10", 130, every(10, 115, 15), every(15, 105, 15), 50, 80),
    ("cifar100_20", 200, [10, 50, 90, 130, 170], [30, 70, 110, 150], 110, 90),
    ("cifar100_14", 225, [10, 43, 76, 109, 142, 175], [30, 63, 96, 129, 162], 150, 75),
    ("cifar100_7", 240, [10, 37, 64, 91, 118, 145, 172], [30, 57, 84, 111, 138, 165], 188, 52),
    ("cifar10_memorization", 200, [10, 50, 90, 130, 170], [30, 70, 110, 150], 110, 90),
    ("transformer_xl", 48, [5, 11, 17, 23, 29, 39], [8, 14, 20, 26, 32], 24, 24),
]


@pytest.mark.parametrize(("name", "epochs", "compress", "decompress", "sparse", "dense"), PAPER)
def test_paper_schedule(name, epochs, compress, decompress, sparse, dense):
    schedule = getattr(Schedule, name)()
    assert schedule.transitions == (tuple(compress), tuple(decompress))
    assert str(schedule.sparse_length) == f"{sparse}ep"
    assert str(schedule.dense_length) == f"{dense}ep"
    assert str(schedule.total) == f"{epochs}ep"
    assert schedule == Schedule.from_transitions(compress=compress, decompress=decompress, total=epochs)
    assert schedule.total_steps(7) == 7 * epochs
    # A transition happens before the first batch of the epoch named.
    for kind, starts in (("sparse", compress), ("dense", decompress)):
        for epoch in starts:
            assert schedule.phase_at(7 * epoch, 7).kind == kind
            assert schedule.phase_at(7 * epoch - 1, 7).kind != kind


def test_named_lists_every_paper_schedule():
    named = Schedule.named()
    assert list(named) == [row[0] for row in PAPER]
    assert all(named[row[0]]() == getattr(Schedule, row[0])() for row in PAPER)
    assert all(constructor.__doc__ for constructor in named.values())


def test_phase_names_are_the_papers():
    phases = Schedule.for_epochs(6).phases
    assert [(phase.kind, phase.index, phase.final, phase.name, str(phase.length)) for phase in phases] == [
        ("dense", 0, False, "warm-up", "1ep"),
        ("sparse", 1, False, "compressed", "1ep"),
        ("dense", 2, False, "decompressed", "1ep"),
        ("sparse", 3, False, "compressed", "1ep"),
        ("dense", 4, False, "decompressed", "1ep"),
        ("sparse", 5, True, "final compressed", "1ep"),
    ]


# Durations


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [("10ep", 10, "ep"), ("500st", 500, "st"), ("10%", 10, "%"), ("2.5ep", Fraction(5, 2), "ep"), ("0ep", 0, "ep")],
)
def test_duration_reads_and_writes(text, value, unit):
    duration = Duration.parse(text)
    assert (duration.value, duration.unit, str(duration)) == (value, unit, text)
    assert Duration.parse(duration) == duration
    assert eval(repr(duration)) == duration


def test_duration_writes_the_shortest_exact_number():
    assert str(Duration.parse("2.50ep")) == "2.5ep"
    third = Duration(Fraction(1, 3), "ep")
    assert str(third) == "1/3ep"
    assert Duration.parse(str(third)) == third
    assert str(Duration(Fraction(10**31 + 1), "st")) == f"{10**31 + 1}st"


WRITE_TEN = 'write "10ep" for epochs, "10st" for optimizer steps or "10%" of the total'


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (10, TypeError, f"warmup=10: a duration needs a unit; {WRITE_TEN}"),
        (True, TypeError, f"warmup=True: a duration needs a unit; {WRITE_TEN}"),
        (None, TypeError, f"warmup=None: a duration needs a unit; {WRITE_TEN}"),
        ("10", ValueError, f"warmup='10': a duration needs a unit; {WRITE_TEN}"),
        ("10 epochs", ValueError, f"warmup='10 epochs': a duration needs a unit; {WRITE_TEN}"),
        ("ten", ValueError, f"warmup='ten': a duration needs a unit; {WRITE_TEN}"),
        ("-10ep", ValueError, f"warmup='-10ep': a duration cannot be negative; {WRITE_TEN}"),
        ("1/0ep", ValueError, "warmup='1/0ep': a duration needs a unit; write \"1ep\" for epochs"),
        (
            "2.5st",
            ValueError,
            "warmup='2.5st': optimizer steps are whole numbers; "
            'write "2.5ep" for epochs, "3st" for optimizer steps or "2.5%" of the total',
        ),
    ],
)
def test_duration_refuses(value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Duration.parse(value, "warmup")
    with pytest.raises(error, match=re.escape(message)):
        Schedule.alternating(**(IMAGENET | {"warmup": value}))


def test_duration_made_by_hand_is_checked_too():
    with pytest.raises(TypeError, match=re.escape("Duration=(10, 'ep'): expected a Fraction and one of")):
        Duration(10, "ep")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=re.escape('write Duration.parse("10ep")')):
        Duration(Fraction(10), "epochs")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="duration='-1ep': a duration cannot be negative"):
        Duration(Fraction(-1), "ep")
    with pytest.raises(ValueError, match=r"duration='0\.5st': optimizer steps are whole"):
        Duration(Fraction(1, 2), "st")


# alternating


def test_alternating_is_the_papers_schedule():
    assert Schedule.alternating(**IMAGENET) == Schedule.imagenet()


def test_alternating_in_percent_equals_epochs_and_steps():
    shares: dict[str, Any] = {
        "warmup": "10%",
        "sparse": "5%",
        "dense": "5%",
        "last_dense": "10%",
        "final_sparse": "15%",
    }
    assert Schedule.alternating(**shares, total="100ep") == Schedule.imagenet()
    assert Schedule.alternating(**{**shares, "sparse": "5ep"}, total="100ep") == Schedule.imagenet()
    steps = Schedule.alternating(**shares, total="1000st")
    assert steps.boundaries() == tuple(10 * end for end in Schedule.imagenet().boundaries(1))
    assert steps.transitions[0] == (100, 200, 300, 400, 500, 600, 700, 850)


def test_alternating_defaults_last_dense_and_takes_no_cycle():
    schedule = Schedule.alternating(warmup="3ep", sparse="2ep", dense="4ep", final_sparse="5ep", total="14ep")
    assert schedule.transitions == ((3, 9), (5,))
    assert str(schedule.dense_length) == "7ep"


def test_cosine_phases_keep_the_sums_and_move_compression_to_the_end():
    """7 pairs of 5 + 5 epochs, the last dense phase 10: −5 cos(π (i + ½) / 7) is −4.9, −3.9, −2.2, 0, 2.2, 3.9, 4.9."""
    even, cosine = Schedule.imagenet(), Schedule.alternating(**IMAGENET, shape="cosine")
    lengths = [int(phase.length.value) for phase in cosine.phases]
    assert lengths == [10, 1, 9, 1, 9, 3, 7, 5, 5, 7, 3, 9, 1, 9, 6, 15]
    for kind in ("dense", "sparse"):
        assert sum(p.length.value for p in cosine.phases if p.kind == kind) == sum(
            p.length.value for p in even.phases if p.kind == kind
        )
    shares = {name: value.replace("ep", "%") for name, value in IMAGENET.items() if name != "total"}
    assert Schedule.alternating(**shares, total="100ep", shape="cosine") == cosine


def test_cosine_leaves_every_phase_a_unit():
    schedule = Schedule.alternating(
        warmup="1ep", sparse="1ep", dense="3ep", final_sparse="2ep", total="15ep", shape="cosine"
    )
    assert [int(phase.length.value) for phase in schedule.phases] == [1, 1, 3, 1, 3, 1, 3, 2]
    with pytest.raises(ValueError, match=r"shape='round'.*write \"even\" or"):
        Schedule.alternating(**IMAGENET, shape="round")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("total", ["8ep", "10ep", "25ep", "20st", "103st", "1000st"])
def test_cosine_takes_phases_that_are_short_or_not_whole(total):
    """Under one epoch there is nothing whole to move, and percentages of steps are rounded as they are when even."""
    shares = {name: value.replace("ep", "%") for name, value in IMAGENET.items() if name != "total"}
    even, cosine = (Schedule.alternating(**shares, total=total, shape=shape) for shape in ("even", "cosine"))
    assert len(cosine.phases) == len(even.phases)
    assert cosine.total == even.total
    early, *_, late = [p.length.value for p in cosine.phases if p.kind == "sparse" and not p.final]
    assert early <= late
    if total.endswith("ep"):
        assert cosine.sparse_length == even.sparse_length
        assert (cosine == even) == (total != "25ep")


def test_alternating_without_warmup_starts_compressed():
    schedule = Schedule.alternating(warmup="0ep", sparse="2ep", dense="2ep", final_sparse="3ep", total="11ep")
    assert schedule.transitions == ((0, 4, 8), (2, 6))
    assert schedule.phases[0].name == "compressed"
    assert schedule.phase_at(0, 1).kind == "sparse"


LAW = "it must equal warmup + n x (sparse + dense) + sparse + last_dense + final_sparse for some whole n >= 0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total": "98ep"}, LAW + ', but n = 6 gives 100ep, 2ep too much; write total="100ep" or final_sparse="13ep"'),
        ({"total": "104ep"}, 'n = 6 gives 100ep, 4ep too little; write total="100ep" or final_sparse="19ep"'),
        ({"total": "30ep"}, 'n = 0 gives 40ep, 10ep too much; write total="40ep" or final_sparse="5ep"'),
        ({"total": "20ep"}, 'n = 0 gives 40ep, 20ep too much; write total="40ep"'),
        ({"final_sparse": "17%"}, 'n = 6 gives 102ep, 2ep too much; write final_sparse="15%"'),
        ({"warmup": "99%"}, "n = 0 gives 129ep, 29ep too much; write shorter phases"),
    ],
)  # fmt: skip
def test_alternating_refuses_what_does_not_sum(change, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Schedule.alternating(**(IMAGENET | change))
    assert str(caught.value).startswith(f"total='{change.get('total', '100ep')}': ")
    for name, value in re.findall(r'(total|final_sparse)="([^"]+)"', str(caught.value)):
        Schedule.alternating(**(IMAGENET | change | {name: value}))  # what the error offers works


def test_alternating_offers_a_final_phase_that_can_exist():
    # n = 1 is nearer, but 26 % cannot be taken from a final phase of 5 %.
    shares: dict[str, Any] = {"warmup": "1%", "sparse": "30%", "dense": "30%", "last_dense": "30%"}
    with pytest.raises(ValueError, match=r'n = 0 gives 66ep, 34ep too little; write final_sparse="39%"$'):
        Schedule.alternating(**shares, final_sparse="5%", total="100ep")
    assert Schedule.alternating(**shares, final_sparse="39%", total="100ep").transitions == ((1, 61), (31,))


@given(
    st.tuples(*[st.integers(1, 30)] * 5),
    st.integers(1, 300),
    st.sampled_from(["ep", "st"]),
)
def test_alternating_sums_or_offers_what_does(lengths, total, unit):
    names = ("warmup", "sparse", "dense", "last_dense", "final_sparse", "total")
    knobs: dict[str, Any] = {name: f"{value}{unit}" for name, value in zip(names, (*lengths, total), strict=True)}
    warm, on, off, last, final = lengths
    fits = [n for n in range(301) if warm + n * (on + off) + on + last + final == total]
    if fits:
        phases = Schedule.alternating(**knobs).phases
        assert [p.length.value for p in phases] == [warm, *[on, off] * fits[0], on, last, final]
        assert [p.kind for p in phases] == ["dense", "sparse"] * (fits[0] + 2)
    else:
        with pytest.raises(ValueError, match="write total=") as caught:
            Schedule.alternating(**knobs)
        for name, value in re.findall(r'(total|final_sparse)="([^"]+)"', str(caught.value)):
            Schedule.alternating(**(knobs | {name: value}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"sparse": "500st"},
            ValueError,
            "sparse='500st': total=\"100ep\" sets the unit; "
            'write it in "ep" or "%", or mix units with Schedule.from_phases',
        ),
        ({"dense": "0ep"}, ValueError, "dense='0ep': only warmup may be zero; write \"1ep\" or more"),
        ({"total": "0ep"}, ValueError, "total='0ep': only warmup may be zero"),
        ({"total": 100}, TypeError, 'total=100: a duration needs a unit; write "100ep" for epochs or "100st" for'),
        ({"total": "100%"}, ValueError, "total='100%': it cannot be a percentage; write \"100ep\" for epochs or"),
        ({"last_dense": 10}, TypeError, "last_dense=10: a duration needs a unit"),
    ],
)
def test_alternating_refuses(change, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Schedule.alternating(**(IMAGENET | change))


# from_transitions


def test_from_transitions_takes_steps_and_a_compressed_start():
    schedule = Schedule.from_transitions(compress=["0st", "700st"], decompress=["500st"], total="1000st")
    assert schedule.transitions == ((0, 700), (500,))
    assert schedule.boundaries() == (500, 700, 1000)
    assert [phase.kind for phase in schedule.phases] == ["sparse", "dense", "sparse"]


@pytest.mark.parametrize(
    ("compress", "decompress", "total", "error", "message"),
    [
        ([10, 30], [20, 40], 50, ValueError, "compress=[10, 30]: training starts dense and ends compressed, so it "
            "needs one entry more than decompress=[20, 40]; add a compress or drop a decompress"),
        ([], [], 50, ValueError, "compress=[]: training starts dense and ends compressed"),
        ([10, 20], [], 50, ValueError, "compress=[10, 20]: training starts dense"),
        ([10, 30], [40], 50, ValueError, "compress=[10, 30]: it must alternate with decompress=[40], rising in one "
            'unit up to total="50ep"; 30ep follows 40ep, so change one of them'),
        ([10, 30], [5], 50, ValueError, "5ep follows 10ep"),
        ([10, 30], [10], 50, ValueError, "10ep follows 10ep"),
        ([10, 60], [40], 50, ValueError, "50ep follows 60ep"),
        ([50], [], 50, ValueError, "50ep follows 50ep"),
        ([10, "30st"], [20], 50, ValueError, "30st follows 20ep"),
        ([-1], [], 50, ValueError, "compress='-1ep': a duration cannot be negative"),
        ([2.5], [], 50, TypeError, "compress=2.5: a duration needs a unit"),
        ([True], [], 50, TypeError, "compress=True: a duration needs a unit"),
        (["10%"], [], 50, ValueError, "compress='10%': it cannot be a percentage"),
        ([10, 30], [20.5], 50, TypeError, "decompress=20.5: a duration needs a unit"),
        ([10], [], 50.0, TypeError, "total=50.0: a duration needs a unit"),
    ],
)  # fmt: skip
def test_from_transitions_refuses(compress, decompress, total, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Schedule.from_transitions(compress=compress, decompress=decompress, total=total)


# from_phases

MIXED = [("dense", "2ep"), ("sparse", "15st"), ("dense", "0.5ep"), ("sparse", "10st")]


def test_from_phases_mixes_units():
    schedule = Schedule.from_phases(MIXED)
    assert schedule.total is None
    assert schedule.boundaries(10) == (20, 35, 40, 50)
    assert schedule.boundaries(100) == (200, 215, 265, 275)
    assert schedule.total_steps(10) == 50


def test_from_phases_checks_a_mixed_total_once_steps_are_known():
    assert Schedule.from_phases(MIXED, total="5ep").boundaries(10)[-1] == 50
    message = "total='6ep': with steps_per_epoch=10 the phases add up to 50st; change a phase, or omit total"
    with pytest.raises(ValueError, match=re.escape(message)):
        Schedule.from_phases(MIXED, total="6ep").boundaries(10)
    needs_epochs = Schedule.from_phases([("dense", "20st"), ("sparse", "30st")], total="5ep")
    assert needs_epochs.boundaries(10) == (20, 50)
    with pytest.raises(TypeError, match="steps_per_epoch=None"):
        needs_epochs.boundaries()


def test_from_phases_reads_percentages():
    schedule = Schedule.from_phases([("dense", "25%"), ("sparse", "75%")], total="10ep")
    assert [str(phase.length) for phase in schedule.phases] == ["2.5ep", "7.5ep"]
    # 10 % of 105 steps ends between two: positions are rounded (halves up), and the sum is exact.
    tenths = Schedule.from_phases([("dense", "10%"), ("sparse", "10%")] * 5, total="105st")
    assert tenths.boundaries() == (11, 21, 32, 42, 53, 63, 74, 84, 95, 105)
    mixed = Schedule.from_phases([("dense", "10%"), ("sparse", "7st"), ("dense", "1ep"), ("sparse", "50%")], "99st")
    assert [str(phase.length) for phase in mixed.phases] == ["10st", "7st", "1ep", "49st"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 10**6), st.sampled_from(["ep", "st"]))
def test_percentages_fall_within_half_a_step_of_their_share(weights, total, unit):
    shares = [Fraction(100 * weight, sum(weights)) for weight in weights]
    assume(unit == "ep" or min(shares) * total >= 100)  # a phase shorter than a step may vanish
    kinds = ["sparse" if (len(shares) - index) % 2 else "dense" for index in range(len(shares))]
    lengths = [Duration(share, "%") for share in shares]
    schedule = Schedule.from_phases(zip(kinds, lengths, strict=True), total=f"{total}{unit}")
    assert str(schedule.total) == f"{total}{unit}"
    ends = schedule.boundaries(None if unit == "st" else 1000)
    steps = total * (1 if unit == "st" else 1000)
    assert ends[-1] == steps
    for index, end in enumerate(ends):
        assert abs(end - sum(shares[: index + 1]) * steps / 100) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("phases", "total", "error", "message"),
    [
        ([], None, ValueError, 'phases=[]: a schedule must end compressed; add a last phase such as ("sparse"'),
        ([("dense", "1ep")], None, ValueError, "phases=['dense']: a schedule must end compressed"),
        ([("dense", "1ep"), ("dense", "1ep"), ("sparse", "1ep")], None, ValueError,
            "phases[1]='dense': kinds must alternate, but phases[0] is dense too; merge the two phases"),
        ([("warm", "1ep"), ("sparse", "1ep")], None, ValueError,
            "phases[0]='warm': there are two kinds of phases; write \"dense\" or \"sparse\""),
        ([("dense", "0ep"), ("sparse", "1ep")], None, ValueError,
            "phases[0]='0ep': the warm-up phase must last some epochs or steps; make it longer or remove it"),
        ([("dense", "0.1%"), ("sparse", "99.9%")], "100st", ValueError, "phases[0]='0st': the warm-up phase must last"),
        ([("dense", "10%"), ("sparse", "1ep")], None, ValueError,
            "phases[0]='10%': a percentage needs a total; add total=\"100ep\""),
        ([("dense", 10), ("sparse", "1ep")], None, TypeError, "phases[0]=10: a duration needs a unit"),
        (["dense"], None, TypeError, "phases[0]='dense': a phase is a pair; write (\"dense\", \"10ep\")"),
        ([("dense", "10ep"), ("sparse", "5ep")], "20ep", ValueError,
            "total='20ep': the phases add up to 15ep; lengthen them by 5ep, or change total"),
        ([("dense", "10ep"), ("sparse", "15ep")], "20ep", ValueError,
            "total='20ep': the phases add up to 25ep; shorten them by 5ep, or change total"),
        ([("dense", "33.3%"), ("sparse", "66.6%")], "100st", ValueError,
            "total='100st': the phases add up to 99.9st; lengthen them by 0.1st"),
        ([("dense", "10ep"), ("sparse", "5ep")], "100%", ValueError, "total='100%': it cannot be a percentage"),
    ],
)  # fmt: skip
def test_from_phases_refuses(phases, total, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Schedule.from_phases(phases, total)


# for_epochs


def test_for_epochs_100_is_imagenet():
    assert Schedule.for_epochs(100) == Schedule.imagenet()


@pytest.mark.parametrize(
    ("epochs", "lengths"),
    [
        (4, [1, 1, 1, 1]),
        (5, [1, 2, 1, 1]),
        (7, [1, 1, 2, 1, 1, 1]),
        (10, [1, 1, 1, 2, 1, 1, 1, 2]),
        (15, [2, *[1] * 9, 2, 2]),
        (50, [5, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 5, 8]),
    ],
)
def test_for_epochs_small(epochs, lengths):
    assert [phase.length.value for phase in Schedule.for_epochs(epochs).phases] == lengths


@given(st.integers(4, 1000))
def test_for_epochs_sums_alternates_and_ends_compressed(epochs):
    phases = Schedule.for_epochs(epochs).phases
    values = [phase.length.value for phase in phases]
    assert sum(values) == epochs
    assert all(value.denominator == 1 and value >= 1 for value in values)
    assert [phase.kind for phase in phases] == ["dense", "sparse"] * (len(phases) // 2)
    assert phases[-1].final
    assert len(phases) <= 16
    assert max(values[1:-2]) - min(values[1:-2]) <= 1
    assert abs(values[0] - epochs / 10) <= 0.6
    assert values[-2] == values[0]
    assert abs(values[-1] - epochs * 0.15) <= 0.5
    assert Schedule.for_epochs(epochs).boundaries(3) == tuple(3 * sum(values[: i + 1]) for i in range(len(values)))


@pytest.mark.parametrize(
    ("epochs", "error"), [(3, ValueError), (0, ValueError), (-5, ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_for_epochs_refuses(epochs, error):
    message = (
        f"epochs={epochs}: expected a whole number, 4 or more; AC/DC needs a warm-up epoch, a compressed "
        "one, a decompressed one and a final compressed one, so write epochs=4 or more"
    )
    with pytest.raises(error, match=re.escape(message)):
        Schedule.for_epochs(epochs)


# From step to phase


def slow_phases(schedule, steps_per_epoch, steps):
    """Walk step by step: a step belongs to the phase that holds its middle; the last phase never ends."""
    per_unit = {"ep": steps_per_epoch, "st": 1}
    index, end = 0, schedule.phases[0].length.value * per_unit[schedule.phases[0].length.unit]
    for step in range(steps):
        while step + Fraction(1, 2) > end and not schedule.phases[index].final:
            index += 1
            end += schedule.phases[index].length.value * per_unit[schedule.phases[index].length.unit]
        yield schedule.phases[index]


quarters_of_epochs = st.integers(1, 12).map(lambda quarters: Duration(Fraction(quarters, 4), "ep"))
some_steps = st.integers(1, 20).map(lambda steps: Duration(Fraction(steps), "st"))


@given(st.lists(quarters_of_epochs | some_steps, min_size=1, max_size=10), st.integers(4, 19), st.data())
def test_phase_at_matches_the_slow_walk(lengths, steps_per_epoch, data):
    kinds = ["sparse" if (len(lengths) - index) % 2 else "dense" for index in range(len(lengths))]
    schedule = Schedule.from_phases(zip(kinds, lengths, strict=True))
    steps = schedule.total_steps(steps_per_epoch) + 5
    expected = list(slow_phases(schedule, steps_per_epoch, steps))
    assert [schedule.phase_at(step, steps_per_epoch) for step in range(steps)] == expected
    # Pure: any order, any other steps_per_epoch in between, a fresh copy, all give the same.
    schedule.boundaries(steps_per_epoch + 1)
    for step in data.draw(st.lists(st.integers(0, steps - 1), max_size=5)):
        assert schedule.phase_at(step, steps_per_epoch) == expected[step]
        assert Schedule.from_dict(schedule.to_dict()).phase_at(step, steps_per_epoch) == expected[step]


def test_boundaries_round_positions_not_lengths():
    schedule = Schedule.from_phases([("dense", "0.5ep"), ("sparse", "0.5ep")] * 3)
    assert schedule.boundaries(3) == (2, 3, 5, 6, 8, 9)
    assert schedule.total_steps(3) == 9


def test_past_the_end_is_the_final_phase():
    schedule = Schedule.imagenet()
    assert schedule.phase_at(10**9, 5).name == "final compressed"
    assert schedule.phase_at(499, 5) is schedule.phase_at(500, 5) is schedule.phases[-1]


def test_step_schedules_need_no_steps_per_epoch():
    schedule = Schedule.from_phases([("dense", "10st"), ("sparse", "20st")])
    assert schedule.boundaries() == schedule.boundaries(None) == schedule.boundaries(7) == (10, 30)
    assert schedule.phase_at(9).kind == "dense"
    assert schedule.phase_at(10).kind == "sparse"
    with pytest.raises(ValueError, match="steps_per_epoch=0: expected a whole number, 1 or more"):
        schedule.boundaries(0)


@pytest.mark.parametrize(
    ("step", "steps_per_epoch", "error", "message"),
    [
        (-1, 5, ValueError, "step=-1: expected a whole number, 0 or more; count training steps from 0"),
        (1.0, 5, TypeError, "step=1.0: expected a whole number, 0 or more"),
        (True, 5, TypeError, "step=True: "),
        (1, None, TypeError, "steps_per_epoch=None: expected a whole number, 1 or more; write"),
        (1, 0, ValueError, "1 or more; write steps_per_epoch=len(loader)"),
        (1, 5.0, TypeError, "steps_per_epoch=5.0: "),
        (1, True, TypeError, "steps_per_epoch=True: "),
    ],
)  # fmt: skip
def test_phase_at_refuses(step, steps_per_epoch, error, message):
    schedule = Schedule.imagenet()
    for steps in (1, 5):  # what was resolved before makes no difference
        schedule.boundaries(steps)
    with pytest.raises(error, match=re.escape(message)):
        schedule.phase_at(step, steps_per_epoch)


def test_a_phase_without_a_step_is_refused_by_name():
    schedule = Schedule.from_phases([("dense", "1ep"), ("sparse", "0.25ep"), ("dense", "1ep"), ("sparse", "1ep")])
    message = "phases[1]='0.25ep': with steps_per_epoch=1 this compressed phase has no steps; write \"1st\" or more"
    with pytest.raises(ValueError, match=re.escape(message)):
        schedule.boundaries(1)
    assert schedule.boundaries(4) == (4, 5, 9, 13)


# The object


def test_mixed_units_have_no_single_length():
    schedule = Schedule.from_phases(MIXED)
    message = "units=['ep', 'st']: this needs a single unit; use boundaries(steps_per_epoch), which accepts any"
    for read in ("unit", "dense_length", "sparse_length", "transitions"):
        with pytest.raises(ValueError, match=re.escape(message)):
            getattr(schedule, read)


def test_fractional_transitions_stay_exact():
    schedule = Schedule.from_phases([("dense", "2.5ep"), ("sparse", "2.5ep"), ("dense", "1ep"), ("sparse", "1ep")])
    assert schedule.transitions == ((Fraction(5, 2), 6), (5,))
    assert schedule.unit == "ep"


def test_an_invalid_schedule_cannot_be_made_by_hand():
    dense, sparse = Schedule.from_phases([("dense", "1ep"), ("sparse", "1ep")]).phases
    for phases in ((sparse, dense), (dense, dense), (sparse,), ("sparse",)):
        with pytest.raises(TypeError, match=r"phases\[0\]=|phases\[1\]=") as caught:
            Schedule(phases)  # pyright: ignore[reportArgumentType]
        assert "Schedule builds its own phases; use Schedule.from_phases" in str(caught.value)
    with pytest.raises(ValueError, match="a schedule must end compressed"):
        Schedule((Phase("dense", dense.length, 0, final=True),))
    with pytest.raises(ValueError, match="the final compressed phase must last some epochs or steps"):
        Schedule((Phase("sparse", Duration.parse("100%"), 0, final=True),))
    with pytest.raises(ValueError, match="the phases add up to 2ep"):
        Schedule((dense, sparse), Duration.parse("3ep"))
    with pytest.raises(AttributeError):
        Schedule.imagenet().total = None  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule.imagenet(),
        Schedule.from_phases(MIXED),
        Schedule.from_phases(MIXED, total="5ep"),
        Schedule.from_phases([("dense", Duration(Fraction(1, 3), "ep")), ("sparse", "2.5ep")]),
        Schedule.from_transitions(compress=[0], decompress=[], total=10),
    ],
)
def test_round_trips(schedule):
    schedule.boundaries(10)  # a resolved schedule is the same schedule
    state = json.loads(json.dumps(schedule.to_dict()))
    copies = [Schedule.from_dict(state), pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)]
    for other in [*copies, eval(repr(schedule), {"Schedule": Schedule})]:
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert other.boundaries(10) == schedule.boundaries(10)
    assert schedule != Schedule.for_epochs(99)


def test_to_dict_is_plain_and_from_dict_refuses_the_rest():
    assert Schedule.for_epochs(4).to_dict() == {
        "phases": [["dense", "1ep"], ["sparse", "1ep"], ["dense", "1ep"], ["sparse", "1ep"]],
        "total": "4ep",
    }
    for state in ({}, {"phases": []}, {"phases": [], "total": None, "more": 1}, [["sparse", "1ep"]]):
        with pytest.raises(ValueError, match="expected the keys phases and total; pass what to_dict"):
            Schedule.from_dict(state)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the phases add up to 1ep"):
        Schedule.from_dict({"phases": [["sparse", "1ep"]], "total": "2ep"})


# Drawing


def test_str_draws_the_timeline():
    assert str(Schedule.imagenet()) == (
        "schedule: 100 epochs, 50 dense, 50 compressed, 8 compressions\n"
        "░░░░░░███░░░███░░░███░░░███░░░███░░░███░░░███░░░░░░█████████\n"
        "0     10 15 20 25 30 35 40 45 50 55 60 65 70 75    85\n"
        "░ dense  █ compressed  (numbers: first epoch of each phase)"
    )


def test_str_of_steps_mixed_units_and_crowds():
    steps = Schedule.from_transitions(compress=["1000st", "3000st"], decompress=["2000st"], total="4000st")
    assert str(steps).splitlines() == [
        "schedule: 4,000 steps, 2,000 dense, 2,000 compressed, 2 compressions",
        "░" * 18 + "█" * 18 + "░" * 18 + "█" * 18,
        "0" + " " * 17 + "1,000" + " " * 13 + "2,000" + " " * 13 + "3,000",
        "░ dense  █ compressed  (numbers: first step of each phase)",
    ]
    assert str(Schedule.from_phases(MIXED)).splitlines() == [
        "schedule: 4 phases in mixed units, 2 compressions",
        "░" * 18 + "█" * 18 + "░" * 18 + "█" * 18,
        "2ep" + " " * 15 + "15st" + " " * 14 + "0.5ep" + " " * 13 + "10st",
        "░ dense  █ compressed  (numbers: length of each phase, not to scale)",
    ]
    late = Schedule.from_phases(
        [("dense", "900000st"), ("sparse", "20000st"), ("dense", "20000st"), ("sparse", "60000st")]
    )
    assert str(late).splitlines()[1:3] == ["░" * 45 + "█░███", "0" + " " * 46 + "940,000"]
    crowd = Schedule.alternating(warmup="100ep", sparse="1ep", dense="1ep", final_sparse="100ep", total="400ep")
    _, bar, _, legend = str(crowd).splitlines()
    assert bar == "░" * 18 + "▒" * 36 + "█" * 18
    assert "▒ both, too short to draw" in legend


@given(st.integers(4, 1000))
def test_str_fits_and_its_labels_stand_where_phases_start(epochs):
    schedule = Schedule.for_epochs(epochs)
    header, bar, ruler, _ = str(schedule).splitlines()
    assert header.startswith(f"schedule: {epochs:,} epochs, {schedule.dense_length.value} dense, ")
    assert 36 < len(bar) <= 72
    assert len(re.findall("█+", bar)) == sum(phase.kind == "sparse" for phase in schedule.phases)
    edges = [0, *(match.start() for match in re.finditer("(?<=░)█|(?<=█)░", bar))]
    starts = [0, *schedule.boundaries(1)[:-1]]
    label_at = dict(zip(edges, starts, strict=True))
    labels = {match.start(): match[0] for match in re.finditer(r"\S+", ruler)}
    assert all(f"{label_at[column]:,}" == label for column, label in labels.items())
    assert {"0", f"{starts[-1]:,}"} <= set(labels.values())


@pytest.mark.parametrize("module", ["schedule", "schedules"])
def test_only_the_standard_library_is_imported(module):
    source = Path(acdc.schedule.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    assert imported
    pure = {"acdc.errors", "acdc.schedule", "acdc.schedules"}
    assert {name.split(".")[0] for name in imported - pure} <= sys.stdlib_module_names
