"""The settings of a recipe: everything that decides what a run computes, and nothing about where it runs.

A recipe is a TOML file with one table for each class below, read by load.py. The range of a number is written beside
its type; for a list it is the range of each item. Caps lie far beyond any real use, but below values that would crash
a machine without a message. Nothing here imports torch before a method is built.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from acdc import methods
from acdc.data.image_sizes import ImageSizes
from acdc.errors import ArgumentError, did_you_mean, fold, suggest
from acdc.recipes.findings import SettingError, naming_settings
from acdc.schedule import Schedule
from acdc.typed_data import Limits

if TYPE_CHECKING:
    from acdc.core.method import Method as BuiltMethod
    from acdc.sparsity.patterns import Pattern

PROPORTIONS = "paper"  # the schedule of ImageNet's proportions over any number of epochs

Images = Annotated[int, Limits(least=0, cap=1_000_000_000, text="images, 0 or more")]
Epochs = Annotated[float, Limits(least=0, cap=100_000, text="epochs, 0 or more")]
Milestone = Annotated[float, Limits(least=0, cap=100_000, text="epochs, such as [60]")]
Beta = Annotated[float, Limits(least=0, below=1, text="two numbers from 0 to below 1")]
Seed = Annotated[int, Limits(least=0, most=2**31 - 1, text="whole numbers from 0 to 2147483647")]


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str  # one of acdc.models, or the import path of a function or class, such as "mypkg.nets:build"
    # Parts of a batch that batch norms see one at a time, as on so many GPUs: each sees batch_size / bn_splits images.
    bn_splits: Annotated[int, Limits(least=1, cap=1_000_000, text="parts of a batch, 1 or more")] = 1
    options: Mapping[str, Any] = field(default_factory=dict)  # every other key of the table


@dataclass(frozen=True, kw_only=True)
class Data:
    name: str  # one of acdc.data, or the import path of a function, such as "mypkg.data:make"
    # Pixels of padding, then a random window of the images' own size.
    crop: Annotated[int, Limits(least=0, cap=1024, text="pixels, 0 or more")] = 0
    flip: bool = False
    # Progressive resizing: the shorter side of training images is first_size pixels at first, and grows by size_step to
    # their own, which it reaches by a share of the run. None for images of their own size throughout.
    first_size: Annotated[int, Limits(least=1, cap=10_000, text="pixels, 1 or more")] | None = None
    full_size_by: Annotated[float, Limits(above=0, most=1, text="a share of the run, above 0 and up to 1")] = 0.5
    size_step: Annotated[int, Limits(least=1, cap=10_000, text="pixels, 1 or more")] = 4
    validation: Images = 0  # training images set aside, for choosing without the test set
    corrupt: Images = 0  # training images that get a random label
    corrupt_kind: Literal["always-wrong", "uniform"] = "always-wrong"
    # The most unreadable image files that a run skips.
    bad_limit: Annotated[int, Limits(least=0, cap=1_000_000_000, text="files, 0 or more")] = 50
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    name: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    # Values beyond float32 fail inside an optimizer; a smaller rate that is too high diverges, which a run reports.
    lr: Annotated[float, Limits(above=0, cap=1e36, text="a number above 0, such as 0.1")] = 0.1
    momentum: Annotated[float, Limits(least=0, below=1, text="from 0 to below 1, such as 0.9")] = 0.9
    nesterov: bool = False
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    # None for the optimizer's own default.
    eps: Annotated[float, Limits(above=0, cap=1000, text="a number above 0, such as 1e-8")] | None = None
    # On all parameters, as in the paper.
    weight_decay: Annotated[float, Limits(least=0, cap=1000, text="0 or more, such as 5e-4")] = 0.0
    bias_correction: bool = True  # LAMB's; the paper trains Transformer-XL without


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The learning rate over time; see acdc.train.rates."""

    shape: Literal["constant", "step", "cosine", "linear"] = "constant"
    per: Literal["epoch", "step"] = "epoch"
    warmup: Epochs = 0
    milestones: tuple[Milestone, ...] = ()  # at which "step" multiplies by gamma
    gamma: Annotated[float, Limits(above=0, cap=10, text="a number above 0, such as 0.1")] = 0.1
    rewarm: Epochs = 0.0  # epochs of linear warm-up at the beginning of every phase after the first
    # The final value of "cosine" and "linear".
    final: Annotated[float, Limits(least=0, most=1, text="a fraction of lr, from 0 to 1")] = 0.0


