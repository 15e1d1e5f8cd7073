"""Numbers and names as people read them."""

import statistics

import pytest

from acdc import formatting as fmt


@pytest.mark.parametrize(
    ("value", "other", "said"),
    [
        (0.7812, 0.7834, "0.2 points below it"),
        (0.9625, 0.98, "1.7 points below it"),
        (0.981, 0.98, "0.1 points above it"),
        (0.98, 0.9803, "level with it"),
    ],
)
def test_a_gap_is_that_of_the_numbers_shown(value: float, other: float, said: str) -> None:
    assert fmt.gap(value, other, "it") == said


@pytest.mark.parametrize(
    ("values", "others", "images", "level"),
    [
        ([0.9925], [0.99], 400, True),  # one image
        ([0.96], [0.985], 400, False),
        ([0.7812], [0.7834], 10_000, True),
        ([0.7812], [0.7934], 10_000, False),
        ([0.7812], [0.7834], None, False),  # nobody said how many images
        ([0.98, 0.99], [0.975, 0.985], 400, True),  # one deviation apart at most
        ([0.980, 0.981], [0.975, 0.976], 400, False),
        ([0.980, 0.981], [0.975], 400, True),  # of the one there is only one seed
    ],
)
def test_accuracies_are_level_where_seeds_or_images_tell_no_more(
    values: list[float], others: list[float], images: int | None, level: bool
) -> None:
    assert fmt.indistinguishable(values, others, images) == level
    uncertainty = fmt.uncertainty(values, others, images)
    said = fmt.gap(
        statistics.fmean(values), statistics.fmean(others), "it", uncertainty=uncertainty, limited_by="so little"
    )
    assert (said == "level with it, as far as so little can tell") == level


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(99.25, 1, "99.3"), (98.75, 1, "98.8"), (100 * 0.9925, 1, "99.3"), (0.5, 0, "1"), (99.949, 1, "99.9")],
)
def test_halves_are_rounded_up(value: float, digits: int, said: str) -> None:
    assert fmt.fixed(value, digits) == said


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (0.02, "<0.1"), (0.13, "0.1"), (0.96, "1"), (24.5, "25")])
def test_a_small_bar_is_not_said_to_be_0(value: float, said: str) -> None:
    assert fmt.bar_label(value) == said
    assert fmt.short_percent(0.0002) == "<0.1 %"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (11902350336, "11.9 GFLOPs"),
        (134_070, "134 kFLOPs"),
        (999, "999 FLOPs"),
        (1.73e9, "1.73 GFLOPs"),
        (0, "0 FLOPs"),
        (432, "432 FLOPs"),
        (1.7e9, "1.7 GFLOPs"),
        (999_960, "1 MFLOPs"),
    ],
)
def test_large_numbers_get_a_prefix(value: float, said: str) -> None:
    assert fmt.si(value, "FLOPs") == said


def test_seeds_of_one_run_have_no_spread() -> None:
    assert fmt.mean_std([0.9]) == "90.00"
    assert fmt.mean_std([0.9, 0.92]) == "91.00 ± 1.41"
    assert fmt.mean_std([]) == "–"


@pytest.mark.parametrize(("digits", "said"), [(2, "12 G"), (3, "11.9 G"), (4, "11.9 G"), (5, "11.902 G")])
def test_digits_that_count(digits: int, said: str) -> None:
    assert fmt.si(11_902_350_336, digits=digits) == said
    assert fmt.si(432, digits=digits) == "432", "no digit before the point is rounded away"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0123, "12 ms"),
        (0.25, "0.25 s"),
        (9.96, "10 s"),
        (75, "75 s"),
        (99.6, "100 s"),
        (3600, "60 min"),
        (7500, "2 h 05 min"),
        (200_000, "2 days"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, said: str) -> None:
    assert fmt.duration(seconds) == said


def test_names_are_joined_as_in_a_sentence() -> None:
    assert fmt.join_names(["RigL"]) == "RigL"
    assert fmt.join_names(["RigL", "SET", "GMP"]) == "RigL, SET and GMP"
    assert fmt.join_names(["RigL", "SET", "GMP", "STR"]) == "RigL, SET and 2 others"
    assert fmt.shorten("layer1.0.conv1", 6) == "…conv1"
    assert fmt.capitalize("at 90 % RigL") == "At 90 % RigL"


def test_a_line_does_not_end_between_a_number_and_its_unit() -> None:
    said = "90 % of 1.7 GFLOPs, 3 points and 2 runs"
    assert fmt.keep_units_together(said) == "90\u00a0% of 1.7\u00a0GFLOPs, 3\u00a0points and 2 runs"
