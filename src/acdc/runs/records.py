"""The files of a run and of a comparison as types, used both to write and to read them.

metrics.jsonl      EpochRow, one to a line
phases.jsonl       PhaseEnd, one to a line (acdc.measure.dynamics)
config.json        RunConfig
result.json        RunResult
logs.json          LogNames
agreement.json     AgreementFile, which `acdc compare --json` writes
speed.json         SpeedFile, which `acdc bench RUN` writes
comparison.json    Comparison, of `acdc compare-methods`
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from acdc.schedule import Kind
from acdc.typed_data import AtLeastOne, Count, DataError, Epoch, NonNegative, Plain, Share, whole

# Language models


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The score of a language model on a text; its loss, per token and in nats, stands beside it."""

    perplexity: NonNegative  # exp of the loss
    tokens: AtLeastOne  # scored: all but the first, which nothing precedes
    bits_per_byte: NonNegative | None = None  # None if the bytes behind <unk> are unknown
    word_perplexity: NonNegative | None = None  # exp of the loss per word; ends of lines are words


@dataclass(frozen=True, kw_only=True)
class LanguageEpoch:
    """An epoch's numbers of a language model."""

    test: TextScore
    validation: TextScore | None = None
    validation_loss: float | None = None
    ema_perplexity: NonNegative | None = None
    tokens_per_second: NonNegative  # trained on, without evaluations
    parameters: Count  # non-zero, at the epoch's end
    average_parameters: NonNegative  # over the stage's epochs so far


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """A language model's part of the final table."""

    test: TextScore
    validation: TextScore
    validation_loss: float
    parameters: Count  # non-zero
    all_parameters: AtLeastOne
    average_parameters: NonNegative | None = None  # non-zero ones, over the epochs that trained it


# metrics.jsonl

_MOST_LOSSES = 100  # in a row


