"""AC/DC: alternating compressed / decompressed training.

Idea       Train densely and sparsely in turns, so that one run gives an accurate sparse model and a dense one.
Step       θ ← T_k(θ) at each compression, then θ ← θ − η ∇f(θ) on its support only; at each decompression the mask is
           lifted, the pruned weights restart at 0 and the optimizer's momentum is reset (paper, Algorithm 1).
Knobs      sparsity; the schedule (warm-up, phase lengths, last dense phase, final compressed phase).
FLOPs      3·F_C per sample in compressed phases, 2·F_D + F in dense ones (paper, §4).
Costs      1 byte a weight for the mask; one in-place pass over the gradients in compressed phases; one selection a
           compression; on the host, one copy of the model and of its optimizer's state, the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural
           Networks. NeurIPS 2021.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from acdc.schedule import Phase, Schedule
from acdc.sparsifier import Sparsifier
from acdc.sparsity.distributions import Budget, Distribution, budgets, check_distribution, check_sparsity
from acdc.sparsity.layers import Layers, Rule, find_prunable
from acdc.sparsity.patterns import Pattern, Unstructured


@dataclass(frozen=True, kw_only=True)
class ACDC:
    """AC/DC at a target sparsity, over `epochs` in the paper's proportions or over an explicit `schedule`.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel().
    distribution  "global" magnitude (the paper's default), "uniform", "erk", or a mapping from layers to sparsities.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable.
    reset         what the optimizer forgets at a decompression: "momentum" (first moments, as in the paper), "all"
                  of its state, or "nothing".
    twin          which dense model is kept: the "last" (end of the last dense phase) or the "best" one reported
                  through sparsifier.report(metric) in a dense phase.
    """

    sparsity: float | None = None
    epochs: int | None = None
    schedule: Schedule = None  # type: ignore[assignment]  # always a Schedule after __post_init__
    pattern: Pattern = field(default_factory=Unstructured)
    distribution: Distribution = "global"
    include: Sequence[Rule] = ()
    exclude: Sequence[Rule] = ()
    first_and_last_dense: bool = False
    depthwise_dense: bool = False
    embeddings: bool = False
    reset: Literal["momentum", "all", "nothing"] = "momentum"
    twin: Literal["last", "best"] = "last"

    name: ClassVar[str] = "acdc"

    def __post_init__(self) -> None:
        derived = self.epochs is not None and self.schedule == Schedule.for_epochs(
            self.epochs
        )  # by dataclasses.replace
        if (self.epochs is None) == (self.schedule is None) and not derived:
            raise ValueError(
                f"epochs={self.epochs!r}, schedule={'None' if self.schedule is None else 'given'}: ACDC needs exactly "
                "one of them; write ACDC(sparsity=0.9, epochs=100) or schedule=acdc.Schedule.alternating(...)"
            )
        if self.epochs is not None:
            object.__setattr__(self, "schedule", Schedule.for_epochs(self.epochs))
        if not isinstance(self.schedule, Schedule):
            raise TypeError(
                f"schedule={self.schedule!r}: expected an acdc.Schedule, for example acdc.Schedule.for_epochs(100)"
            )
        if not callable(getattr(self.pattern, "write_masks", None)):
            raise TypeError(
                f"pattern={self.pattern!r}: expected acdc.Unstructured(), acdc.NM(2, 4), acdc.Block(4, 4) or "
                "acdc.Channel()"
            )
        check_distribution(self.distribution)
        self._check_sparsity()
        for knob, value, allowed in (
            ("reset", self.reset, ("momentum", "all", "nothing")),
            ("twin", self.twin, ("last", "best")),
        ):
            if value not in allowed:
                raise ValueError(f"{knob}={value!r}: expected one of {', '.join(map(repr, allowed))}")

    def _check_sparsity(self) -> None:
        fixed = self.pattern.sparsity
        if self.sparsity is not None:
            check_sparsity("sparsity", self.sparsity)
        if fixed is not None:
            if self.sparsity is not None and abs(self.sparsity - fixed) > 1e-9:
                raise ValueError(
                    f"sparsity={self.sparsity!r}: {self.pattern} fixes it at {fixed:g}; leave sparsity out, "
                    "or choose the unstructured pattern"
                )
            if self.distribution != "global":
                raise ValueError(
                    f"distribution={self.distribution!r}: {self.pattern} gives every layer the same sparsity; "
                    "leave distribution out"
                )
            object.__setattr__(self, "sparsity", fixed)
        elif self.sparsity is None and not isinstance(self.distribution, Mapping):
            raise ValueError(
                "sparsity is not set: give the fraction of zeros, for example ACDC(sparsity=0.9, epochs=100)"
            )

    def layers(self, model: nn.Module) -> Layers:
        found = find_prunable(
            model,
            include=self.include,
            exclude=self.exclude,
            first_and_last_dense=self.first_and_last_dense,
            depthwise_dense=self.depthwise_dense,
            embeddings=self.embeddings,
        )
        unfit = {w.name: reason for w in found.weights if (reason := self.pattern.why_not(w))}
        fit = tuple(w for w in found.weights if w.name not in unfit)
        if not fit:
            name, reason = next(iter(unfit.items()))
            raise ValueError(
                f"pattern={self.pattern}: fits none of the model's {len(unfit)} prunable layers ({name}: {reason}); "
                "choose another pattern, or leave it out for unstructured sparsity"
            )
        return Layers(fit, {**found.left_dense, **unfit})

    def budgets(self, layers: Layers) -> list[Budget]:
        return budgets(self.distribution, layers.weights, self.sparsity)

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset=self.reset)
            return
        ends_dense = phase.final and sparsifier.phase.kind == "dense" and phase.index > 0
        sparsifier.compress(keep_twin=ends_dense and (self.twin == "last" or sparsifier.best_metric is None))

    def keeps_best_twin(self) -> bool:
        return self.twin == "best"

    def config(self) -> dict[str, Any]:
        return {
            "sparsity": self.sparsity,
            "schedule": self.schedule.to_dict(),
            "pattern": repr(self.pattern),
            "distribution": dict(self.distribution) if isinstance(self.distribution, Mapping) else self.distribution,
            "include": [_describe(rule) for rule in self.include],
            "exclude": [_describe(rule) for rule in self.exclude],
            "first_and_last_dense": self.first_and_last_dense,
            "depthwise_dense": self.depthwise_dense,
            "embeddings": self.embeddings,
            "reset": self.reset,
            "twin": self.twin,
        }


def _describe(rule: Rule) -> str:
    return rule if isinstance(rule, str) else f"<{getattr(rule, '__qualname__', type(rule).__name__)}>"
