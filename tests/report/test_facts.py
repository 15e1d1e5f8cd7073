"""Numbers of a report, against those worked out by hand."""

import json
from pathlib import Path

import pytest
import torch

from acdc.io import write_safetensors
from acdc.recipes import load
from acdc.report import facts, tables
from acdc.report.read import read
from acdc.report.reproduce import changed_settings, commands
from acdc.sparsity import packed
from tests.report.runs import DENSE, LAYERS, change_config, make_run, recipe_of

KEPT = Path(__file__).parents[2] / "results" / "runs" / "cifar100-wrn28-10-cifar100_20-90-seed0"


def test_training_flops_follow_the_paper_s_rule(run: Path) -> None:
    found = read(run)
    rows = found.stage("acdc")
    by_hand = 0.0
    for row in rows:
        by_hand += 3 * row.flops if row.kind == "sparse" else 2 * row.flops + DENSE
    sparse = facts.model_of(found, "sparse")
    assert sparse is not None
    assert sparse.training == pytest.approx(by_hand / (3 * DENSE * 12))
    baseline = facts.model_of(found, "baseline")
    assert baseline is not None
    assert baseline.training == pytest.approx(1.0)


def test_epochs_with_smaller_images_cost_their_share(run: Path) -> None:
    before = facts.model_of(read(run), "baseline")
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row |= {"image_size": 4, "size_share": 0.25} if row["run"] == "dense" and row["epoch"] < 6 else {}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    after = facts.model_of(read(run), "baseline")
    assert before is not None
    assert after is not None
    assert (before.training, after.training) == (pytest.approx(1.0), pytest.approx(0.625))


def test_the_twin_costs_what_came_before_it_and_fine_tuning_what_follows(run: Path) -> None:
    found = read(run)
    twin, tuned, sparse = (facts.model_of(found, role) for role in ("twin", "finetuned", "sparse"))
    assert twin is not None
    assert tuned is not None
    assert sparse is not None
    epochs = len(found.stage("finetune"))
    assert twin.training is not None
    assert tuned.training == pytest.approx(twin.training + epochs * (2 * 0.9 + 1) / 3 / 12)
    assert sparse.training == pytest.approx(twin.training + epochs * 0.1 / 12)


def sparse_weights() -> dict[str, torch.Tensor]:
    """A tenth of the weights of each layer, and a norm that stays dense."""
    keep = {name: torch.arange(size) % 10 == 0 for name, size in LAYERS.items()}
    return {name: torch.where(mask, torch.ones(len(mask)).cumsum(0), 0.0) for name, mask in keep.items()} | {
        "norm": torch.arange(1.0, 101)
    }


def test_without_files_sizes_follow_from_the_counts(run: Path) -> None:
    sparse = facts.model_of(read(run), "sparse")
    assert sparse is not None
    size = sum(LAYERS.values())
    assert sparse.dense_bytes == 4 * (size + 100)  # 100 norm parameters, by the paper's count of zeros
    assert sparse.sparse_bytes == 4 * (size // 10 + 100) + 587  # entropy: 0.469 bits for each of 10,000 places


def test_a_plain_file_is_measured_and_its_packed_size_worked_out(run: Path) -> None:
    write_safetensors({run / "sparse.safetensors": sparse_weights()})
    sparse = facts.model_of(read(run), "sparse")
    assert sparse is not None
    assert sparse.dense_bytes == 40_400
    assert sparse.sparse_bytes == 40_400 - 4 * 9000 + 587


def test_a_packed_file_is_measured_as_such(run: Path) -> None:
    packed.save(sparse_weights(), run / "sparse.safetensors")
    sparse = facts.model_of(read(run), "sparse")
    assert sparse is not None
    assert sparse.dense_bytes == 40_400
    assert sparse.sparse_bytes == (run / "sparse.safetensors").stat().st_size < 8_000


def test_a_damaged_file_gives_what_the_counts_say(run: Path) -> None:
    (run / "sparse.safetensors").write_bytes(bytes(6_000))
    sparse = facts.model_of(read(run), "sparse")
    assert sparse is not None
    assert sparse.dense_bytes == 40_400


def test_phases_are_those_of_the_metrics(run: Path) -> None:
    found = facts.phases(read(run))
    assert found[0].name == "warm-up"
    assert found[-1].name == "final compressed"
    assert found[-1].last == 11
    assert all(phase.end is not None for phase in found)
    assert [one.last + 1 for one in found[:-1]] == [other.first for other in found[1:]]


def test_of_a_run_that_is_not_complete_the_last_of_each_kind_counts(run: Path) -> None:
    (run / "result.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[: 12 + 6]) + "\n")
    found = {model.role: model for model in facts.models(read(run))}
    assert set(found) == {"baseline", "sparse", "twin"}
    assert "epoch" in found["sparse"].title
    assert found["sparse"].training is None


def test_the_kept_run_stands_beside_the_paper() -> None:
    found = read(KEPT)
    sparse = facts.model_of(found, "sparse")
    assert sparse is not None
    assert sparse.training == pytest.approx(0.5145, abs=1e-4)
    assert sparse.ratio == pytest.approx(0.1455, abs=1e-4)
    rows = {what: (ours, theirs) for what, ours, theirs, _ in facts.paper_rows(found)}
    assert rows["sparse model, last epoch (%)"] == (pytest.approx(78.12), 79.1)
    assert rows["sparse model, best epoch on the test set (%)"] == (pytest.approx(78.90), 79.1)
    assert rows["training FLOPs, of 200 dense epochs"] == (pytest.approx(0.5145, abs=1e-4), 0.51)
    table = tables.paper(found)
    assert table is not None
    assert table.note.endswith("On this row: AC/DC-20, 3 seeds.")


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["method.sparsity=0.95", "optimizer.lr=0.03"],
        ["run.seeds=[4]", "train.ema=0.99", "data.corrupt=12"],
        ['rate.shape="step"', "rate.milestones=[3, 6]", 'method.reset="all"'],
        ['method.name="gmp"', 'method.criterion="preconditioned"'],  # what acdc, but not gmp, does by itself
    ],
)
def test_the_commands_make_the_same_recipe(tmp_path: Path, settings: list[str]) -> None:
    wanted = recipe_of(settings)
    said = changed_settings(wanted, load.read("digits"))
    got = load.read("digits", said)
    assert got.to_dict() | {"paper": ()} == wanted.to_dict() | {"paper": ()}


def test_a_recipe_of_one_s_own_is_named_by_its_file(run: Path) -> None:
    recipe = recipe_of().to_dict() | {"name": "mine"}
    change_config(run, recipe=recipe)
    assert commands(read(run))[0] == "acdc train mine.toml --out runs/again"


def test_a_run_of_other_epochs_is_set_against_the_paper_s_dense_run(tmp_path: Path) -> None:
    """Not against a longer one of its own."""
    found = read(make_run(tmp_path / "run"))
    assert facts.paper_rows(found) == [], "the digits are not in the paper"
