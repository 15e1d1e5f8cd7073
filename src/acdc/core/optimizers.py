"""Several optimizers that train one model, such as Muon for its matrices and AdamW for the rest, seen as one.

Each keeps its own groups, state and step. A training step begins with the first of them that steps, and ends, and is
counted, when the last of the list has stepped. So a gradient scaler may skip any of them: without the last the step is
not counted, as with one optimizer.
"""

import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.errors import ArgumentError, ArgumentTypeError


class Optimizers(Optimizer):
    """Groups, state and state dicts of all parts together. It has no step of its own: the loop calls each part's."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)  # Optimizer.__init__ would make groups and state of its own
        self._stepped: set[int] = set()
        self._ended: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> "_States":  # pyright: ignore[reportIncompatibleVariableOverride]
        return _States(self.parts)

    def state_dict(self) -> dict[str, Any]:
        """Return one state dict, as if one optimizer held all groups: parameters are numbered throughout."""
        whole: dict[str, Any] = {"state": {}, "param_groups": []}
        first = 0
        for part in self.parts:
            state = part.state_dict()
            whole["state"] |= {first + number: entry for number, entry in state["state"].items()}
            whole["param_groups"] += [_renumber(group, first) for group in state["param_groups"]]
            first += sum(len(group["params"]) for group in state["param_groups"])
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, each part its own share."""
        groups, first = iter(state_dict["param_groups"]), 0
        for part in self.parts:
            own = [_renumber(next(groups), -first) for _ in part.param_groups]
            end = first + sum(len(group["params"]) for group in own)
            entries = {n - first: entry for n, entry in state_dict["state"].items() if first <= n < end}
            part.load_state_dict({"state": entries, "param_groups": own})
            first = end

    # Turns

    def begins_step(self, part: Optimizer) -> bool:
        """Return True if the step of this part is the first of a training step."""
        gradient, version = self._ended.pop(id(part), (None, -1))
        now = _a_gradient(part)
        if gradient is not None and now is not None and gradient() is now and now._version == version:
            raise RuntimeError(
                f"{_place(self.parts, part)} stepped after {_place(self.parts, self.parts[-1])}, which is the last of "
                "the list and ends a training step; list optimizers in the order in which they step"
            )
        first = not self._stepped or id(part) in self._stepped  # in its second turn: the last part was skipped
        self._stepped = {id(part)} if first else self._stepped | {id(part)}
        return first

    def ends_step(self, part: Optimizer) -> bool:
        """Return True if this part's step was the last of a training step."""
        if part is not self.parts[-1]:
            return False
        self._stepped = set()
        kept = {id(other): gradient for other in self.parts[:-1] if (gradient := _a_gradient(other)) is not None}
        self._ended = {key: (weakref.ref(gradient), gradient._version) for key, gradient in kept.items()}
        return True


class _States(MutableMapping[Tensor, Any]):
    """The state of every parameter, kept where its own optimizer keeps it."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts

    def _owner(self, param: Tensor) -> MutableMapping[Tensor, Any]:
        """Return the state that holds this parameter's, or will."""
        for part in self._parts:
            if param in part.state:
                return part.state
        return next(part.state for part in self._parts if any(param is other for other in _parameters(part)))

    def __getitem__(self, param: Tensor) -> Any:
        return self._owner(param)[param]  # torch's is a defaultdict

    def __setitem__(self, param: Tensor, value: Any) -> None:
        self._owner(param)[param] = value

    def __delitem__(self, param: Tensor) -> None:
        del self._owner(param)[param]

    def __contains__(self, param: object) -> bool:
        return any(param in part.state for part in self._parts)

    def __iter__(self) -> Iterator[Tensor]:
        return (param for part in self._parts for param in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def get(self, param: Tensor, default: Any = None) -> Any:
        return next((part.state[param] for part in self._parts if param in part.state), default)

    def pop(self, param: Tensor, *default: Any) -> Any:
        return self._owner(param).pop(param, *default)

    def clear(self) -> None:
        for part in self._parts:
            part.state.clear()


def parts_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers of which this one is made: itself, unless it stands for several."""
    return optimizer.parts if isinstance(optimizer, Optimizers) else (optimizer,)


def combine(optimizers: Sequence[Optimizer]) -> Optimizer:
    """Return one optimizer that stands for all, or raise if they are not optimizers with parameters of their own."""
    if not optimizers:
        raise ArgumentError("optimizer", received=optimizers, allowed="expected at least one optimizer")
    owners: dict[int, Optimizer] = {}
    for index, part in enumerate(optimizers):
        if not isinstance(part, Optimizer):
            allowed = f"expected torch.optim.Optimizers in the list, received {type(part).__name__}"
            raise ArgumentTypeError(f"optimizer[{index}]", allowed=allowed, instead="write [muon, adamw]")
        for param in _parameters(part):
            if (other := owners.setdefault(id(param), part)) is not part:
                raise ArgumentError(
                    f"optimizer[{index}]",
                    allowed=f"it holds a parameter of shape {list(param.shape)} that {_place(optimizers, other)} "
                    "holds as well, so it would be trained twice in a step",
                    instead="give each parameter to one of them",
                )
    return Optimizers(optimizers) if len(optimizers) > 1 else optimizers[0]


@contextmanager
def evaluation_weights(optimizer: Optimizer) -> Iterator[None]:
    """Let the model hold the weights to evaluate, which schedule-free optimizers in train mode compute from others.

    Afterwards every weight has its old bits, which their own train() would restore only up to rounding.
    """
    training = [part for part in parts_of(optimizer) if any(group.get("train_mode") for group in part.param_groups)]
    before = {param: param.detach().clone() for part in training for param in _parameters(part)}
    for part in training:
        part.eval()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for part in training:
            part.train()  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            for param, value in before.items():
                param.copy_(value)


def _renumber(group: dict[str, Any], by: int) -> dict[str, Any]:
    return {**group, "params": [number + by for number in group["params"]]}


def _a_gradient(optimizer: Optimizer) -> Tensor | None:
    """Return the gradient of the first parameter that has one."""
    return next((param.grad for param in _parameters(optimizer) if param.grad is not None), None)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


def _place(parts: Sequence[Optimizer], part: Optimizer) -> str:
    index = next(index for index, other in enumerate(parts) if other is part)
    return f"{type(part).__name__} (number {index + 1})"
