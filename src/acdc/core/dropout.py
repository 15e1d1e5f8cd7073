"""The rates of a model's dropout layers, lowered while it is sparse.

Dropout keeps a large net from fitting its data too closely. A net that has lost most of its weights cannot do so
anyway, and the same rate then costs accuracy. Han et al. (2015, §3.2) lower it with the share C of connections that is
left, as the square root: C grows with the square of the number of values that dropout acts on.

    p ← p · √C

Layers are nn.Dropout and its kin. Rates that a module keeps elsewhere (attention, F.dropout(x, self.rate)) are not
seen.
"""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd


class DropoutRates:
    """The rates that a model came with, and the factor by which they are multiplied now."""

    def __init__(self, model: nn.Module) -> None:
        self._rates = {module: module.p for module in dropout_layers(model)}

    def scale(self, factor: float) -> None:
        """Multiply the rates that the model came with by a factor; 1 brings them back."""
        for module, rate in self._rates.items():
            if module.p != rate * factor:  # compiled graphs are of one rate: no write without need
                module.p = rate * factor


def dropout_layers(model: nn.Module) -> list[_DropoutNd]:
    """Return the dropout layers whose rate is not 0."""
    return [module for module in model.modules() if isinstance(module, _DropoutNd) and module.p]
