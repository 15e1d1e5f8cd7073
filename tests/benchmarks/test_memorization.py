"""The memorization experiment as it is kept, and what its table says."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from acdc import models
from acdc.recipes import load
from benchmarks import keeping, memorization, memorized, pages, tables
from tests.report.runs import row

PLACE = "/home/some one/out"
# Memorised and true class, in dense phases and in compressed ones.
SHARES = {"dense": (0.9, 0.05), "sparse": (0.1, 0.8)}


def rows(recipe: Any, seed: int) -> list[dict[str, Any]]:
    """Phases of the paper's schedule, each epoch a little more memorised than the one before."""
    schedule, augmented = recipe.schedule(), bool(recipe.data.crop)
    found = []
    for epoch in range(recipe.epochs):
        kind = schedule.phase_at(epoch, 1).kind if schedule else "dense"
        memorised, true = (share + epoch / 10_000 + seed / 100 for share in SHARES[kind])
        shares = {"memorised": memorised, "true": true, "other": max(0.0, 1 - memorised - true)}
        if augmented:
            shares |= {"memorised_augmented": memorised / 2, "true_augmented": true / 2, "other_augmented": 0.5}
        accuracy = 0.5 if kind == "dense" else 0.75
        stage = "acdc" if schedule else "dense"
        one = row(stage, epoch, kind, kind, 0.0, accuracy, recipe.epochs)
        found.append({**one, "test_accuracy": accuracy, "memorization": shares})
    return found


def make(out: Path, seed: int = 0) -> Path:
    """A folder as the ten runs leave it, less what is large."""
    for name, said in memorization.settings_of(None).items():
        recipe = load.read(memorization.RECIPE, [f"run.seeds=[{seed}]", "train.precision=bf16", *said])
        run = out / name
        run.mkdir(parents=True)
        config = {
            "root": f"{PLACE}/data",
            "started": "2026-01-02T03:04:05+00:00",
            "recipe": recipe.to_dict(),
            "hardware": {"cpu": "a CPU", "gpu": "a GPU"},
            "versions": {"torch": "2.11.0"},
        }
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows(recipe, seed)))
        (run / "phases.jsonl").write_text("")
        (run / "result.json").write_text(json.dumps({"models": [], "seconds": 1.0}))
        (run / "sparse.safetensors").write_bytes(b"large")
        (out / f"{name}.log").write_text(f"folder: {PLACE}/{name}\nreport: {PLACE}/{name}/report.html\n")
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("trained") / "out")


@pytest.fixture(scope="module")
def results(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    arguments = ["--keep", str(trained), "--commit", "abc123", "--results", str(folder)]
    assert memorization.main(arguments) == 0
    return folder


# Keeping


def test_every_run_is_kept_without_weights_and_places(results: Path) -> None:
    kept = results / "memorization"
    assert {path.name for path in kept.iterdir()} == {"memorization.svg", "result.json", "runs.tar.xz"}
    assert json.loads((kept / "result.json").read_text())["commit"] == "abc123"
    with tarfile.open(kept / keeping.ARCHIVE) as archive:
        files = {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name))}
    names = [f"{name}-seed0" for name in memorization.settings_of(None)]
    kinds = ("/config.json", "/metrics.jsonl", "/phases.jsonl", "/result.json", ".log")
    assert set(files) == {f"{name}{kind}" for name in names for kind in kinds}
    assert "report: plain-90/report.html" in files["plain-90-seed0.log"].decode()
    for content in (*files.values(), *(path.read_bytes() for path in kept.iterdir())):
        assert PLACE.encode() not in content


def test_nothing_is_overwritten(trained: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (results / "memorization").iterdir()}
    arguments = ["--keep", str(trained), "--commit", "other", "--results", str(results)]
    assert memorization.main(arguments) == 1
    assert "is there already" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (results / "memorization").iterdir()} == before


def spoil_result(run: Path) -> None:
    (run / "result.json").unlink()


def spoil_metrics(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))


