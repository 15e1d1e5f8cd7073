"""Notices that a prunable weight is no longer the model's, or no longer the optimizer's.

A sparsifier works on the Parameter objects it was attached to. Code that replaces one (load_state_dict(assign=True), a
new layer in place of an old one, a parametrization) or that points the optimizer elsewhere leaves it pruning tensors
that nobody trains. The check is a walk along the entries of the modules' own dictionaries that lead to the weights: it
costs some microseconds and touches no tensor, so that every step can afford it.
"""

from collections.abc import Sequence
from operator import is_

from torch import nn
from torch.optim import Optimizer

from acdc.checks import few
from acdc.sparsity.layers import Weight


class Ownership:
    """The prunable weights as parameters of one model and one optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, weights: Sequence[Weight]) -> None:
        self._model, self._optimizer, self._weights = model, optimizer, weights
        self._ids = {id(weight.param) for weight in weights}
        self._walk()

    def _walk(self) -> None:
        """Note the dictionary entries that lead to the weights, each once: a dictionary, a key and what is there."""
        entries = [entry for weight in self._weights for entry in _path(self._model, weight)]
        mappings, keys, values = zip(*{(id(entry[0]), entry[1]): entry for entry in entries}.values(), strict=True)
        self._places, self._values = (mappings, keys), values

    def in_model(self) -> bool:
        """Return whether the model holds every weight now, under its name."""
        return all(map(is_, map(dict.get, *self._places), self._values))

    def check(self, action: str) -> None:
        """Refuse an action on weights that the model or the optimizer has lost."""
        self.check_model(action)
        held: set[int] = set()
        for group in self._optimizer.param_groups:
            held.update(map(id, group["params"]))
        if not self._ids <= held:
            lost = [weight.name for weight in self._weights if id(weight.param) not in held]
            raise RuntimeError(
                f"{action}: the optimizer no longer holds {few(lost)}, which it held when the sparsifier was "
                "attached, so that nothing trains them: its param_groups were changed. Leave the prunable weights in "
                "them. To go on with other parameters, call sparsifier.detach(), build the optimizer from "
                "model.parameters() and attach again"
            )

    def check_model(self, action: str) -> None:
        """Refuse an action on weights that the model has lost."""
        if self.in_model():
            return
        now = dict(self._model.named_parameters(remove_duplicate=False))
        lost = [weight.name for weight in self._weights if now.get(weight.name) is not weight.param]
        if not lost:  # another module holds the same parameters under the same names
            self._walk()
            return
        raise RuntimeError(
            f"{action}: the model no longer holds {few(lost)} as when the sparsifier was attached, so that masks no "
            "longer apply to it. load_state_dict(assign=True), a new layer or a wrapper in place of a layer, and "
            "parametrizations such as spectral_norm replace parameters: load without assign=True, and make other "
            "changes before attach. To go on with the model as it is, call sparsifier.detach(), build the optimizer "
            "from model.parameters() and attach again"
        )


def _path(model: nn.Module, weight: Weight) -> list[tuple[dict, str, object]]:
    """Return the entries that lead from the model to a weight: one for each module on the way, and the parameter's."""
    *modules, local = weight.name.split(".")
    entries: list[tuple[dict, str, object]] = []
    for key in modules:
        entries.append((model._modules, key, model._modules[key]))
        model = model._modules[key]  # pyright: ignore[reportAssignmentType]
    return [*entries, (model._parameters, local, weight.param)]
