"""Every block of Python in README and docs runs, page by page, as a reader would run it; none is overlooked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import acdc
from tests.distributed.ranks import call_on_ranks
from tests.docs import blocks, surroundings

INTEGRATIONS = "docs/integrations.md"


def of_theory() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    features, coefficients = generator.standard_normal((4000, 40)), np.zeros(40)
    coefficients[:5] = 1.0
    return {"X": features, "y": features @ coefficients}


def of_an_exported_model() -> dict[str, Any]:
    names = surroundings.of_a_loop()
    acdc.export.to_onnx(names["model"].eval(), names["x"], "model.onnx")
    return {"images": names["x"].numpy()}


def of_a_published_checkpoint() -> dict[str, Any]:
    model = acdc.models.build("wrn28_10", classes=100, seed=0)
    torch.save({"model_state_dict": model.state_dict()}, "best_sparse_checkpoint.ckpt")
    return {"acdc": acdc}


def of_two_optimizers() -> dict[str, Any]:
    names = surroundings.of_a_loop()
    parameters = list(names["model"].parameters())
    matrices, others = [p for p in parameters if p.dim() == 2], [p for p in parameters if p.dim() != 2]
    return {**names, "matrices": matrices, "others": others}


# The pages that run here, each with what its reader is taken to have.
HERE: dict[str, Callable[[], dict[str, Any]]] = {
    "README.md": surroundings.of_a_loop,
    "docs/api.md": surroundings.of_a_trained_model,
    "docs/export.md": surroundings.of_a_trained_model,
    "docs/flops.md": surroundings.of_a_trained_model,
    "docs/how-it-works.md": surroundings.of_a_loop_that_runs,
    "docs/own-loop.md": surroundings.of_a_loop,
    "docs/start.md": dict,
    "docs/theory.md": of_theory,
}
# Sections that run here by themselves, on pages whose sections do not continue each other.
SECTIONS: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
    (INTEGRATIONS, "Fine-tuning a sparse model"): surroundings.of_a_trained_model,
    (INTEGRATIONS, "Checkpoints of the published AC/DC code"): of_a_published_checkpoint,
    (INTEGRATIONS, "Muon, Adafactor, schedule-free, several optimizers"): of_two_optimizers,
}
RUNTIME = "runtime/README.md"
SHARDED = "docs/sharded.md"
# Pages and sections that other tests run, and which.
ELSEWHERE = {
    ("CONTRIBUTING.md", "Add a method"): "tests/test_contributing.py",
    ("CONTRIBUTING.md", "Add a model"): "tests/test_contributing.py",
    ("docs/deploy.md", "Ask it"): "tests/examples/test_deploy_page.py",
    ("docs/own-method.md", "2. The file"): "tests/docs/test_own_method.py",
    ("docs/own-method.md", "3. Train it"): "tests/docs/test_own_method.py",
    ("docs/own-method.md", "4. See that it holds"): "tests/docs/test_own_method.py",
    ("docs/faults.md", "What happens when …"): "tests/integrations/test_pages.py",
    **{(INTEGRATIONS, section): "tests/integrations/test_pages.py" for section in blocks.TRAINERS},
    ("docs/language.md", "Using a trained model"): "tests/train/test_language.py",
}
# Blocks that cannot run in any test, with the reason that stands before them on the page: at present none.
NOT_RUN: dict[str, int] = {}


def to_run(page: str) -> list[blocks.Block]:
    found = [block for block in blocks.read(page) if block.language in ("python", "diff") and not block.reason]
    return [block for block in found if (page, block.section) not in ELSEWHERE]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_block_is_accounted_for() -> None:
    """A page with Python that no test runs is named here, and so is one that is listed in vain."""
    python = [block for block in blocks.every() if block.language in ("python", "diff") and not block.reason]
    pages, sections = {*HERE, RUNTIME, SHARDED}, {*SECTIONS, *ELSEWHERE}
    lost = [str(block) for block in python if block.page not in pages and (block.page, block.section) not in sections]
    assert not lost, "no test runs these blocks"
    assert all(to_run(page) for page in pages)
    assert sections <= {(block.page, block.section) for block in python}
    for (page, _), file in ELSEWHERE.items():
        assert Path(page).name in (blocks.ROOT / file).read_text(encoding="utf-8")


def test_blocks_that_do_not_run_are_counted_and_say_why() -> None:
    marked = [block for block in blocks.every() if block.reason]
    assert {page: sum(block.page == page for block in marked) for page in {block.page for block in marked}} == NOT_RUN


def test_other_languages_are_known() -> None:
    """A block in a language that nothing checks would go stale unseen."""
    assert {block.language for block in blocks.every()} <= {"", "diff", "python", "sh", "text", "toml"}


@pytest.mark.parametrize("page", HERE)
def test_python_of_a_page_runs(page: str) -> None:
    names = HERE[page]()
    for block in to_run(page):
        blocks.run(block, names)


@pytest.mark.parametrize(("page", "section"), SECTIONS)
def test_python_of_a_section_runs(page: str, section: str) -> None:
    names = SECTIONS[page, section]()
    for block in to_run(page):
        if block.section == section:
            blocks.run(block, names)


@pytest.mark.runtime
def test_python_of_the_runtimes_page_runs() -> None:
    names = of_an_exported_model()
    for block in to_run(RUNTIME):
        blocks.run(block, names)
    assert names["logits"].shape == (8, 10)


def on_a_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=1)
    names = {**surroundings.of_a_loop(), "fully_shard": fully_shard, "get_state_dict": get_state_dict, "dcp": dcp}
    names["folder"] = folder / "checkpoint"
    for block in to_run(SHARDED):
        blocks.run(block, names)
    assert isinstance(next(names["model"].parameters()), DTensor)
    dist.destroy_process_group()


def test_python_of_the_page_on_shards_runs(tmp_path: Path) -> None:
    call_on_ranks(1, on_a_rank, tmp_path)
