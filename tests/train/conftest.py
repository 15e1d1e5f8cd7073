"""Fixtures of the tests of training."""

from typing import Any

import pytest
import torch

from tests.conformance.harness import DEVICE


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, let torch.compile trace and differentiate, and not write C++, which takes ten seconds for each model.

    That inductor's own code computes the same is tested in test_sparsifier.py and, with dropout, in test_step.py.
    """
    if DEVICE == "cpu":
        compile_with = torch.compile

        def trace(model: torch.nn.Module, *, dynamic: bool, options: dict[str, Any]) -> Any:
            return compile_with(model, dynamic=dynamic, backend="aot_eager")

        monkeypatch.setattr(torch, "compile", trace)
