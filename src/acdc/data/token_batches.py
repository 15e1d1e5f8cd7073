"""Batches of tokens, each with the token that follows it as its target.

Windows   a pass over the text in random order: windows of `length` tokens, shifted by a random offset, each once
Streams   the text in as many rows as the batch has, read from left to right: a memory carries over from batch to batch

The order is a pure function of seed and step, so a run that is resumed anywhere sees what one that never stopped sees.
All batches of training have the same shape: what does not fill one is left out, in each pass of Windows elsewhere.
Evaluations read every token but the first, which nothing precedes, exactly once, in batches of several shapes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acdc.data.image_sizes import ImageSizes
from acdc.data.images import share
from acdc.data.token_files import read_tokens
from acdc.errors import ArgumentError

Batch = tuple[Tensor, Tensor]
_EVALUATION_ROWS = 16  # of a stream; a row begins without memory
_SCORES = 1 << 25  # numbers that a model of windows may return at once in an evaluation


class _Tokens:
    """The parts that all batches of tokens share; a batch is a number of rows."""

    unread: Sequence[int] = ()
    labels = torch.empty(0, dtype=torch.int64)  # an evaluation returns no predictions
    sizes: ImageSizes | None = None  # texts have no size that grows

    def __init__(self, stored: Tensor, device: torch.device, *, batch_size: int, rank: int, world: int) -> None:
        self._stored, self._device = stored, device
        self.batch_size, self._rank, self._world = batch_size, rank, world
        self._rows = share(0, batch_size, rank, world)

    def _read(self, starts: Tensor, length: int) -> Batch:
        """Return the `length` tokens from each start on, and those that follow them.

        Starts are where the tokens are: a copy of one index for each batch would make the host wait for the device.
        """
        tokens = read_tokens(self._stored[starts[:, None] + torch.arange(length + 1, device=starts.device)])
        if tokens.device.type != self._device.type:
            tokens = tokens.pin_memory().to(self._device, non_blocking=True)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _at(self, start: int) -> Tensor:
        return torch.tensor([start], device=self._stored.device)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The size of the text that an evaluation scores: all of a part, or its beginning, but for the first token."""

    tokens: int
    bytes: int | None  # None if it is unknown, or if tokens are <unk>, which hides the bytes behind it
    words: int | None  # None if white space does not separate the text into words, as in Chinese


class Windows(_Tokens):
    """Windows of the text in random order. An epoch is a pass over the text, or `steps` batches."""

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        *,
        batch_size: int,
        length: int,
        steps: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(stored, device, batch_size=batch_size, rank=rank, world=world)
        self.length, self._seed = length, seed
        self._pass = windows_pass(len(stored), batch_size, length)
        self.steps = steps or self._pass
        self.samples = self.steps * batch_size

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        drawn, starts = -1, torch.empty(0, dtype=torch.int64)
        for step in range(epoch * self.steps + first, (epoch + 1) * self.steps):
            number, within = divmod(step, self._pass)
            if number != drawn:
                drawn, starts = number, self._draw(number)
            rows = starts[within * self.batch_size : (within + 1) * self.batch_size]
            yield self._read(rows[self._rows], self.length)

    def _draw(self, number: int) -> Tensor:
        """Draw the starts of all windows of a pass, in order."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        windows = (len(self._stored) - 1) // self.length
        spare = len(self._stored) - 1 - windows * self.length
        if windows > self._pass * self.batch_size:  # some are left out anyway, so the offset may be any
            windows, spare = windows - 1, spare + self.length
        offset = int(torch.randint(spare + 1, (), generator=generator))
        starts = offset + self.length * torch.randperm(windows, generator=generator)
        return starts.to(self._stored.device)


class Streams(_Tokens):
    """The text in `batch_size` rows, in segments of `length` tokens. An epoch is a pass, or `steps` batches."""

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        *,
        batch_size: int,
        length: int,
        steps: int = 0,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(stored, device, batch_size=batch_size, rank=rank, world=world)
        self.length = length
        self._pass = streams_pass(len(stored), batch_size, length)
        self.steps = steps or self._pass
        self.samples = self.steps * batch_size
        each = (len(stored) - 1) // batch_size
        self._starts = (torch.arange(batch_size, device=stored.device) * each)[self._rows]

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for step in range(epoch * self.steps + first, (epoch + 1) * self.steps):
            yield self._read(self._starts + step % self._pass * self.length, self.length)

    def restarts(self, epoch: int, batch: int) -> bool:
        """Return True if this batch continues none, so that a memory is empty."""
        return (epoch * self.steps + batch) % self._pass == 0


class Evaluation(_Tokens, ABC):
    """Every token but the first, once: `samples` tokens, whose text has the size `scored`."""

    def __init__(
        self, stored: Tensor, device: torch.device, scored: Scored, *, rows: int, length: int, rank: int, world: int
    ) -> None:
        super().__init__(stored, device, batch_size=rows, rank=rank, world=world)
        self.length, self.samples, self.scored = length, len(stored) - 1, scored

    @property
    @abstractmethod
    def steps(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of all batches, from the first on."""

    def restarts(self, epoch: int, batch: int) -> bool:
        """Return True if this batch continues none, so that a memory is empty."""
        return True

    def lengths(self, model: Any) -> AbstractContextManager[Any]:
        """Return a context in which a model reads rows of this length, with the memory of an evaluation."""
        return nullcontext()


