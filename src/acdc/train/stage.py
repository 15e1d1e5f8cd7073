"""The training loop, one for all methods: only its log knows about sparsity.

for epoch                             order, crops and flips are a function of seed and epoch
    for batch
        learning rate                 a function of the step
        sparsifier.begin_step()       masks change here when a phase begins
        forward, backward             step.py: eager, compiled or a CUDA graph
        clip, optimizer, average
        checkpoint                    every so often, and when asked to stop, also in an evaluation
    evaluate                          the model of the phase just trained
    an EpochRow                       written to metrics.jsonl by the caller
    checkpoint                        when a phase ends
"""

import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from acdc.core.gathered_state import gather_nested
from acdc.core.method import Method
from acdc.core.result import StateDict, to_cpu
from acdc.core.sparsifier import Sparsifier
from acdc.data.images import Batches, full_share
from acdc.flops.counting import weight_flops
from acdc.measure.dynamics import Dynamics, PhaseEnd, count_parameters, nonzeros, other_flops
from acdc.recipes.fit import attach_quietly
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint
from acdc.runs.records import EpochRow, LanguageEpoch
from acdc.schedule import Duration
from acdc.sparsity.prunable import find_prunable
from acdc.train import divergence, fsdp, optim, stage_state
from acdc.train.distributed import skipped_images
from acdc.train.divergence import DivergedError
from acdc.train.evaluate import Score, evaluate, perplexity
from acdc.train.execution import Loaders, Progress, Setting
from acdc.train.optim import Rates
from acdc.train.precision import Scaler
from acdc.train.step import Step, Totals, TotalsReader, autocast, compiled, loss_curve
from acdc.train.stopping import Stopped
from acdc.train.tasks import find_task, is_text

_LONG_STARTUP = 5.0  # seconds for the first step from which they are reported
_ASK_OTHERS = 20  # steps between two exchanges of news between ranks


