"""How far an epoch has come, for whoever watches; what is kept of one that ended is acdc.runs.records.EpochRow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A moment within an epoch."""

    run: str
    epoch: int
    share: float
    loss: float
    images_per_second: float
