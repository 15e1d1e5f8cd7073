"""What methods share: the knobs that say which weights and how many, and hooks that do nothing unless a method asks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from acdc.core.bundle import Bundle
from acdc.core.sparsifier import Sparsifier
from acdc.errors import wrong
from acdc.schedule import ABSOLUTE, Duration, Phase, Schedule
from acdc.sparsity.distributions import Budget, Distribution, budgets, check_distribution, check_sparsity
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Pattern, Unstructured
from acdc.sparsity.prunable import Rule, find_prunable


@dataclass(frozen=True, kw_only=True)
class Base:
    """A method at a target sparsity, over `epochs` or an explicit `schedule`.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel(). The last three run along input or output channels,
                  and refuse weights of layer types whose axes are not known.
    distribution  "global" magnitude, "uniform", "erk", or a mapping from layers to sparsities.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable. Layers
                  that compute their weight (weight_norm, spectral_norm, torch.nn.utils.prune) stay dense, with a
                  warning unless `exclude` names them.
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

    name: ClassVar[str]
    straight_through: ClassVar[bool] = True  # False where a method pulls gradients back to dense weights behind a view
    on_host: ClassVar[tuple[str, ...]] = ()  # what it remembers on the CPU, wherever the model is
    by_layer: ClassVar[tuple[str, ...]] = ()  # what it remembers as a number for each weight, by layer
    needs_sparsity: ClassVar[bool] = True  # False where the sparsity is what training makes of it
    alternates: ClassVar[bool] = False  # whether pruned weights come back in dense phases between compressed ones
    averages: ClassVar[bool] = True  # whether the average of compressed weights, masked, is compressed as well
    decided_by: ClassVar[str] = "training"  # what makes the sparsity where none is asked for
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # knobs that take one of a few words

    def __post_init__(self) -> None:
        kind = type(self).__name__
        derived = self.epochs is not None and self.schedule == self.default_schedule(self.epochs)  # dataclasses.replace
        if (self.epochs is None) == (self.schedule is None) and not derived:
            raise ValueError(
                f"epochs={self.epochs!r}, schedule={'None' if self.schedule is None else 'given'}: {kind} needs "
                f"exactly one of them; write {kind}(sparsity=0.9, epochs=100) or "
                "schedule=acdc.Schedule.alternating(...)"
            )
        if self.epochs is not None:
            object.__setattr__(self, "schedule", self.default_schedule(self.epochs))
        if not isinstance(self.schedule, Schedule):
            raise TypeError(
                f"schedule={self.schedule!r}: expected an acdc.Schedule, for example acdc.Schedule.for_epochs(100)"
            )
        self._check_phases()
        if not callable(getattr(self.pattern, "write_masks", None)):
            raise TypeError(
                f"pattern={self.pattern!r}: expected acdc.Unstructured(), acdc.NM(2, 4), acdc.Block(4, 4) or "
                "acdc.Channel()"
            )
        check_distribution(self.distribution)
        self._check_sparsity()
        for knob, allowed in self.choices.items():
            if getattr(self, knob) not in allowed:
                raise ValueError(f"{knob}={getattr(self, knob)!r}: expected one of {', '.join(map(repr, allowed))}")
        for knob in fields(self):
            if knob.type is bool and not isinstance(value := getattr(self, knob.name), bool):
                raise ValueError(f"{knob.name}={value!r}: expected True or False (in a recipe true or false)")

    def _check_phases(self) -> None:
        kinds = [phase.kind for phase in self.schedule.phases]
        if not self.alternates and "dense" in kinds[1:]:
            raise wrong("schedule", kinds, f"{self.title()} does not alternate", "leave it out and write epochs=100")

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
                "sparsity is not set: give the fraction of zeros, for example "
                f"{type(self).__name__}(sparsity=0.9, epochs=100)"
            )

    @classmethod
    def title(cls) -> str:
        """As people write it."""
        return cls.__name__

    def compression(self) -> str:
        """What one makes of the weights, in a word or two."""
        return "pruned"

    def default_schedule(self, epochs: int) -> Schedule:
        """The phases over a number of epochs, in the method's own proportions."""
        raise NotImplementedError

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
            usual = next(f.default_factory for f in fields(self) if f.name == "pattern")
            free = usual is Unstructured
            raise ValueError(
                f"pattern={self.pattern}: fits none of the model's {len(unfit)} prunable layers ({name}: {reason}); "
                f"choose another pattern{', or leave it out for unstructured sparsity' if free else ''}"
            )
        return replace(found, weights=fit, left_dense={**found.left_dense, **unfit})

    def budgets(self, layers: Layers) -> list[Budget]:
        return budgets(self.distribution, layers.weights, self.sparsity)

    def budgets_along(self, layers: Layers, path: Callable[[float], float]) -> list[Budget]:
        """As `budgets`, on the way to the target: `path` makes of a target sparsity the one of now."""
        distribution, target = self.distribution, self.sparsity
        if isinstance(distribution, Mapping):
            distribution = {name: path(value) for name, value in distribution.items()}
        return budgets(distribution, layers.weights, None if target is None else path(target))

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        """FLOPs of training on a sample in a sparse phase, by those of inference then and with every weight: the card's
        rule. Forward pass, gradients of the inputs and gradients of the weights, by the weights that are left."""
        return 3 * flops

    def risen(self, epoch: int) -> float:
        """The share of its target sparsity that a sparse epoch, counted from 0, has: all, unless it rises."""
        return 1.0

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> "Idle | None":
        """Why a run of this length would never do what the method is named for. Recipes that do not are refused."""
        return None

    def cautions(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        return [idle.told()] if (idle := self.idle(total_steps, steps_per_epoch)) else []

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        raise NotImplementedError

    def writes_weights(self, phase: Phase) -> bool:
        return phase.kind == "sparse"

    def updates_at(self, sparsifier: Sparsifier, step: int) -> bool:
        return False

    def update(self, sparsifier: Sparsifier) -> None:
        raise NotImplementedError

    def observes_at(self, sparsifier: Sparsifier, step: int) -> bool:
        return False

    def observe(self, sparsifier: Sparsifier) -> None:
        raise NotImplementedError

    def view(self, sparsifier: Sparsifier, bundle: Bundle, dense: Tensor, out: Tensor) -> None:
        raise NotImplementedError

    def pull_back(self, sparsifier: Sparsifier, bundle: Bundle, grad: Tensor, dense: Tensor) -> None:
        raise NotImplementedError

    def settle(self, sparsifier: Sparsifier, bundle: Bundle, before: Tensor, after: Tensor) -> None:
        """All of the step holds, unless a method says otherwise."""

    def rate_step(self, sparsifier: Sparsifier, step: int) -> int:
        """The step whose learning rate step `step` takes: another one where a method starts training over."""
        return step

    def gives_twin(self) -> bool:
        """Whether a dense model is kept from which training can go on densely."""
        *before, final = self.schedule.phases
        return final.kind == "sparse" and any(phase.kind == "dense" for phase in before)

    def keeps_best_twin(self) -> bool:
        return False

    def makes_twin(self, sparsifier: Sparsifier, phase: Phase) -> bool:
        """Whether the model becomes the dense twin as `phase` begins: where the last dense phase ends, unless the best
        dense model is kept and one was reported."""
        ends_dense = phase.final and sparsifier.phase.kind == "dense" and phase.index > 0
        return ends_dense and not (self.keeps_best_twin() and sparsifier.best_metric is not None)

    def config(self) -> dict[str, Any]:
        """Every knob as plain data: what a checkpoint is checked against."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "epochs"}

    def unset(self, knob: str) -> Any:
        found = next((f for f in fields(self) if f.name == knob), None)
        if found is None:
            return None
        default = found.default if found.default_factory is MISSING else found.default_factory()
        return replace(self, **{knob: default}).config()[knob]  # what this method makes of it


def check_every(value: str) -> None:
    """The time between two updates: some epochs or steps."""
    if not Duration.parse(value, "every", ABSOLUTE).value:
        raise wrong("every", value, "updates lie some steps or epochs apart", 'write every="1st" or more')


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A run of a method whose masks would stay as they begin: its first update lies behind the last step that may have
    one."""

    method: str
    every: str
    first: int
    last: int
    total: int

    def told(self, knob: str = "every", typed: str | None = None) -> str:
        """In words: `knob` is what a recipe calls it, and `typed` what is typed to set it, where that differs."""
        some = f'for about ten updates write {typed or knob}="{max(1, self.last // 10)}st", or ' if self.last else ""
        return (
            f'{knob}="{self.every}": the first update of {self.method} is due at step {self.first:,}, and its last may '
            f"be at step {self.last:,} of {self.total:,}, so that masks would stay as they begin; {some}train longer"
        )


def never_updates(method: Any, every: int, last: int, total: int) -> Idle | None:
    """Where the first update, after `every` steps, lies behind the last step that may have one."""
    if every <= last:
        return None
    return Idle(method=type(method).title(), every=method.every, first=every, last=last, total=total)


def refuse_late(sparsifier: Sparsifier) -> None:
    """For methods that write weights as a step begins: after its forward pass they cannot."""
    if sparsifier.late:
        raise RuntimeError(
            f"step {sparsifier.step}: {type(sparsifier.method).__name__} writes weights as a step begins, and this one "
            "was noticed only at backward, as no module was called; call sparsifier.begin_step() at the top of each"
        )


def check_free(method: Base, instead: str) -> None:
    """Refuse a pattern that fixes the sparsity, in methods that approach it step by step."""
    if method.pattern.sparsity is not None:
        allowed = f"it fixes the sparsity, which {type(method).__name__} raises step by step"
        raise wrong("pattern", method.pattern, allowed, instead)


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str | int | float) else _describe(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value)


def _describe(rule: Any) -> str:
    return f"<{getattr(rule, '__qualname__', type(rule).__name__)}>"