class Stage:
    """The training of one model from first epoch to last: a dense baseline, the method, or the twin's fine-tuning."""

    def __init__(
        self,
        index: int,
        name: str,
        model: nn.Module,
        loaders: Loaders,
        recipe: Recipe,
        setting: Setting,
        *,
        uses: Mapping[str, float],
        size_shares: Mapping[int, float] | None = None,
        method: Method | None = None,
    ) -> None:
        self.index, self.name, self.recipe, self.loaders, self.setting = index, name, recipe, loaders, setting
        self.model, self.epochs, self.epoch, self.batch = model, recipe.epochs, 0, 0
        self.sharded = recipe.train.parallel == "fsdp" and setting.world.size > 1
        other = other_flops(model, find_prunable(model, embeddings=recipe.prunes_embeddings), uses)
        if self.sharded:
            fsdp.shard_model(model, setting.device, setting.world.size)
        self.optimizer = optim.build(recipe.optimizer, model, setting.device, recipe.train.precision)
        each = loaders.train.steps
        self.sparsifier: Sparsifier | None = attach_quietly(model, self.optimizer, method, each) if method else None
        method = self.sparsifier.method if self.sparsifier else None  # with what it chose for so many steps
        starts = tuple(start for start, _ in method.schedule.starts(each)) if method else ()
        self.rates = Rates(recipe.stretched_rate(), recipe.optimizer.lr, self.epochs, each, starts)
        self.scaler = Scaler(model, setting.device) if recipe.train.precision == "fp16" else None
        self.ema = _average(model, recipe.train.ema) if recipe.train.ema is not None else None
        self.totals = Totals(setting.device, loaders.train.steps)
        self.best: dict[str, Any] | None = None  # of the final phase, or of all compressed ones
        self.best_weights: StateDict | None = None
        self.seconds = 0.0  # of the current epoch, before the checkpoint it was resumed from
        self.extra: Callable[[], dict[str, Any]] = dict  # stored with every checkpoint; set by whoever runs the stages
        self.saved: Path | None = None
        self._warm = False  # whether a step has run
        self._layers, self._uses = find_prunable(model, embeddings=recipe.prunes_embeddings), uses
        self._other_flops = other
        self._size_shares = size_shares or {}
        pruned = self.sparsifier.layers if self.sparsifier else self._layers
        self.dynamics = Dynamics(self._layers, pruned, uses, self._other_flops)
        self.phase_end: PhaseEnd | None = None  # set if the last row ended a phase
        self.task = find_task(loaders.train, recipe.train)
        self.parameters: list[int] = []  # non-zero ones after each epoch of a language model
        module = self.task.module(model)
        self._wrapped = module if self.sharded else setting.world.wrap(module, setting.device)
        self._step = Step(
            self._wrapped,
            recipe.train,
            setting.execution,
            self.totals,
            device=setting.device,
            full=full_share(loaders.train, setting.world.rank, setting.world.size),
            task=self.task,
            scale=self.scaler.scale if self.scaler else None,
            no_sync=getattr(self._wrapped, "no_sync", partial(fsdp.without_exchange, model)),
            share=self._share,
        )
        # Not DDP's forward: it exchanges buffers, and ranks with different numbers of batches would not meet there.
        self._fast = self._step.fast if self._wrapped is module else compiled(module, setting.execution)
        self._fast_average = None
        if self.ema is not None:
            self._fast_average = compiled(self.task.module(self.ema.module), setting.execution)
        self._boundaries = frozenset(method.schedule.boundaries(each)) if method else frozenset()
        every = Duration.parse(recipe.run.checkpoint_every)
        self._every = max(1, int(every.value * (each if every.unit == "ep" else 1)))

    @property
    def step(self) -> int:
        return self.epoch * self.loaders.train.steps + self.batch

    def run(self) -> Iterator[EpochRow]:
        """Train to the end, and yield a row after each epoch."""
        self._stop_if_asked()  # asked while the previous stage was being measured
        while self.epoch < self.epochs:
            start = time.perf_counter() - self.seconds
            if self.batch == 0:
                self.totals.reset()
            self._train_epoch(start)
            trained = time.perf_counter()
            row = self._row(start, trained)
            self.epoch, self.batch, self.seconds = self.epoch + 1, 0, 0.0
            yield row
            if self.step in self._boundaries or self._due(self.step) or self.epoch == self.epochs:
                self.save()
            self._stop_if_asked()

    def _train_epoch(self, start: float) -> None:
        self.model.train()
        reader, began, first = TotalsReader(self.totals), time.monotonic(), self.batch
        each, clip = self.loaders.train.steps, self.recipe.train.clip_norm
        for images, labels in self.loaders.train.batches(self.epoch, self.batch):
            lr = self.rates.at(self._rate_step())
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            if self.sparsifier:
                self.sparsifier.begin_step()
                if self.recipe.train.distill:
                    self._step.find_teacher(self.model, self.sparsifier)
            if self.scaler:
                self.scaler.begin()
            self.task.begin(self.model, self.epoch, self.batch, self._parts(len(labels)))
            # A CUDA graph masks gradients as captured: a step that must see them unmasked runs eagerly.
            observing = self.sparsifier is not None and self.sparsifier.context.observing
            self._step(images, labels, self.sparsifier.phase.index if self.sparsifier else None, eagerly=observing)
            if self.scaler and clip is not None:
                self.scaler.unscale_(self.optimizer)
            if clip is not None:
                if self.sparsifier and observing:
                    self.sparsifier.mask_gradients()  # if a method looks at them unmasked, they are not masked yet
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
            self.batch += 1
            if not self._warm:
                self._tell_startup(began)
            if self.scaler and self.sparsifier and self.sparsifier.step != self.step:
                self.sparsifier.set_step(self.step)  # a step that GradScaler skipped still counts in the schedule
            self.seconds = time.perf_counter() - start
            if (sums := reader.read()) is not None:
                self._show(sums, (self.batch - first) / max(1e-9, time.monotonic() - began))
            if self._others_tell():
                skipped_images(self.loaders.train, self.setting.world)
                self._stop_together()
            self._stop_if_asked()
            if self.batch < each and self._due(self.step):
                self.save()

    def _tell_startup(self, began: float) -> None:
        """Report how long the first step took, if it was long enough to wonder about."""
        self._warm = True
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize(self.setting.device)
        seconds = time.monotonic() - began
        if seconds > _LONG_STARTUP:
            done = ["the choice of kernels"] * (self.setting.device.type == "cuda")
            done += ["compiling"] * self.setting.execution.compile
            what = f", with {' and '.join(done)}" if done else ""
            self.setting.say(f"{self.name}: the first step took {seconds:.0f} s{what}; later ones are faster")

    def _row(self, start: float, trained: float) -> EpochRow:
        sums = self.setting.world.sum(self.totals.values.double()).tolist()
        curve = loss_curve(self.setting.world.sum(self.totals.curve.double()))
        self._check_finite()
        self.setting.world.share_buffers(self.model)
        if self.ema is not None:
            self.setting.world.share_buffers(self.ema)
        test, held_out = self._judge(self.model, self.loaders.epoch_test, self._fast), self.loaders.epoch_validation
        validation = self._judge(self.model, held_out, self._fast) if held_out else None
        average = None
        if self.ema is not None:
            if self.sparsifier:
                self.sparsifier.apply_masks(self.ema.module)
            average = self._judge(self.ema.module, self.loaders.epoch_test, self._fast_average)
        phase = self.sparsifier.phase if self.sparsifier else None
        counts = nonzeros(self._layers)
        end = (self.epoch + 1) * self.loaders.train.steps
        self.phase_end = None
        if end in self._boundaries or self.epoch + 1 == self.epochs:
            index, name, kind = (phase.index, phase.name, phase.kind) if phase else (0, "dense", "dense")
            self.phase_end = self.dynamics.phase_end(
                run=self.name,
                index=index,
                phase=name,
                kind=kind,
                epoch=self.epoch,
                masks=self.sparsifier.masks if self.sparsifier else None,
            )
        self._note_best(validation or test, self._counts(counts))
        if self.sparsifier and self.sparsifier.method.keeps_best_twin():
            self.sparsifier.report_metric((validation or test).goodness)
        if not math.isfinite(test.loss):
            raise DivergedError(f"{self.name}: the test loss of epoch {self.epoch + 1} is not finite; {self._last()}")
        sizes = self.loaders.train.sizes
        side = sizes.at(self.epoch) if sizes else None
        now = time.perf_counter()
        return EpochRow(
            run=self.name,
            epoch=self.epoch,
            step=(self.epoch + 1) * self.loaders.train.steps,
            phase=phase.name if phase else "dense",
            kind=phase.kind if phase else "dense",
            loss=sums[0] / sums[2],
            train_accuracy=sums[1] / sums[2] if test.text is None else None,
            test_accuracy=test.accuracy,
            test_loss=test.loss,
            sparsity=1 - sum(counts.values()) / self._layers.size,
            flops=weight_flops(counts, self._uses) + self._other_flops,
            lr=self.optimizer.param_groups[0]["lr"],
            seconds=now - start,
            eval_seconds=now - trained,
            validation_accuracy=validation.accuracy if validation else None,
            ema_accuracy=average.accuracy if average else None,
            memorization=self._memorization(test.precision),
            skipped_images=len(skipped_images(self.loaders.train, self.setting.world)),
            image_size=side,
            size_share=1.0 if side is None else self._size_shares[side],
            language=self._language(test, validation, average, trained - start),
            losses=curve,
        )

    def _language(
        self, test: Score, validation: Score | None, average: Score | None, seconds: float
    ) -> LanguageEpoch | None:
        """Return the numbers that only language models have; None for other tasks."""
        if test.text is None:
            return None
        self.parameters.append(count_parameters(self.model))
        tokens = self.loaders.train.samples * self.task.units
        return LanguageEpoch(
            test=test.text,
            validation=validation.text if validation else None,
            validation_loss=validation.loss if validation else None,
            ema_perplexity=average.text.perplexity if average and average.text else None,
            tokens_per_second=tokens / max(seconds, 1e-9),
            parameters=self.parameters[-1],
            average_parameters=statistics.fmean(self.parameters),
        )

    def whole_model(self) -> StateDict:
        """Return a copy of the weights on the CPU; those of a sharded model are gathered, on every rank."""
        return to_cpu(gather_nested(self.model.state_dict(), keep=True))

    def _parts(self, rows: int) -> list[int]:
        """Return the number of rows of each part that a batch is trained in."""
        parts = min(self.recipe.train.accumulate, rows)
        return [rows // parts + (index < rows % parts) for index in range(parts)]

    def _judge(self, model: nn.Module, images: Batches, fast: Any) -> Score:
        """Evaluate, or stop if asked to: until an epoch's row is complete, a checkpoint holds nothing of it."""
        self._stop_if_asked()
        try:
            return evaluate(model, images, self.recipe, self.setting, fast=fast)
        except Stopped:
            self.save()
            raise

    def _memorization(self, precision: str) -> dict[str, float] | None:
        """Measure how the training images with random labels are classified."""
        measure, device = self.loaders.memorization, self.setting.device
        if measure is None:
            return None
        with fsdp.whole_weights(self.model):
            return measure.measure(self.model, epoch=self.epoch, autocast=lambda: autocast(precision, device))

    def _show(self, sums: list[float], steps_per_second: float) -> None:
        loss, _, samples, alive, _ = sums
        if not alive and self.setting.world.size == 1:  # several ranks agree on it at their next exchange
            self._check_finite()
        train = self.loaders.train
        mean = loss / samples if samples else math.nan
        share, speed = self.batch / train.steps, steps_per_second * train.batch_size * self.task.units
        self.setting.watch(Progress(self.name, self.epoch, share, mean, speed, self.task.unit))

    def _counts(self, nonzero: Mapping[str, int]) -> bool:
        """Return True if this epoch's model may be the best: in the phases that run.best names, at full sparsity."""
        if self.sparsifier is None:
            return True
        phase, method = self.sparsifier.phase, self.sparsifier.method
        if phase.kind != "sparse" or not (phase.final or self.recipe.run.best == "compressed"):
            return False
        layers = self.sparsifier.layers
        kept = sum(nonzero[weight.name] for weight in layers.weights)
        budget_total = sum(budget.keep for budget in self.sparsifier.context.budgets)
        return not getattr(method, "needs_sparsity", True) or kept <= budget_total

    def _note_best(self, score: Score, counts: bool) -> None:
        if not counts:
            return
        own = {"accuracy": score.accuracy} if score.text is None else {"perplexity": score.text.perplexity}
        ((key, value),) = own.items()
        if self.best is None or (value > self.best[key] if key == "accuracy" else value < self.best[key]):
            self.best = {"epoch": self.epoch, **own, "chosen_on": self._chosen_on}
            if self.loaders.validation:
                self.best_weights = self.whole_model()

    @property
    def best_twin(self) -> dict[str, Any] | None:
        """Return the best epoch of the dense phases, if the method keeps their best model as the twin."""
        sparsifier = self.sparsifier
        if sparsifier is None or (twin := sparsifier.context.twin) is None or sparsifier.context.best_metric is None:
            return None
        epoch, metric = twin.step // self.loaders.train.steps - 1, sparsifier.context.best_metric
        own = {"accuracy": metric} if self.task.unit == "images" else {"perplexity": perplexity(-metric)}
        return {"epoch": epoch, **own, "chosen_on": self._chosen_on}

    @property
    def twin_epochs(self) -> int:
        """Return the number of epochs that trained the dense twin; all of them if there is none."""
        twin = self.sparsifier.context.twin if self.sparsifier else None
        return twin.step // self.loaders.train.steps if twin else self.epochs

    @property
    def _chosen_on(self) -> str:
        """Return the name of the images or tokens that the best epoch is chosen on."""
        return "validation" if self.loaders.validation else "test"

    def _rate_step(self) -> int:
        sparsifier = self.sparsifier
        return sparsifier.method.rate_step(sparsifier.context, self.step) if sparsifier else self.step

    def _due(self, step: int) -> bool:
        return step % self._every == 0

    def _share(self, samples: int) -> float:
        """Return the weight of this rank's mean gradient that makes the mean over ranks the mean over the batch."""
        world, train = self.setting.world, self.loaders.train
        if world.size == 1:
            return 1.0
        batch = min(train.batch_size, train.samples - self.batch * train.batch_size)
        return samples * world.size / batch

    def _stop_if_asked(self) -> None:
        if self._asked_to_stop():
            self.save()
            raise Stopped(self.setting.stop.signum or signal.SIGTERM)

    def _asked_to_stop(self) -> bool:
        world = self.setting.world
        if world.size == 1:
            return bool(self.setting.stop)
        return self._others_tell() and world.any(bool(self.setting.stop), self.setting.device)

    def _stop_together(self) -> None:
        """Stop all ranks if one has a loss that is not finite: stopping alone, it would leave the others waiting."""
        world = self.setting.world
        if world.size > 1 and not self.scaler and world.any(not self.totals.values[3], self.setting.device):
            self._check_finite()

    def _others_tell(self) -> bool:
        """Return True if ranks exchange news after this batch.

        News are requests to stop, skipped files, and losses that are not finite.
        """
        return self.batch % _ASK_OTHERS == 0 or self.batch == self.loaders.train.steps

    def _check_finite(self) -> None:
        """Raise a DivergedError on all ranks, with the message of the first, if something on any rank is not finite.

        Every rank must call this.
        """
        own = divergence.describe(
            self.name,
            step=self.step,
            epoch=self.epoch,
            first_step=self.epoch * self.loaders.train.steps,
            totals=self.totals,
            rates=self.rates,
            scaler=self.scaler,
            model=self.model,
            optimizer=self.optimizer,
            sparsifier=self.sparsifier,
        )
        if wrong := [one for one in self.setting.world.gather(own) if one]:
            raise DivergedError(f"{min(wrong)[1]}; {self._last()}")

    def _last(self) -> str:
        return f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint, unless something is not finite or too many files were skipped: the last stays good."""
        self._check_finite()
        unreadable = skipped_images(self.loaders.train, self.setting.world)
        rng = self.setting.world.gather(checkpoint.rng_state())
        totals = self.setting.world.gather(self.totals.values.tolist())
        curves = self.setting.world.gather(self.totals.curve.tolist())
        each: dict[str, Any] = {"rng": rng, "totals": totals, "curves": curves}  # by rank
        if is_text(self.loaders.train):
            each["language"] = {
                "memory": self.setting.world.gather(self.task.state_dict()),
                "parameters": list(self.parameters),
            }

        own = self.state_dict() if self.sharded or self.setting.world.first else {}

        def write() -> Path:
            state = {**own, **each, "skipped_images": unreadable, "extra": self.extra()}
            folder, keep = self.setting.checkpoints, self.recipe.run.keep
            return checkpoint.save(folder, self.index, self.name, self.step, state, keep=keep)

        self.saved = self.setting.world.on_rank_zero(write)

    def state_dict(self) -> StateDict:
        """Return the whole state, as checkpoints hold it on rank 0; of a sharded model, call this on every rank."""
        return stage_state.collect(self)

    def load_state_dict(self, state: StateDict) -> None:
        """Resume where `state` was saved; raise a DataError before anything changes if it does not fit."""
        stage_state.load(self, state)


def _average(model: nn.Module, decay: float) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