@dataclass(frozen=True, kw_only=True)
class Training:
    # Defaults to the length of the method's schedule, if that is set by name.
    epochs: Annotated[int, Limits(least=1, cap=100_000, text="1 or more")] | None = None
    # Stretches the run: epochs, phases, and the rate's milestones and warm-up are so many times as long.
    times: Annotated[int, Limits(least=1, cap=1000, text="1 or more, such as 2")] = 1
    # Over all ranks.
    batch_size: Annotated[int, Limits(least=1, cap=10_000_000, text="1 or more, such as 128")] = 128
    accumulate: int = 1  # parts a batch is trained in, at most batch_size; batch norm sees one part at a time
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    label_smoothing: Annotated[float, Limits(least=0, below=1, text="from 0 to below 1, such as 0.1")] = 0.0
    clip_norm: Annotated[float, Limits(above=0, cap=1_000_000, text="a number above 0, such as 1.0")] | None = None
    # The share of the loss, in the final compressed phase, given by the distance to the dense twin.
    distill: Annotated[float, Limits(least=0, most=1, text="a share of the loss, from 0 to 1")] = 0.0
    distill_temperature: Annotated[float, Limits(above=0, cap=1000, text="a number above 0")] = 2.0
    # The decay of an average of the weights, which is evaluated and saved beside the model.
    ema: Annotated[float, Limits(above=0, below=1, text="between 0 and 1, such as 0.999")] | None = None
    channels_last: bool = False
    # On a CPU; 0 lets torch choose.
    threads: Annotated[int, Limits(least=0, cap=1024, text="0 or more, such as 4")] = 0
    deterministic: bool = False  # on a GPU: slower, the same bits in every run
    compile: Literal["auto", "on", "off"] = "auto"
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    # Of several processes, by torchrun: whole parameters in each, or sharded ones ("fsdp").
    parallel: Literal["ddp", "fsdp"] = "ddp"


