"""AC/DC: alternating compressed / decompressed training.

Idea       Train densely and sparsely in turns, so that one run gives an accurate sparse model and a dense one.
Step       θ ← T_k(θ) at each compression, then θ ← θ − η ∇f(θ) on its support only; at each decompression the mask is
           lifted, the pruned weights restart at 0 and the optimizer's momentum is reset (paper, Algorithm 1).
Knobs      sparsity and epochs: begin, cycles, rise, late_rise, floor, ramp, reset and dropout are then chosen by the
           number of epochs and steps, and said; each may be given. ACDC.paper(...), or a schedule, is Algorithm 1 with
           nothing added.
           Pattern (unstructured; N:M, blocks, channels); distribution ("global"; "uniform", "erk", by layer, by group);
           criterion ("preconditioned", which is magnitude under SGD; acdc ls criteria); twin ("last"; "best" by a
           metric you report; "late" pays for a dense phase near the end; "none"). Beyond the paper, each off unless
           chosen: begin (when the first compression is), cycles (how many decompressions, all in the first half), rise
           (the sparsity grows with time), late_rise (for longer, under a constant learning rate), floor (how much each
           layer keeps at least), dropout (lower rates in the final phase), gradual (the sparsity grows from compression
           to compression), ease (each compression takes a while), ramp (short steps at first for weights that come
           back), own_timesteps (Adam's bias correction for them), revive (random weights for filters that a compression
           took whole).
FLOPs      3·F_C per sample in compressed phases, 2·F_D + F in dense ones (paper, §4).
Costs      1 byte per weight for the mask; one in-place pass over the gradients in compressed phases; one selection per
           compression, for which Adam's metric needs 4 bytes per weight; with rise one per epoch or 40 per run, with
           ease 10 per compressed phase; with floor one more of some layers for each round in which layers were below
           it; with ramp or own_timesteps, one copy of the weights and one pass over them in each shortened step; on
           the host, but for twin="none", one copy of the model and its optimizer state, the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural
           Networks. NeurIPS 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from torch import nn

from acdc.core.context import MethodContext
from acdc.core.dropout import dropout_rates
from acdc.errors import ArgumentError, check_whole
from acdc.methods._choice import RISE, Choice, choose, describe
from acdc.methods._knobs import check_fraction
from acdc.methods._revival import bias_correction, revive
from acdc.methods._rise import UPDATES, Rise, is_watched
from acdc.methods._scored import Scored
from acdc.methods._sparsity_path import SparsityPath
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers, check_axes
from acdc.sparsity.patterns import Unstructured

if TYPE_CHECKING:
    from acdc.methods._scored import _CriterionField

# What is chosen with epochs, but for rise and floor, which depend on the steps; and with a schedule.
_CHOSEN: dict[str, Any] = {"ramp": 0.2, "reset": "nothing", "criterion": "preconditioned", "dropout": "scaled"}
_PAPER: dict[str, Any] = {
    "rise": 0.0,
    "late_rise": 0.0,
    "floor": 0.0,
    "ramp": 0.0,
    "reset": "momentum",
    "criterion": "magnitude",
    "dropout": "kept",
}


@dataclass(frozen=True, kw_only=True)
class ACDC(Scored):
    """AC/DC at a target sparsity over `epochs`, with phases and remedies chosen for their number, or by a `schedule`.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel(). The last three run along input or output channels,
                  and refuse weights of layer types whose axes are not known.
    distribution  "global" magnitude (the paper's default), "uniform", "erk", or a mapping from layers to sparsities or
                  to groups; see acdc.Method.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable. Layers
                  that compute their weight (weight_norm, spectral_norm, torch.nn.utils.prune) stay dense, with a
                  warning unless `exclude` names them.
    schedule      phases of your own, or the name of one of the paper's ("imagenet"; acdc ls schedules). With a schedule
                  everything below that is not given is as in the paper; see also ACDC.paper. With epochs it is a plan
                  until attach knows the number of steps: sparsifier.method.schedule is what runs.
    twin          which dense model is kept: the "last" (end of the last dense phase), the "best" one reported through
                  sparsifier.report_metric(metric) in a dense phase, or with epochs the end of a "late" dense phase,
                  which the chosen phases have only for its sake. "none" keeps no copy on the host and none in
                  checkpoints, and changes nothing of the sparse model.

    Chosen with epochs, and not in the paper, each may be given:

    criterion     which weights survive: "preconditioned", the magnitude in the optimizer's own metric, |θ|·v^¼ under
                  Adam and its kin and |θ| under SGD; for tiles and channels, and with a schedule, "magnitude". Or
                  another of acdc.criteria.
    begin         the share of the run before the first compression: 0.1, or in a run of 6,000 to 40,000 steps as much
                  as 4,000 steps are, up to 0.2.
    cycles        how many decompressions there are, all in the first 40 % of the run: 2, or fewer in short runs.
    rise          the share of the run by which the sparsity has reached its target, s · (1 − (1 − t)³) from the first
                  compression on, t = 1 at `rise`: 0.75, or 0.6 in a run of less than 1,500 steps. With 0 every
                  compression is to the target.
    late_rise     the same under a constant learning rate, one that none of torch's schedulers has set (but for
                  ReduceLROnPlateau, which cannot be seen) and that neither rises nor falls from the first compression
                  to a quarter of the run: 0.85 in a run of less than 1,500 steps. With 0, which longer ones have, the
                  rate makes no difference.
    floor         the share of what a layer would keep at its Erdős–Rényi–Kernel density (distribution="erk") that it
                  keeps at least: 0.75 in a run of less than 6,000 steps, whose magnitudes still show the
                  initialisation, and 0 in longer ones, where layers are ranked together and nothing else. Only for
                  distribution="global" and its groups, and chosen for single weights, not for tiles or channels.
    ramp          the share of each dense phase over which the steps of weights that come back grow from 0 to their
                  full length: 0.2. With 0 they are as long as the others.
    reset         what the optimizer forgets at a decompression: "momentum" (first moments, as in the paper), "all" of
                  its state, or "nothing", which is chosen: weights that come back have none.
    dropout       whether rates of nn.Dropout and its kin are "kept" all through (the paper) or "scaled", which is
                  chosen: in the final compressed phase, until detach(), they are multiplied by the root of the share
                  of parameters that the target leaves (Han et al. 2015). A compiled model is then compiled once more.

    Never chosen:

    gradual       raise the sparsity from compression to compression, s · (1 − (1 − i/n)³) at the i-th of n, in place
                  of rise.
    ease          the share of each compressed phase over which its sparsity grows from that of the dense phase before,
                  s · (1 − (1 − t)³) in ten compressions. Without it the loss jumps at a compression that takes many
                  weights at once, and recovers within some steps; see docs/language.md.
    own_timesteps give weights that come back Adam's or LAMB's bias correction of their own, by the steps since they
                  did: their second moment starts at 0, which makes their first steps 3 times as long.
    revive        give filters that were pruned whole random weights at a decompression, as large as the layer's other
                  filters; in the paper they start at 0. From there batch norm makes their first gradients explode,
                  or they get none. Weights must have known axes.
    """

    criterion: "_CriterionField" = None  # pyright: ignore[reportAssignmentType]
    begin: float | None = None
    cycles: int | None = None
    rise: float | None = None
    late_rise: float | None = None
    floor: float | None = None
    ramp: float | None = None
    gradual: bool = False
    ease: float = 0.0
    own_timesteps: bool = False
    revive: bool = False
    reset: Literal["momentum", "all", "nothing"] | None = None
    dropout: Literal["kept", "scaled"] | None = None
    twin: Literal["last", "best", "late", "none"] = "last"

    name: ClassVar[str] = "acdc"
    supports_shards: ClassVar[bool] = True
    alternates: ClassVar[bool] = True
    raises_sparsity: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Scored.choices,
        "reset": ("momentum", "all", "nothing"),
        "twin": ("last", "best", "late", "none"),
    }
    off: ClassVar[Mapping[str, Any]] = {
        **Scored.off,
        **dict.fromkeys(("begin", "cycles"), None),
        **dict.fromkeys(("rise", "late_rise", "ramp", "ease"), 0.0),
        "own_timesteps": False,
    }
    _lines: ClassVar[tuple[str, ...]] = ()  # an instance that for_steps made has its own

    @classmethod
    def title(cls) -> str:
        return "AC/DC"

    @classmethod
    def paper(
        cls,
        sparsity: float | None = None,
        epochs: int | None = None,
        schedule: Schedule | str | None = None,
        **knobs: Any,
    ) -> Self:
        """Build the paper's Algorithm 1 with nothing added, over `epochs` in ImageNet's proportions or a `schedule`."""
        if (epochs is None) == (schedule is None):
            allowed = f"it needs either epochs or a schedule, and received {'neither' if epochs is None else 'both'}"
            raise ArgumentError("epochs", epochs, allowed, 'write ACDC.paper(0.9, epochs=100) or schedule="imagenet"')
        if epochs is not None:
            schedule = Schedule.for_epochs(epochs)
        return cls(sparsity=sparsity, schedule=schedule, **knobs)

    def __post_init__(self) -> None:
        given = self.epochs is None
        self._check_remedies(given)
        fixed = self.pattern.sparsity is not None if hasattr(self.pattern, "sparsity") else False
        chosen = dict(_PAPER if given else _CHOSEN)
        if not isinstance(self.pattern, Unstructured):  # others were not tried with it
            chosen["criterion"] = "magnitude"
        if self.gradual or fixed:
            chosen["rise"] = 0.0
        if self.rise is not None or "rise" in chosen:  # the one that is given is meant
            chosen["late_rise"] = 0.0
        if self._never_returns:
            chosen["ramp"] = 0.0
        for knob, value in chosen.items():
            if getattr(self, knob) is None:
                object.__setattr__(self, knob, value)
        super().__post_init__()
        for knob in ("gradual", "rise", "late_rise", "ease"):
            if getattr(self, knob) and self.pattern.sparsity is not None:
                allowed = f"{self.pattern} has one sparsity only"
                raise ArgumentError(knob, received=getattr(self, knob), allowed=allowed, instead=f"omit {knob}")
        self._check_rise()
        self._check_returning(given)

    def _check_remedies(self, given: bool) -> None:
        """Raise if a value is out of range, or if remedies that contradict each other or the schedule."""
        for knob, what, example in (
            ("begin", "the run", "0.1"),
            ("rise", "the run", "0.75"),
            ("late_rise", "the run", "0.85"),
            ("ramp", "a dense phase", "0.2"),
            ("ease", "a compressed phase", "0.2"),
        ):
            if getattr(self, knob) is not None:
                check_fraction(knob, getattr(self, knob), example, of=what)
        if self.begin == 1:
            allowed = "a run that is dense to its end has no compressed phase"
            raise ArgumentError("begin", received=self.begin, allowed=allowed, instead="write begin=0.1")
        if self.cycles is not None:
            check_whole("cycles", self.cycles, 0, "write cycles=2, or 0 for none")
        if self.gradual and self.rise:
            allowed = "gradual=True raises the sparsity from compression to compression, rise with time"
            raise ArgumentError("rise", received=self.rise, allowed=allowed, instead="omit rise or gradual")
        for knob, value in (("begin", self.begin), ("cycles", self.cycles), ("twin", self.twin)):
            if given and value not in (None, "last", "best", "none"):
                allowed = f"a schedule has its own phases, and {knob} chooses them"
                raise ArgumentError(knob, received=value, allowed=allowed, instead=f"omit {knob} or schedule")
        if self._never_returns:
            self._refuse_remedies("cycles=0 has no decompression", "cycles")

    @property
    def _never_returns(self) -> bool:
        """Return True if the user wants no decompression."""
        return self.epochs is not None and self.cycles == 0 and self.twin != "late"

    def _refuse_remedies(self, why: str, other: str) -> None:
        """Raise if a knob is given that acts at decompressions, where there are none."""
        for knob in ("ramp", "own_timesteps", "revive", "gradual"):
            if value := getattr(self, knob):
                acts = "is for weights that come back"
                if knob == "gradual":
                    acts = "raises the sparsity from compression to compression"
                instead = f"omit {knob} or {other}"
                raise ArgumentError(knob, received=value, allowed=f"it {acts}, and {why}", instead=instead)

    def _check_rise(self) -> None:
        """Raise if the rise ends before it begins: the schedule compresses for the first time after it."""
        units = {phase.length.unit for phase in self.schedule.phases}
        if self.late_rise and self.rise == 0:
            allowed = f"{'gradual=True leaves' if self.gradual else 'rise=0 is'} no rise that could end later"
            raise ArgumentError("late_rise", received=self.late_rise, allowed=allowed, instead="omit late_rise")
        if self.late_rise and self.rise and self.late_rise < self.rise:
            allowed = f"it is for a rise that ends later than usual, and the usual one ends at rise={self.rise:g}"
            raise ArgumentError("late_rise", received=self.late_rise, allowed=allowed, instead="raise or omit it")
        if not self.rise or len(units) > 1:
            return
        (compress, _), total = self.schedule.transitions, self.schedule.total
        if total is not None and compress[0] / total.value >= self.rise:
            when = f"after {float(compress[0] / total.value):.0%} of the run"
            allowed, other = f"schedule compresses for the first time {when}", "compress earlier"
            if self.epochs is not None:
                allowed, other = f"the first compression comes {when}", "lower begin"
            raise ArgumentError("rise", received=self.rise, allowed=allowed, instead=f"raise rise, or {other}")

    def _check_returning(self, given: bool) -> None:
        """Raise if a knob acts at decompressions and the schedule has none."""
        if given and all(phase.name != "decompressed" for phase in self.schedule.phases):
            self._refuse_remedies("schedule has no decompression", "schedule")

    # What it chooses

    def default_schedule(self, epochs: int) -> Schedule:
        return self._choose(epochs, None).schedule

    def _choose(self, epochs: int, steps_per_epoch: int | None, *, whole_epochs: bool = False) -> Choice:
        late, whole_epochs = self.twin == "late", whole_epochs or self.twin == "best"  # which is reported after epochs
        return choose(
            epochs, steps_per_epoch, begin=self.begin, cycles=self.cycles, late=late, whole_epochs=whole_epochs
        )

    def for_steps(self, steps_per_epoch: int | None, *, whole_epochs: bool = False) -> Self:
        """Return the method with the phases that suit this number of steps, if it was given epochs.

        `whole_epochs` asks for phases of whole epochs also in a run of a few, as a trainer does that plans by them.
        """
        if self.epochs is None:
            return self
        choice = self._choose(self.epochs, steps_per_epoch, whole_epochs=whole_epochs)
        twin = "last" if self.twin == "late" else self.twin
        given: dict[str, Any] = {"schedule": choice.schedule, "epochs": None, "twin": twin}
        given |= {"begin": None, "cycles": None}  # they are in the schedule now
        if not choice.schedule.transitions[1]:  # nothing comes back
            given |= {"ramp": 0.0, "own_timesteps": False, "revive": False, "gradual": False}
        if self.floor is None:
            single = isinstance(self.pattern, Unstructured)  # tiles end lower with a floor; see results/README.md
            given["floor"] = choice.floor if single and self.ranks_layers() else 0.0
        alone = self.gradual and not given.get("gradual", True)  # one compression raises nothing
        given |= {"rise": choice.rise} if self.rise is None or alone else {}
        given |= {"late_rise": choice.late_rise} if self.late_rise is None or alone else {}
        fitted = replace(self, **given)
        target = f"{self.sparsity:.4g}" if self.sparsity is not None else "its target"
        lines = describe(
            choice,
            self.epochs,
            target,
            rise=fitted.rise,
            late_rise=fitted.late_rise,
            ramp=self.ramp,
            keeps=self.reset == "nothing",
            gradual=fitted.gradual,
            ease=fitted.ease,
            floor=fitted.floor,
            preconditioned=self.criterion.name == _CHOSEN["criterion"],
            idle=[knob for knob in ("own_timesteps", "revive") if getattr(self, knob) and not getattr(fitted, knob)],
        )
        object.__setattr__(fitted, "_lines", lines)
        return fitted

    def choices_made(self, model: nn.Module | None = None) -> tuple[str, ...]:
        if not self._lines or self.dropout != "scaled" or model is None or not any(dropout_rates(model)):
            return self._lines
        what, why = self._lines
        return f"{what.removesuffix('.')}; nn.Dropout lowered in the last phase, to suit what the target leaves.", why

    # What it does

    def layers(self, model: nn.Module) -> Layers:
        layers = super().layers(model)
        for weight in layers.weights if self.revive else ():
            check_axes(weight, "revive", True, "omit revive")
        return layers

    def sharding_obstacle(self) -> str | None:
        return "revive=True draws whole filters" if self.revive else super().sharding_obstacle()

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            masks = context.masks if self.revive else {}
            context.decompress(reset=self.reset or "momentum", shorten=bool(self.ramp or self.own_timesteps))
            if masks:
                revive(context, masks)
            return
        self.compress(context, budgets=self._coming_budgets(context), keep_twin=self.makes_twin(context, phase))

    def writes_weights(self, phase: Phase) -> bool:
        return self.revive or super().writes_weights(phase)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        if context.phase.kind == "dense":
            return False
        return self._path(context.steps_per_epoch).takes_masks_at(step, context.memory)

    def update(self, context: MethodContext) -> None:
        self.compress(context, budgets=self._coming_budgets(context))

    def notice(self, context: MethodContext) -> None:
        if self.late_rise and is_watched(context.memory) and (rise := self._path(context.steps_per_epoch).rise):
            rise.watch(context.step, context.memory, context.optimizer)

    def next_compression(self, steps_per_epoch: int | None, step: int, memory: Mapping[str, Any]) -> int | None:
        start = super().next_compression(steps_per_epoch, step, memory)
        update = self._path(steps_per_epoch).next_masks(step, memory)
        return min((at for at in (start, update) if at is not None), default=None)

    def sparsity_fraction(self, epoch: int) -> float:
        each = 10 * UPDATES  # steps an epoch, of as many as there may be
        return self._path(each).share_after((epoch + 1) * each - 1)  # FLOPs are counted as an epoch ends

    def _coming_budgets(self, context: MethodContext) -> list[Budget]:
        """Return what survives the compression that the coming step begins with."""
        share = self._path(context.steps_per_epoch).share(context.step, context.memory)
        return context.budgets if share == 1 else self.budgets_along(context.layers, lambda s: share * s)

    def _path(self, steps_per_epoch: int | None) -> SparsityPath:
        """Return how the sparsity reaches its target; by the usual rise until the number of steps is known."""
        schedule, window = self.schedule, self.criterion.window
        end, late = RISE if self.rise is None else self.rise, self.late_rise or 0
        rise = Rise.in_steps(schedule, steps_per_epoch, rise=end, late_rise=late, window=window) if end else None
        return SparsityPath(schedule, steps_per_epoch, rise, gradual=self.gradual, ease=self.ease, window=window)

    # The weights that come back

    def returning_step(self, context: MethodContext, step: int) -> float:
        phase = context.phase
        if phase.index < 1 or not (self.ramp or self.own_timesteps):
            return 1.0
        start, end = self.schedule.boundaries(context.steps_per_epoch)[phase.index - 1 : phase.index + 1]
        taken, factor = step - start + 1, 1.0
        if self.ramp:
            factor = min(1.0, taken / (self.ramp * (end - start)))
        if self.own_timesteps and self.reset != "all":
            factor *= bias_correction(context.optimizer.param_groups[0], taken, step + 1)
        return factor

    def gives_twin(self) -> bool:
        return self.twin != "none" and super().gives_twin()

    def keeps_best_twin(self) -> bool:
        return self.twin == "best"

    def makes_twin(self, context: MethodContext, phase: Phase) -> bool:
        return self.twin != "none" and super().makes_twin(context, phase)
