"""Transformer-XL at full size: training steps with fused and with reference attention, phases, and selection.

    attention   steps of two copies of the model, one with relative_attention and one with its slow reference
    phases      steps of three copies: plain, with acdc in a dense phase, with acdc in a compressed phase
    selection   masks of the largest weights by global magnitude, of the linear layers and of all with the embeddings
    data        steps of two copies: one on the same batch again and again, one on the batches of a long text
    throughput  all four

A step is forward, backward, gradients clipped at .25 and LAMB, with the memory of the segment before, in bf16 on a GPU.
Copies take turns, every round in another order, and ratios are within rounds.
"""

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import acdc
from acdc.data.token_batches import Streams
from acdc.models.relative_attention import relative_attention_reference
from acdc.models.transformer_xl import Memory, RelativeAttention, TransformerXL
from acdc.sparsity.masks import new_mask
from acdc.sparsity.patterns import Unstructured
from benchmarks.console import print_table, progress, run, say
from benchmarks.language_tables import language_table
from benchmarks.record import RESULTS, Row, append, environment

SPARSITY = 0.8
PARTS = ("attention", "phases", "selection", "data")
MODELS = {"transformer-xl": 267_735, "transformer-xl-base": 267_735, "transformer-xl-small": 33_278}
FUSED, REFERENCE = "fused attention", "reference attention"
PLAIN, DENSE, COMPRESSED = "plain", "acdc, dense phase", "acdc, compressed phase"
SAME, TEXT = "the same batch", "batches of a text"
_SEGMENTS = 200  # of each row of the text that batches are read from
_LONG = "1000000st"
_SCHEDULES = {
    DENSE: acdc.Schedule.from_phases([("dense", _LONG), ("sparse", "1st")]),
    # The long phase is not the final one: entering that also copies the twin.
    COMPRESSED: acdc.Schedule.from_phases([("dense", "1st"), ("sparse", _LONG), ("dense", "1st"), ("sparse", "1st")]),
}
_TINY: dict[str, Any] = {
    "layers": 2, "width": 32, "heads": 2, "head_width": 16, "feedforward": 64, "cutoffs": [100, 200],
    "target_length": 16, "memory_length": 16,
}  # fmt: skip


class Trainer:
    """A copy of the model and the loop around it, on one segment that follows itself."""

    def __init__(self, model: TransformerXL, words: Tensor) -> None:
        self.model, self.words = model, words
        self.optimizer = acdc.Lamb(model.parameters(), lr=1e-3, bias_correction=False)
        self.memory: Memory | None = None
        self.peak_bytes: int | None = None

    def batch(self) -> tuple[Tensor, Tensor]:
        return self.words[:, :-1], self.words[:, 1:]

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        words, following = self.batch()
        with torch.autocast("cuda", torch.bfloat16) if words.is_cuda else nullcontext():
            loss, self.memory = self.model(words, following, self.memory)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()

    def seconds(self, steps: int) -> float:
        """Measure the seconds of a step, and the memory that it takes beside what lies ready."""
        device = self.words.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        seconds = _seconds(lambda: [self.step() for _ in range(steps)], device) / steps
        if device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(device) - before
        return seconds


class TextTrainer(Trainer):
    """The same on the batches of a text, as the training loop reads them."""

    def __init__(self, model: TransformerXL, words: Tensor, text: Tensor) -> None:
        super().__init__(model, words)
        streams = Streams(text, words.device, batch_size=len(words), length=model.target_length)
        self._batches = chain.from_iterable(streams.batches(epoch) for epoch in count())

    def batch(self) -> tuple[Tensor, Tensor]:
        return next(self._batches)


def measure_attention(model: TransformerXL, words: Tensor, rounds: int, steps: int, compiled: bool) -> list[Row]:
    trainers = {name: Trainer(copy.deepcopy(model), words) for name in (FUSED, REFERENCE)}
    if compiled:
        trainers |= {f"{name}, compiled layers": Trainer(copy.deepcopy(model), words) for name in (FUSED, REFERENCE)}
    for name, trainer in trainers.items():
        for module in trainer.model.modules():
            if name.startswith(REFERENCE) and isinstance(module, RelativeAttention):
                module.attend = relative_attention_reference
        if name.endswith("compiled layers"):
            for layer in trainer.model.layers:
                layer.compile()
    return _rows(trainers, _in_turns("attention", trainers, rounds, steps), REFERENCE)


def measure_phases(model: TransformerXL, words: Tensor, rounds: int, steps: int) -> list[Row]:
    trainers = {name: Trainer(copy.deepcopy(model), words) for name in (PLAIN, DENSE, COMPRESSED)}
    for name, schedule in _SCHEDULES.items():
        trainer = trainers[name]
        sparsifier = acdc.attach(trainer.model, trainer.optimizer, acdc.ACDC(sparsity=SPARSITY, schedule=schedule))
        for _ in range(2):
            trainer.step()
        assert sparsifier.phase.kind == ("sparse" if name == COMPRESSED else "dense")
    return _rows(trainers, _in_turns("phases", trainers, rounds, steps), PLAIN)


