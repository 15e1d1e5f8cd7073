"""The abstract class of sparse-training methods: the knobs they share, and the calls a method answers.

A step, as a method sees it:

    updates_at, observes_at           functions of the step: what the step to come needs
    enter, or update                  as it begins, where a phase is new or an update is due; masks change here
    ...forward and backward...        with pruned weights at 0, or with the effective weights of latent ones
    observe                           gradients are complete, the pruned weights' too
    latent_gradient, after_step       around the optimizer's step, for methods that train latent weights

A method is a frozen dataclass: it remembers nothing itself. All that it may ask for, and where it may keep what it has
to remember, is the MethodContext that each call brings.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget, Distribution, budgets, check_distribution, check_sparsity
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Pattern, Unstructured
from acdc.sparsity.prunable import Rule, find_prunable

if TYPE_CHECKING:
    from acdc.core.context import MethodContext
    from acdc.core.latent import Bundle


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
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
    straight_through: ClassVar[bool] = True  # latent weights take the effective weights' gradient as it is
    on_host: ClassVar[tuple[str, ...]] = ()  # keys of context.memory that stay on the CPU, wherever the model is
    by_layer: ClassVar[tuple[str, ...]] = ()  # keys of context.memory that hold a number for each weight, by layer
    recomputed: ClassVar[tuple[str, ...]] = ()  # those of them that a state dict may lack: they are computed again
    needs_sparsity: ClassVar[bool] = True  # False where the sparsity is what training makes of it
    alternates: ClassVar[bool] = False  # whether pruned weights come back in dense phases between compressed ones
    averages: ClassVar[bool] = True  # whether the average of compressed weights, masked, is compressed as well
    decided_by: ClassVar[str] = "training"  # what makes the sparsity where none is asked for
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # knobs that take one of a few words

    def __post_init__(self) -> None:
        kind = type(self).__name__
        derived = self.epochs is not None and self.schedule == self.default_schedule(self.epochs)  # dataclasses.replace
        if (self.epochs is None) == (self.schedule is None) and not derived:
            raise ArgumentError(
                "epochs",
                received=self.epochs,
                allowed=f"{kind} needs either epochs or a schedule, "
                f"and received {'neither' if self.schedule is None else 'both'}",
                instead=f"write {kind}(sparsity=0.9, epochs=100) or schedule=acdc.Schedule.alternating(...)",
            )
        if self.epochs is not None:
            object.__setattr__(self, "schedule", self.default_schedule(self.epochs))
        if not isinstance(self.schedule, Schedule):
            raise ArgumentTypeError(
                "schedule",
                received=self.schedule,
                allowed="expected an acdc.Schedule",
                instead="write schedule=acdc.Schedule.for_epochs(100)",
            )
        self._check_phases()
        if not callable(getattr(self.pattern, "write_masks", None)):
            raise ArgumentTypeError(
                "pattern",
                received=self.pattern,
                allowed="expected acdc.Unstructured(), acdc.NM(2, 4), acdc.Block(4, 4) or acdc.Channel()",
            )
        check_distribution(self.distribution)
        self._check_sparsity()
        for knob, allowed in self.choices.items():
            if (value := getattr(self, knob)) not in allowed:
                raise ArgumentError(knob, received=value, allowed=f"expected one of {', '.join(map(repr, allowed))}")
        for knob in fields(self):
            if knob.type is bool and not isinstance(value := getattr(self, knob.name), bool):
                allowed = "expected True or False (in a recipe true or false)"
                raise ArgumentError(knob.name, received=value, allowed=allowed)

    def _check_phases(self) -> None:
        kinds = [phase.kind for phase in self.schedule.phases]
        if not self.alternates and "dense" in kinds[1:]:
            raise self._wrong_phases(f"{self.title()} does not alternate")

    def _wrong_phases(self, allowed: str) -> ArgumentError:
        kinds = [phase.kind for phase in self.schedule.phases]
        return ArgumentError("schedule", received=kinds, allowed=allowed, instead="leave it out and write epochs=100")

    def _check_sparsity(self) -> None:
        fixed = self.pattern.sparsity
        if self.sparsity is not None:
            check_sparsity("sparsity", self.sparsity)
        if fixed is not None:
            if self.sparsity is not None and abs(self.sparsity - fixed) > 1e-9:
                raise ArgumentError(
                    "sparsity",
                    received=self.sparsity,
                    allowed=f"{self.pattern} fixes it at {fixed:g}",
                    instead="leave sparsity out, or choose the unstructured pattern",
                )
            if self.distribution != "global":
                raise ArgumentError(
                    "distribution",
                    received=self.distribution,
                    allowed=f"{self.pattern} gives every layer the same sparsity",
                    instead="leave distribution out",
                )
            object.__setattr__(self, "sparsity", fixed)
        elif self.sparsity is None and not isinstance(self.distribution, Mapping):
            raise ArgumentError(
                "sparsity",
                received=None,
                allowed="expected the fraction of zeros",
                instead=f"write {type(self).__name__}(sparsity=0.9, epochs=100)",
            )

    def _refuse_fixed_sparsity(self, instead: str) -> None:
        """Refuse a pattern that fixes the sparsity, in methods that approach it step by step."""
        if self.pattern.sparsity is not None:
            allowed = f"it fixes the sparsity, which {type(self).__name__} raises step by step"
            raise ArgumentError("pattern", received=self.pattern, allowed=allowed, instead=instead)

    # What it is, before a run

    @classmethod
    def title(cls) -> str:
        """Return the display name, such as "AC/DC"."""
        return cls.__name__

    def compression(self) -> str:
        """Return what happens to the weights in a word or two: "pruned", "rounded to 4 bits"."""
        return "pruned"

    @abstractmethod
    def default_schedule(self, epochs: int) -> Schedule:
        """Return the phases over a number of epochs, in the method's own proportions."""

    def for_steps(self, steps_per_epoch: int | None) -> Self:
        """Return the method with everything chosen that depends on the number of steps; most have nothing to choose."""
        return self

    def choices_made(self) -> tuple[str, ...]:
        """Return lines that say what was chosen for the user and why; none where all was given."""
        return ()

    def layers(self, model: nn.Module) -> Layers:
        """Find the weights that this method prunes in this model."""
        layers = find_prunable(
            model,
            include=self.include,
            exclude=self.exclude,
            first_and_last_dense=self.first_and_last_dense,
            depthwise_dense=self.depthwise_dense,
            embeddings=self.embeddings,
        )
        unfit = {w.name: reason for w in layers.weights if (reason := self.pattern.why_not(w))}
        fit = tuple(w for w in layers.weights if w.name not in unfit)
        if not fit:
            name, reason = next(iter(unfit.items()))
            free = next(f.default_factory for f in fields(self) if f.name == "pattern") is Unstructured
            raise ArgumentError(
                "pattern",
                received=self.pattern,
                allowed=f"fits none of the model's {len(unfit)} prunable layers ({name}: {reason})",
                instead=f"choose another pattern{', or leave it out for unstructured sparsity' if free else ''}",
            )
        return replace(layers, weights=fit, left_dense={**layers.left_dense, **unfit})

    def budgets(self, layers: Layers) -> list[Budget]:
        """Return how many weights are kept, of which layers together."""
        return budgets(self.distribution, layers.weights, self.sparsity)

    def budgets_along(self, layers: Layers, path: Callable[[float], float]) -> list[Budget]:
        """Return the budgets on the way to the target: `path` turns a target sparsity into the current one."""
        distribution, target = self.distribution, self.sparsity
        if isinstance(distribution, Mapping):
            distribution = {name: path(value) for name, value in distribution.items()}
        return budgets(distribution, layers.weights, None if target is None else path(target))

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        """Return the FLOPs of training on a sample in a sparse phase, by those of inference then and when dense.

        It is the card's rule. By default: forward pass, gradients of the inputs and gradients of the weights, each by
        the weights that are left.
        """
        return 3 * flops

    def sparsity_fraction(self, epoch: int) -> float:
        """Return the share of its target sparsity that a sparse epoch, counted from 0, has: 1 unless it rises."""
        return 1.0

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> "Idle | None":
        """Return why a run of this length would never do what the method is named for; recipes of such are refused."""
        return None

    def warnings(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        """Return what a run of this length will not do that its user may expect: shown as it begins."""
        return [idle.message()] if (idle := self.idle(total_steps, steps_per_epoch)) else []

    def gives_twin(self) -> bool:
        """Return whether a dense model is kept from which training can go on densely."""
        *before, final = self.schedule.phases
        return final.kind == "sparse" and any(phase.kind == "dense" for phase in before)

    def keeps_best_twin(self) -> bool:
        """Return whether the twin is the best dense model reported, rather than the last."""
        return False

    def config(self) -> dict[str, Any]:
        """Return every knob as plain data: what a checkpoint is checked against."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "epochs"}

    # What it does, in a run

    @abstractmethod
    def enter(self, context: "MethodContext", phase: Phase) -> None:
        """Begin a phase, as its first training step begins: compress, decompress, keep the twin."""

    def writes_weights(self, phase: Phase) -> bool:
        """Return whether `enter` changes weights as `phase` begins, so that it must come before the forward pass.

        Zeroing by masks counts; lifting masks does not, since pruned weights go on from 0.
        """
        return phase.kind == "sparse"

    def updates_at(self, context: "MethodContext", step: int) -> bool:
        """Return whether `update` is called as step `step` begins, inside a phase.

        It is a function of the step and of what the method remembers.
        """
        return False

    def update(self, context: "MethodContext") -> None:
        """Change the masks, as a training step begins inside a phase."""
        raise NotImplementedError

    def observes_at(self, context: "MethodContext", step: int) -> bool:
        """Return whether `observe` is called in step `step`, whose gradients are then masked only after that."""
        return False

    def observe(self, context: "MethodContext") -> None:
        """Look at the gradients: they are complete, also those of pruned weights, and no weight has moved yet."""
        raise NotImplementedError

    def effective_weights(self, context: "MethodContext", bundle: "Bundle", latent: Tensor, out: Tensor) -> None:
        """Write into `out` what the model computes with, given some layers' latent weights.

        Called after context.use_latent_weights() only. This and the next two see the layers of a bundle one after
        another, as tensors of one dimension; see Bundle.
        """
        raise NotImplementedError

    def latent_gradient(self, context: "MethodContext", bundle: "Bundle", grad: Tensor, latent: Tensor) -> None:
        """Turn the gradient at the effective weights, in place, into the gradient of the latent weights."""
        raise NotImplementedError

    def after_step(self, context: "MethodContext", bundle: "Bundle", before: Tensor, after: Tensor) -> None:
        """Change in place the step that took latent weights from `before` to `after`; by default all of it holds."""
        return

    def returning_step(self, context: "MethodContext", step: int) -> float:
        """Return the factor on step `step` of the weights that the last decompression brought back.

        It is a function of the step; another factor than 1 needs context.decompress(reset, shorten=True); see
        returning.py.
        """
        return 1.0

    def rate_step(self, context: "MethodContext", step: int) -> int:
        """Return the step whose learning rate step `step` takes: another one where a method starts training over.

        For trainers that set the rate as a function of the step.
        """
        return step

    def makes_twin(self, context: "MethodContext", phase: Phase) -> bool:
        """Return whether the model becomes the dense twin as `phase` begins.

        It does where the last dense phase ends, unless the best dense model is kept and one was reported.
        """
        ends_dense = phase.final and context.phase.kind == "dense" and phase.index > 0
        return ends_dense and not (self.keeps_best_twin() and context.best_metric is not None)


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Describes a run whose first update would come after the last step that may have one: its masks never change."""

    method: str
    every: str
    first: int
    last: int
    total: int

    def message(self, knob: str = "every", typed: str | None = None) -> str:
        """Return it in words: `knob` is what a recipe calls it, and `typed` what to type, if that differs."""
        some = f'for about ten updates write {typed or knob}="{max(1, self.last // 10)}st", or ' if self.last else ""
        return (
            f'{knob}="{self.every}": the first update of {self.method} is due at step {self.first:,}, and its last may '
            f"be at step {self.last:,} of {self.total:,}, so that masks would stay as they begin; {some}train longer"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str | int | float) else _rule_name(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value)


def _rule_name(rule: Any) -> str:
    return f"<{getattr(rule, '__qualname__', type(rule).__name__)}>"
