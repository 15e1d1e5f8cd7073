"""SparsifierCallback in Lightning: exact zeros, checkpoints, resuming, bad input."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl  # pyright: ignore[reportMissingImports]
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import acdc
from acdc.core.sparsifier import attached_to
from acdc.errors import ArgumentError
from acdc.integrations.host import StateError
from acdc.integrations.lightning import SparsifierCallback

BATCHES = 8


class Module(pl.LightningModule):
    def __init__(self, optimizers: int = 1, width: int = 16, manual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
        self.optimizers_wanted, self.automatic_optimization = optimizers, not manual

    def training_step(self, batch: Any, index: int) -> Any:
        # Lightning restores neither random generators nor the place in an epoch, so the batch is the step's own.
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(self.global_step))
        loss = F.cross_entropy(self.net(x), x[:, :4].argmax(1))
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        parts = [self.net[0], self.net[2]] if self.optimizers_wanted == 2 else [self.net]
        return [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in parts[: self.optimizers_wanted]]


class Watch(pl.Callback):
    """Checks after every batch that pruned weights are exactly 0, and may stop."""

    def __init__(self, callback: SparsifierCallback, stop_at: int | None = None) -> None:
        self.callback, self.stop_at, self.compressed = callback, stop_at, 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        sparsifier = self.callback.sparsifier
        assert sparsifier is not None
        for name, mask in sparsifier.masks.items():
            assert not pl_module.get_parameter(name)[~mask].any()
        self.compressed += bool(sparsifier.masks)
        if trainer.global_step == self.stop_at:
            trainer.save_checkpoint(Path(trainer.default_root_dir, "stopped.ckpt"))
            trainer.should_stop = True


def loader() -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4 * BATCHES, 8, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=4)


def trainer(folder: Path, *callbacks: Any, **settings: Any) -> Any:
    given = {"max_epochs": 6, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
             "enable_progress_bar": False, "enable_model_summary": False, **settings}  # fmt: skip
    if "max_steps" in given:
        given["max_epochs"] = -1
    return pl.Trainer(default_root_dir=folder, callbacks=list(callbacks), **given)


def method(**knobs: Any) -> acdc.ACDC:
    return acdc.ACDC.paper(sparsity=0.75, epochs=6, **knobs)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings(
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),  # Lightning's own
]


@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({}, 48),
        ({"accumulate_grad_batches": 3}, 18),
        ({"max_steps": 24, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, 24),
        ({"precision": "bf16-mixed"}, 48),
    ],
    ids=["epochs", "accumulation", "steps and clipping", "bf16"],
)
def test_a_sparse_model_and_its_twin_come_out(settings: dict[str, Any], total: int, tmp_path: Path) -> None:
    callback = SparsifierCallback(method())
    watch, module = Watch(callback), Module()
    trainer(tmp_path, callback, watch, **settings).fit(module, loader())
    assert callback.result.total_steps == total
    assert callback.result.dense_step == total * 5 // 6
    assert callback.result.sparsity == 0.75
    assert watch.compressed
    assert same(module.state_dict(), callback.result.sparse)
    assert attached_to(module) is None


@pytest.mark.parametrize("stop", [4, 11, 16, 45], ids=["dense", "compressed", "at a boundary", "final"])
def test_resuming_gives_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole, first, again = (SparsifierCallback(method()) for _ in range(3))
    trainer(tmp_path, whole, Watch(whole)).fit(Module(), loader())
    stopped = trainer(tmp_path, first, Watch(first, stop))
    if stop == 45:
        stopped.fit(Module(), loader())
    else:
        with pytest.warns(acdc.SparsityWarning, match=f"ended after {stop} of 48 steps.*no sparse model yet"):
            stopped.fit(Module(), loader())
    trainer(tmp_path, again, Watch(again)).fit(Module(), loader(), ckpt_path=tmp_path / "stopped.ckpt")
    assert whole.result.dense is not None
    assert again.result.dense is not None
    assert same(whole.result.sparse, again.result.sparse)
    assert same(whole.result.dense, again.result.dense)
    assert same(whole.result.masks, again.result.masks)


def test_the_best_twin_is_chosen_by_a_logged_metric(tmp_path: Path) -> None:
    callback = SparsifierCallback(method(twin="best"), monitor="val_loss", mode="min")
    trainer(tmp_path, callback).fit(Module(), loader(), loader())
    assert callback.result.dense_step in (8, 24, 40)
    wrong = SparsifierCallback(method(twin="best"), monitor="val_acc")
    with pytest.raises(ArgumentError, match="monitor='val_acc': the module logs val_loss"):
        trainer(tmp_path, wrong).fit(Module(), loader(), loader())


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
@pytest.mark.parametrize("name", ["rigl", "dpf"])
def test_methods_that_need_the_gradients_before_the_step(name: str, manual: bool, tmp_path: Path) -> None:
    """RigL looks at gradients, and DPF trains latent weights: Lightning's closures make as much of them as a loop."""
    own = acdc.methods.build(name, sparsity=0.75, epochs=6, every="3st")
    callback = SparsifierCallback(own)
    trainer(tmp_path, callback).fit(Module(manual=manual), loader())
    module = Module()
    optimizer = module.configure_optimizers()[0]
    sparsifier = acdc.attach(module, optimizer, own, steps_per_epoch=BATCHES)
    for step in range(6 * BATCHES):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(module.net(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    assert same(callback.result.sparse, sparsifier.finish().sparse)


def test_bad_input(tmp_path: Path) -> None:
    def refused(kind: type[Exception], message: str, *callbacks: Any, module: Any = None, **settings: Any) -> None:
        module = module or Module()
        with pytest.raises(kind, match=message):
            trainer(tmp_path, *callbacks, **settings).fit(module, loader())
        assert attached_to(module) is None

    with pytest.raises(ArgumentError, match="expected a method"):
        SparsifierCallback(0.9)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="mode='best': expected"):
        SparsifierCallback(method(), mode="best")
    with pytest.raises(RuntimeError, match="training has not begun"):
        _ = SparsifierCallback(method()).result
    refused(ArgumentError, "made for 6 epochs.*epochs=3", SparsifierCallback(method()), max_epochs=3)
    refused(ArgumentError, "returned 2 optimizers", SparsifierCallback(method()), module=Module(2, manual=True))
    refused(ArgumentError, "max_epochs=-1: training has no end", SparsifierCallback(method()), max_epochs=-1)
    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    kept = acdc.attach(module, optimizer, method(), steps_per_epoch=BATCHES)
    with pytest.raises(RuntimeError, match="two SparsifierCallbacks"):  # Lightning refuses two of one class by itself
        trainer(tmp_path, SparsifierCallback(method())).fit(module, loader())
    kept.detach()


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    first = SparsifierCallback(method())
    with pytest.warns(acdc.SparsityWarning, match="no sparse model yet"):
        trainer(tmp_path, first, Watch(first, 11)).fit(Module(), loader())
    path = tmp_path / "stopped.ckpt"
    other = SparsifierCallback(acdc.methods.GMP(sparsity=0.75, epochs=6))
    with pytest.raises(StateError, match="belongs to method 'acdc', but 'gmp'"):
        trainer(tmp_path, other).fit(Module(), loader(), ckpt_path=path)
    content = torch.load(path, weights_only=True)
    content["state_dict"]["net.0.weight"] += 1
    torch.save(content, tmp_path / "changed.ckpt")
    with pytest.raises(StateError, match="belongs to other weights"):
        trainer(tmp_path, SparsifierCallback(method())).fit(Module(), loader(), ckpt_path=tmp_path / "changed.ckpt")
    trainer(tmp_path, max_epochs=2).fit(module := Module(), loader())
    plain = trainer(tmp_path, max_epochs=2)
    plain.fit(module, loader())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(StateError, match="without the state of a SparsifierCallback"):
        trainer(tmp_path, SparsifierCallback(method())).fit(Module(), loader(), ckpt_path=tmp_path / "plain.ckpt")
