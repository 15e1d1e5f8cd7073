"""A recipe: everything that decides what a run computes, and nothing of where it runs.

A TOML file with one table for each class below; recipes/ holds those of the paper, reading.py reads them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from acdc import methods
from acdc.core.method import Method as BuiltMethod
from acdc.errors import did_you_mean
from acdc.recipes.mistakes import SettingError, of_knob
from acdc.schedule import Schedule
from acdc.sparsity.patterns import NM, Block, Channel, Pattern, Unstructured

T = TypeVar("T")
_EPOCHS = re.compile(r'total="(\d+)ep"')


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # every other key of the table


@dataclass(frozen=True, kw_only=True)
class Data:
    name: str
    crop: int = 0  # pixels of padding, then a random window of the images' own size
    flip: bool = False
    validation: int = 0  # training images set aside, for choosing without the test set
    corrupt: int = 0  # training images that get a random label
    corrupt_kind: Literal["always-wrong", "uniform"] = "always-wrong"
    bad_limit: int = 50  # unreadable image files after which a run stops
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    name: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | None = None  # the optimizer's own
    weight_decay: float = 0.0  # on all parameters, as in the paper


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The learning rate over time; see rates.py."""

    shape: Literal["constant", "step", "cosine", "linear"] = "constant"
    per: Literal["epoch", "step"] = "epoch"
    warmup: float = 0  # epochs
    milestones: tuple[float, ...] = ()  # epochs at which "step" multiplies by gamma
    gamma: float = 0.1
    rewarm: float = 0.0  # epochs of linear warm-up at the beginning of every phase after the first
    final: float = 0.0  # where "cosine" and "linear" end, as a fraction of lr


@dataclass(frozen=True, kw_only=True)
class Training:
    epochs: int | None = None  # as many as the method's schedule has, if it is given by name
    batch_size: int = 128  # over all ranks
    accumulate: int = 1  # parts a batch is trained in; batch norm sees one part at a time
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    distill: float = 0.0  # share of the loss, in the final compressed phase, that is distance to the dense twin
    distill_temperature: float = 2.0
    ema: float | None = None  # decay of an average of the weights, evaluated and kept beside the model
    channels_last: bool = False
    threads: int = 0  # on a CPU; 0 leaves it to torch
    deterministic: bool = False  # on a GPU: slower, the same bits in every run
    compile: Literal["auto", "on", "off"] = "auto"
    cuda_graphs: Literal["auto", "on", "off"] = "auto"


