"""The cost of acdc in a step of Hugging Face's Trainer, of Lightning's and of a loop with Accelerate.

    make bench-hosts        # in the environment of make test-integrations

A trainer owns its loop, so each of three copies (alone, with acdc in a dense phase, with acdc in a compressed phase)
runs in a thread of its own, and all wait for their next batch: one copy at a time gets one, every round in another
order. A step is the time from one batch to the next request, with all that the trainer and its callbacks do; ratios
to the copy alone are taken within a round. With --threads 1 a step's processor time is its thread's, which other
programs on the machine disturb less than the time on the wall; both are kept.
"""

import argparse
import contextlib
import io
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import acdc
from benchmarks.console import print_table, progress, run, say
from benchmarks.nets import GPT
from benchmarks.record import RESULTS, Row, append, environment

SPARSITY, WARM_UP = 0.9, 3
ALONE, DENSE, COMPRESSED = "alone", "acdc, dense phase", "acdc, compressed phase"


class Turn(IterableDataset):
    """The data of one copy: a batch whenever it is this copy's turn, and the seconds until it asks for another.

    seconds    on the wall
    processor  of the copy's own thread
    """

    def __init__(self, batch: dict[str, Tensor], steps: int) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self._batch, self._steps = batch, steps
        self._given, self._asked = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for _ in range(self._steps):
            self._asked.release()
            self._given.acquire()
            start = time.thread_time()
            yield self._batch
            self.processor.append(time.thread_time() - start)

    def start(self, train: Callable[["Turn"], None]) -> None:
        """Train in a thread, up to the first request for a batch."""
        threads = torch.get_num_threads()

        def work() -> None:
            torch.set_num_threads(threads)  # which OpenMP keeps for each thread
            try:
                train(self)
            except BaseException as error:
                self._error = error
            finally:
                self._asked.release()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        self._wait()

    def take(self) -> None:
        """Give a batch and wait for the next request, or for the end."""
        start = time.perf_counter()
        self._given.release()
        self._wait()
        self.seconds.append(time.perf_counter() - start)

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        self._asked.acquire()
        if self._error is not None:
            raise self._error


