"""Spikes of the training loss at transitions, on curves whose spikes are known by hand."""

from collections.abc import Sequence

import pytest
from benchmarks.language_spikes import AFTER, BEFORE, WIDTH, curve_of, spikes, transitions_of

from acdc.runs.records import EpochRow, LanguageEpoch, TextScore
from acdc.schedule import Kind


def row(
    epoch: int, losses: Sequence[float] | None, kind: Kind = "dense", steps: int = 300, sparsity: float = 0.0
) -> EpochRow:
    score = TextScore(perplexity=2.0, tokens=10)
    language = LanguageEpoch(test=score, tokens_per_second=1.0, parameters=1, average_parameters=1.0)
    return EpochRow(run="acdc", epoch=epoch, step=(epoch + 1) * steps, phase=kind, kind=kind, loss=2.0, test_loss=2.0,
                    sparsity=sparsity, flops=1, lr=0.1, seconds=1.0, eval_seconds=0.1, language=language,
                    losses=None if losses is None else tuple(losses))  # fmt: skip


def test_a_spike_is_the_highest_mean_of_ten_steps_by_the_fifty_before() -> None:
    """300 steps are 100 points of 3: 17 of them are the 50 steps before, 50 the 150 after."""
    assert (BEFORE, WIDTH, AFTER) == (50, 10, 150)
    warm_up = [9.0] * 83 + [2.0] * 17
    narrow = [2.0] * 20 + [12.0] + [2.0] * 29 + [100.0] * 50  # three steps at 12; 100 comes too late
    found = spikes([row(0, warm_up), row(1, narrow, "sparse")])
    assert found["compression"] == [pytest.approx((3 * 12 + 7 * 2) / 10 / 2 - 1)]
    assert found["decompression"] == []
    broad = [3.0] * 10 + [2.0] * 90
    assert spikes([row(0, warm_up), row(1, broad, "sparse")])["compression"] == [pytest.approx(0.5)]
    falling = [1.5] * 100
    assert spikes([row(0, warm_up), row(1, falling, "sparse")])["compression"] == [pytest.approx(-0.25)]


def test_an_epochs_last_point_may_have_fewer_steps() -> None:
    """250 steps are 83 points of 3 and one of 1: the next epoch still begins where it does."""
    kinds: tuple[Kind, ...] = ("dense", "sparse", "dense")
    rows = [row(epoch, [1.0 + epoch] * 83 + [5.0], kind, 250) for epoch, kind in enumerate(kinds)]
    curve = curve_of(rows)
    assert len(curve) == 750
    assert [*curve[247:252]] == [1, 1, 5, 2, 2]
    assert transitions_of(rows) == [(250, "compression"), (500, "decompression")]
    before = (49 * 1 + 5) / 50
    assert spikes(rows)["compression"] == [pytest.approx(2 / before - 1)]


def test_windows_end_where_another_phase_begins() -> None:
    """Of 30 steps each, shorter than both windows: what a phase does is not said of its neighbours."""
    rows = [
        row(0, [50.0] * 30, "sparse", 30),
        row(1, [2.0] * 30, "dense", 30),
        row(2, [3.0] * 30, "sparse", 30),
        row(3, [40.0] * 30, "dense", 30),
    ]
    found = spikes(rows)
    assert found["compression"] == [pytest.approx(0.5)]
    assert found["decompression"] == [pytest.approx(2 / 50 - 1), pytest.approx(40 / 3 - 1)]


def test_the_noise_floor_is_the_same_statistic_where_other_epochs_begin() -> None:
    """The end of a text that is read in order may be easier than its beginning, whether or not a phase begins there."""
    text = [4.0] * 50 + [2.0] * 50  # of every epoch
    rows = [row(epoch, text, "dense" if epoch < 3 else "sparse", 100) for epoch in range(5)]
    assert spikes(rows) == {"compression": [1.0], "decompression": [], "rising": [], "elsewhere": [1.0] * 3}
    flat = [row(epoch, [2.0] * 100, "dense", 100) for epoch in range(5)]
    flat[2] = row(2, [2.0] * 30 + [4.0] * 10 + [2.0] * 60, "dense", 100)
    assert spikes(flat)["elsewhere"] == [pytest.approx(1.0), pytest.approx(1.0), 0.0, 0.0], "150 steps reach the next"
    assert spikes(flat[:1])["elsewhere"] == []


def test_places_where_the_sparsity_rises_cover_their_epochs() -> None:
    """It rises in the third epoch alone, which is pruned after 180 of its steps: seen from the place at 150."""
    shares = (0.5, 0.5, 0.8, 0.8005, 0.8005)
    rows = [row(epoch, [2.0] * 100, "sparse", 300, share) for epoch, share in enumerate(shares)]
    rows[2] = row(2, [2.0] * 60 + [3.0] * 10 + [2.0] * 30, "sparse", 300, 0.8)
    found = spikes(rows)
    assert found["rising"] == [0.0, pytest.approx(0.5)]
    assert found["elsewhere"] == [0.0] * 3


def test_epochs_without_a_curve_are_left_out() -> None:
    flat = [2.0] * 100
    rows = [row(0, flat), row(1, None, "sparse"), row(2, flat), row(3, [3.0] * 100, "sparse")]
    found = spikes(rows)
    assert found["compression"] == [pytest.approx(0.5)], "of the two, the one with losses on both sides"
    assert found["decompression"] == []
    nothing = spikes([row(0, None), row(1, None, "sparse")])
    assert not any(nothing.values())
    assert not any(spikes([]).values())


def test_hard_parts_of_a_text_are_no_spikes_beside_training_on_the_same_text() -> None:
    hard = [2.0] * 10 + [4.0] * 20 + [2.0] * 70
    dense = [row(0, [2.0] * 100), row(1, hard)]
    ours = [row(0, [3.0] * 100), row(1, [1.5 * loss for loss in hard], "sparse")]
    assert spikes(ours)["compression"] == [pytest.approx(1.0)]
    assert spikes(ours, dense)["compression"] == [pytest.approx(0.0)]
    worse = [ours[0], row(1, [3.0] * 100, "sparse")]
    assert spikes(worse, dense)["compression"] == [pytest.approx(0.0)], "less than the text's own is none"
    jump = [ours[0], row(1, [1.5 * loss + 0.3 * (index < 10) for index, loss in enumerate(hard)], "sparse")]
    assert spikes(jump, dense)["compression"] == [pytest.approx(0.1)]
