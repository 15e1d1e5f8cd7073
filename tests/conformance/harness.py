"""A tiny training run that any loop variant can drive, and the contracts that hold after each of its steps."""

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.train.optim import Lamb

DEVICE = os.environ.get("ACDC_TEST_DEVICE", "cpu")  # "cuda" runs the whole matrix there
if DEVICE == "cuda":
    torch.backends.cudnn.deterministic = True

EPOCHS = 6
STEPS_PER_EPOCH = 4
TOTAL = EPOCHS * STEPS_PER_EPOCH
SPARSITY = 0.8

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD momentum, Nesterov, weight decay": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-1),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "LAMB": lambda p: Lamb(p, lr=1e-2, weight_decay=1e-2),
    "LAMB without bias correction": lambda p: Lamb(p, lr=1e-2, bias_correction=False),
    "Adamax (enforced)": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "one that moves zeros (enforced)": lambda p: MovesZeros(p),
}
if DEVICE == "cuda":  # torch refuses these on a CPU
    OPTIMIZERS |= {
        "Adam capturable": lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True),
        "AdamW fused, capturable": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, capturable=True),
    }


class MovesZeros(torch.optim.Optimizer):
    """Adds the layer's mean gradient to every weight: masked gradients alone would not keep zeros."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                        momentum.mul_(0.9).add_(p.grad + p.grad.mean())
                        p.sub_(group["lr"] * momentum)
        return loss


class Net(nn.Sequential):
    """Convolutions, batch norm, dropout and a linear layer; 1,216 prunable weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.flat = nn.Flatten()
        self.fc = nn.Linear(32, 16)

    def forward(self, input: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv1(input)))
        return self.fc(self.flat(F.relu(self.conv2(x))))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The data of a step, from its number alone."""
    generator = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(8, 2, 6, 6, generator=generator), torch.randint(0, 16, (8,), generator=generator)
    return x.to(DEVICE), y.to(DEVICE)


@dataclass
class Run:
    """A model, its optimizer and its sparsifier; `call` is what the loop calls (the model or a wrapper of it)."""

    model: Net
    optimizer: torch.optim.Optimizer
    sparsifier: acdc.Sparsifier
    call: nn.Module
    weights: dict[str, nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.weights = {w.name: w.param for w in self.sparsifier.layers.weights}

    @classmethod
    def make(cls, make_optimizer: MakeOptimizer, *, wrap: Callable = lambda m: m, wrap_first: bool = False, **knobs):
        torch.manual_seed(0)
        model = Net().to(DEVICE)
        optimizer = make_optimizer(model.parameters())
        method = acdc.ACDC.paper(**{"sparsity": SPARSITY, "epochs": EPOCHS, **knobs})
        call = wrap(model) if wrap_first else model
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)
        return cls(model, optimizer, sparsifier, call if wrap_first else wrap(model))

    def loss(self, data: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.call(data[0]), data[1])

    def train_step(self, step: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch(step))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def steps(self, first: int = 0, last: int = TOTAL) -> Iterator[int]:
        """Number the steps, and hold the run to its contracts after each."""
        for step in range(first, last):
            yield step
            self.check()

    def check(self) -> None:
        """Contracts 1 and 2: exactly k survive; pruned weights and their optimizer state are exactly 0."""
        sparsifier = self.sparsifier
        upcoming = sparsifier.method.schedule.phase_at(sparsifier.step - 1, STEPS_PER_EPOCH)
        assert sparsifier.phase.kind == upcoming.kind, "the phase of the step just taken"
        masks = sparsifier.masks
        if sparsifier.phase.kind == "dense":
            assert masks == {}
            return
        size = sum(p.numel() for p in self.weights.values())
        assert sum(int(m.sum()) for m in masks.values()) == size - round(SPARSITY * size)
        for name, mask in masks.items():
            param = self.weights[name]
            assert torch.all(param[~mask] == 0), f"{name}: a pruned weight moved"
            for key, value in self.optimizer.state.get(param, {}).items():
                if isinstance(value, Tensor) and value.shape == param.shape:
                    assert torch.all(value[~mask] == 0), f"{name}: {key} of a pruned weight moved"

    def checkpoint(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "sparsifier": self.sparsifier.state_dict(),
            }
        )

    def bits(self) -> dict[str, Tensor]:
        """Model and optimizer state, on the CPU: torch's own load_state_dict moves NAdam's mu_product to the GPU, from
        the CPU where a step leaves it, and goes on with the same numbers."""
        state = {f"model.{k}": v.cpu().clone() for k, v in self.model.state_dict().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{k}": torch.as_tensor(v).cpu().clone() for k, v in entries.items()}
        return state


def assert_same_bits(one: dict[str, Tensor] | None, two: dict[str, Tensor] | None) -> None:
    assert one is not None
    assert two is not None
    assert one.keys() == two.keys()
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert not different, f"these differ: {different}"
