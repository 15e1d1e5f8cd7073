"""Reading a running loss off the device without making it wait."""

import time

import torch

from acdc.train.step import Totals

_EVERY = 0.5  # seconds


class Watch:
    """Asks for the sums about twice a second, and has them a moment later: what is shown is a moment old."""

    def __init__(self, totals: Totals) -> None:
        self._totals, cuda = totals, totals.values.is_cuda
        self._copy = torch.zeros(totals.values.shape, pin_memory=cuda)
        self._event = torch.cuda.Event() if cuda else None
        self._asked, self._next = False, time.monotonic() + _EVERY

    def look(self) -> list[float] | None:
        """The sums, if there are new ones."""
        seen = None
        if self._asked and (self._event is None or self._event.query()):
            self._asked, seen = False, self._copy.tolist()
        if not self._asked and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._copy.copy_(self._totals.values, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._asked = True
        return seen
