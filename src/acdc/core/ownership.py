"""Notices that a prunable weight is no longer the model's, or no longer the optimizer's.

A sparsifier works on the Parameter objects it was attached to. Code that replaces one (load_state_dict(assign=True), a
new layer in place of an old one, a parametrization) or that points the optimizer elsewhere leaves it pruning tensors
that nobody trains. All weights are looked for as a phase begins, and when results or checkpoints are asked for. Each
step looks for one of them, in turn, by the entries of the modules' own dictionaries that lead to it: that costs a
microsecond or two, where a look at all of them would cost up to 2 % of a step of a small net of many layers.
"""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from acdc.core.checks import few
from acdc.sparsity.layers import Weight


class Ownership:
    """The prunable weights as parameters of one model and one optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, weights: Sequence[Weight]) -> None:
        self._model, self._optimizer = model, optimizer
        ids = {id(weight.param) for weight in weights}
        named = model.named_parameters(remove_duplicate=False)  # tied weights under all their names
        self._params = {name: param for name, param in named if id(param) in ids}
        self._turn = 0
        self._walk()

    def _walk(self) -> None:
        """Note where each weight is now: the dictionary entries that lead to it, and its place in the optimizer."""
        places = {
            id(param): (index, position)
            for index, group in enumerate(self._optimizer.param_groups)
            for position, param in enumerate(group["params"])
        }
        self._paths = [_path(self._model, name, param) for name, param in self._params.items()]
        self._places = [(param, *places[id(param)]) for param in self._params.values()]

    def in_model(self) -> bool:
        """Return whether the model holds every weight now, under its name."""
        return all(mapping.get(key) is value for path in self._paths for mapping, key, value in path)

    def check_next(self, action: str) -> None:
        """Look at one weight, the next at each call, and at all of them if it is not where it was."""
        self._turn = turn = (self._turn + 1) % len(self._paths)
        param, index, position = self._places[turn]
        groups = self._optimizer.param_groups
        params = groups[index]["params"] if index < len(groups) else ()
        held = position < len(params) and params[position] is param
        if not held or any(mapping.get(key) is not value for mapping, key, value in self._paths[turn]):
            self.check(action)
            self._walk()  # the same parameters, elsewhere

    def check(self, action: str) -> None:
        """Refuse an action on weights that the model or the optimizer has lost."""
        self.check_model(action)
        held = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        lost = [name for name, param in self._params.items() if id(param) not in held]
        if lost:
            raise RuntimeError(
                f"{action}: the optimizer no longer holds {few(lost)}, which it held when the sparsifier was "
                "attached, so that nothing trains them: its param_groups were changed. Leave the prunable weights in "
                "them. To go on with other parameters, call sparsifier.detach(), build the optimizer from "
                "model.parameters() and attach again"
            )

    def check_model(self, action: str) -> None:
        """Refuse an action on weights that the model has lost."""
        now = dict(self._model.named_parameters(remove_duplicate=False))
        lost = [name for name, param in self._params.items() if now.get(name) is not param]
        if not lost:
            return
        raise RuntimeError(
            f"{action}: the model no longer holds {few(lost)} as when the sparsifier was attached, so that masks no "
            "longer apply to it. load_state_dict(assign=True), a new layer or a wrapper in place of a layer, and "
            "parametrizations such as spectral_norm replace parameters: load without assign=True, and make other "
            "changes before attach. To go on with the model as it is, call sparsifier.detach(), build the optimizer "
            "from model.parameters() and attach again"
        )


def _path(model: nn.Module, name: str, param: nn.Parameter) -> list[tuple[dict, str, object]]:
    """Return the entries that lead from the model to a weight: one for each module on the way, and the parameter's."""
    *modules, local = name.split(".")
    entries: list[tuple[dict, str, object]] = []
    for key in modules:
        entries.append((model._modules, key, model._modules[key]))
        model = model._modules[key]  # pyright: ignore[reportAssignmentType]
    return [*entries, (model._parameters, local, param)]