class WholeWindows(Evaluation):
    """Every token but the first, once, in windows from the text's beginning to its end: ranks share the windows."""

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        scored: Scored,
        *,
        length: int,
        vocabulary: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        rows = max(1, min(256, _SCORES // (length * vocabulary))) * world
        super().__init__(stored, device, scored, rows=rows, length=length, rank=rank, world=world)

    @property
    def steps(self) -> int:
        return -(-self.samples // (self.length * self.batch_size))

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        whole, rest = divmod(self.samples, self.length)
        starts = torch.arange(whole, device=self._stored.device) * self.length
        for rows in starts.split(self.batch_size):
            mine = rows[share(0, len(rows), self._rank, self._world)]
            if len(mine):
                yield self._read(mine, self.length)
        if rest and self._rank == self._world - 1:  # this rank's share is the smaller one, if they differ
            yield self._read(self._at(whole * self.length), rest)


class WholeStreams(Evaluation):
    """Every token but the first, once, in rows that are read from left to right, a memory from batch to batch.

    The few tokens that do not fill all rows come last, in a row of their own. With several ranks each reads its own
    rows.
    """

    def __init__(
        self,
        stored: Tensor,
        device: torch.device,
        scored: Scored,
        *,
        length: int,
        memory: int | None = None,
        clamp: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._memory, self._clamp = memory, clamp
        rows = max(world, min(_EVALUATION_ROWS, (len(stored) - 1) // length), 1)
        super().__init__(stored, device, scored, rows=rows, length=length, rank=rank, world=world)

    @property
    def steps(self) -> int:
        each, rest = divmod(self.samples, self.batch_size)
        return -(-each // self.length) - (-rest // self.length)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        each, rest = divmod(self.samples, self.batch_size)
        starts = (torch.arange(self.batch_size, device=self._stored.device) * each)[self._rows]
        for begin in range(0, each, self.length):
            yield self._read(starts + begin, min(self.length, each - begin))
        for begin in range(0, rest if self._rank == 0 else 0, self.length):
            yield self._read(self._at(self.batch_size * each + begin), min(self.length, rest - begin))

    def lengths(self, model: Any) -> AbstractContextManager[Any]:
        """Return a context in which a model has the memory of an evaluation, the same for each token."""
        if not hasattr(model, "evaluation"):
            return nullcontext()
        return model.evaluation(
            target_length=self.length,
            memory_length=model.memory_length if self._memory is None else self._memory,
            clamp=model.clamp if self._clamp is None else self._clamp,
            same_length=model.same_length if self._memory is None else True,
        )

    def restarts(self, epoch: int, batch: int) -> bool:
        return batch in (0, -(-(self.samples // self.batch_size) // self.length))


def windows_pass(tokens: int, batch_size: int, length: int) -> int:
    """Return the number of full batches in a pass of Windows."""
    return _check((tokens - 1) // length // batch_size, tokens, batch_size, length)


def streams_pass(tokens: int, batch_size: int, length: int) -> int:
    """Return the number of full batches in a pass of Streams."""
    return _check((tokens - 1) // batch_size // length, tokens, batch_size, length)


def _check(steps: int, tokens: int, batch_size: int, length: int) -> int:
    if steps < 1:
        most = max(1, (tokens - 1) // length)
        raise ArgumentError(
            "train.batch_size",
            received=batch_size,
            allowed=f"a batch of {batch_size:,} rows of {length:,} tokens is more than the {tokens:,} to train on",
            instead=f"set it to {most} or less"
            if tokens > length
            else f"use more text, or set data.length to {max(1, (tokens - 1) // 2)} or less",
        )
    return steps
