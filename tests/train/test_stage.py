"""The loop: what a row says, that each phase is seen by its own model, and that resuming gives the same bits."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acdc.core.result import to_cpu
from acdc.runs import checkpoint
from acdc.train import stage as training
from acdc.train.divergence import DivergedError
from acdc.train.evaluate import Score, evaluate
from acdc.train.execution import Progress
from acdc.train.stopping import Stopped, StopRequest
from tests.conformance.harness import assert_same_bits
from tests.train.problems import MadeBatches, outcome, stage

STEPS = 5  # 70 images in batches of 16


def test_rows_say_what_happened(tmp_path: Path) -> None:
    run = stage(tmp_path)
    rows = list(run.run())
    assert [row.epoch for row in rows] == [0, 1, 2, 3]
    assert [row.step for row in rows] == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    assert [row.lr for row in rows] == pytest.approx([0.05, 0.05, 0.0375, 0.0125])
    assert [row.phase for row in rows] == ["warm-up", "compressed", "decompressed", "final compressed"]
    assert [row.kind for row in rows] == ["dense", "sparse", "dense", "sparse"]
    size = 19_408 - 6 * 32  # four classes
    assert [rows[i].sparsity for i in (1, 3)] == pytest.approx([0.8, 0.8], abs=1 / size)
    assert rows[0].sparsity < 0.01
    assert rows[1].flops < rows[0].flops / 2
    assert rows[-1].loss < rows[0].loss
    assert all(0 < row.eval_seconds < row.seconds for row in rows)
    last = evaluate(run.model, run.loaders.test, run.recipe, run.setting)
    assert (rows[-1].test_accuracy, rows[-1].test_loss) == (last.accuracy, last.loss)


def test_loss_and_accuracy_are_means_over_the_images(tmp_path: Path) -> None:
    """A model that always says class 1, at a learning rate that leaves it so."""
    run = stage(tmp_path, "optimizer.lr=1e-12", "optimizer.weight_decay=0")
    with torch.no_grad():
        run.model.get_parameter("fc.weight").zero_()
        run.model.get_parameter("fc.bias").copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    row = next(run.run())
    labels = torch.cat([labels for _, labels in run.loaders.train.batches(0)])
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(len(labels), 4)
    assert row.loss == pytest.approx(nn.functional.cross_entropy(logits, labels.cpu()).item())
    assert row.train_accuracy == pytest.approx((labels == 1).float().mean().item())


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optimizer.name=adamw", "optimizer.lr=0.003", "train.clip_norm=1.0", "train.accumulate=2"),
        ("optimizer.name=lamb", "optimizer.lr=0.01", "train.ema=0.9", "data.validation=10"),
        ("train.precision=bf16", "train.label_smoothing=0.1", "rate.per=step", "model.name=wide_resnet",
         "model.depth=10", "model.width=1", "model.dropout=0.3", "method.twin=best"),
        ("data.first_size=4", "data.size_step=1", "data.full_size_by=0.6", "rate.shape=linear", "rate.per=step",
         "model.bn_splits=2"),
    ],
    ids=["sgd", "adamw, clipped, in parts", "lamb, averaged, validated", "bf16, dropout, best twin", "growing images"],
)  # fmt: skip
@pytest.mark.parametrize("stop", [3, STEPS, 2 * STEPS + 2])
def test_a_run_taken_up_is_the_run_that_never_stopped(settings: tuple[str, ...], stop: int, tmp_path: Path) -> None:
    """Bits, rows and the twin; stopped in a dense phase, at its end, and inside a compressed one."""
    whole = stage(tmp_path / "whole", *settings)
    expected = list(whole.run())

    request = StopRequest()
    first = stage(tmp_path / "parts", *settings, change=lambda setting: setattr(setting, "stop", request))
    update = first.optimizer.register_step_post_hook(
        lambda *_: setattr(request, "signum", 15 if first.step + 1 >= stop else None)
    )
    rows = []
    with pytest.raises(Stopped) as stopped:
        rows.extend(first.run())
    update.remove()
    assert stopped.value.exit_code == 143
    assert first.step == stop

    torch.manual_seed(99)  # whatever the process did before
    found = checkpoint.newest(tmp_path / "parts" / "checkpoints")
    second = stage(tmp_path / "parts", *settings)
    second.load_state_dict(found.state)
    assert second.step == stop
    rows += list(second.run())
    assert outcome(rows) == outcome(expected)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    if whole.ema is not None:
        assert second.ema is not None
        for name, value in whole.ema.state_dict().items():
            assert torch.equal(value, second.ema.state_dict()[name]), name
    assert whole.sparsifier is not None
    assert second.sparsifier is not None
    one, two = whole.sparsifier.finish(), second.sparsifier.finish()
    assert one.dense_step == two.dense_step
    assert_same_bits(one.dense, two.dense)
    assert whole.best == second.best


@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 12])
def test_a_stop_asked_for_in_an_evaluation_does_not_wait_for_its_end(at: int, tmp_path: Path, monkeypatch) -> None:
    """Three an epoch: of the test and validation images, and of the average. 0: before the run."""
    settings = ("train.ema=0.9", "data.validation=10")
    expected = list(stage(tmp_path / "whole", *settings).run())
    request, calls = StopRequest(), 0
    request.signum = None if at else 15

    def counting(*args: Any, **options: Any) -> Score:
        nonlocal calls
        calls += 1
        request.signum = 15 if calls == at else None
        return evaluate(*args, **options)

    monkeypatch.setattr(training, "evaluate", counting)
    first = stage(tmp_path / "parts", *settings, change=lambda setting: setattr(setting, "stop", request))
    rows = []
    with pytest.raises(Stopped):
        rows.extend(first.run())
    assert (calls, first.step, len(rows)) == (at, -(-at // 3) * first.loaders.train.steps, max(0, at - 1) // 3)

    second = stage(tmp_path / "parts", *settings)
    second.load_state_dict(checkpoint.newest(tmp_path / "parts" / "checkpoints").state)
    assert outcome(rows + list(second.run())) == outcome(expected)


def test_checkpoints_come_at_phase_ends_and_every_n_steps(tmp_path: Path) -> None:
    run = stage(tmp_path, "run.checkpoint_every=3st", "run.keep=100")
    list(run.run())
    found = sorted(int(path.stem.split("-")[2]) for path in (tmp_path / "checkpoints").iterdir())
    assert found == sorted({3, 6, 9, 12, 15, 18} | {STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS})


def test_the_average_has_the_masks_of_the_model(tmp_path: Path) -> None:
    run = stage(tmp_path, "train.ema=0.9")
    rows = list(run.run())
    assert all(row.ema_accuracy is not None for row in rows)
    assert run.ema is not None
    assert run.sparsifier is not None
    for name, mask in run.sparsifier.masks.items():
        assert not run.ema.module.get_parameter(name)[~mask].any()


def test_growing_images_cost_what_their_size_costs(tmp_path: Path) -> None:
    """digits_net: four convolutions and a shortcut, whose cost is that of their output, and a linear layer."""
    run = stage(tmp_path, "data.first_size=4", "data.size_step=4", "data.full_size_by=0.5")
    seen: list[int] = []
    run.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[-1]) if run.model.training else None)
    rows = list(run.run())
    assert [row.image_size for row in rows] == [4, 4, 8, 8]
    assert seen == [4] * 2 * STEPS + [8] * 2 * STEPS
    large, small = 64 * (9 * 16 + 2 * 9 * 16 * 16), 16 * (9 * 16 * 32 + 9 * 32 * 32 + 16 * 32)
    linear = 32 * 4
    share = (large / 4 + small / 4 + linear) / (large + small + linear)
    assert [row.size_share for row in rows] == [pytest.approx(share)] * 2 + [1.0] * 2
    plain = list(stage(tmp_path / "plain").run())
    assert [(row.image_size, row.size_share) for row in plain] == [(None, 1.0)] * 4


def test_the_best_is_chosen_on_the_validation_images_of_the_final_phase(tmp_path: Path) -> None:
    run = stage(tmp_path, "data.validation=20", "train.epochs=14")
    rows = list(run.run())
    final = [row for row in rows if row.phase == "final compressed"]
    assert len(final) > 1
    assert run.best is not None
    assert run.best_weights is not None
    assert run.best["chosen_on"] == "validation"
    assert run.best["accuracy"] == max(row.validation_accuracy or 0.0 for row in final)
    assert run.best["epoch"] in [row.epoch for row in final]
    assert sum(int((value == 0).sum()) for value in run.best_weights.values()) > 10_000, "a sparse model"
    assert run.loaders.train.samples == 50


def test_without_them_the_test_set_chose_and_that_is_said(tmp_path: Path) -> None:
    run = stage(tmp_path)
    list(run.run())
    assert run.best is not None
    assert run.best["chosen_on"] == "test"
    assert run.best_weights is None


def test_as_published_the_best_is_of_all_compressed_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies that fall from epoch to epoch: the best is the first compressed one, or the last phase's first."""
    epochs = {}
    for best in ("compressed", "final"):
        run = stage(tmp_path / best, "train.epochs=14", f"run.best={best}")
        fall = (Score(0.9 - n / 100, 1.0, 40, "fp32") for n in range(14))
        monkeypatch.setattr("acdc.train.stage.evaluate", lambda *_, fall=fall, **__: next(fall))
        kinds = [(row.kind, row.phase) for row in run.run()]
        assert run.best is not None
        epochs[best] = run.best["epoch"]
    assert epochs["compressed"] == [kind for kind, _ in kinds].index("sparse") > 0
    assert epochs["final"] == [phase for _, phase in kinds].index("final compressed") > epochs["compressed"] + 1


