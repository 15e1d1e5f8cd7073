"""Evaluation gives the same numbers eagerly and by the compiled model that trains, and finite ones if there are any."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from acdc.train.divergence import DivergedError
from acdc.train.evaluate import evaluate
from acdc.train.execution import Execution, compiled
from acdc.train.experiment import reproducible
from acdc.train.stage import Stage
from tests.conformance.harness import DEVICE
from tests.train import problems
from tests.train.problems import EAGER, MadeBatches, stage

COMPILED = Execution(True, False, ())


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch, without_inductor: None):
    """16 images of 8 x 8 at a time: the 40 test images have a last batch of another size. On a GPU, no TF32."""
    monkeypatch.setattr("acdc.train.loading._EVALUATION_BATCH", 1)
    with reproducible(problems.recipe(), torch.device(DEVICE)):
        yield


@pytest.fixture
def graphs():
    """The number of graphs compiled so far."""
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    counters.clear()


class Spy(nn.Module):
    """The sizes of the batches a model was given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.sizes = inner, []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        return self.inner(images)


def test_compiled_within_rounding_and_an_odd_last_batch_is_not_compiled(tmp_path: Path, graphs) -> None:
    run = stage(tmp_path)
    model, test = run.model, run.loaders.test
    rows = run.run()
    _ = next(rows), next(rows)  # while a compression is due, as after the first epoch, nothing runs compiled
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    model.train()
    fast = Spy(compiled(model, COMPILED))
    plainly, quickly = [], []
    plain = evaluate(model, test, run.recipe, run.setting, plainly)
    quick = evaluate(model, test, run.recipe, run.setting, quickly, fast=fast)
    assert [len(part) for part in quickly] == [16, 16, 8]
    assert fast.sizes == [16, 16]
    torch.testing.assert_close(torch.cat(quickly), torch.cat(plainly), rtol=1e-4, atol=1e-5)
    assert (quick.accuracy, quick.samples) == (plain.accuracy, plain.samples)
    assert quick.loss == pytest.approx(plain.loss, rel=1e-5)
    assert model.training
    assert graphs() == 1


def test_a_batch_that_lost_an_image_is_not_compiled(tmp_path: Path) -> None:
    """Unreadable files leave an evaluation batch smaller, also the first one."""
    run = stage(tmp_path)
    images, labels = next(run.loaders.test.batches(0))

    class Some(MadeBatches):
        samples, batch_size, steps = 48, 16, 3

        def batches(self, epoch: int, first: int = 0):
            for size in (15, 16, 16):
                yield images[:size], labels[:size]

    fast = Spy(run.model)
    assert evaluate(run.model, Some(), run.recipe, run.setting, fast=fast).samples == 47
    assert fast.sizes == [16, 16]


SPARSE = [{"name": name, "sparsity": 0.8} for name in ("acdc", "top_kast", "dpf")] + [{"name": "str", "start": -2.0}]


@pytest.mark.parametrize("method", SPARSE, ids=lambda method: method["name"])
def test_every_phase_is_evaluated_with_the_weights_it_has(method, tmp_path, graphs, monkeypatch) -> None:
    """One graph to train and one to evaluate, through all phases; the average shares the latter."""
    monkeypatch.setitem(problems.TABLES, "method", method)
    run = stage(tmp_path, "train.ema=0.9", "train.batch_size=12", "data.validation=20", execution=COMPILED)
    test, held, last = run.loaders.test, run.loaders.validation, None
    assert held is not None
    assert run.ema is not None
    row = None
    for row in run.run():
        score = evaluate(run.model, test, run.recipe, run.setting)
        assert (row.test_accuracy, row.test_loss) == (score.accuracy, pytest.approx(score.loss, rel=1e-4))
        assert row.validation_accuracy == evaluate(run.model, held, run.recipe, run.setting).accuracy
        assert row.ema_accuracy == evaluate(run.ema.module, test, run.recipe, run.setting).accuracy
        assert row.test_loss != last
        last = row.test_loss
    assert row is not None
    assert row.sparsity > 0.5
    assert graphs() == 2


