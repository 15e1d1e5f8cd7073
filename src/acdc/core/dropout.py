"""The rates of a model's dropout layers, lowered while it is sparse.

Dropout keeps a large net from fitting its data too closely. A net that has lost most of its weights cannot do that so
easily, and the same rate then costs accuracy. Han et al. (2015, §3.2) lower it with the share C of a layer's
connections that is left, as the square root: C grows with the square of the number of values that dropout acts on.

    p ← p · √C        here with the share of the whole model's parameters

Layers are nn.Dropout, nn.Dropout1d to 3d, nn.AlphaDropout and nn.FeatureAlphaDropout. Rates that a module keeps
elsewhere (nn.MultiheadAttention, F.dropout(x, self.rate)) are not seen.
"""

from collections.abc import Iterable
from typing import TypeGuard

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

_RATES = "_acdc_rates"  # of a lowered layer: its rate before and now; copies and pickles of a model bring it along


def dropout_rates(model: nn.Module) -> list[float]:
    """Return the rates of the model's dropout layers that can be set."""
    return [module.p for module in model.modules() if _is_settable(module)]


def lower_dropout(model: nn.Module, factor: float) -> list[nn.Module]:
    """Multiply the rates of the model's dropout layers by a factor; return those that were not lowered already."""
    layers = [module for module in model.modules() if _is_settable(module) and _RATES not in vars(module)]
    for module in layers:
        before, module.p = module.p, module.p * factor
        setattr(module, _RATES, (before, module.p))
    return [*layers]


def restore_dropout(modules: Iterable[nn.Module]) -> None:
    """Give lowered layers the rates they had; one whose rate was set since keeps it."""
    for module in modules:
        if _RATES in vars(module):
            before, now = vars(module)[_RATES]
            if _is_settable(module) and module.p == now:
                module.p = before
            delattr(module, _RATES)


def _is_settable(module: nn.Module) -> TypeGuard[_DropoutNd]:
    """Return True for a dropout layer with a plain number for its rate."""
    return isinstance(module, _DropoutNd) and isinstance(vars(module).get("p"), int | float)
