"""Batches of tokens: every order is a function of seed and step, and evaluations read each token once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acdc.data.token_batches import Evaluation, Scored, Streams, WholeStreams, WholeWindows, Windows
from acdc.errors import ArgumentError

CPU = torch.device("cpu")
SCORED = Scored(tokens=1, bytes=1, words=1)


def text(tokens: int) -> torch.Tensor:
    """A text in which a token's number is its place."""
    return torch.arange(tokens, dtype=torch.int32)


@pytest.mark.parametrize("order", [Windows, Streams])
def test_targets_are_the_tokens_that_follow(order: type[Windows | Streams]) -> None:
    for tokens, targets in order(text(100), CPU, batch_size=3, length=7).batches(0):
        assert tokens.shape == targets.shape == (3, 7)
        assert torch.equal(targets, tokens + 1)
        assert tokens.dtype == torch.int64


def test_windows_of_a_pass_do_not_overlap_and_differ_between_passes() -> None:
    batches = Windows(text(1000), CPU, batch_size=4, length=10, seed=3)
    assert batches.steps == 24
    passes = [torch.cat([tokens for tokens, _ in batches.batches(epoch)]) for epoch in range(2)]
    for read in passes:
        assert read.unique().numel() == read.numel() == batches.samples * 10
    assert not torch.equal(*passes)
    again = Windows(text(1000), CPU, batch_size=4, length=10, seed=3)
    assert torch.equal(torch.cat([tokens for tokens, _ in again.batches(1)]), passes[1])
    other = Windows(text(1000), CPU, batch_size=4, length=10, seed=4)
    assert not torch.equal(torch.cat([tokens for tokens, _ in other.batches(1)]), passes[1])


@pytest.mark.parametrize(("tokens", "batch_size", "length"), [(100, 4, 7), (101, 3, 10)])
def test_no_token_is_left_out_of_every_pass(tokens: int, batch_size: int, length: int) -> None:
    batches = Windows(text(tokens), CPU, batch_size=batch_size, length=length)
    read = torch.cat([targets for epoch in range(80) for _, targets in batches.batches(epoch)])
    assert read.unique().tolist() == list(range(1, tokens))


@pytest.mark.parametrize("order", [Windows, Streams])
@pytest.mark.parametrize("steps", [0, 5, 40])
def test_a_run_resumed_anywhere_sees_the_same(order: type[Windows | Streams], steps: int) -> None:
    batches = order(text(400), CPU, batch_size=2, length=8, steps=steps, seed=1)
    for epoch in (0, 3):
        whole = [tokens for tokens, _ in batches.batches(epoch)]
        assert len(whole) == batches.steps == (steps or 24)
        for first in (1, batches.steps - 1):
            rest = [tokens for tokens, _ in batches.batches(epoch, first)]
            assert torch.equal(torch.stack(rest), torch.stack(whole[first:]))


def test_epochs_of_some_steps_go_on_where_the_last_one_ended() -> None:
    short, whole = (Windows(text(400), CPU, batch_size=2, length=8, steps=steps) for steps in (6, 0))
    parts = [tokens for epoch in range(4) for tokens, _ in short.batches(epoch)]
    assert torch.equal(torch.stack(parts), torch.stack([tokens for tokens, _ in whole.batches(0)]))


def test_streams_continue_row_by_row_and_say_where_they_restart() -> None:
    batches = Streams(text(100), CPU, batch_size=3, length=8)
    rows = torch.cat([tokens for tokens, _ in batches.batches(0)], dim=1)
    assert torch.equal(rows, torch.tensor([[0], [33], [66]]) + torch.arange(32))
    assert [batches.restarts(0, batch) for batch in range(4)] == [True, False, False, False]
    assert batches.restarts(1, 0)
    split = Streams(text(100), CPU, batch_size=3, length=8, steps=3)
    assert [split.restarts(epoch, batch) for epoch in range(2) for batch in range(3)] == [
        True, False, False, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("order", [Windows, Streams])
def test_ranks_share_the_rows_of_each_batch(order: type[Windows | Streams]) -> None:
    alone = order(text(300), CPU, batch_size=5, length=6, seed=2)
    ranks = [order(text(300), CPU, batch_size=5, length=6, seed=2, rank=rank, world=2) for rank in range(2)]
    for (whole, _), (first, _), (second, _) in zip(
        alone.batches(0), ranks[0].batches(0), ranks[1].batches(0), strict=True
    ):
        assert torch.equal(torch.cat((first, second)), whole)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 40), st.integers(1, 3))
def test_evaluations_score_each_token_but_the_first_once(tokens: int, length: int, world: int) -> None:
    kinds: list[list[Evaluation]] = [
        [
            WholeWindows(text(tokens), CPU, SCORED, length=length, vocabulary=1 << 22, rank=rank, world=world)
            for rank in range(world)
        ],
        [WholeStreams(text(tokens), CPU, SCORED, length=length, rank=rank, world=world) for rank in range(world)],
    ]
    for ranks in kinds:
        read = [targets.flatten() for rank in ranks for _, targets in rank.batches(0) if targets.numel()]
        assert sorted(torch.cat(read).tolist()) == list(range(1, tokens))
        assert all(rank.samples == tokens - 1 for rank in ranks)


def test_an_evaluated_stream_restarts_only_where_it_does_not_continue() -> None:
    batches = WholeStreams(text(16 * 25 + 1 + 13), CPU, SCORED, length=10)
    shapes, ends = [], {}
    for number, (tokens, _) in enumerate(batches.batches(0)):
        shapes.append(tuple(tokens.shape))
        if batches.restarts(0, number):
            ends = {}
        continues = [int(row[0]) for row in tokens] == list(ends.values()) if ends else None
        assert continues in (None, True)
        ends = {index: int(row[-1]) + 1 for index, row in enumerate(tokens)}
    assert shapes == [(16, 10), (16, 10), (16, 5), (1, 10), (1, 3)]
    assert batches.steps == 5


@pytest.mark.parametrize("order", [Windows, Streams])
@pytest.mark.parametrize(
    ("tokens", "batch_size", "advice"), [(100, 20, "set it to 12 or less"), (8, 1, "data.length to 3 or less")]
)
def test_a_text_shorter_than_a_batch_is_refused(
    order: type[Windows | Streams], tokens: int, batch_size: int, advice: str
) -> None:
    with pytest.raises(ArgumentError, match=f"more than the {tokens} to train on") as caught:
        order(text(tokens), CPU, batch_size=batch_size, length=8)
    assert caught.value.argument == "train.batch_size"
    assert advice in caught.value.instead