def steps_per_loss(steps_per_epoch: int) -> int:
    """Return the number of steps behind each of EpochRow.losses but the last, which may have fewer."""
    return max(1, -(-steps_per_epoch // _MOST_LOSSES))


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """A row for one epoch of one stage of a run. Epochs count from 0; `step` is the number of steps run.

    Image classification has accuracies, language modelling has `language`.
    """

    run: str
    epoch: Epoch
    step: Count
    phase: str
    kind: Kind
    loss: float  # training loss and accuracy over the epoch's batches, each at the time it was trained on
    train_accuracy: Share | None = None
    test_accuracy: Share | None = None  # after the epoch's last step, like everything below
    test_loss: float
    sparsity: Share  # zeros / prunable weights
    flops: Count  # inference, per sample, by non-zero weights
    lr: NonNegative
    seconds: NonNegative  # of the whole epoch
    eval_seconds: NonNegative
    validation_accuracy: Share | None = None
    ema_accuracy: Share | None = None
    memorization: dict[str, Share] | None = None  # shares of the images with random labels; see measure/memorization
    skipped_images: Count = 0
    image_size: AtLeastOne | None = None  # the shorter side of the images trained on, if they grow
    size_share: Share = 1.0  # FLOPs of a forward pass on images of that size / of full size
    language: LanguageEpoch | None = None
    losses: tuple[float, ...] | None = None  # training loss through the epoch: means over steps_per_loss steps each

    def __post_init__(self) -> None:
        _check_task(self.language, train_accuracy=self.train_accuracy, test_accuracy=self.test_accuracy)
        if self.memorization is not None and not {"memorised", "true"} <= self.memorization.keys():
            raise DataError("memorization", "the shares memorised and true")


# result.json


@dataclass(frozen=True, kw_only=True)
class BestEpoch:
    """The best epoch of the phases that run.best names, or the twin's, and the images that chose it."""

    epoch: Epoch
    accuracy: Share | None = None
    chosen_on: str
    perplexity: NonNegative | None = None  # of a language model, which has no accuracy

    def __post_init__(self) -> None:
        if (self.accuracy is None) == (self.perplexity is None):
            raise DataError("accuracy", "either it or perplexity")


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """A model of the final table."""

    model: str
    file: str
    test_accuracy: Share | None = None
    test_loss: float
    sparsity: Share  # zeros / prunable weights
    reported_sparsity: Share | None = None  # zeros / (prunable weights + norm parameters), as the paper counts
    flops: Count
    dense_flops: AtLeastOne
    flops_ratio: NonNegative
    test_images: Count | None = None  # the images evaluated: those that can be read
    mask_sparsity: Share | None = None  # pruned by masks / prunable weights: kept weights may also be 0
    best: BestEpoch | None = None
    language: LanguageResult | None = None

    def __post_init__(self) -> None:
        _check_task(self.language, test_accuracy=self.test_accuracy)


def _check_task(language: object, **accuracies: float | None) -> None:
    """Raise unless a record has either accuracies or the numbers of a language model."""
    for key, value in accuracies.items():
        if (value is None) == (language is None):
            raise DataError(key, "either it or language")


_EITHER = ("train_accuracy", "test_accuracy", "accuracy", "perplexity", "language")


def as_json(record: EpochRow | ModelResult) -> dict[str, Any]:
    """Return a record as plain data, without the fields of the other task: images have no perplexity."""

    def plain(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: plain(value) if isinstance(value, Mapping) and key == "best" else value
            for key, value in values.items()
            if value is not None or key not in _EITHER
        }

    return plain(asdict(record))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The final table of a run."""

    models: tuple[ModelResult, ...]
    seconds: NonNegative | None = None
    unreadable_test_images: Count = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise DataError("models", "at least one model", "[]")


# config.json


@dataclass(frozen=True, kw_only=True)
class DataCounts:
    """The images of a run, or the tokens. `files` is a checksum of image files' names, `text` of a text's bytes."""

    train: Count | None = None
    test: Count | None = None
    validation: Count | None = None
    files: str | None = None
    text: str | None = None
    vocabulary: str | None = None  # a checksum of its tokens


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """A method as it was built."""

    name: str | None = None
    sparsity: Share | None = None
    settings: Mapping[str, Plain] = whole()


@dataclass(frozen=True, kw_only=True)
class NamedSettings:
    """The model or the data set of a recipe."""

    name: str | None = None
    options: Mapping[str, Plain] | None = None


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    seeds: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """A recipe in config.json, of this version or another: the parts that are read without building it."""

    name: str | None = None
    model: NamedSettings = field(default_factory=NamedSettings)
    data: NamedSettings = field(default_factory=NamedSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    run: RunSettings = field(default_factory=RunSettings)
    settings: Mapping[str, Plain] = whole()


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run at its start, and its machine. `settings` is the whole file, including what only people read."""

    recipe: RecipeSettings
    method: MethodSettings | None = None
    data: DataCounts = field(default_factory=DataCounts)
    dataset: str | None = None
    root: str | None = None
    started: str | None = None
    commit: str | None = None
    warnings: tuple[str, ...] = ()
    execution: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Plain] = field(default_factory=dict)
    platform: str | None = None
    processes: AtLeastOne | None = None
    resumed: tuple[Mapping[str, Plain], ...] = ()
    settings: Mapping[str, Plain] = whole()

    @property
    def data_name(self) -> str | None:
        """Return the name of the data: a folder of images has its own name."""
        return self.dataset or self.recipe.data.name


# logs.json


@dataclass(frozen=True, kw_only=True)
class LogNames:
    """The name of a run in each service that logs it."""

    names: Mapping[str, str] = whole()


# the metadata of predictions.safetensors


@dataclass(frozen=True, kw_only=True)
class PredictionSource:
    """The file that a model's predictions were made from, by a checksum, and the test images without a row."""

    made_from: str | None = None
    unread: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PredictionDetails:
    """The sources of all predictions, by model."""

    models: dict[str, PredictionSource] = field(default_factory=dict)


# agreement.json


@dataclass(frozen=True, kw_only=True)
class ModelName:
    run: str
    model: str


@dataclass(frozen=True, kw_only=True)
class AgreementRow:
    """The agreement of two models on the test images; see measure/agreement."""

    a: ModelName
    b: ModelName
    samples: AtLeastOne
    classes: AtLeastOne
    top1: Share
    cross_entropy_ab: float
    cross_entropy_ba: float


@dataclass(frozen=True, kw_only=True)
class AgreementFile:
    comparisons: tuple[AgreementRow, ...] = ()


# speed.json


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """An engine's time for a batch: the median of n rounds, with quartiles. `problem` says why it could not run."""

    engine: str
    batch: AtLeastOne
    threads: AtLeastOne
    n: Count = 0
    ms: NonNegative | None = None
    ms_q1: NonNegative | None = None
    ms_q3: NonNegative | None = None
    ratio: NonNegative | None = None  # ONNX Runtime's time over this one, round by round: the median
    ratio_q1: NonNegative | None = None
    ratio_q3: NonNegative | None = None
    difference: NonNegative | None = None  # from ONNX Runtime's output, over its largest value
    problem: str = ""

    def __post_init__(self) -> None:
        if self.ms is None and not self.problem:
            raise DataError("ms", "a time, or a problem", "nothing")


@dataclass(frozen=True, kw_only=True)
class SpeedTable:
    """The rows measured for one file, when and where."""

    model: str  # the file, in the run's folder
    bytes: Count
    run: str  # when it began
    cpu: str
    cores: AtLeastOne
    load: NonNegative  # of the machine before it began
    rows: tuple[SpeedRow, ...]


@dataclass(frozen=True, kw_only=True)
class SpeedFile:
    models: tuple[SpeedTable, ...] = ()


# comparison.json


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A run's place in a comparison: one method, or a variant of it, at one sparsity, for one seed."""

    variant: str  # the method's own name if there is no variant
    method: str
    settings: tuple[str, ...] = ()  # of the variant
    sparsity: Share | None = None  # None for dense training, and if training decides it
    seed: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of runs in a folder, written by `acdc compare-methods` and read by reports."""

    recipe: str
    epochs: AtLeastOne  # of the dense training that costs are compared with
    started: str | None = None
    commands: tuple[str, ...] = ()
    runs: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)  # their recipes by their folders' names
    cells: Mapping[str, CellRecord] = field(default_factory=dict)
    settings: Mapping[str, Plain] = whole()