def test_each_batch_size_has_a_graph_of_its_own(graphs) -> None:
    """torch.compile's own way is one for all sizes from the second on: slower than both."""
    model = compiled(nn.Linear(3, 2), COMPILED)
    for size in (4, 5, 6, 4):
        model(torch.zeros(size, 3))
    assert graphs() == 3


def test_steps_and_evaluation_share_one_compiled_model(tmp_path: Path) -> None:
    run = stage(tmp_path, execution=COMPILED)
    assert run._fast is run._step.fast
    assert run._fast is not run.model
    plain = stage(tmp_path, "data.validation=20", execution=EAGER)
    assert plain._fast is plain._step.fast is plain.model
    plain._fast = Spy(plain.model)
    next(plain.run())
    assert plain._fast.sizes == [16, 16, 16], "40 test images and 20 to choose by, less what is left of each"


# fp16


def half(folder: Path, mean: float) -> Stage:
    """Evaluated in fp16, with a batch norm that has seen, by its statistics, images of another world."""
    run = stage(folder)
    run.recipe = replace(run.recipe, train=replace(run.recipe.train, precision="fp16"))  # GradScaler needs a GPU

    def mislead(*_: object) -> None:
        run.model.get_buffer("bn1.running_mean").fill_(mean)

    run.optimizer.register_step_post_hook(mislead)
    return run


def test_fp16_that_overflows_is_evaluated_again_in_fp32_and_that_is_said_once(tmp_path: Path, caplog) -> None:
    run, kept = half(tmp_path, -1e6), []
    with caplog.at_level(logging.WARNING, logger="acdc"):
        rows = list(run.run())
        score = evaluate(run.model, run.loaders.test, run.recipe, run.setting, kept)
    plain = replace(run.recipe, train=replace(run.recipe.train, precision="fp32"))
    assert score == evaluate(run.model, run.loaders.test, plain, run.setting)
    assert score.precision == "fp32"
    assert (rows[-1].test_accuracy, rows[-1].test_loss) == (score.accuracy, score.loss)
    assert torch.cat(kept).shape == (40, 4)
    assert torch.cat(kept).isfinite().all()
    (said,) = [record.message for record in caplog.records if "fp16" in record.message]
    assert said.startswith("evaluation overflowed in fp16 but is finite in fp32, so it was repeated in fp32")


def test_cudnn_searches_no_kernels_for_evaluation_again_or_for_odd_batches(tmp_path: Path) -> None:
    """fp32 is a precision of its own to cuDNN: searching for it took a minute in the middle of a run."""
    run, seen = half(tmp_path, -1e6), []
    run.model.register_forward_hook(lambda *_: seen.append((len(_[2]), _[2].dtype, torch.backends.cudnn.benchmark)))
    run.model.get_buffer("bn1.running_mean").fill_(-1e6)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        evaluate(run.model, run.loaders.test, run.recipe, run.setting)
    full = max(size for size, _, _ in seen)
    assert {size for size, _, _ in seen} == {full, 40 % full}
    for size, dtype, searching in seen:
        assert searching == (dtype == torch.float16 and size == full)


def test_fp16_that_does_not_overflow_stays_fp16(tmp_path: Path, caplog) -> None:
    run = half(tmp_path, 0.0)
    next(run.run())
    assert evaluate(run.model, run.loaders.test, run.recipe, run.setting).precision == "fp16"
    assert not run.setting.said_overflow


def test_what_is_not_finite_in_fp32_either_stops_the_run(tmp_path: Path) -> None:
    run = half(tmp_path, -1e38)
    with pytest.raises(DivergedError, match="the test loss of epoch 1 is not finite"):
        list(run.run())
    assert not run.setting.said_overflow
