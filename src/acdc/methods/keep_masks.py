"""Keep masks: fine-tune a sparse model without losing its zeros.

Idea       A model that is sparse already is trained further, on its own data or others; what is 0 stays 0.
Step       θ ← θ − η ∇f(θ) on the support of the θ that training starts from.
Knobs      include, exclude: which layers; embeddings (True).
FLOPs      3·F per sample, counting the remaining weights.
Costs      as AC/DC's compressed phases.

It has neither sparsity nor schedule: masks are the zeros it finds, and hold for as many steps as there are. Layers
without zeros are trained densely. A layer that is 0 altogether is taken for a new one, initialised at 0, and trained
densely too, with a warning, unless `include` names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.checks import few
from acdc.core.context import MethodContext, warn_user
from acdc.core.method import Method
from acdc.core.sparsifier import Sparsifier, attach
from acdc.errors import ArgumentError
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers, Weight
from acdc.sparsity.patterns import Unstructured
from acdc.sparsity.prunable import Rule, is_specific, matches


def keep_masks(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    include: Sequence[Rule] = (),
    exclude: Sequence[Rule] = (),
) -> Sparsifier:
    """Keep the zeros of a sparse model while it is fine-tuned; the training loop stays as it is.

    Every weight that is exactly 0 now stays 0, and so does its optimizer state. `include` and
    `exclude` choose layers, as in acdc.find_prunable.

        model.load_state_dict(acdc.load("sparse.safetensors"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        acdc.keep_masks(model, optimizer)

    In a trainer with callbacks: SparsifierCallback(acdc.KeepMasks()).
    """
    return attach(model, optimizer, KeepMasks(include=include, exclude=exclude))


@dataclass(frozen=True, kw_only=True)
class KeepMasks(Method):
    """See the module docstring; `keep_masks` attaches it."""

    embeddings: bool = True

    name: ClassVar[str] = "keep_masks"
    needs_sparsity: ClassVar[bool] = False
    decided_by: ClassVar[str] = "the zeros of the model"
    ends: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.epochs is None and self.schedule is None:
            object.__setattr__(self, "schedule", Schedule.from_phases([("sparse", "1st")]))
        else:
            knob = "epochs" if self.epochs is not None else "schedule"
            if self.epochs is not None or self.schedule != Schedule.from_phases([("sparse", "1st")]):
                allowed = "masks hold for as many steps as there are"
                raise ArgumentError(knob, received=getattr(self, knob), allowed=allowed, instead=f"omit {knob}")
        super().__post_init__()

    def _check_sparsity(self) -> None:
        for knob, unset in (("sparsity", None), ("distribution", "global"), ("pattern", Unstructured())):
            if (value := getattr(self, knob)) != unset:
                allowed = "the model's own zeros decide it"
                raise ArgumentError(knob, received=value, allowed=allowed, instead=f"omit {knob}")

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def layers(self, model: nn.Module) -> Layers:
        layers = super().layers(model)
        kept, dense, new = [], dict(layers.left_dense), []
        for weight in layers.weights:
            zeros = int(_zeros(weight).sum())
            asked = any(is_specific(rule) and matches(rule, weight) for rule in self.include)
            if not zeros:
                dense[weight.name] = "it has no zeros"
            elif zeros == weight.param.numel() and not asked:
                dense[weight.name] = "all of it is 0"
                new.append(weight.name)
            else:
                kept.append(weight)
        if not kept:
            raise ArgumentError(
                "model",
                allowed=f"none of its {len(layers.weights)} prunable layers has zeros to keep",
                instead="load the sparse weights first: model.load_state_dict(acdc.load(FILE)). To make a model "
                "sparse, attach a method such as acdc.ACDC(sparsity=0.9, epochs=100)",
            )
        if new:
            warn_user(
                f"all weights of {few(new)} are 0, as in new layers, so they are trained densely; to keep them at 0, "
                f"write include=[{new[0]!r}, '*.weight']"
            )
        return replace(layers, weights=tuple(kept), left_dense=dense)

    def budgets(self, layers: Layers) -> list[Budget]:
        return [Budget((weight.name,), int((~_zeros(weight)).sum())) for weight in layers.weights]

    def enter(self, context: MethodContext, phase: Phase) -> None:
        context.set_masks({weight.name: ~_zeros(weight) for weight in context.layers.weights})


def _zeros(weight: Weight) -> Tensor:
    """Return where a weight is 0. The row of an embedding's padding is 0 in dense models as well."""
    zeros = weight.param.detach() == 0
    padding = getattr(weight.module, "padding_idx", None)
    if padding is not None:
        zeros[padding] = torch.zeros_like(zeros[padding])
    return zeros