class LanguageModel(nn.Module):
    """A GPT that returns its loss, as trainers expect."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = GPT(width=width, depth=depth)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.net(tokens).flatten(0, 1), labels.flatten())}


def method_for(way: str, steps: int) -> acdc.ACDC | None:
    """Return a method that stays in one phase from the second step on."""
    if way == ALONE:
        return None
    phases = [("dense", f"{steps - 1}st"), ("sparse", "1st")] if way == DENSE else [("dense", "1st")]
    if way == COMPRESSED:
        phases.append(("sparse", f"{steps - 1}st"))
    return acdc.ACDC(sparsity=SPARSITY, schedule=acdc.Schedule.from_phases(phases))


def train_huggingface(model: nn.Module, turn: Turn, method: acdc.Method | None, steps: int) -> None:
    from transformers import Trainer, TrainingArguments  # pyright: ignore[reportMissingImports]

    from acdc.integrations.huggingface import SparsifierCallback

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=1,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        callbacks: list[Any] = [SparsifierCallback(method, save=False)] if method else []
        collate = lambda batches: batches[0]  # noqa: E731
        Trainer(model, arguments, train_dataset=turn, data_collator=collate, callbacks=callbacks).train()


def train_lightning(model: nn.Module, turn: Turn, method: acdc.Method | None, steps: int) -> None:
    import lightning.pytorch as pl  # pyright: ignore[reportMissingImports]

    from acdc.integrations.lightning import SparsifierCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, index: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    callbacks: list[Any] = [SparsifierCallback(method)] if method else []
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(turn, batch_size=None))


def train_accelerate(model: nn.Module, turn: Turn, method: acdc.Method | None, steps: int) -> None:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader: Any = DataLoader(turn, batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if method:
        acdc.attach(model, optimizer, method, quiet=True)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()


HOSTS = {"Hugging Face": train_huggingface, "Lightning": train_lightning, "Accelerate": train_accelerate}


def measure(host: str, rounds: int, *, quick: bool = False) -> list[Row]:
    """Time one host's three copies in turns."""
    width, depth, shape = (64, 1, (1, 16)) if quick else (192, 3, (8, 128))
    torch.manual_seed(0)
    tokens = torch.randint(1024, (shape[0], shape[1] + 1))
    batch = {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    steps = WARM_UP + rounds + 2  # trainers may ask for a batch ahead
    turns, models = {way: Turn(batch, steps) for way in (ALONE, DENSE, COMPRESSED)}, {}
    for way, turn in turns.items():
        torch.manual_seed(0)
        models[way] = model = LanguageModel(width, depth)
        turn.start(lambda turn, way=way, model=model: HOSTS[host](model, turn, method_for(way, steps), steps))
    order = random.Random(0)
    with progress(host, WARM_UP + rounds) as begin:
        for number in range(WARM_UP + rounds):
            begin("warm-up" if number < WARM_UP else f"round {number - WARM_UP + 1}")
            for way in order.sample(list(turns), len(turns)):
                turns[way].take()
    zeros = {way: _zeros(model) for way, model in models.items()}
    for turn in turns.values():  # what is left, alone
        turn.take()
        turn.take()
        turn.finish()
    assert zeros[DENSE] < 0.01 < abs(SPARSITY - 0.01) < zeros[COMPRESSED], f"{host}: not in their phases: {zeros}"
    timed = slice(WARM_UP, WARM_UP + rounds)
    rows = []
    for way in (DENSE, COMPRESSED):
        clocks = {"wall": [t.seconds[timed] for t in (turns[way], turns[ALONE])]}
        if torch.get_num_threads() == 1:
            clocks["processor"] = [t.processor[timed] for t in (turns[way], turns[ALONE])]
        rows.append(
            {
                "benchmark": "hosts",
                "host": host,
                "quick": quick,
                "parameters": sum(param.numel() for param in models[way].parameters()),
                "batch": f"{shape[0]} x {shape[1]} tokens",
                "sparsity": SPARSITY,
                "way": way,
                "alone_seconds": turns[ALONE].seconds[timed],
                "seconds": {clock: mine for clock, (mine, _) in clocks.items()},
                "ratios": {clock: _quartiles(mine, alone) for clock, (mine, alone) in clocks.items()},
                "n": rounds,
            }
        )
    return rows


def _quartiles(mine: list[float], alone: list[float]) -> list[float]:
    """Return the quartiles of the ratios within rounds, the median in the middle."""
    ratios = [one / other for one, other in zip(mine, alone, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive")


def _zeros(model: nn.Module) -> float:
    weights = [weight.param for weight in acdc.find_prunable(model).weights]
    return 1 - sum(int(weight.count_nonzero()) for weight in weights) / sum(weight.numel() for weight in weights)


def host_table(rows: list[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return title, header, cells and a note on where and when it was measured."""
    first = rows[0]
    header = ["trainer", "phase", "step alone", *(f"{clock} / alone" for clock in first["ratios"]), "n"]
    cells = [
        [
            row["host"],
            row["way"].removeprefix("acdc, "),
            f"{1000 * statistics.median(row['alone_seconds']):.1f} ms",
            *(f"{median:.3f} ({low:.3f} – {high:.3f})" for low, median, high in row["ratios"].values()),
            str(row["n"]),
        ]
        for row in rows
    ]
    title = f"A GPT of {first['parameters'] / 1e6:.1f} M parameters, {first['batch']}, AdamW, fp32, on a CPU"
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    where = f"{first['cpu']}, {first['cores']} cores, torch threads {first['threads']}, load {first['load']}"
    made = f"{versions}, torch {first['torch']}, acdc at {first['commit'] or 'an unknown commit'}"
    return (
        title,
        header,
        cells,
        f"{where}; {made}; {first['run'][:10]}. Ratios are medians over n rounds, with quartiles.",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--hosts", nargs="+", choices=list(HOSTS), default=list(HOSTS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: a trial, not a measurement")
    parser.add_argument("--results", type=Path, default=RESULTS / "hosts.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: expected 2 or more")
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = environment(torch.device("cpu"), options.commit) | {"versions": _versions()}
    rows: list[Row] = []
    for host in options.hosts:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # trainers' advice about workers, and the like
            rows += [{**shared, **row} for row in measure(host, options.rounds, quick=options.quick)]
    append(options.results, rows)
    print_table(*host_table(rows))
    say(f"written to {options.results}")
    return 0


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("transformers", "lightning", "accelerate")}


if __name__ == "__main__":
    run(main)