def measure_selection(model: TransformerXL, rounds: int) -> list[Row]:
    rows, device = [], next(model.parameters()).device
    for variant, embeddings in (("linear layers", False), ("all weights with the embeddings", True)):
        method = acdc.ACDC(sparsity=SPARSITY, epochs=10, embeddings=embeddings)
        layers = method.layers(model)
        scores = {weight.name: weight.param.detach() for weight in layers.weights}
        masks = {name: new_mask(score) for name, score in scores.items()}
        budgets, pattern = method.budgets(layers), Unstructured()

        def select(layers=layers, scores=scores, budgets=budgets, masks=masks, pattern=pattern) -> None:
            pattern.write_masks(layers.weights, scores, budgets, out=masks)

        select()
        times = [_seconds(select, device) for _ in range(rounds)]
        kept = sum(int(mask.count_nonzero()) for mask in masks.values())
        assert kept == layers.size - round(SPARSITY * layers.size)
        rows.append({"variant": variant, "weights": layers.size, "seconds": times, "median": statistics.median(times)})
    return rows


def measure_data(model: TransformerXL, words: Tensor, rounds: int, steps: int) -> list[Row]:
    text = words[:, 1:].repeat(1, _SEGMENTS).flatten().to(torch.int32)
    trainers = {SAME: Trainer(copy.deepcopy(model), words), TEXT: TextTrainer(copy.deepcopy(model), words, text)}
    return _rows(trainers, _in_turns("data", trainers, rounds, steps), SAME)


def _in_turns(title: str, trainers: Mapping[str, Trainer], rounds: int, steps: int) -> dict[str, list[float]]:
    """Measure the seconds of a step of each copy in each round, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    order = random.Random(0)
    with progress(title, (rounds + 1) * len(trainers)) as begin:
        for round_ in range(rounds + 1):
            for name in order.sample(list(trainers), len(trainers)):
                begin(f"{name}, round {round_}" if round_ else f"{name}, warm-up")
                seconds = trainers[name].seconds(steps)
                if round_:
                    times[name].append(seconds)
    return times


def _rows(trainers: Mapping[str, Trainer], times: Mapping[str, list[float]], base: str) -> list[Row]:
    rows = []
    for name, trainer in trainers.items():
        ratios = [mine / other for mine, other in zip(times[name], times[base], strict=True)]
        batch, length = trainer.words.shape
        median = statistics.median(times[name])
        rows.append(
            {
                "variant": name,
                "base": base,
                "seconds": times[name],
                "median": median,
                "tokens_per_second": batch * (length - 1) / median,
                "ratios": ratios,
                "ratio": statistics.median(ratios),
                "peak_bytes": trainer.peak_bytes,
            }
        )
    return rows


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = environment(device, options.commit)
    say(f"language: {shared['device_name']}, {shared['cores']} cores, torch {shared['torch']}, load {shared['load']}")
    settings: dict[str, Any] = _TINY if options.quick else {}
    vocabulary = 300 if options.quick else MODELS[options.model]
    built = acdc.models.build(options.model, vocabulary=vocabulary, seed=0, **settings)
    assert isinstance(built, TransformerXL)
    model, generator = built.to(device), torch.Generator().manual_seed(0)
    # Words of falling frequency, as in a text: p(word) ∝ 1 / (rank + 1).
    chances = 1 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    drawn = torch.multinomial(chances, options.batch * (model.target_length + 1), replacement=True, generator=generator)
    words = drawn.view(options.batch, -1).to(device)
    shared |= {"benchmark": "language", "model": options.model, "quick": options.quick, "batch": options.batch}
    shared |= {"target_length": model.target_length, "memory_length": model.memory_length, "sparsity": SPARSITY}
    shared |= {"parameters": sum(param.numel() for param in model.parameters()), "n": options.rounds}
    shared |= {"precision": "bf16 autocast" if device.type == "cuda" else "fp32", "steps_per_timing": options.steps}
    measures: dict[str, Callable[[], list[Row]]] = {
        "attention": lambda: measure_attention(model, words, options.rounds, options.steps, options.compile),
        "phases": lambda: measure_phases(model, words, options.rounds, options.steps),
        "selection": lambda: measure_selection(model, options.rounds),
        "data": lambda: measure_data(model, words, options.rounds, options.steps),
    }
    for part in PARTS if options.only == "throughput" else (options.only,):
        rows = [{**shared, "part": part, **row} for row in measures[part]()]
        append(options.results, rows)
        print_table(*language_table(rows))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    say(f"written to {options.results}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.language", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="throughput", choices=("throughput", *PARTS))
    parser.add_argument("--model", default="transformer-xl", choices=list(MODELS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, help="sequences in a batch (default 32, with --quick 2)")
    parser.add_argument("--rounds", type=int, help="default 10, with --quick 2")
    parser.add_argument("--steps", type=int, help="steps in a timing (default 3, with --quick 1)")
    parser.add_argument("--compile", action="store_true", help="also measure attention with layers compiled")
    parser.add_argument("--quick", action="store_true", help="a tiny model: a trial, not a measurement")
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--results", type=Path, default=RESULTS / "language.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    for name, usual, quick in (("batch", 32, 2), ("rounds", 10, 2), ("steps", 3, 1)):
        value = getattr(options, name)
        setattr(options, name, (quick if options.quick else usual) if value is None else value)
        if getattr(options, name) < 1:
            parser.error(f"--{name} {value}: expected 1 or more")
    return options


if __name__ == "__main__":
    run(main)
