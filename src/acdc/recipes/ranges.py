"""The range of every number of a recipe, by its setting. Items of a list each lie in it.

Caps are far beyond any use, and below what a machine answers with a crash instead of a message.
"""

from acdc.typed_data import Limits

_EPOCHS = Limits(least=0, cap=100_000, text="epochs, 0 or more")
_IMAGES = Limits(least=0, cap=1_000_000_000, text="images, 0 or more")

# More than float32 holds fails inside an optimizer; a rate below that which is too high diverges, and a run says so.
LIMITS = {
    "data.crop": Limits(least=0, cap=1024, text="pixels, 0 or more"),
    "data.validation": _IMAGES,
    "data.corrupt": _IMAGES,
    "data.bad_limit": Limits(least=0, cap=1_000_000_000, text="files, 0 or more"),
    "optimizer.lr": Limits(above=0, cap=1e36, text="a number above 0, such as 0.1"),
    "optimizer.momentum": Limits(least=0, below=1, text="from 0 to below 1, such as 0.9"),
    "optimizer.betas": Limits(least=0, below=1, text="two numbers from 0 to below 1"),
    "optimizer.eps": Limits(above=0, cap=1000, text="a number above 0, such as 1e-8"),
    "optimizer.weight_decay": Limits(least=0, cap=1000, text="0 or more, such as 5e-4"),
    "rate.warmup": _EPOCHS,
    "rate.milestones": Limits(least=0, cap=100_000, text="epochs, such as [60]"),
    "rate.gamma": Limits(above=0, cap=10, text="a number above 0, such as 0.1"),
    "rate.rewarm": _EPOCHS,
    "rate.final": Limits(least=0, most=1, text="a fraction of lr, from 0 to 1"),
    "train.epochs": Limits(least=1, cap=100_000, text="1 or more"),
    "train.batch_size": Limits(least=1, cap=10_000_000, text="1 or more, such as 128"),
    "train.label_smoothing": Limits(least=0, below=1, text="from 0 to below 1, such as 0.1"),
    "train.clip_norm": Limits(above=0, cap=1_000_000, text="a number above 0, such as 1.0"),
    "train.distill": Limits(least=0, most=1, text="a share of the loss, from 0 to 1"),
    "train.distill_temperature": Limits(above=0, cap=1000, text="a number above 0"),
    "train.ema": Limits(above=0, below=1, text="between 0 and 1, such as 0.999"),
    "train.threads": Limits(least=0, cap=1024, text="0 or more, such as 4"),
    "run.seeds": Limits(least=0, most=2**31 - 1, text="whole numbers from 0 to 2147483647"),
    "run.keep": Limits(least=1, cap=1_000_000, text="checkpoints, 1 or more"),
}
