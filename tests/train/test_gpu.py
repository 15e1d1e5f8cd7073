"""What only a GPU can show: `make test-gpu`."""

import pytest
import torch

from acdc.train import experiment
from tests.conformance.harness import DEVICE
from tests.train.problems import recipe

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU: make test-gpu")
A_WHILE = 1_000_000_000  # GPU cycles, some half a second: far longer than it takes to launch the work after it


def test_a_run_s_stream_waits_for_what_was_begun_before_it() -> None:
    values = torch.zeros(1 << 20, device="cuda")
    with experiment.reproducible(recipe(), torch.device("cuda")):
        pass  # the first stream is made slowly enough to hide a race
    torch.cuda._sleep(A_WHILE)
    values.fill_(1)
    with experiment.reproducible(recipe(), torch.device("cuda")):
        assert (2 * values).sum().item() == 2 << 20


def test_what_follows_a_run_waits_for_its_stream() -> None:
    values = torch.zeros(1 << 20, device="cuda")
    with experiment.reproducible(recipe(), torch.device("cuda")):
        torch.cuda._sleep(A_WHILE)
        values.fill_(5)
    assert values[0].item() == 5


def test_cudnn_tries_no_more_kernels_than_torch_lets_it() -> None:
    usual = torch.backends.cudnn.benchmark_limit
    with experiment.reproducible(recipe(), torch.device("cuda")):
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit) == (True, usual)
