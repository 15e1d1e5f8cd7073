"""What a forward pass computes that no count knows: operations of many multiplications outside the known layers.

torch's dispatcher sees every operation, whoever calls it. Of those that multiply and add along an axis (products,
convolutions, Fourier transforms, decompositions), and of custom operators, each that nobody accounts for is named, with
the module it ran in. Elementwise operations, reductions and look-ups are cheap beside them and never named.
"""

import re
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from acdc.sparsity.layers import all_weights

_WORK = re.compile(
    r"\w*mm|(add)?mv|v?dot|matmul|linear|einsum|_trilinear|_?cdist\w*|_euclidean_dist|geqrf|orgqr|ormqr|lu_\w+"
    r"|_?(fft|linalg)_\w+|_?conv(\d|_|olution)\w*"
    r"|\w*(convolution|attention|dot_product|cholesky|svd|triangular_solve|_rnn)\w*"
)
_CHEAP = re.compile(r"_?linalg_(vector_norm|cross|diagonal|_powsum|check_errors)|fft_\w*(shift|freq)")
_PLUMBING = ("prim", "prims", "profiler", "c10d", "_c10d_functional")  # operators that compute nothing of the model


class Work(TorchDispatchMode):
    """Names work that is not `accounted` for while it runs. `function` is what the model's own code has called."""

    supports_higher_order_operators = True  # flex_attention is one

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, None] = {}  # in the order of their use
        self.function: str | None = None
        self.accounted = False
        self.inside = 0  # known layers: what they do is counted by the uses of their weights
        self._model, self._handles = model, list[RemovableHandle]()
        self._places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not self.accounted and not self.inside and (name := _work(func)):
            self.found[f"{self.function or name} in {self._places[-1]}"] = None
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "Work":
        known = {weight.module for weight in all_weights(self._model)}
        for name, module in self._model.named_modules():
            place = f"{name} ({type(module).__name__})" if name else type(module).__name__
            self._handles += self._follow(module, place, module in known)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for handle in self._handles:
            handle.remove()

    def _follow(self, module: nn.Module, place: str, known: bool) -> list[RemovableHandle]:
        def begin(module: nn.Module, args: tuple) -> None:
            self._places.append(place)
            self.inside += known

        def end(module: nn.Module, args: tuple, output: Any) -> None:
            self._places.pop()
            self.inside -= known

        return [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]


def _work(func: Any) -> str | None:
    """The name of an operation that may cost much; None of one that does not."""
    namespace, _, name = str(getattr(func, "name", lambda: f"higher_order::{func}")()).partition("::")
    name = name.partition(".")[0]
    if namespace in _PLUMBING:
        return None
    if namespace != "aten":
        return f"{namespace}.{name}"
    return name if _WORK.fullmatch(name) and not _CHEAP.fullmatch(name) else None