def spoil_settings(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"name": "cifar10"', '"name": "synthetic"'))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (shutil.rmtree, "only complete runs are kept"),
        (spoil_result, "only complete runs are kept"),
        (spoil_metrics, "the memorization of 199 epochs, not of 200"),
        (spoil_settings, "data.name is synthetic, the experiment's cifar10"),
    ],
    ids=["no folder", "no result", "an epoch short", "another experiment"],
)
def test_what_is_not_whole_is_refused(spoil: Any, why: str, trained: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(trained, part)
    for name in ("plain-90", "augmented-dense"):
        spoil(part / name)
    with pytest.raises(ValueError, match=f"plain-90: .*{why}\n.*augmented-dense: .*{why}"):
        memorization.keep([part], "abc123", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_failure_on_the_way_leaves_nothing(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "pack", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        memorization.keep([trained], "abc123", tmp_path)
    assert not list(tmp_path.iterdir())


def test_precision_and_seeds_make_no_other_experiment(trained: Path) -> None:
    assert memorization.why_not(trained / "plain-90") is None, "bf16, where the recipe has fp32"


def test_a_commit_is_asked_for(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        memorization.main(["--keep", str(trained), "--results", str(tmp_path)])
    assert "add --commit HASH" in capsys.readouterr().err


def test_the_panels_are_drawn_again_from_what_is_kept(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "again")
    figure = tmp_path / "again" / "memorization" / "memorization.svg"
    drawn = figure.read_bytes()
    figure.unlink()
    assert memorization.main(["--redraw", "--results", str(tmp_path / "again")]) == 0
    assert figure.read_bytes() == drawn


# Telling


def test_the_table_has_both_phases_ends(results: Path) -> None:
    kept = memorized.read_kept(results)
    assert kept is not None
    title, header, body, note = memorized.table(kept)
    assert title == "1,000 random labels: resnet20 on cifar10, 200 epochs"
    assert [row[0] for row in body][:2] == ["no augmentation, dense", "no augmentation, AC/DC 50%"]
    assert {len(row) for row in body} == {len(header)}
    told = {row[0]: row[1:] for row in body}
    # the last dense phase ends with epoch 169, the final compressed one with 199
    assert told["no augmentation, AC/DC 90%"][:-1] == ["91.7 / 6.7", "12.0 / 82.0", "–", "–", "50.00 / 75.00"]
    assert told["with augmentation, AC/DC 95%"][2:4] == ["45.8 / 3.3", "6.0 / 41.0"]
    assert told["no augmentation, dense"][:2] == ["92.0 / 7.0", "–"]
    assert told["no augmentation, dense"][-1] == "memorises all"
    assert told["with augmentation, AC/DC 90%"][-1] == "about 90 % in their true class"
    assert told["with augmentation, AC/DC 75%"][-1] == "–"
    assert note.startswith("a GPU; torch 2.11.0; acdc at abc123; 2026-01-02. bf16; seed 0; n = 1 of each run")
    assert "The downsampling convolutions are dense at 75%, 90%, 95%, as published." in note
    assert "All layers are pruned." in memorized.note({k: v for k, v in kept.items() if k != "left_dense"})


def test_some_of_the_runs_may_be_kept_alone(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--keep", str(trained), "--commit", "abc123", "--results", str(tmp_path)]
    assert memorization.main([*arguments, "--runs", "plain-dense,plain-90"]) == 0
    kept = memorized.read_kept(tmp_path)
    assert kept is not None
    assert [row[0] for row in memorized.table(kept)[2]] == ["no augmentation, dense", "no augmentation, AC/DC 90%"]
    with pytest.raises(SystemExit):
        memorization.main([*arguments, "--runs", "plain-91"])
    assert "--runs plain-91: expected some of plain-dense, plain-50" in capsys.readouterr().err


def test_layers_that_the_published_runs_left_dense() -> None:
    for name, said in memorization.settings_of(None).items():
        method = load.read(memorization.RECIPE, said).build_method()
        if method is not None:
            left = method.layers(models.build("resnet20", classes=10)).left_dense
            shortcuts = {"stages.1.0.shortcut.0.weight", "stages.2.0.shortcut.0.weight"}
            assert set(left) == (set() if name.endswith("-50") else shortcuts)


def test_the_paper_s_words_are_those_of_the_recipe() -> None:
    notes = {
        (bool(row.set["data.crop"]), row.set["method.sparsity"]): row.note
        for row in load.read(memorization.RECIPE).paper
    }
    for (augmented, sparsity), words in memorized.PAPER.items():
        said = notes[augmented, sparsity or 0.5]  # what it says of the baseline stands beside 50 %
        assert said.startswith("with" if augmented else "no")
        for word in ("all", "about 60 %", "about 90 %", "true class", "most", "dense phases memorise"):
            assert (word in words) == (word in said.removeprefix("with ")), (augmented, sparsity, word)


def test_seeds_are_kept_together_and_averaged(trained: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", seed=2)
    memorization.keep([trained, other], "abc123", tmp_path / "results")
    kept = memorized.read_kept(tmp_path / "results")
    assert kept is not None
    _, _, body, note = memorized.table(kept)
    assert body[3][1] == "92.7 ± 1.4 / 7.7 ± 1.4"
    assert len(body) == 10
    assert "seeds 0, 2; n = 2 of each run, mean ± std" in note
    with pytest.raises(ValueError, match="hold the same seed"):
        memorization.keep([trained, trained], "abc123", tmp_path / "twice")


def test_pages_show_it_where_it_is_kept(results: Path, tmp_path: Path) -> None:
    assert "## Random labels" in tables.page(results)
    assert "| no augmentation, AC/DC 95% | 91.7 / 6.7 |" in tables.page(results)
    assert "## Random labels" not in tables.page(tmp_path)
    assert "](" not in memorized.block(tmp_path, tables.markdown), "no figure that is not there"
    block = memorized.block(results, tables.markdown)
    assert "](../results/memorization/memorization.svg)" in block
    assert (
        "No augmentation, 95% sparsity: the last dense phase ends with 91.7 % memorised and 6.7 % in their true class, "
        "the final compressed phase with 12.0 % and 82.0 %. The paper: compressed phases put most"
    ) in block
    page = "a\n<!-- results:memorization -->\nold\n<!-- /results:memorization -->\nby hand\n"
    filled = pages.insert(page, {"memorization": block}, "a page")
    assert filled.endswith("by hand\n")
    assert "old" not in filled
    with pytest.raises(ValueError, match="a page has 0 blocks"):
        pages.insert("none", {"memorization": block}, "a page")
