"""Image files that cannot be read: each counts once, whichever rank met it."""

from collections.abc import Sequence

from acdc.data.images import Batches, FromFiles
from acdc.train.distributed import World


def skipped(batches: Batches, world: World) -> list[str]:
    """Their names, over all ranks so far. Every rank must call it: where they are too many it raises on all of them."""
    if not isinstance(batches, FromFiles):
        return []
    names = list(dict.fromkeys(name for own in world.gather(batches.skipped) for name in own))
    batches.refuse_too_many(names)
    return names


def recall(batches: Batches, names: Sequence[str]) -> None:
    """Those a run had met where it was stopped go on to count, also where they can be read by now: metrics are those of
    a run that never stopped."""
    if isinstance(batches, FromFiles):
        batches.skipped = list(names)
