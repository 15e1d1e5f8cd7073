"""SparsifierCallback in Hugging Face's Trainer: exact zeros, checkpoints, resuming, two processes, bad input."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

import acdc
from acdc.core.sparsifier import attached_to
from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.integrations.host import StateError, write_state
from acdc.integrations.huggingface import STATE, SparsifierCallback, newest_checkpoint
from tests.integrations.hf_models import BATCH, SAMPLES, gpt2, texts, trainer, vit
from tests.waiting import HANG

PER_EPOCH = SAMPLES // BATCH


def method(**knobs: Any) -> acdc.ACDC:
    """Six epochs: dense, compressed, decompressed, compressed, decompressed, compressed."""
    return acdc.ACDC.paper(sparsity=0.75, epochs=6, **knobs)


class Watch(TrainerCallback):
    """Checks after every step that pruned weights are exactly 0, and counts compressed steps."""

    def __init__(self, callback: SparsifierCallback, stop_at: int | None = None) -> None:
        self.callback, self.stop_at, self.compressed = callback, stop_at, 0

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        sparsifier = self.callback.sparsifier
        assert sparsifier is not None
        for name, mask in sparsifier.masks.items():
            assert not model.get_parameter(name)[~mask].any()
        self.compressed += bool(sparsifier.masks)
        if state.global_step == self.stop_at:
            control.should_training_stop = True


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("build", [gpt2, vit])
def test_a_sparse_model_and_its_twin_come_out(build: Callable[[], Any], tmp_path: Path) -> None:
    model, callback = build(), SparsifierCallback(method())
    keys, watch = list(model.state_dict()), Watch(callback)
    host = trainer(model, tmp_path, callback, watch)
    host.train()
    result = callback.result
    assert abs(result.sparsity - 0.75) < 1e-3
    assert 0 < watch.compressed < 6 * PER_EPOCH
    assert same(model.state_dict(), result.sparse), "the Trainer's model is the sparse one"
    assert attached_to(model) is None
    assert list(model.state_dict()) == keys
    for name, state in (("sparse", result.sparse), ("dense", result.dense)):
        assert state is not None
        assert same(type(model).from_pretrained(tmp_path / name).state_dict(), state)
    host.save_model(str(tmp_path / "own"))
    assert same(type(model).from_pretrained(tmp_path / "own").state_dict(), result.sparse)


def test_accumulation_steps_and_bf16(tmp_path: Path) -> None:
    callback = SparsifierCallback(method(), save=False)
    settings = {"gradient_accumulation_steps": 3, "max_steps": 24, "bf16": True, "max_grad_norm": 0.5}
    host = trainer(gpt2(), tmp_path, callback, Watch(callback), **settings)
    host.train()
    assert callback.result.total_steps == host.state.global_step == 24
    assert callback.result.dense_step == 4 * 5, "six equal shares, the last of them compressed"
    assert not (tmp_path / "sparse").exists()


def test_epochs_that_accumulation_does_not_divide(tmp_path: Path) -> None:
    callback = SparsifierCallback(method(), save=False)
    trainer(gpt2(), tmp_path, callback, gradient_accumulation_steps=3).train()
    assert callback.result.total_steps == 6 * 3  # of 8 batches: 3, 3 and 2


def test_data_without_a_length(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(texts())

    callback = SparsifierCallback(method(), save=False)
    host = trainer(gpt2(), tmp_path, callback, max_steps=12)
    host.train_dataset = Stream()
    host.train()
    assert callback.result.total_steps == 12


def test_a_schedule_in_steps(tmp_path: Path) -> None:
    schedule = acdc.Schedule.from_phases([("dense", "5st"), ("sparse", "7st")])
    callback = SparsifierCallback(acdc.ACDC(sparsity=0.5, schedule=schedule), save=False)
    trainer(gpt2(), tmp_path, callback, max_steps=12).train()
    assert callback.result.dense_step == 5


@pytest.mark.parametrize("stop", [4, 11, 16, 45], ids=["dense", "compressed", "at a boundary", "final"])
def test_resuming_gives_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole = SparsifierCallback(method())
    trainer(gpt2(), tmp_path / "whole", whole).train()
    first = SparsifierCallback(method())
    saving = {"save_strategy": "steps", "save_steps": stop}
    early = trainer(gpt2(), tmp_path / "parts", first, Watch(first, stop_at=stop), **saving)
    if stop == 45:
        early.train()
        assert first.result.total_steps == 48, "stopped early in the final phase: there is a sparse model"
    else:
        with pytest.warns(acdc.SparsityWarning, match=f"ended after {stop} of 48 steps.*no sparse model yet"):
            early.train()
        with pytest.raises(RuntimeError, match=f"ended after {stop} of 48 steps"):
            _ = first.result
    again = SparsifierCallback(method())
    trainer(gpt2(seed=1), tmp_path / "parts", again).train(resume_from_checkpoint=True)
    assert whole.result.dense is not None
    assert again.result.dense is not None
    assert same(whole.result.sparse, again.result.sparse)
    assert same(whole.result.dense, again.result.dense)
    assert same(whole.result.masks, again.result.masks)


@pytest.mark.parametrize("file", ["optimizer.pt", "model.safetensors", "trainer_state.json", "rng_state.pth", STATE])
def test_a_damaged_checkpoint_is_not_resumed_from(file: str, tmp_path: Path) -> None:
    """Also where the Trainer itself would not notice."""
    assert newest_checkpoint(tmp_path) is None
    first = SparsifierCallback(method())
    saving = {"save_strategy": "steps", "save_steps": 5}
    with pytest.warns(acdc.SparsityWarning, match="no sparse model yet"):
        trainer(gpt2(), tmp_path, first, Watch(first, stop_at=11), **saving).train()
    path = tmp_path / "checkpoint-10" / file
    content = path.read_bytes()
    assert newest_checkpoint(tmp_path) == str(path.parent)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(UserWarning, match=f"Skipped a checkpoint, .*checkpoint-10: {file} does not match"):
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")


def test_a_checkpoint_elsewhere(tmp_path: Path) -> None:
    first = SparsifierCallback(method())
    with pytest.warns(acdc.SparsityWarning, match="no sparse model yet"):
        trainer(gpt2(), tmp_path / "one", first, Watch(first, 11), save_strategy="steps", save_steps=11).train()
    checkpoint = tmp_path / "one" / "checkpoint-11"
    lost, model = SparsifierCallback(method()), gpt2()
    with pytest.raises(StateError, match=r"other.checkpoint-11.acdc.pt: there is no such file.*resume_from="):
        trainer(model, tmp_path / "other", lost).train(resume_from_checkpoint=str(checkpoint))
    assert attached_to(model) is None
    found = SparsifierCallback(method(), resume_from=checkpoint)
    trainer(gpt2(), tmp_path / "other", found).train(resume_from_checkpoint=str(checkpoint))
    assert found.result.dense_step == 40


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    first = SparsifierCallback(method())
    with pytest.warns(acdc.SparsityWarning, match="no sparse model yet"):
        trainer(gpt2(), tmp_path, first, Watch(first, 11), save_strategy="steps", save_steps=11).train()
    path = tmp_path / "checkpoint-11" / STATE

    def refused(callback: SparsifierCallback, message: str) -> None:
        model = gpt2()
        with pytest.raises(StateError, match=message):
            trainer(model, tmp_path, callback).train(resume_from_checkpoint=True)
        assert attached_to(model) is None

    refused(SparsifierCallback(acdc.methods.GMP(sparsity=0.75, epochs=6)), "belongs to method 'acdc', but 'gmp'")
    refused(SparsifierCallback(method(exclude=["transformer.h.0"])), "belongs to another model")
    content = path.read_bytes()
    optimizer = torch.optim.SGD((other := gpt2(seed=2)).parameters(), lr=0.1)
    write_state(path, acdc.attach(other, optimizer, method(), steps_per_epoch=PER_EPOCH))
    refused(SparsifierCallback(method()), "its state belongs to other weights than the model holds now")
    path.write_bytes(content[:-100] + bytes(100))
    refused(SparsifierCallback(method()), "damaged")
    path.unlink()
    refused(SparsifierCallback(method()), "there is no such file")
    path.write_bytes(content)
    trainer(gpt2(), tmp_path, last := SparsifierCallback(method())).train(resume_from_checkpoint=True)
    assert last.result.dense_step == 40, "nothing was lost"


def test_the_trainers_count_of_steps_wins(tmp_path: Path) -> None:
    """A gradient scaler skips optimizer steps that the Trainer counts."""

    class Skip(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            assert callback.sparsifier is not None
            if state.global_step < 6:
                callback.sparsifier.set_step(callback.sparsifier.step - 1)  # as if it had not been taken

    callback = SparsifierCallback(method(), save=False)
    trainer(gpt2(), tmp_path, callback, Skip(), Watch(callback)).train()
    assert callback.result.dense_step == 40


def test_the_best_twin_is_chosen_by_the_trainers_metric(tmp_path: Path) -> None:
    settings = {"eval_strategy": "epoch", "metric_for_best_model": "loss", "greater_is_better": False}
    callback = SparsifierCallback(method(twin="best"), save=False)
    host = trainer(gpt2(), tmp_path, callback, **settings)
    host.train()
    losses = {log["step"]: log["eval_loss"] for log in host.state.log_history if "eval_loss" in log}
    dense = {step: loss for step, loss in losses.items() if step in (8, 24, 40)}
    assert callback.result.dense_step == min(dense, key=dense.__getitem__)


@pytest.mark.parametrize("build", [gpt2, vit])
def test_zeros_survive_fine_tuning(build: Callable[[], Any], tmp_path: Path) -> None:
    trainer(build(), tmp_path / "first", first := SparsifierCallback(method())).train()
    model = type(build()).from_pretrained(tmp_path / "first" / "sparse")
    callback = SparsifierCallback(acdc.KeepMasks())
    trainer(model, tmp_path / "tuned", callback, num_train_epochs=2, gradient_accumulation_steps=3).train()
    assert callback.result.total_steps == 2 * 3
    for name, mask in first.result.masks.items():
        assert not model.get_parameter(name)[~mask].any()
        assert not torch.equal(model.get_parameter(name), first.result.sparse[name])


def test_another_run_with_the_same_callback_and_trainer(tmp_path: Path) -> None:
    class Interrupt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            raise KeyboardInterrupt

    callback, interrupt = SparsifierCallback(method(), save=False), Interrupt()
    host = trainer(gpt2(), tmp_path, callback, interrupt)
    with pytest.raises(KeyboardInterrupt):
        host.train()
    host.remove_callback(interrupt)
    host.train()
    assert callback.result.dense_step == 40
    host.train()
    assert callback.result.dense_step == 40


def test_bad_input(tmp_path: Path) -> None:
    def refused(kind: type[Exception], message: str, *callbacks: TrainerCallback, **settings: Any) -> None:
        with pytest.raises(kind, match=message):
            trainer(gpt2(), tmp_path, *callbacks, **settings).train()

    with pytest.raises(ArgumentTypeError, match="expected a method; write SparsifierCallback"):
        SparsifierCallback("acdc")  # pyright: ignore[reportArgumentType]
    refused(RuntimeError, "two SparsifierCallbacks", SparsifierCallback(method()), SparsifierCallback(method()))
    refused(ArgumentError, r"made for 6 epochs.*24 optimizer steps.*epochs=3", SparsifierCallback(method()),
            num_train_epochs=3)  # fmt: skip
    refused(ArgumentError, "give the Trainer 18 or 24 steps", SparsifierCallback(method()), max_steps=20)
    best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    refused(ArgumentError, "load_best_model_at_end=True: .*dense phase", SparsifierCallback(method()), **best)
    with pytest.raises(RuntimeError, match="training has not begun"):
        _ = SparsifierCallback(method()).result
    callback = SparsifierCallback(method())
    host = trainer(gpt2(), tmp_path, callback)
    with pytest.raises(ArgumentError, match="no torch optimizer when training begins, but NoneType"):
        callback.on_train_begin(host.args, host.state, host.control, model=host.model)
    for parameter in (model := gpt2()).parameters():
        parameter.requires_grad_(False)
    model.transformer.wte.weight.requires_grad_(True)
    with pytest.raises(ArgumentError, match=r"frozen \(requires_grad=False\)"):
        trainer(model, tmp_path, SparsifierCallback(method())).train()


def test_two_processes(tmp_path: Path) -> None:
    """torchrun and gloo: both ranks agree, rank 0 saves, and a stopped run resumes to the same bits."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.integrations.hf_ranks", tmp_path],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for part in ("sparse", "dense", "masks"):
        assert same(ranks[0]["whole"][part], ranks[1]["whole"][part])
        assert same(ranks[0]["whole"][part], ranks[0]["again"][part]), "resumed"
    assert (tmp_path / "whole" / "sparse" / "model.safetensors").exists()