@dataclass(frozen=True, kw_only=True)
class Method:
    """The knobs that methods share, as a file can set them; see acdc.methods. Other keys are the method's own."""

    name: str = "acdc"  # or another of acdc.methods, or "dense"
    sparsity: float | None = None  # the method checks its range
    # A name from the paper, "paper" for ImageNet's proportions over train.epochs, or the knobs of Schedule.alternating.
    schedule: str | Mapping[str, Any] | None = None
    pattern: str | None = None  # "unstructured", "2:4", "block 4x4", "channel"; None for the method's own
    # "global", "uniform", "erk"; or by name patterns: sparsities of single layers, or groups such as { global = 0.5 }.
    distribution: str | Mapping[str, Any] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    first_and_last_dense: bool = False
    depthwise_dense: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    seeds: tuple[Seed, ...] = (0,)
    baseline: bool = False  # train a dense model by the same recipe, before the method
    finetune: bool = False  # fine-tune the dense twin over the epochs of the final compressed phase
    # The epochs among which the best is looked for, at full sparsity: those of the final phase, which a run can end
    # with, or of all compressed phases, as the published code does.
    best: Literal["final", "compressed"] = "final"
    recalibrate: bool = False  # also report models with batch-norm statistics recomputed over the training images
    checkpoint_every: str = "10ep"  # besides the end of every phase
    keep: Annotated[int, Limits(least=1, cap=1_000_000, text="checkpoints, 1 or more")] = 2


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """The paper's results for this recipe with these settings: accuracies in %, costs as fractions of dense."""

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
        if self._length is not None:
            return self._length
        schedule = self.schedule()
        if schedule is None:
            raise SettingError(
                "train.epochs", allowed="it is not set", instead="set how long to train, for example train.epochs = 100"
            )
        return schedule.total_steps(1)

    def stretched_rate(self) -> Rate:
        """Return the learning rate's shape over `epochs`: with train.times, its lengths are so many times as long."""
        rate, times = self.rate, self._times
        milestones = tuple(times * milestone for milestone in rate.milestones)
        return replace(rate, warmup=times * rate.warmup, milestones=milestones, rewarm=times * rate.rewarm)

    def image_sizes(self, shape: tuple[int, int, int]) -> ImageSizes | None:
        """Return the sizes of training images of this shape by epoch; None if they never change."""
        first, full = self.data.first_size, min(shape[1:])
        if first is None:
            return None
        if first >= full:
            raise SettingError(
                "data.first_size",
                received=first,
                allowed=f"images are {' x '.join(map(str, shape[1:]))} pixels, and grow to that from a smaller size",
                instead=f"write data.first_size = {max(1, full // 2)}, or leave it out" if full > 1 else "leave it out",
            )
        data = self.data
        return ImageSizes.over(self.epochs, first=first, full=full, step=data.size_step, by=data.full_size_by)

    def schedule(self) -> Schedule | None:
        """Return the method's phases, or None for dense training."""
        if self.method.name == "dense":
            return None
        own_schedule = self._given_schedule()
        method = None if own_schedule is not None else self.build_method()
        return method.schedule if method else own_schedule

    def build_method(self) -> "BuiltMethod | None":
        """Build the method, once for each recipe; None for dense training."""
        return self._method

    @cached_property
    def _method(self) -> "BuiltMethod | None":
        if self.method.name == "dense":
            return None
        schedule = self._given_schedule()
        if schedule is not None and self._length not in (None, schedule.total_steps(1)):
            raise SettingError(
                "train.epochs",
                received=self.train.epochs,
                allowed=f"method.schedule lasts {schedule.total_steps(1) // self._times} epochs",
                instead=f"omit train.epochs{self._or_its_proportions()}",
            )
        return self._build(schedule)

    @property
    def prunes_embeddings(self) -> bool:
        """Return True if the method prunes embeddings, which then count among the prunable weights."""
        return self.method.options.get("embeddings") is True

    def norm_splits(self, processes: int = 1) -> int:
        """Return the parts in which a process's batch norms see what it trains on at a time; see model.bn_splits.

        `train.accumulate` and several processes divide a batch already, and batch norms see one part each.
        """
        splits, parts = self.model.bn_splits, self.train.accumulate * processes
        if splits == 1:
            return 1
        if splits % parts:
            each = self.train.batch_size // parts
            where = f" in {processes} processes" if processes > 1 else ""
            raise SettingError(
                "model.bn_splits",
                received=splits,
                allowed=f"with train.accumulate = {self.train.accumulate}{where} batch norms see {each} images at a "
                f"time, which cannot be parts of {self.train.batch_size / splits:g}",
                instead=f"write model.bn_splits = {math.lcm(splits, parts)}, or 1 to split nothing more",
            )
        return splits // parts

    def with_seed(self, seed: int) -> "Recipe":
        return replace(self, run=replace(self.run, seeds=(seed,)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, which config.json holds and checkpoints are compared with.

        What only LAMB and sharded runs have is left out of others, so that these have the same files as before.
        """
        content = asdict(self)
        if self.optimizer.name != "lamb":
            del content["optimizer"]["bias_correction"]
        if self.train.parallel == "ddp":
            del content["train"]["parallel"]
        return content

    # Inside

    @property
    def _length(self) -> int | None:
        """Return train.epochs, train.times as many; None if they are not set."""
        return None if self.train.epochs is None else self.train.epochs * self._times

    @property
    def _times(self) -> int:
        """Return train.times, or 1 in place of a mistaken value, so that the rest can be checked."""
        return max(1, self.train.times)

    def _given_schedule(self) -> Schedule | None:
        """Return the phases that the recipe itself sets, or None if they follow from train.epochs."""
        setting, epochs, times = self.method.schedule, self.train.epochs, self._times
        if setting is None:
            if epochs is None:
                raise SettingError(
                    "train.epochs",
                    allowed="neither it nor method.schedule is set",
                    instead='set how long to train, for example train.epochs = 100 or method.schedule = "cifar100_20"',
                )
            return None
        if setting == PROPORTIONS and epochs is not None:
            with naming_settings():
                return Schedule.for_epochs(epochs * times)
        if isinstance(setting, str):
            named = Schedule.named()
            if setting == PROPORTIONS:
                raise SettingError(
                    "train.epochs", allowed=f'method.schedule = "{setting}" takes any number', instead="set it"
                )
            if setting not in named:
                raise SettingError(
                    "method.schedule",
                    received=setting,
                    allowed=f'expected one of {", ".join(named)}, "{PROPORTIONS}" with train.epochs, or a table like '
                    '{ warmup = "10ep", sparse = "5ep", dense = "5ep", last_dense = "10ep", final_sparse = "15ep" }'
                    f"{did_you_mean(setting, named)}",
                )
            return named[setting]().stretched(times)
        lengths = {"total": f"{epochs}ep", **setting} if epochs else dict(setting)
        try:
            schedule = Schedule.alternating(**lengths)
        except ArgumentError as error:
            if error.argument == "total" and "total" not in setting:  # it comes from train.epochs, and is changed there
                raise SettingError(
                    "train.epochs", received=epochs, allowed=error.allowed, instead=_whole_cycles(lengths, epochs or 1)
                ) from None
            raise error.under("method", "schedule") from None
        if schedule.total is None or schedule.total.unit != "ep" or schedule.total.value.denominator > 1:
            raise SettingError(
                "method.schedule.total",
                received=str(schedule.total),
                allowed="expected whole epochs",
                instead='write, for example, total = "100ep"',
            )
        return schedule.stretched(times)

    def _or_its_proportions(self) -> str:
        """Return what else may be omitted if epochs and phases differ: the phases, if the epochs suffice."""
        try:
            Schedule.for_epochs(self._length or 0)
        except ValueError:
            return ""
        return (
            f', or write method.schedule = "{PROPORTIONS}" for the paper\'s proportions over {self.train.epochs} epochs'
        )

    def _build(self, schedule: Schedule | None) -> "BuiltMethod":
        settings = self.method
        knobs = {
            "sparsity": settings.sparsity,
            "pattern": read_pattern(settings.pattern) if settings.pattern is not None else None,
            "distribution": settings.distribution,
            "epochs": self._length if schedule is None else None,
            "schedule": schedule,
        }
        with naming_settings():
            kind = methods.find(settings.name)
        by_layer, fixed = isinstance(settings.distribution, Mapping), getattr(knobs["pattern"], "sparsity", None)
        if kind.needs_sparsity and settings.sparsity is None and fixed is None and not by_layer:
            raise SettingError(
                "method.sparsity",
                allowed="it is not set",
                instead="set the fraction of zeros, for example method.sparsity = 0.9",
            )
        try:
            with naming_settings():
                return methods.build(
                    settings.name,
                    include=settings.include,
                    exclude=settings.exclude,
                    first_and_last_dense=settings.first_and_last_dense,
                    depthwise_dense=settings.depthwise_dense,
                    **{knob: value for knob, value in knobs.items() if value is not None},
                    **settings.options,
                )
        except ArgumentError as error:
            if schedule is None and error.argument.startswith("method.schedule"):  # the method's default
                raise SettingError(
                    "train.epochs",
                    received=self.train.epochs,
                    allowed=f"too few for the phases of {kind.title()}",
                    instead="set it higher",
                ) from None
            if error.argument == "method.sparsity" and 0 <= (settings.sparsity or 0) < 1:  # just not accepted
                how = "; ".join(filter(None, (error.instead, "--set method.sparsity= removes it")))
                raise type(error)(error.argument, received=error.received, allowed=error.allowed, instead=how) from None
            raise


def _whole_cycles(lengths: Mapping[str, Any], epochs: int) -> str:
    """Return what to write if phases do not add up to train.epochs: the nearest lengths that do."""

    def fits(change: Mapping[str, Any]) -> bool:
        try:
            Schedule.alternating(**{**lengths, **change})
        except ValueError:
            return False
        return True

    near = sorted(range(1, 2 * epochs + 10), key=lambda count: abs(count - epochs))
    choices = [f"train.epochs = {count}" for count in near if fits({"total": f"{count}ep"})][:1]
    choices += [f'final_sparse="{count}ep"' for count in range(1, epochs) if fits({"final_sparse": f"{count}ep"})][-1:]
    return f"write {' or '.join(choices) or 'shorter phases'}"


# Names and ranges of settings


def tables() -> dict[str, Any]:
    """Return the tables of a recipe by name, each with the class of its settings."""
    return {name: hint for name, hint in get_type_hints(Recipe).items() if is_dataclass(hint)}


def setting_names(table: type) -> list[str]:
    return [f.name for f in fields(table) if f.name != "options"]


def settings_called(key: str) -> list[str]:
    """Return the settings with this name in all tables, such as optimizer.lr for "lr"."""
    return [
        f"{name}.{known}"
        for name, table in tables().items()
        for known in setting_names(table)
        if fold(known) == fold(key)
    ]


def unknown_setting(table: str, key: str, known: Iterable[str]) -> SettingError:
    """Return the error for an unknown key of a table, with a suggestion from this table or another."""
    known = list(known)
    instead = did_you_mean(key, known)
    if fold(key) not in map(fold, known):
        instead = suggest(settings_called(key)) or instead
    allowed = f"expected one of {', '.join(known)}" if known else "there are none"
    return SettingError(f"{table}.{key}", allowed=f"no such setting; {allowed}{instead}")


def limits_of(hint: Any) -> Limits | None:
    """Return the range written beside a type, or beside the type of its items."""
    if get_origin(hint) is Annotated:
        return next((one for one in hint.__metadata__ if isinstance(one, Limits)), None)
    return next(filter(None, map(limits_of, get_args(hint))), None)


def read_pattern(text: str) -> "Pattern":
    """Read "unstructured", "2:4", "block 4x4" or "channel"."""
    from acdc.sparsity.patterns import NM, Block, Channel, Unstructured

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
    expected = f'expected "unstructured", "2:4", "block 4x4" or "channel"{reason}'
    raise SettingError("method.pattern", received=text, allowed=expected)
