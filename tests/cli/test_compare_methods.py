"""acdc compare-methods: every method by the same loop, resumable, at equal epochs or FLOPs."""

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acdc.cli import main
from acdc.errors import Problems
from acdc.recipes import load
from acdc.recipes.schema import Recipe
from acdc.train import jobs
from acdc.train.cells import Grid, Variant, plan_cells, read_variants, split_settings
from tests.cli import in_process
from tests.processes import PIPE, Process
from tests.waiting import HANG

SMALL = ["digits", "--epochs", "4", "--device", "cpu", "--set", "train.batch_size=256"]


def compare(out: Path, *arguments: str) -> int:
    return main(["compare-methods", *SMALL, "--jobs", "2", "--out", str(out), *arguments])


def same(command: list[str]) -> str:
    """As whoever typed it may type it again."""
    return shlex.join(["acdc", *command[3:]])


def held_back(name: str, until: Path) -> dict[str, str]:
    """An environment in which the run of this name does not begin before a file is there."""
    gate = str(Path(__file__).parents[1] / "gate")
    path = os.pathsep.join(filter(None, [gate, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "ACDC_TEST_GATE": f"{name}={until}"}


def without_a_report(command: list[str], **options: Any) -> Process:
    """A run of a comparison, which has a page of its own."""
    return Process([*command, "--no-report"], **options)


def facts(out: Path) -> dict[str, dict]:
    return {one["method"]: one for one in json.loads((out / "result.json").read_text())["methods"]}


def test_methods_seeds_and_dense_training_in_one_table(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(jobs.subprocess, "Popen", without_a_report)
    out = tmp_path / "c"
    assert compare(out, "--methods", "gmp,rigl,dense,gmp", "--seeds", "0,1", "--set", "rigl.every=3st") == 0
    found = facts(out)
    assert set(found) == {"gmp", "rigl", "dense"}
    assert found["rigl"]["sparsity"] == pytest.approx(0.9, abs=1e-4)
    assert found["dense"]["training"] == 1
    assert found["rigl"]["training"] < found["gmp"]["training"] < 1
    assert len(found["gmp"]["values"]) == 2
    config = json.loads((out / "rigl-90-seed1" / "config.json").read_text())
    assert config["method"]["every"] == "3st"
    said = capsys.readouterr().out
    assert "test accuracy, %" in said
    assert re.search(
        r"Sparse–dense agreement.*the share of test images.*the dense run of the same seed", said, re.DOTALL
    )
    assert found["rigl"]["agreement_with_dense"] > 0.05
    assert said.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert '<figure id="frontier"' in (out / "report.html").read_text()
    before = (out / "gmp-90-seed0" / "result.json").stat().st_mtime_ns
    assert compare(out, "--methods", "gmp,dense,static", "--seeds", "0") == 0, "a method joins, what is done is kept"
    assert (out / "gmp-90-seed0" / "result.json").stat().st_mtime_ns == before
    assert set(facts(out)) == {"gmp", "rigl", "dense", "static"}, "the table is of all that the folder holds"


def test_variants_run_beside_methods_with_settings_of_their_own(tmp_path: Path, monkeypatch, capsys) -> None:
    """And one that fails is named, while the rest is in the table and on the page."""
    in_process.patch(monkeypatch)
    out = tmp_path / "c"
    said = [
        "--variant",
        "gradual=acdc:gradual=true,train.distill=0.5",
        "--variant",
        "lost=static:optimizer.lr=1000,optimizer.weight_decay=10",
    ]
    said += ["--variant", "pairs=acdc:pattern=2:4", "--sparsities", "0.8,0.9"]
    assert compare(out, "--methods", "static", *said) == 1
    names = {path.parent.name for path in out.glob("*/config.json")}
    both = [f"{name}-{share}-seed0" for name in ("static", "gradual", "lost") for share in (80, 90)]
    assert names == {*both, "pairs-50-seed0"}
    recipe = json.loads((out / "gradual-80-seed0" / "config.json").read_text())["recipe"]
    assert recipe["method"]["options"] == {"gradual": True}
    assert (recipe["train"]["distill"], recipe["method"]["sparsity"]) == (0.5, 0.8)
    assert facts(out).keys() == {"static", "gradual", "pairs"}
    shown = capsys.readouterr()
    assert "incomplete, so in no table: 2 of 7 runs" in shown.err
    assert re.search(r"lost-80-seed0; its log ends: acdc: .*not finite", shown.err)
    page = (out / "report.html").read_text()
    assert "lost-90-seed0 is left out" in page
    assert "gradual (AC/DC" not in page
    assert compare(out, "--methods", "static", *said[:-2], "--sparsities", "0.8") == 1, "tried again, and told again"


def test_equal_flops_buys_sparse_training_more_epochs(tmp_path: Path, monkeypatch) -> None:
    in_process.patch(monkeypatch)
    out = tmp_path / "c"
    sets = ("--set", "rigl.every=3st", "--set", "acdc.schedule=paper")
    assert compare(out, "--methods", "acdc,rigl", "--equal", "flops", *sets) == 0
    found = facts(out)
    assert found["rigl"]["epochs"] > 2 * found["acdc"]["epochs"]
    assert found["rigl"]["training"] == pytest.approx(found["acdc"]["training"], rel=0.25)


def test_budgets_are_comparisons_of_their_own_and_grow_on_one_page(tmp_path: Path, monkeypatch, capsys) -> None:
    in_process.patch(monkeypatch)
    outs = [tmp_path / "budget-3", tmp_path / "budget-4"]
    for out, epochs in zip(outs, ("3", "4"), strict=True):
        assert compare(out, "--epochs", epochs, "--methods", "static") == 0
    page = tmp_path / "report.html"
    assert main(["report", *map(str, outs), "--out", str(page)]) == 0
    assert "Static" in page.read_text()
    before = (outs[0] / "static-90-seed0" / "result.json").stat().st_mtime_ns
    lost = ("--variant", "lost=static:optimizer.lr=1000,optimizer.weight_decay=10")
    assert compare(outs[0], "--epochs", "3", "--methods", "static,dense", *lost) == 1
    assert (outs[0] / "static-90-seed0" / "result.json").stat().st_mtime_ns == before, "what is done is kept"
    capsys.readouterr()
    assert main(["report", *map(str, outs), "--out", str(page)]) == 0
    said = capsys.readouterr().err
    assert "No complete run of dense over 4 epochs." in said
    assert re.search(r"lost-90-seed0 is left out: .*not finite", said)
    assert '<figure id="budget"' in page.read_text()


def planned(
    recipe: str, *entries: str, like: str = "acdc", settings: Sequence[str] = (), variant: str = ""
) -> dict[str, Recipe]:
    """Return the recipes of a comparison at equal FLOPs, without training them."""
    problems = Problems()
    shared, own = split_settings(settings)
    variants = [*(Variant(name, name) for name in entries), *read_variants([variant] if variant else [], problems)]
    named = {one.name: one for one in (Variant("acdc", "acdc"), *variants)}
    grid = Grid(
        recipe=recipe,
        settings=shared,
        own_settings=own,
        entries=variants,
        sparsities=[0.9],
        equal_to=named[like],
    )
    cells = plan_cells(grid, load.read(recipe, shared), problems)
    assert not problems
    return {cell.variant.name: cell.recipe for cell in cells}


def test_the_one_whose_cost_all_get_is_trained_as_it_was_reckoned() -> None:
    """Its settings and its schedule are its own; what has another schedule in the comparison is reckoned with that."""
    plain = planned("cifar10-resnet20", "acdc", "rigl")
    assert (plain["acdc"].epochs, plain["acdc"].method.schedule) == (100, "imagenet")
    short = planned("cifar10-resnet20", "acdc", "rigl", settings=["acdc.schedule=imagenet_short_dense"])
    assert short["acdc"].method.schedule == "imagenet_short_dense", "70 of 100 epochs are compressed, not 50"
    assert short["rigl"].epochs < 0.8 * plain["rigl"].epochs
    small = ["train.epochs=4", "train.batch_size=256"]
    for like in ("gmp", "str", "sr_ste", "slow"):
        recipes = planned(
            "digits", "gmp", "str", "sr_ste", variant="slow=gmp:optimizer.lr=0.01", like=like, settings=small
        )
        assert recipes[like].epochs == 4
    assert planned("cifar10-resnet20", "gmp", like="gmp")["gmp"].epochs == 100


def test_equal_flops_know_that_gmp_is_dense_before_it_is_sparse() -> None:
    """0.25 dense, 0.5 on the way at 0.1 + 0.9 / 4, 0.25 at 0.1: 0.44 of dense training, where AC/DC has 0.55."""
    settings = ["method.distribution=uniform", "train.epochs=100", "acdc.schedule=paper"]
    found = planned("digits", "acdc", "gmp", settings=settings)
    assert found["acdc"].epochs == 100
    assert found["gmp"].epochs == pytest.approx(100 * 0.55 / 0.44, abs=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--like", "rigll", "--equal", "flops"], "--like rigll: expected one of acdc.*did you mean rigl[?]"),
        (["--methods", "acdc,riggl"], "--methods riggl: expected some of acdc.*did you mean rigl[?]"),
        (["--sparsities", "90%"], "--sparsities 90%: expected fractions, such as 0.9,0.95"),
        (["--sparsities", "2"], "sparsity=2.0"),
        (["--sparsity", "0.5"], "write --sparsities 0.5"),
        (["--methods", ""], "expected some of"),
        (["--like", "dense"], "it needs --equal flops"),
        (["--set", "method.every=1ep", "--methods", "acdc"], "method.every: no such setting"),
        (["--set", "rigl.dropp=1", "--methods", "rigl"], "method.dropp: no such setting.*did you mean drop[?]"),
        (["--jobs", "x"], "--jobs x: expected the number of runs"),
        (
            ["--epochs", "5,10"],
            "^acdc: --epochs 5,10: expected one whole number.*--epochs 5 --out runs/budget-5 and so on, then: "
            "acdc report runs/budget-5 runs/budget-10\n$",
        ),
        (
            ["--variant", "fast"],
            "--variant fast: expected NAME=METHOD:setting=value,.*for example --variant distilled=",
        ),
        (["--variant", "fast=acdc"], "--variant fast=acdc: expected NAME=METHOD:setting"),
        (["--variant", "fast=riggl:drop=1"], "riggl is not a method; expected one of acdc.*did you mean rigl[?]"),
        (["--variant", "gmp=acdc:gradual=true"], "gmp is the name of a method; use another name"),
        (["--variant", "a=acdc:gradual=true", "--variant", "a=gmp:every=1ep"], "a is the name of another variant"),
        (["--variant", "a b=acdc:gradual=true"], "expected a name made of letters, digits"),
        (["--variant", "a=rigl:dropp=1"], "a: method.dropp: no such setting.*did you mean drop[?]"),
        (["--variant", "a=rigl:train.epoch=1"], "a: train.epoch: no such setting"),
        (["--variant", "a=rigl:sparsity=0.5"], "method.sparsity cannot be set here: use --sparsities"),
        (
            ["--variant", 'a=acdc:exclude=["fcc"]', "--methods", "gmp"],
            r"^acdc: a: method.exclude=\['fcc'\]: the rule matches no",
        ),
        (["--variant", "a=sr_ste:pattern=2:7", "--methods", "gmp"], "^acdc: a: method.pattern=NM.*fits none"),
        (
            ["--variant", "a=gmp:train.batch_size=4096", "--methods", "gmp"],
            "^acdc: a: train.batch_size=4096: digits",
        ),
        (["--methods", "gmp,rigl"], '^acdc: rigl: method.every="100st": the first update.*write rigl.every="1st"'),
        (["--variant", "a=rigl:run.seeds=[1,2]"], "run.seeds cannot be set here: use --seeds"),
        (
            ["--variant", "acdc-90=str:decay=1", "--methods", "acdc"],
            "acdc-90-seed0: two runs would have this name|no such",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(arguments: list[str], message: str, tmp_path, capsys) -> None:
    assert compare(tmp_path / "c", *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "c").exists()


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, capsys) -> None:
    """Options, the recipe, every method and variant and the folder; what all have in common once."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    wrong = ["--methods", "acdc,gmpp,rigl", "--variant", "a=rigl:dropp=1", "--variant", 'b=acdc:exclude=["fcc"]']
    wrong += ["--sparsities", "0.9,2", "--jobs", "x", "--device", "gpu", "--workers", "y", "--seeds", "q", "--lr", "0"]
    assert compare(tmp_path / "full", *wrong) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    for line, start in zip(
        lines,
        (
            "acdc: digits:",
            "optimizer.lr = 0.0: expected",
            "--seeds q: expected",
            "--jobs x: expected",
            "--device gpu: expected",
            "--workers y: expected",
            "--methods gmpp: expected",
            "method.sparsity=2.0: ",
            "a: method.dropp: no such setting",
            "b: method.exclude=['fcc']: the rule matches no weight",
            f"--out {tmp_path / 'full'}: the folder is not empty",
        ),
        strict=True,
    ):
        assert line.strip().startswith(start)


def test_what_is_wrong_with_the_run_whose_cost_all_get_is_said_with_the_rest(tmp_path: Path, capsys) -> None:
    wrong = ["--methods", "gmp", "--equal", "flops", "--like", "rigl", "--set", "rigl.dropp=1"]
    assert compare(tmp_path / "c", *wrong, "--set", "train.batch_size=4096") == 2
    said = capsys.readouterr().err
    assert said.count("train.batch_size=4096: digits has 1,397 training images") == 1
    assert "--like rigl: method.dropp: no such setting" in said
    assert compare(tmp_path / "c", "--methods", "gmp", "--equal", "flops", "--set", 'acdc.exclude=["fcc"]') == 2
    assert "--like acdc: method.exclude=['fcc']: the rule matches no weight" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_ctrl_c_before_a_run_trains_speaks_of_no_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-m", "acdc", "compare-methods", *SMALL, "--methods", "gmp,acdc", "--out", str(out)]
    process = Process(command, env=held_back("gmp-90-seed0", until=tmp_path / "never"), stdout=PIPE, stderr=PIPE)
    with process:
        assert process.stdout is not None
        assert "2 runs, 1 at a time" in process.stdout.readline()
        while not (out / "gmp-90-seed0.log").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert said == "gmp-90-seed0: stopped, without a checkpoint (0 of 2)\n"
    assert errors.endswith(f"acdc: Stopped by SIGINT. No run has a checkpoint yet. Start again with: {same(command)}\n")


def test_a_second_ctrl_c_says_what_is_done_what_is_lost_and_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-m", "acdc", "compare-methods", *SMALL, "--methods", "dense"]
    command += ["--set", "run.checkpoint_every=1ep", "--variant", "new=dense:run.checkpoint_every=2000ep"]
    command += ["--epochs", "2000", "--jobs", "2", "--out", str(out)]
    process = Process(command, stdout=PIPE, stderr=PIPE)
    with process:
        assert process.stderr is not None
        while not all((out / f"{name}-seed0" / "metrics.jsonl").exists() for name in ("dense", "new")):
            assert process.poll() is None
            time.sleep(0.01)
        while not list(out.glob("dense-seed0/checkpoints/*.pt")):
            time.sleep(0.01)
        runs = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        for pid in runs:
            os.kill(pid, signal.SIGSTOP)  # they do not end by themselves, as in a long step
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        assert "stopping all runs" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert errors == (
        "acdc: Stopped at once. 0 of 2 runs finished, 1 has a checkpoint. Lost: what dense-seed0 trained since "
        f"its checkpoint and all that new-seed0 trained. Resume with: {same(command)}\n"
    )
    assert len(runs) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in runs), "none goes on by itself"


@pytest.mark.long
def test_runs_stop_with_a_checkpoint_where_nobody_reads_what_becomes_of_them(tmp_path: Path) -> None:
    out = tmp_path / "c"
    command = [sys.executable, "-m", "acdc", "compare-methods", *SMALL, "--methods", "dense"]
    command += ["--variant", "long=dense:train.epochs=2000", "--jobs", "2", "--out", str(out)]
    both = held_back("dense-seed0", until=out / "long-seed0" / "metrics.jsonl")  # both train when the first is done
    process = Process(command, env=both, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert "2 runs, 2 at a time" in process.stdout.readline()
    process.stdout.close()
    with process.stderr as errors:
        said = errors.read()
    assert process.wait(timeout=HANG) == 141
    assert said == (
        "acdc: Stopped: the output pipe was closed. 1 of 2 runs finished, 1 has a checkpoint. Resume with: "
        f"{same(command)}\n"
    )


def test_ctrl_c_says_how_many_runs_are_there(tmp_path: Path) -> None:
    three = [jobs.Job(name, tmp_path / name) for name in ("done", "begun", "waiting")]
    for job in three[:2]:
        (job.folder / "checkpoints").mkdir(parents=True)
        (job.folder / "checkpoints" / "0-acdc-00000022.pt").touch()
    (three[0].folder / "result.json").touch()
    assert jobs.describe_progress(three) == "1 of 3 runs finished, 1 has a checkpoint. Resume with"


def test_another_comparison_s_folder_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    in_process.patch(monkeypatch)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert compare(tmp_path / "full", "--methods", "dense") == 2
    assert "not empty" in capsys.readouterr().err
    out = tmp_path / "c"
    assert compare(out, "--methods", "dense") == 0
    assert compare(out, "--methods", "dense", "--lr", "0.3") == 2
    assert (
        "dense-seed0 was started there with other settings (optimizer.lr was 0.1 there and is 0.3"
        in capsys.readouterr().err
    )
    assert compare(out, "--methods", "dense", "--set", "run.keep=5") == 0, "no number depends on it"
    assert compare(out, "--methods", "gmp", "--epochs", "6") == 2
    assert "it holds a comparison of digits over 4 epochs, not of digits over 6" in capsys.readouterr().err


def test_settings_of_a_variant_are_split_at_commas_outside_brackets() -> None:
    problems: list[str] = []
    text = "a=rigl:rate.milestones=[1,2],drop=0.5,method.distribution={x=0.5,y=0.6},model.name='a,b'"
    (found,) = read_variants([text], problems)
    assert problems == []
    assert found.settings == (
        "rate.milestones=[1,2]", "method.drop=0.5", "method.distribution={x=0.5,y=0.6}", "model.name='a,b'"
    )  # fmt: skip


def test_help_explains_variants(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["compare-methods", "--help"])
    said = capsys.readouterr().out
    assert "--variant distilled=acdc:train.distill=0.5" in said
    assert "a variant is a method with its own name" in said
