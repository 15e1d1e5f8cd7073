"""What a run tells of itself: an epoch at its end, and a moment within one."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One epoch of one run: a line of metrics.jsonl. Epochs count from 0; `step` is the number of steps run."""

    run: str
    epoch: int
    step: int
    phase: str
    kind: str
    loss: float  # training loss and accuracy: over the epoch's batches, each as it was when trained on
    train_accuracy: float
    test_accuracy: float  # after the epoch's last step, as all that follows
    test_loss: float
    sparsity: float  # zeros / prunable weights
    flops: int  # inference, per sample, by non-zero weights
    lr: float
    seconds: float  # of the whole epoch
    eval_seconds: float
    validation_accuracy: float | None = None
    ema_accuracy: float | None = None
    memorization: dict[str, float] | None = None  # shares of the images with random labels; see measure/memorization
    skipped_images: int = 0


@dataclass(frozen=True)
class Live:
    """How far an epoch has come, for whoever watches."""

    run: str
    epoch: int
    share: float
    loss: float
    images_per_second: float
