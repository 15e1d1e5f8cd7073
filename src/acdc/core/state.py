"""The state of a sparsifier: what the model's weights hold, what is due, and how far the current step has come.

The prunable parameters of a model hold one of four things:

                  prune                  use_latent_weights            before the optimizer's step
    DENSE ─────────────────► MASKED ─────────────────────► EFFECTIVE ─────────────────► LATENT
      ▲                        │                               │   ◄─────────────────
      └──── lift ──────────────┴───────────────────────────────┘     after it

A step begins with what is due (a new phase, or an update of the masks inside one), runs forward and backward, and ends
after the optimizer's step:

    expect_step     the step before has ended: what is due as the next one begins
    take_up         the method has done what was due
    enter_backward  the first gradient has been computed
    end_step        the optimizer has moved the weights

Code that notices a step only after its forward pass sets `forward_already_ran`. Masks are then chosen at once, but
the weights that the forward pass has read stay unchanged until the step ends.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

Due = Literal["phase", "update"]


class Weights(Enum):
    """The four things that the prunable parameters of the model may hold."""

    DENSE = auto()  # weights that nothing prunes
    MASKED = auto()  # weights that are 0 where masks prune
    EFFECTIVE = auto()  # what a method computes from the latent weights behind them
    LATENT = auto()  # the latent weights, while the optimizer moves them


@dataclass
class State:
    """The state of one sparsifier, shared by its parts. Only the methods below, and Masking, change it."""

    attached: bool = True
    weights: Weights = Weights.DENSE
    due: Due | None = None  # when the next step begins
    observing: bool = False  # the method looks at the step's gradients before they are masked
    backward_began: bool = False
    forward_already_ran: bool = False

    @property
    def sparse(self) -> bool:
        """Return True in sparse phases, whether by masks or by latent weights."""
        return self.weights is not Weights.DENSE

    @property
    def masked(self) -> bool:
        """Return True while masks prune the weights that the optimizer trains."""
        return self.weights is Weights.MASKED

    @property
    def latent(self) -> bool:
        """Return True while latent weights are trained behind the model's."""
        return self.weights in (Weights.EFFECTIVE, Weights.LATENT)

    def expect_step(self, due: Due | None, *, observing: bool) -> None:
        self.due, self.observing, self.backward_began = due, observing, False

    def take_up(self) -> None:
        self.due = None

    def enter_backward(self) -> None:
        self.backward_began = True

    def end_step(self) -> None:
        self.forward_already_ran = False

    def detach(self) -> None:
        self.attached = False
        self.expect_step(None, observing=False)
        self.end_step()
