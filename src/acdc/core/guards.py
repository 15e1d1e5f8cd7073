"""Guards against changes from outside: replaced parameters, and pruned weights that are no longer 0."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.checks import few
from acdc.core.hooks import state_like
from acdc.sparsity.layers import Weight, is_sharded
from acdc.sparsity.sharding import any_shard, count_nonzero, reshard
from acdc.sparsity.topk import WHOLE, Shards

_EVERY = 512  # steps between two checks in a long phase; a power of 8
_DENSE = 0.25  # share of pruned weights that moved: 0.54 or more in models from dense phases, at most 0.03 in others


class OwnershipCheck:
    """A check that every prunable weight still belongs to the model and to the optimizer.

    A sparsifier works on the Parameter objects it was attached to. Code that replaces one (by
    load_state_dict(assign=True), a new layer in place of an old one or a parametrization) or points the optimizer
    elsewhere leaves it pruning tensors that nobody trains. All weights are checked when a phase begins, and when
    results or checkpoints are requested. Each step checks one of them, in turn, through the entries of the modules'
    own dictionaries that lead to it: that costs a microsecond or two, whereas checking all of them would cost up to
    2 % of a step of a small net with many layers.

    A module under fully_shard holds gathered copies of its parameters during its forward pass and, at the root, after
    an evaluation. All checks but `check_next` are made between steps, and first have the sharded ones put back.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, weights: Sequence[Weight]) -> None:
        self._model, self._optimizer = model, optimizer
        self._sharded = any(is_sharded(weight.param) for weight in weights)
        ids = {id(weight.param) for weight in weights}
        named = model.named_parameters(remove_duplicate=False)  # includes all names of tied weights
        self._params = {name: param for name, param in named if id(param) in ids}
        self._turn = 0
        self._walk()

    def _walk(self) -> None:
        """Record where each weight is: the dictionary entries that lead to it, and its position in the optimizer."""
        places = {
            id(param): (index, position)
            for index, group in enumerate(self._optimizer.param_groups)
            for position, param in enumerate(group["params"])
        }
        self._paths = [_path(self._model, name, param) for name, param in self._params.items()]
        self._places = [(param, *places[id(param)]) for param in self._params.values()]

    def in_model(self) -> bool:
        """Return True if the model holds every weight under its name."""
        self._reshard()
        return all(mapping.get(key) is value for path in self._paths for mapping, key, value in path)

    def _reshard(self) -> None:
        if self._sharded:
            reshard(self._model)

    def check_next(self, action: str) -> None:
        """Check one weight, the next at each call, and all of them if it is not where it was."""
        self._turn = turn = (self._turn + 1) % len(self._paths)
        param, index, position = self._places[turn]
        groups = self._optimizer.param_groups
        params = groups[index]["params"] if index < len(groups) else ()
        in_place = position < len(params) and params[position] is param
        if not in_place or any(mapping.get(key) is not value for mapping, key, value in self._paths[turn]):
            self.check(action)
            self._walk()  # the same parameters, elsewhere

    def check(self, action: str) -> None:
        """Raise if the model or the optimizer has lost a weight that `action` needs."""
        self.check_model(action)
        trained = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        lost = [name for name, param in self._params.items() if id(param) not in trained]
        if lost:
            raise RuntimeError(
                f"{action}: the optimizer no longer holds {few(lost)}, which it held when the sparsifier was "
                "attached, so nothing trains them: its param_groups were changed. Keep the prunable weights in "
                "them. To continue with other parameters, call sparsifier.detach(), build the optimizer from "
                "model.parameters() and attach again"
            )

    def check_model(self, action: str) -> None:
        """Raise if the model has lost a weight that `action` needs."""
        self._reshard()
        now = dict(self._model.named_parameters(remove_duplicate=False))
        lost = [name for name, param in self._params.items() if now.get(name) is not param]
        if not lost:
            return
        if not self._sharded and is_sharded(now.get(lost[0], next(iter(self._params.values())))):
            raise RuntimeError(
                f"{action}: fully_shard was called after attach, and replaced {few(lost)}, so masks no longer apply to "
                "the model. Call fully_shard first, build the optimizer from model.parameters(), and then attach"
            )
        raise RuntimeError(
            f"{action}: the model no longer holds {few(lost)}, to which the sparsifier was attached, so masks no "
            "longer apply to it. load_state_dict(assign=True), a new layer or a wrapper in place of a layer, and "
            "parametrizations such as spectral_norm replace parameters: load without assign=True, and make other "
            "changes before attach. To continue with the model as it is, call sparsifier.detach(), build the optimizer "
            "from model.parameters() and attach again"
        )


def _path(model: nn.Module, name: str, param: nn.Parameter) -> list[tuple[dict, str, object]]:
    """Return the entries that lead from the model to a weight: one for each module on the way, and the parameter."""
    *modules, local = name.split(".")
    entries: list[tuple[dict, str, object]] = []
    for key in modules:
        entries.append((model._modules, key, model._modules[key]))
        model = model._modules[key]  # pyright: ignore[reportAssignmentType]
    return [*entries, (model._parameters, local, param)]