def test_a_loss_that_is_not_finite_stops_with_its_step_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = stage(tmp_path, "run.checkpoint_every=3st")
    bad = 7

    def poison(*_: object) -> None:
        if run.step + 1 == bad:
            with torch.no_grad():
                run.model.get_parameter("fc.bias")[0] = math.inf

    run.optimizer.register_step_post_hook(poison)
    with pytest.raises(DivergedError) as stopped:
        list(run.run())
    good = tmp_path / "checkpoints" / "0-acdc-00000006.pt"
    assert str(stopped.value) == (
        f"acdc: the loss of step {bad} (epoch 2) is not finite, at learning rate 0.05; the last good checkpoint is "
        f"{good}"
    )
    state = checkpoint.newest(tmp_path / "checkpoints").state
    assert state["epoch"] * STEPS + state["batch"] == 6
    assert all(value.isfinite().all() for value in state["model"].values())


def test_weights_that_are_not_finite_stop_it_before_they_are_compressed(tmp_path: Path) -> None:
    run = stage(tmp_path)

    def poison(*_: object) -> None:
        if run.step + 1 == STEPS:
            with torch.no_grad():
                run.model.get_parameter("conv1.weight")[0] = math.nan

    run.optimizer.register_step_post_hook(poison)
    said = r"weights of epoch 1 are not finite \(conv1.weight\); there is no checkpoint yet"
    with pytest.raises(DivergedError, match=said):
        list(run.run())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "kind"), [("fc.weight", "weights"), ("bn1.running_var", "running statistics")], ids=["weights", "buffers"]
)
def test_what_is_not_finite_is_never_saved(name: str, kind: str, precision: str, tmp_path: Path) -> None:
    """Also under a scaler, and in what the next batches' losses do not show."""
    run = stage(tmp_path, "run.checkpoint_every=1st", f"train.precision={precision}")
    bad = run.model.state_dict()[name]
    run.optimizer.register_step_post_hook(lambda *_: bad.view(-1)[0].fill_(math.inf) if run.step >= 6 else None)
    with pytest.raises(DivergedError, match=rf"{kind} of epoch 2 are not finite \({name}\); the last good checkpoint"):
        list(run.run())
    kept = [checkpoint.load(path)["model"] for path in (tmp_path / "checkpoints").iterdir()]
    assert len(kept) == run.recipe.run.keep
    assert all(value.isfinite().all() for model in kept for value in model.values())


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("optimizer", "key"), [("sgd", "momentum_buffer"), ("adam", "exp_avg_sq"), ("lamb", "exp_avg")]
)
def test_nor_is_what_is_not_finite_in_the_optimizer(optimizer: str, key: str, bad: float, tmp_path: Path) -> None:
    """Adam's second moment would freeze its weight for good, with a loss that is finite; any other ruins a step."""
    run = stage(tmp_path, "run.checkpoint_every=1st", f"optimizer.name={optimizer}", "optimizer.lr=0.001")

    def poison(*_: object) -> None:
        if run.step >= 6:
            run.optimizer.state[run.model.get_parameter("fc.weight")][key][0, 0] = bad

    run.optimizer.register_step_post_hook(poison)
    said = rf"optimizer states of epoch 2 are not finite \({key} of fc.weight\); the last good checkpoint"
    with pytest.raises(DivergedError, match=said):
        list(run.run())
    for path in (tmp_path / "checkpoints").iterdir():
        assert all(value.isfinite().all() for value in _tensors(checkpoint.load(path)["optimizer"]["state"]))


