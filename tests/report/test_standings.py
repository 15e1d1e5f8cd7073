"""Methods x sparsities x seeds: seeds are one group, sparsities are levels, and numbers are means over seeds."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from acdc.report import group_tables
from acdc.report.groups import Group, group_runs, levels_of
from acdc.report.read import Comparisons, expand, log_end, read_runs
from acdc.report.standings import Spread, Standing, as_json, leaders, name_leaders, standings_of
from acdc.runs.json_files import RecordError
from tests.report.comparisons import EPOCHS, METHODS, make_comparison


def groups_in(out: Path) -> list[Group]:
    return group_runs(read_runs(expand([out])))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("comparison") / "c")


@pytest.fixture(scope="module")
def made(out: Path) -> list[Standing]:
    return standings_of(groups_in(out))


def test_a_method_at_a_sparsity_is_one_group_of_its_seeds(out: Path) -> None:
    found = groups_in(out)
    assert len(found) == 2 + 2 * (len(METHODS) - 2), "dense and STR once, the others at both sparsities"
    assert {len(group.runs) for group in found} == {3}
    assert [group.label for group in found[:4]] == [
        "dense",
        "AC/DC, 90 % sparse",
        "AC/DC, 95 % sparse",
        "GMP, 90 % sparse",
    ]
    assert {group.name for group in found} >= {"dense", "AC/DC", "STR", "Top-KAST"}


def test_str_is_one_group_though_every_seed_has_other_zeros(made: list[Standing]) -> None:
    (row,) = [row for row in made if row.group.name == "STR"]
    assert row.group.requested is None
    assert len({*row.zeros.values}) == 3
    assert row.zeros.std > 0
    assert row.level.sparsity == 0.9, "91.3 % is near 90 %"
    assert row.level.name(row.group) == "STR (91.3 %)"


def test_levels_are_the_sparsities_asked_for_and_dense_is_in_all(out: Path) -> None:
    low, high = levels_of(groups_in(out))
    assert (low.sparsity, high.sparsity) == (0.9, 0.95)
    assert low.title == "90 % zeros"
    assert [group.name for group in low.groups][-1] == [group.name for group in high.groups][-1] == "dense"
    assert len(low.groups) == len(high.groups) + 1


def test_zeros_near_none_asked_for_are_a_level_of_their_own(tmp_path: Path) -> None:
    found = groups_in(make_comparison(tmp_path / "c", ["rigl", "str"], [0.5], [0]))
    assert [level.sparsity for level in levels_of(found)] == [0.5, None]


def test_without_any_sparsity_there_is_one_level(tmp_path: Path) -> None:
    (only,) = levels_of(groups_in(make_comparison(tmp_path / "c", ["dense"], [0.5], [0, 1])))
    assert only.sparsity is None


def test_numbers_are_means_over_seeds(made: list[Standing]) -> None:
    row = next(row for row in made if (row.group.method, row.group.requested) == ("rigl", 0.9))
    assert row.score.mean == pytest.approx(statistics.fmean(row.score.values))
    assert row.score.std == pytest.approx(0.002)
    assert row.inference.mean == pytest.approx(0.1)
    assert row.training.mean == pytest.approx(0.1 + 0.75 * 0.9 / 100 / 3), "every 100th step needs all gradients"
    dpf = next(row for row in made if (row.group.method, row.group.requested) == ("dpf", 0.9))
    assert dpf.training.mean == pytest.approx((2 * 0.1 + 1) / 3), "and here every one does"
    acdc = next(row for row in made if (row.group.method, row.group.requested) == ("acdc", 0.9))
    assert acdc.training.mean == pytest.approx(0.55), "half of the epochs are dense"
    assert (made[0].level.sparsity, made[-1].group.name) == (0.95, "dense")


def test_agreement_is_with_the_own_twin_and_with_the_dense_run_of_the_seed(made: list[Standing]) -> None:
    of = {(row.group.method, row.group.requested): row for row in made}
    assert of["acdc", 0.9].with_twin.values == pytest.approx([0.95] * 3)
    assert of["acdc", 0.9].with_dense.values == pytest.approx([0.9] * 3)
    assert of["rigl", 0.95].with_dense.values == pytest.approx([0.8] * 3)
    assert not of["rigl", 0.95].with_twin
    dense = of["dense", None].with_dense.values
    assert len(dense) == 3, "three pairs of three seeds"
    assert max(dense) < 0.3, "logits of other seeds are other numbers here"
    table = group_tables.method_agreement(made)
    assert table is not None
    told = {(cells[0], cells[1]): cells for cells in table.rows}
    assert told["AC/DC", "90.00"][2:4] == ["95.00 ± 0.00", "90.00 ± 0.00"]
    assert told["RigL", "95.00"][2] == "–"
    assert "the same class" in table.note


def test_without_dense_training_there_is_only_the_twin(tmp_path: Path) -> None:
    made = standings_of(groups_in(make_comparison(tmp_path / "c", ["acdc", "rigl"], [0.9], [0])))
    assert [(bool(row.with_twin), bool(row.with_dense)) for row in made] == [(True, False), (False, False)]
    table = group_tables.method_agreement(made)
    assert table is not None
    assert [cells[0] for cells in table.rows] == ["AC/DC"]


def test_a_variant_is_a_method_of_its_own(tmp_path: Path) -> None:
    settings = {"faster": ("acdc", ["optimizer.lr=0.3"]), "slower": ("acdc", ["optimizer.lr=0.01"])}
    found = groups_in(make_comparison(tmp_path / "c", ["acdc", "dense"], [0.9], [0, 1], settings))
    assert [(group.label, len(group.runs)) for group in found] == [
        ("AC/DC", 2),
        ("dense", 2),
        ("faster", 2),
        ("slower", 2),
    ]
    told = {row[0]: row[1] for row in group_tables.own_settings(found).rows}
    assert "optimizer.lr = 0.3" in told["faster"]
    assert "optimizer.lr" not in [row[0] for row in group_tables.shared_settings(found).rows]


def test_json_has_what_the_table_has(made: list[Standing]) -> None:
    told = {(one["method"], one["asked"]): one for one in json.loads(json.dumps(as_json(made)))}
    acdc = told["acdc", 0.9]
    assert acdc["std"] == pytest.approx(0.002)
    assert acdc["agreement_with_twin"] == pytest.approx(0.95)
    assert acdc["seeds"] == [0, 1, 2]
    assert "agreement_with_twin" not in told["rigl", 0.9]


def test_the_table_has_mean_and_deviation_and_every_cost(made: list[Standing]) -> None:
    table = group_tables.methods(made)
    assert table.sortable
    first = dict(zip(table.header, table.rows[0], strict=True))
    assert first["method"] == "AC/DC"
    assert first["test accuracy, %"] == "93.57 ± 0.20"
    assert first["inference FLOPs"] == "0.050x"
    assert first["seeds"] == "3"
    zeros = {cells[0]: cells[1] for cells in table.rows}
    assert zeros["STR"] == "91.30 ± 0.30"
    assert f"{EPOCHS} epochs of dense training" in table.note


def test_leaders_share_the_lead_where_they_are_too_close_to_tell_apart(tmp_path: Path) -> None:
    """Methods of these comparisons stand 0.4 points apart, and seeds have a deviation of 0.2."""
    three = standings_of(groups_in(make_comparison(tmp_path / "c", ["acdc", "gmp", "dense"], [0.9], [0, 1, 2])))
    assert name_leaders(three[0].level, leaders(three)) == "AC/DC"
    one = standings_of(
        groups_in(make_comparison(tmp_path / "one", ["acdc", "gmp", "dense"], [0.9], [0]))
    )  # of 400 images
    assert name_leaders(one[0].level, leaders(one)) == "AC/DC and GMP, too close to tell apart"
    spread = replace(three[1], score=Spread(tuple(value + 0.003 for value in three[1].score.values)))
    assert [row.group.method for row in leaders([spread, three[0]])] == ["acdc", "gmp"]
    assert name_leaders(three[0].level, three[:1] * 5) == "AC/DC, AC/DC and 3 others, too close to tell apart"


def test_a_folder_that_is_no_comparison_has_no_cells(tmp_path: Path) -> None:
    assert Comparisons().cell_of(tmp_path / "run") is None
    (tmp_path / "run").mkdir()
    (tmp_path / "comparison.json").write_text('{"recipe": "digits", "epochs": 12, "cells": {"other": {}}}')
    with pytest.raises(RecordError, match=r"comparison\.json: cells\.other\.variant is missing"):
        Comparisons().cell_of(tmp_path / "run")
    assert log_end(tmp_path / "run") == ""
    (tmp_path / "run.log").write_text("begun\nacdc: no room\n\n")
    assert log_end(tmp_path / "run") == "; its log ends: acdc: no room"