class LeakCheck:
    """A check that pruned weights are still 0, which finds out why if they are not.

    Masked gradients and state keep pruned weights at 0 without looking at them. Three things get past that: gradients
    changed where PyTorch does not track it (p.grad.data, numpy), an optimizer state loaded from a dense phase, and
    code that writes weights. A check is a pass over the weights and, on a GPU, a wait for it: it follows steps 1, 8,
    64 and 512 of a phase, then every 512th, and the last.
    """

    def __init__(self, weights: Mapping[str, Weight], optimizer: Optimizer, shards: Shards = WHOLE) -> None:
        self._weights, self._optimizer, self._shards = weights, optimizer, shards
        self._steps = 0

    def restart(self) -> None:
        """Check after the next step: weights, state or masks are new."""
        self._steps = 0

    def after_step(self, masks: Mapping[str, Tensor], step: int, *, last: bool) -> None:
        """Raise if step `step` has moved pruned weights. The capture of a CUDA graph cannot wait for a check."""
        self._steps += 1
        if not (last or _is_look(self._steps)) or _is_capturing(masks):
            return
        params = {name: weight.local for name, weight in self._weights.items()}
        names = self._in_any_shard(leaks(params, masks))
        # On a GPU 0 · ∞ leaves NaN in the gradient of a pruned weight: such a run has diverged, which shows elsewhere.
        if names and not any(any_shard([not params[name].isfinite().all() for name in names], self._shards)):
            raise RuntimeError(f"step {step}: pruned weights of {few(names)} moved. {self._cause(names, masks)}")

    def check_finished(self, masks: Mapping[str, Tensor]) -> None:
        """Raise if pruned weights of a finished model are not 0. Latent weights may prune without masks."""
        names = self._in_any_shard(leaks({name: self._weights[name].local for name in masks}, masks))
        if names:
            raise RuntimeError(f"finish(): pruned weights of {few(names)} are not 0. {self._cause(names, masks)}")

    def _in_any_shard(self, names: list[str]) -> list[str]:
        """Return the names that any process has found: all of them raise, or none does."""
        if self._shards.count == 1:
            return names
        flags = any_shard([name in names for name in self._weights], self._shards)
        return [name for name, flag in zip(self._weights, flags, strict=True) if flag]

    def _cause(self, names: list[str], masks: Mapping[str, Tensor]) -> str:
        params = {name: self._weights[name].param for name in names}
        grads = {name: grad for name in names if (grad := self._weights[name].local_grad) is not None}
        if self._in_any_shard(leaks(grads, masks)):
            return (
                "Their gradients are not 0: they were changed after they had been masked, in a way that PyTorch does "
                "not notice (through p.grad.data, p.grad.numpy() or your own kernel). Change them under "
                "torch.no_grad() by operations on p.grad itself, such as p.grad.add_(noise), or call "
                "sparsifier.mask_gradients() after the change"
            )
        states = {name: state_like(self._optimizer, param) for name, param in params.items()}
        if self._in_any_shard([name for name in names for state in states[name] if leaks({name: state}, masks)]):
            return (
                "Their optimizer state is not 0: it was loaded from a checkpoint of another phase, or the "
                "model's weights were, or gradients were changed through p.grad.data or numpy in an earlier step. Load "
                "model, optimizer and sparsifier from one checkpoint, and change gradients by operations on p.grad "
                "itself"
            )
        return _writer(self._weights, masks, self._shards)


def leaks(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not 0 where their working mask is; waits for the device only once."""
    # 1 for an entry that is not 0, and −1 for one that is kept: only what should be 0 but is not ends above 0.
    tops = {
        name: (tensor.detach().ne(0).view(torch.int8) + masks[name]).amax()
        for name, tensor in tensors.items()
        if tensor.numel()
    }
    if not tops:
        return []
    device = next(iter(tops.values())).device
    return [
        name
        for name, top in zip(tops, torch.stack([top.to(device) for top in tops.values()]).tolist(), strict=True)
        if top > 0
    ]


def _writer(weights: Mapping[str, Weight], masks: Mapping[str, Tensor], shards: Shards) -> str:
    """Explain what wrote pruned weights that the optimizer left at 0, judging by how many are not 0."""
    pruned = {name: mask.eq(0) for name, mask in masks.items()}
    moved = count_nonzero({name: weights[name].local.ne(0) & places for name, places in pruned.items()}, shards)
    total = count_nonzero(pruned, shards)
    share = sum(moved.values()) / max(1, sum(total.values()))
    if share >= _DENSE and all(moved[name] for name in moved if total[name]):
        return (
            f"{share:.0%} of all pruned weights are not 0. Most likely the model holds a checkpoint from a dense "
            "phase, or an average that reaches back into one; or your own code writes weights (noise, a reset). Load "
            "the checkpoint of the last compressed step; with Hugging Face's "
            "Trainer set load_best_model_at_end=False, or choose the best among epochs of the final compressed phase. "
            "Only if it is an average, call sparsifier.apply_masks(model) and evaluate it again: masks applied to a "
            "dense checkpoint give a model that was never trained to be sparse"
        )
    return (
        f"{share:.1%} of all pruned weights are not 0: something other than the optimizer wrote them. If the model "
        "holds an average of its weights (EMA, SWA), call sparsifier.apply_masks(model) first; if another checkpoint "
        "was loaded, load the one of the last compressed step"
    )


def _is_look(steps: int) -> bool:
    return steps % _EVERY == 0 or (steps < _EVERY and steps.bit_count() == 1 and steps.bit_length() % 3 == 1)


def _is_capturing(masks: Mapping[str, Tensor]) -> bool:
    return any(mask.is_cuda for mask in masks.values()) and torch.cuda.is_current_stream_capturing()
