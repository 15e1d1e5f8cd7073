"""The tasks of the training loop: image classification and language modelling, behind one small interface.

A task says what is computed for a batch and what a memory carries over to the next; scores and their direction are in
runs/quality.py. The loop itself is the same for both.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree

from acdc.data.images import Batches
from acdc.data.token_batches import Evaluation, Streams, Windows
from acdc.recipes.fit import has_memory
from acdc.recipes.schema import Training


class Task(Protocol):
    """What the loop needs of a task."""

    unit: str  # "images" or "tokens", of which a second trains so many
    units: int  # in a sample: a row of a batch of tokens has several

    def module(self, model: nn.Module) -> nn.Module:
        """Return the module that is called to train: the model, or one that returns its loss."""
        ...

    def begin(self, model: nn.Module, epoch: int, batch: int, parts: Sequence[int]) -> None:
        """Prepare for a batch, trained in parts of so many rows."""
        ...

    def loss(self, module: nn.Module, inputs: Tensor, targets: Tensor, part: int) -> tuple[Tensor, Tensor | None]:
        """Return the mean loss of a part of the batch, and its logits if there are any."""
        ...

    def end(self, part: int) -> None:
        """Keep what the next batch needs, after the backward pass of a part."""
        ...

    @property
    def steady(self) -> bool:
        """Return True if the next batch reads and writes the same memory as a captured one did."""
        ...

    def state_dict(self) -> list[Any]:
        """Return what the next batch needs, as plain data for a checkpoint."""
        ...

    def load_state_dict(self, state: list[Any], device: torch.device) -> None: ...


class ImageClassification:
    """One label for each image. No batch depends on the one before."""

    unit, units, steady = "images", 1, True

    def __init__(self, train: Training) -> None:
        self._smoothing = train.label_smoothing

    def module(self, model: nn.Module) -> nn.Module:
        return model

    def begin(self, model: nn.Module, epoch: int, batch: int, parts: Sequence[int]) -> None:
        pass

    def loss(self, module: nn.Module, inputs: Tensor, targets: Tensor, part: int) -> tuple[Tensor, Tensor | None]:
        logits = module(inputs)
        return F.cross_entropy(logits, targets, label_smoothing=self._smoothing), logits

    def end(self, part: int) -> None:
        pass

    def state_dict(self) -> list[Any]:
        return []

    def load_state_dict(self, state: list[Any], device: torch.device) -> None:
        pass


class LanguageModelling:
    """The next token after each one. A model with a memory reads on where the batch before ended.

    Each part of a batch has its own memory, in whatever structure of tensors the model returns. Once its shapes no
    longer change it stays in the same tensors, where a CUDA graph finds it.
    """

    unit = "tokens"

    def __init__(self, batches: "Windows | Streams") -> None:
        self._batches, self.units = batches, batches.length
        self._memory: list[Any] = []
        self._fixed: list[Any] = []  # tensors of the final shapes, by part
        self._new: Any = None

    def module(self, model: nn.Module) -> nn.Module:
        return NextToken(model)

    def begin(self, model: nn.Module, epoch: int, batch: int, parts: Sequence[int]) -> None:
        if not has_memory(model) or not isinstance(self._batches, Streams):
            return
        start: Any = model.start_memory
        if len(self._memory) != len(parts) or self._batches.restarts(epoch, batch):
            self._memory = [start(rows) for rows in parts]
            self._fixed = self._fixed if len(self._fixed) == len(parts) else [None] * len(parts)

    def loss(self, module: nn.Module, inputs: Tensor, targets: Tensor, part: int) -> tuple[Tensor, Tensor | None]:
        if not self._memory:
            return module(inputs, targets), None
        loss, self._new = module(inputs, targets, self._memory[part])
        return loss, None

    def end(self, part: int) -> None:
        """Keep the new memory: in place if its shapes are final. The backward pass has used the old one by now."""
        if not self._memory:
            return
        before, fixed = self._memory[part], self._fixed[part]
        if fixed is None and _shapes(self._new) == _shapes(before):
            fixed = self._fixed[part] = before
        if fixed is not None and _shapes(self._new) == _shapes(fixed):
            for kept, value in zip(pytree.tree_leaves(fixed), pytree.tree_leaves(self._new), strict=True):
                kept.copy_(value.detach())
            self._memory[part] = fixed
        else:
            self._memory[part] = pytree.tree_map(lambda value: value.detach().clone(), self._new)
        self._new = None

    @property
    def steady(self) -> bool:
        return all(memory is fixed for memory, fixed in zip(self._memory, self._fixed, strict=True))

    def state_dict(self) -> list[Any]:
        return pytree.tree_map(lambda value: value.detach().cpu(), self._memory)

    def load_state_dict(self, state: list[Any], device: torch.device) -> None:
        self._memory = pytree.tree_map(lambda value: value.to(device), state)
        self._fixed = [None] * len(state)


class NextToken(nn.Module):
    """A language model as a module that returns its mean loss, so that the loss is compiled and shared by DDP too.

    A model with a memory, `model(tokens, targets, memory)`, returns its loss and the new memory. Others have a `loss`,
    or return logits: batch x time x vocabulary.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._has_loss = callable(getattr(model, "loss", None))

    def forward(self, tokens: Tensor, targets: Tensor, memory: Any = None) -> Any:
        if memory is not None:
            return self.model(tokens, targets, memory)
        if self._has_loss:
            loss: Any = self.model.loss
            return loss(tokens, targets)
        return F.cross_entropy(self.model(tokens).flatten(0, 1).float(), targets.flatten())


def find_task(batches: Batches, train: Training) -> Task:
    """Return the task that batches belong to."""
    if isinstance(batches, Windows | Streams):
        return LanguageModelling(batches)
    return ImageClassification(train)


def is_text(batches: Batches) -> bool:
    """Return True if these are tokens."""
    return isinstance(batches, Windows | Streams | Evaluation)


def _shapes(memory: Any) -> list[tuple[torch.Size, torch.dtype]]:
    return [(value.shape, value.dtype) for value in pytree.tree_leaves(memory)]