def test_nor_are_weights_behind_the_model_s_that_are_not_finite(tmp_path: Path) -> None:
    """Top-KAST's are in the model as 0 where they are not among the largest."""
    run = stage(tmp_path, "run.checkpoint_every=1st", "method.name=top_kast", "method.schedule=")

    def poison(*_: object) -> None:
        if run.step >= 6:
            assert run.sparsifier is not None
            run.sparsifier.context.weights["fc.weight"][run.model.get_parameter("fc.weight") == 0] = math.nan

    run.optimizer.register_step_post_hook(poison)
    said = r"weights behind the model's of epoch 2 are not finite \(fc.weight\)"
    with pytest.raises(DivergedError, match=said):
        list(run.run())


@pytest.mark.parametrize("settings", [(), ("optimizer.name=adamw", "train.accumulate=2", "train.clip_norm=1.0")])
def test_a_step_that_overflows_fp16_leaves_no_trace_in_the_model(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, batch norm's statistics and count, and the optimizer's state; the average stays finite, and the run ends
    as any other."""
    run = stage(tmp_path, "train.precision=fp16", "train.ema=0.9", *settings)
    places = [buffer.data_ptr() for buffer in run.model.buffers()]
    around, seen = run._step.__call__, []

    def overflowing(images: torch.Tensor, *args: Any, **knobs: Any) -> None:
        seen.append(to_cpu([run.model.state_dict(), run.optimizer.state_dict()["state"]]))
        around(images * 1e6 if len(seen) == STEPS - 1 else images, *args, **knobs)

    monkeypatch.setattr(run, "_step", overflowing)
    list(run.run())
    before, after, later = ([*model.values(), *_tensors(state)] for model, state in seen[STEPS - 2 : STEPS + 1])
    assert all(map(torch.equal, before, after))
    assert not all(map(torch.equal, after, later)), "the next step is made"
    assert [buffer.data_ptr() for buffer in run.model.buffers()] == places
    assert run.ema is not None
    assert all(value.isfinite().all() for value in run.ema.state_dict().values())


def _tensors(state: dict) -> list[torch.Tensor]:
    return [value for one in state.values() for value in one.values() if isinstance(value, torch.Tensor)]


def test_whoever_watches_sees_the_epoch_go_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**9))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    seen: list[Progress] = []
    list(stage(tmp_path, change=lambda setting: setattr(setting, "watch", seen.append)).run())
    assert {moment.epoch for moment in seen} == {0, 1, 2, 3}
    assert all(0 < moment.share <= 1 and moment.loss > 0 and moment.per_second > 0 for moment in seen)


def test_a_long_first_step_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**9))
    monkeypatch.setattr("time.monotonic", lambda: 3.0 * next(now))  # three seconds between two looks
    said: list[str] = []
    list(stage(tmp_path, change=lambda setting: setattr(setting, "say", said.append)).run())
    assert said == []
    monkeypatch.setattr("acdc.train.stage._LONG_STARTUP", 2.0)
    list(stage(tmp_path, change=lambda setting: setattr(setting, "say", said.append)).run())
    (told,) = said
    assert re.match(r"acdc: the first step took \d+ s.*; later ones are faster", told)


def test_images_without_a_label_do_not_count(tmp_path: Path) -> None:
    run = stage(tmp_path)

    class Some(MadeBatches):
        samples, batch_size, steps = 4, 4, 1

        def batches(self, epoch: int, first: int = 0):
            images, _ = next(run.loaders.test.batches(0))
            run.model.eval()
            with torch.no_grad():
                right = run.model(images[:4]).argmax(1)
            yield images[:4], torch.where(torch.arange(4, device=right.device) < 3, right, -1)

    score = evaluate(run.model, Some(), run.recipe, run.setting)
    assert (score.accuracy, score.samples) == (1.0, 3)
    assert isinstance(score, Score)


def test_phase_ends_are_described(tmp_path: Path) -> None:
    run = stage(tmp_path)
    ends = []
    for _ in run.run():
        ends.append(run.phase_end)
    assert [end.phase for end in ends] == ["warm-up", "compressed", "decompressed", "final compressed"]
    assert ends[1].mask_change is None
    assert 0 < ends[3].mask_change < 100
    kept = sum(ends[3].nonzero.values())
    size = sum(ends[3].size.values())
    assert ends[3].mask_change == pytest.approx(200 * ends[3].regrown * kept / size, rel=1e-6), "equal counts"
    assert kept / size <= ends[1].explored + 1e-9 <= ends[3].explored + 1e-9 <= 1


def test_the_twin_teaches_the_final_phase(tmp_path: Path) -> None:
    plain, taught = (
        stage(tmp_path / "a", "train.epochs=5"),
        stage(tmp_path / "b", "train.epochs=5", "train.distill=0.7"),
    )
    one, two = list(plain.run()), list(taught.run())
    assert outcome(one[:-1]) == outcome(two[:-1]), "nothing changes before the final phase"
    assert one[-1].loss != two[-1].loss
    teacher = taught._step.teacher
    assert teacher is not None
    assert taught.sparsifier is not None
    twin = taught.sparsifier.context.twin  # on the CPU, wherever the run is
    assert twin is not None
    assert all(torch.equal(value.cpu(), twin.model[name]) for name, value in teacher.state_dict().items())
    assert not teacher.training


def test_distillation_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    settings = ("train.epochs=5", "train.distill=0.5", "run.checkpoint_every=1st", "run.keep=100")
    whole = stage(tmp_path, *settings)
    expected = list(whole.run())
    again = stage(tmp_path / "again", *settings)
    again.load_state_dict(checkpoint.load(tmp_path / "checkpoints" / "0-acdc-00000022.pt"))
    assert outcome(list(again.run())) == outcome(expected[4:])
