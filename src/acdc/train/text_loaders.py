"""The batches of a text for the training loop: to train on, to look at after each epoch, and to score final models."""

import torch

from acdc.data.data_facts import TextFacts
from acdc.data.text import TextData
from acdc.data.token_batches import Evaluation, Streams, WholeStreams, WholeWindows, Windows
from acdc.train.execution import Loaders


def text_facts(text: TextData) -> TextFacts:
    """Return the facts that a model for this text must match."""
    settings = text.settings
    return TextFacts(
        train=text.counts("train").tokens,
        validation=text.counts("valid").tokens,
        test=text.counts("test").tokens,
        vocabulary=len(text.vocabulary),
        length=settings.length,
        evaluation_length=settings.evaluation_length,
        order=settings.order,
        epoch_steps=settings.steps,
    )


def token_loaders(
    text: TextData,
    facts: TextFacts,
    batch_size: int,
    device: torch.device,
    *,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Loaders:
    """Cut a text into batches; its tokens move to the device once, if they fit there."""
    place = {"rank": rank, "world": world}
    order = Windows if facts.order == "windows" else Streams
    train = order(
        text.tokens("train", device),
        device,
        batch_size=batch_size,
        length=facts.length,
        steps=facts.epoch_steps,
        seed=seed,
        **place,
    )

    def whole(part: str, limit: int = 0) -> Evaluation:
        stored, length, scored = text.tokens(part, device), facts.evaluation_length, text.scored(part, limit)
        if limit:
            stored = stored[: limit + 1]
        if facts.order == "streams":
            memory = {"memory": text.settings.evaluation_memory, "clamp": text.settings.evaluation_clamp}
            return WholeStreams(stored, device, scored, length=length, **memory, **place)
        return WholeWindows(stored, device, scored, length=length, vocabulary=facts.vocabulary, **place)

    limit = text.settings.epoch_evaluation
    return Loaders(
        train=train,
        test=whole("test"),
        validation=whole("valid"),
        test_beginning=whole("test", limit) if 0 < limit < facts.test - 1 else None,
        validation_beginning=whole("valid", limit) if 0 < limit < facts.validation - 1 else None,
    )
