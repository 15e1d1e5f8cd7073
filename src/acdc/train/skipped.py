"""Image files that cannot be read: each counts once, whichever rank met it."""

from acdc.data.images import Batches, FromFiles
from acdc.train.distributed import World


def skipped(batches: Batches, world: World) -> list[str]:
    """Their names, over all ranks so far. Every rank must call it: where they are too many it raises on all of them."""
    if not isinstance(batches, FromFiles):
        return []
    names = list(dict.fromkeys(name for own in world.gather(batches.skipped) for name in own))
    batches.refuse_too_many(names)
    return names
