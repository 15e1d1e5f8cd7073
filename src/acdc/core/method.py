"""The abstract class of sparse-training methods: the knobs they share, and the calls a method answers.

A step, as a method sees it:

    updates_at, observes_at           functions of the step: what the step to come needs
    enter, or update                  when it begins, if a phase is new or an update is due; masks change here
    ...forward and backward...        with pruned weights at 0, or with the effective weights of latent ones
    observe                           gradients are complete, the pruned weights' too
    latent_gradient, after_step       around the optimizer's step, for methods that train latent weights
    notice                            when it has ended, in any phase

A method is a frozen dataclass: it remembers nothing itself. Each call brings a MethodContext, which offers all that a
method may ask for, and a memory for what it has to remember.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from acdc.errors import ArgumentError, ArgumentTypeError, did_you_mean
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget, Distribution, along, budgets, check_distribution, check_sparsity
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Pattern, Unstructured
from acdc.sparsity.prunable import Rule, find_prunable

_FROM_EPOCHS: Any = None

if TYPE_CHECKING:
    from acdc.core.context import MethodContext
    from acdc.core.latent import Bundle

    class _ScheduleField:
        """A declaration for type checkers: a Schedule or the name of one goes in, and a Schedule comes out."""

        def __get__(self, method: "Method", kind: type["Method"]) -> Schedule: ...

        def __set__(self, method: "Method", value: Schedule | str | None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A method at a target sparsity, over `epochs` or an explicit `schedule`, or the name of one of the paper's.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel(). The last three run along input or output channels,
                  and refuse weights of layer types whose axes are not known.
    distribution  "global" magnitude, "uniform", "erk", or a mapping from layers to sparsities, {"layer1.*": 0.8}, or to
                  groups, {"embedding.*": {"global": 0.5}}, beside which all other layers are a group at `sparsity`.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable. Layers
                  that compute their weight (weight_norm, spectral_norm, torch.nn.utils.prune) stay dense, with a
                  warning unless `exclude` names them.
    """

    sparsity: float | None = None
    epochs: int | None = None
    schedule: "_ScheduleField" = _FROM_EPOCHS  # always a Schedule after __post_init__
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
    by_layer: ClassVar[tuple[str, ...]] = ()  # keys of context.memory that hold one number per weight, by layer
    recomputed: ClassVar[tuple[str, ...]] = ()  # those of them that a state dict may lack: they are recomputed
    needs_sparsity: ClassVar[bool] = True  # False if training decides the sparsity
    alternates: ClassVar[bool] = False  # whether pruned weights come back in dense phases between compressed ones
    raises_sparsity: ClassVar[bool] = False  # whether updates within a phase may prune more than those before
    ends: ClassVar[bool] = True  # False if it does the same at every step, however many there are
    averages: ClassVar[bool] = True  # whether the average of compressed weights, masked, is compressed as well
    supports_shards: ClassVar[bool] = False  # whether it works on this process's part of every tensor alone
    decided_by: ClassVar[str] = "training"  # what decides the sparsity if none can be set
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # knobs that accept one of a few words
    off: ClassVar[Mapping[str, Any]] = {}  # what turns a knob off that older versions did not have; see `config`

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", _named(self.schedule))
        derived = self.epochs is not None and self.schedule == self.default_schedule(self.epochs)  # dataclasses.replace
        if (self.epochs is None) == (self.schedule is None) and not derived:
            raise ArgumentError(
                "epochs",
                received=self.epochs,
                allowed=f"{kind} needs either epochs or a schedule, "
                f"but received {'neither' if self.schedule is None else 'both'}",
                instead=f"write {kind}(sparsity=0.9, epochs=100) or schedule=acdc.Schedule.alternating(...)",
            )
        if self.epochs is not None:
            object.__setattr__(self, "schedule", self.default_schedule(self.epochs))
        if not isinstance(self.schedule, Schedule):
            raise ArgumentTypeError(
                "schedule",
                received=self.schedule,
                allowed="expected an acdc.Schedule, or the name of one",
                instead='write schedule=acdc.Schedule.for_epochs(100), or schedule="imagenet"',
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
        return ArgumentError("schedule", received=kinds, allowed=allowed, instead="omit it and write epochs=100")

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
                    instead="omit sparsity, or choose the unstructured pattern",
                )
            if self.distribution != "global":
                raise ArgumentError(
                    "distribution",
                    received=self.distribution,
                    allowed=f"{self.pattern} gives every layer the same sparsity",
                    instead="omit distribution",
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
        """Raise if the pattern fixes the sparsity, for methods that approach it step by step."""
        if self.pattern.sparsity is not None:
            allowed = f"it fixes the sparsity, which {type(self).__name__} raises step by step"
            raise ArgumentError("pattern", received=self.pattern, allowed=allowed, instead=instead)

    # Facts about the method, before a run

    @classmethod
    def title(cls) -> str:
        """Return the display name, such as "AC/DC"."""
        return cls.__name__

    def compression(self) -> str:
        """Return, in a word or two, what happens to the weights: "pruned", "rounded to 4 bits"."""
        return "pruned"

    @abstractmethod
    def default_schedule(self, epochs: int) -> Schedule:
        """Return the phases over a number of epochs, in the method's own proportions."""

    def for_steps(self, steps_per_epoch: int | None, *, whole_epochs: bool = False) -> Self:
        """Return the method with everything chosen that depends on the number of steps; most have nothing to choose.

        `whole_epochs` asks for phases of whole epochs also in a run of a few, as a trainer does that plans by them.
        """
        return self

    def choices_made(self, model: nn.Module | None = None) -> tuple[str, ...]:
        """Return lines that say what was chosen for the user, of this model, and why; none where all was given."""
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
                instead=f"choose another pattern{', or omit it for unstructured sparsity' if free else ''}",
            )
        return replace(layers, weights=fit, left_dense={**layers.left_dense, **unfit})

    def budgets(self, layers: Layers) -> list[Budget]:
        """Return how many weights each group of layers keeps."""
        return budgets(self.distribution, layers.weights, self.sparsity, rest=self._own_distribution())

    def budgets_along(self, layers: Layers, path: Callable[[float], float]) -> list[Budget]:
        """Return the budgets on the way to the target: `path` turns a target sparsity into the current one."""
        target = None if self.sparsity is None else path(self.sparsity)
        return budgets(along(self.distribution, path), layers.weights, target, rest=self._own_distribution())

    @classmethod
    def _own_distribution(cls) -> str:
        """Return the method's default, which the layers have that no group matches."""
        return next(str(knob.default) for knob in fields(cls) if knob.name == "distribution")

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        """Return the FLOPs of training on one sample in a sparse phase, given those of sparse and dense inference.

        This is the rule on the method's card. By default, the forward pass, the gradients of the inputs and those of
        the weights each cost what the remaining weights do.
        """
        return 3 * flops

    def sparsity_fraction(self, epoch: int) -> float:
        """Return the share of the target sparsity that sparse epoch `epoch` (from 0) has: 1 unless it rises."""
        return 1.0

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> "Idle | None":
        """Return why the method would never act in a run of this length, if so; such recipes are refused."""
        return None

    def warnings(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        """Return what a run of this length will not do although its user may expect it; shown at the start."""
        return [idle.message()] if (idle := self.idle(total_steps, steps_per_epoch)) else []

    def sharding_obstacle(self) -> str | None:
        """Return why the method cannot prune sharded parameters, or None if it can."""
        return None if self.supports_shards else f"{self.title()} needs whole weights in every process"

    def trains_latent_weights(self) -> bool:
        """Return True if the method computes the model's weights from latent ones."""
        return type(self).effective_weights is not Method.effective_weights

    def looks_at_gradients(self) -> bool:
        """Return True if `observe` is called in some steps."""
        return type(self).observes_at is not Method.observes_at

    def gives_twin(self) -> bool:
        """Return True if a dense model is kept that can be trained further."""
        *before, final = self.schedule.phases
        return final.kind == "sparse" and any(phase.kind == "dense" for phase in before)

    def keeps_best_twin(self) -> bool:
        """Return True if the twin is the best dense model reported, rather than the last."""
        return False

    def config(self, model: nn.Module | None = None) -> dict[str, Any]:
        """Return every knob as plain data, which checkpoints are checked against.

        Those that are off are left out where `off` names them: checkpoints from before there were any have none. So are
        those that make no difference to this `model`.
        """
        knobs = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "epochs"}
        off = [knob for knob, value in self.off.items() if knobs[knob] in (value, None)]
        return {knob: _plain(value) for knob, value in knobs.items() if knob not in off}

    # Actions during a run

    @abstractmethod
    def enter(self, context: "MethodContext", phase: Phase) -> None:
        """Begin a phase together with its first training step: compress, decompress, keep the twin."""

    def writes_weights(self, phase: Phase) -> bool:
        """Return True if `enter` changes weights when `phase` begins, so that it must come before the forward pass.

        Zeroing by masks counts; lifting masks does not, since pruned weights continue from 0.
        """
        return phase.kind == "sparse"

    def lowers_dropout(self, phase: Phase) -> bool:
        """Return True if dropout's rates go down in this phase with the weights that are left."""
        return False

    def notice(self, context: "MethodContext") -> None:
        """Look at the run when a step has ended, in any phase; what it sees may only go into `context.memory`."""
        return

    def updates_at(self, context: "MethodContext", step: int) -> bool:
        """Return True if `update` is called when step `step` begins, inside a phase.

        The answer depends only on the step and on what the method remembers.
        """
        return False

    def update(self, context: "MethodContext") -> None:
        """Change the masks when a training step begins inside a phase."""
        raise NotImplementedError

    def observes_at(self, context: "MethodContext", step: int) -> bool:
        """Return True if `observe` is called in step `step`, whose gradients are then masked only afterwards."""
        return False

    def observe(self, context: "MethodContext") -> None:
        """Look at the gradients: they are complete, including those of pruned weights, and no weight has moved yet."""
        raise NotImplementedError

    def effective_weights(self, context: "MethodContext", bundle: "Bundle", latent: Tensor, out: Tensor) -> None:
        """Write the effective weights into `out`, given some layers' latent weights.

        Called only after context.use_latent_weights(). This method and the next two see the layers of a bundle one
        after another, as one-dimensional tensors; see Bundle.
        """
        raise NotImplementedError

    def latent_gradient(self, context: "MethodContext", bundle: "Bundle", grad: Tensor, latent: Tensor) -> None:
        """Turn the gradient at the effective weights, in place, into the gradient of the latent weights."""
        raise NotImplementedError

    def after_step(self, context: "MethodContext", bundle: "Bundle", before: Tensor, after: Tensor) -> None:
        """Change, in place, the step that took latent weights from `before` to `after`; by default keep all of it."""
        return

    def returning_step(self, context: "MethodContext", step: int) -> float:
        """Return the factor on step `step` of the weights that the last decompression brought back.

        It is a function of the step; another factor than 1 needs context.decompress(reset, shorten=True); see
        returning.py.
        """
        return 1.0

    def rate_step(self, context: "MethodContext", step: int) -> int:
        """Return the step whose learning rate step `step` uses: an earlier one if the method starts training over.

        This is for trainers that set the rate as a function of the step.
        """
        return step

    def makes_twin(self, context: "MethodContext", phase: Phase) -> bool:
        """Return True if the model becomes the dense twin when `phase` begins.

        It does when the last dense phase ends, unless the best dense model is kept and one was reported.
        """
        ends_dense = phase.final and context.phase.kind == "dense" and phase.index > 0
        return ends_dense and not (self.keeps_best_twin() and context.best_metric is not None)


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A run whose first update would come after the last step that may have one, so that its masks never change."""

    method: str
    every: str
    first: int
    last: int
    total: int

    def message(self, knob: str = "every", spelling: str | None = None) -> str:
        """Return this as a message: `knob` is its name in a recipe, and `spelling` what to type, if that differs."""
        some = f'for about ten updates write {spelling or knob}="{max(1, self.last // 10)}st", or ' if self.last else ""
        return (
            f'{knob}="{self.every}": the first update of {self.method} is due at step {self.first:,}, but its last may '
            f"be at step {self.last:,} of {self.total:,}, so the masks would never change; {some}train longer"
        )


def _named(name: str) -> Schedule:
    named = Schedule.named()
    if name not in named:
        allowed = f"expected an acdc.Schedule, or one of {', '.join(named)}{did_you_mean(name, named)}"
        raise ArgumentError("schedule", received=name, allowed=allowed)
    return named[name]()


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str | int | float) else _rule_name(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return repr(value)


def _rule_name(rule: Any) -> str:
    return f"<{getattr(rule, '__qualname__', type(rule).__name__)}>"