@dataclass(frozen=True, kw_only=True)
class Method:
    """The knobs methods share, as a file can say them; see acdc.methods. Other keys are the method's own."""

    name: str = "acdc"  # or another of acdc.methods, or "dense"
    sparsity: float | None = None
    schedule: str | Mapping[str, Any] | None = None  # a name of the paper, or the knobs of Schedule.alternating
    pattern: str | None = None  # "unstructured", "2:4", "block 4x4", "channel"; the method's own if not said
    distribution: str | Mapping[str, float] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    first_and_last_dense: bool = False
    depthwise_dense: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    seeds: tuple[int, ...] = (0,)
    baseline: bool = False  # a dense model by the same recipe, before the method
    finetune: bool = False  # the dense twin, over the epochs of the final compressed phase
    recalibrate: bool = False  # also report models with batch-norm statistics taken anew over the training images
    checkpoint_every: str = "10ep"  # and at every phase's end
    keep: int = 2  # checkpoints


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """What the paper reports for this recipe with these settings: accuracies in %, costs as fractions of dense."""

    set: Mapping[str, Any] = field(default_factory=dict)
    sparse: float | None = None
    std: float | None = None
    dense: float | None = None
    twin: float | None = None
    finetuned: float | None = None
    inference: float | None = None
    training: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: str
    about: str = ""
    model: Model
    data: Data
    optimizer: Optimizer = field(default_factory=Optimizer)
    rate: Rate = field(default_factory=Rate)
    train: Training = field(default_factory=Training)
    method: Method = field(default_factory=Method)
    run: Run = field(default_factory=Run)
    paper: tuple[PaperRow, ...] = ()

    @property
    def epochs(self) -> int:
        if self.train.epochs is not None:
            return self.train.epochs
        schedule = self.schedule()
        if schedule is None:
            raise SettingError("train.epochs", " is not set: say how long to train, for example train.epochs = 100")
        return schedule.total_steps(1)

    def schedule(self) -> Schedule | None:
        """The method's phases. None for dense training."""
        if self.method.name == "dense":
            return None
        said = self.said_schedule()
        return said if said is not None else self._built(None).schedule

    def said_schedule(self) -> Schedule | None:
        """The phases the recipe itself gives, if it does."""
        said = self.method.schedule
        if said is None:
            if self.train.epochs is None:
                raise SettingError(
                    "",
                    "neither train.epochs nor method.schedule is set: say how long to train, for example "
                    'train.epochs = 100, or method.schedule = "cifar100_20"',
                )
            return None
        if isinstance(said, str):
            named = Schedule.named()
            if said not in named:
                raise SettingError(
                    "method.schedule",
                    f' = "{said}": expected one of {", ".join(named)}, or a table such as '
                    '{ warmup = "10ep", sparse = "5ep", dense = "5ep", last_dense = "10ep", final_sparse = "15ep" }'
                    f"{did_you_mean(said, named)}",
                )
            return named[said]()
        knobs = {"total": f"{self.train.epochs}ep", **said} if self.train.epochs else dict(said)
        try:
            schedule = Schedule.alternating(**knobs)
        except (ValueError, TypeError) as error:
            if "total" not in said and str(error).startswith("total="):  # which is train.epochs, and is changed there
                text = _EPOCHS.sub(r"train.epochs = \1", str(error).partition(": ")[2])
                raise SettingError("method.schedule", f": train.epochs = {self.train.epochs}: {text}") from None
            raise SettingError("method.schedule", f": {error}") from None
        if schedule.total is None or schedule.total.unit != "ep" or schedule.total.value.denominator > 1:
            raise SettingError(
                "method.schedule",
                f': total = "{schedule.total}": expected whole epochs; write for example total = "100ep"',
            )
        return schedule

    def build_method(self) -> BuiltMethod | None:
        """None for dense training."""
        if self.method.name == "dense":
            return None
        schedule = self.said_schedule()
        if schedule is not None and self.train.epochs not in (None, schedule.total_steps(1)):
            raise SettingError(
                "train.epochs",
                f" = {self.train.epochs}: method.schedule lasts {schedule.total_steps(1)} epochs; leave train.epochs "
                f"out{self._or_its_proportions()}",
            )
        return self._built(schedule)

    def _or_its_proportions(self) -> str:
        """What else may be left out where epochs and phases contradict each other: the phases, if epochs suffice."""
        try:
            Schedule.for_epochs(self.train.epochs or 0)
        except ValueError:
            return ""
        return f", or method.schedule, for the paper's proportions over {self.train.epochs} epochs"

    def _built(self, schedule: Schedule | None) -> BuiltMethod:
        said = self.method
        knobs = {
            "sparsity": said.sparsity,
            "pattern": read_pattern(said.pattern) if said.pattern is not None else None,
            "distribution": said.distribution,
            "epochs": self.train.epochs if schedule is None else None,
            "schedule": schedule,
        }
        fixed = knobs["pattern"].sparsity if knobs["pattern"] is not None else None
        kind = in_method(methods.find, said.name)
        if (
            kind.needs_sparsity
            and said.sparsity is None
            and fixed is None
            and not isinstance(said.distribution, Mapping)
        ):
            raise SettingError(
                "method.sparsity", " is not set: give the fraction of zeros, such as method.sparsity = 0.9"
            )
        try:
            return in_method(
                methods.build,
                said.name,
                include=said.include,
                exclude=said.exclude,
                first_and_last_dense=said.first_and_last_dense,
                depthwise_dense=said.depthwise_dense,
                **{knob: value for knob, value in knobs.items() if value is not None},
                **said.options,
            )
        except SettingError as error:
            if schedule is None and error.setting == "method.schedule":  # the method's own, made of epochs
                raise SettingError(
                    "train.epochs", f" = {self.train.epochs}: too few for the phases of {kind.title()}; set it higher"
                ) from None
            raise

    def with_seed(self, seed: int) -> "Recipe":
        return replace(self, run=replace(self.run, seeds=(seed,)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what config.json holds, and what a checkpoint is compared with."""
        return asdict(self)


def in_method(make: Callable[..., T], *args: Any, **knobs: Any) -> T:
    """What `make` returns; its errors name the knob as the recipe does."""
    try:
        return make(*args, **knobs)
    except (ValueError, TypeError) as error:
        text = str(error)
        if text.startswith(("phases[", "total=", "steps_per_epoch=")):  # words of Schedule
            raise SettingError("method.schedule", f": {text}") from None
        if text.startswith("epochs="):
            raise of_knob("train", text.replace(" write epochs=", " write train.epochs=")) from None
        how = "leave sparsity out (on the command line: --set method.sparsity=)"
        raise of_knob("method", text.replace("leave sparsity out", how)) from None


def read_pattern(text: str) -> Pattern:
    """ "unstructured", "2:4", "block 4x4" or "channel"."""
    plain, reason = " ".join(text.split()), ""
    try:
        if plain in ("unstructured", "channel"):
            return Unstructured() if plain == "unstructured" else Channel()
        if match := re.fullmatch(r"block (\d+)x(\d+)", plain):
            return Block(int(match[1]), int(match[2]))
        if match := re.fullmatch(r"(\d+):(\d+)", plain):
            return NM(int(match[1]), int(match[2]))
    except ValueError as error:
        reason = f" ({error})"
    expected = 'expected "unstructured", "2:4", "block 4x4" or "channel"'
    raise SettingError("method.pattern", f' = "{text}": {expected}{reason}')
