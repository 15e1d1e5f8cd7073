"""The sections of docs/integrations.md that need a trainer run as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft  # pyright: ignore[reportMissingImports]
import pytest
import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
from lightning.pytorch import LightningModule, Trainer  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer as HuggingFaceTrainer  # pyright: ignore[reportMissingImports]
from transformers import TrainingArguments  # pyright: ignore[reportMissingImports]

import acdc
from acdc.integrations.huggingface import SparsifierCallback
from tests.docs import blocks, surroundings
from tests.integrations.hf_models import gpt2, texts

PAGE = blocks.read("docs/integrations.md")


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = surroundings.build_model()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Attention(nn.Module):
    """A layer with the names that the page's LoraConfig looks for; half of its weights are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            for layer in (self.q_proj, self.v_proj):
                layer.weight[:, ::2] = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x) * self.v_proj(x)


def rows() -> DataLoader:
    x = torch.randn(16, 64)
    return DataLoader(TensorDataset(x, x[:, :10].argmax(1)), batch_size=8)


def of_hugging_face() -> dict[str, Any]:
    args = TrainingArguments("out", num_train_epochs=3, report_to=[], use_cpu=True, save_strategy="no")
    return {"Trainer": HuggingFaceTrainer, "model": gpt2(), "args": args, "data": texts()}


def of_lightning() -> dict[str, Any]:
    return {"Trainer": Trainer, "module": Module(), "loader": rows()}


def of_accelerate() -> dict[str, Any]:
    model = surroundings.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    names = {"model": model, "optimizer": optimizer, "loader": rows(), "accumulation": 1}
    return {**names, "accelerator": Accelerator(cpu=True)}


def of_lora() -> dict[str, Any]:
    return {"peft": peft, "LoraConfig": peft.LoraConfig, "sparse_model": Attention()}


READERS: dict[str, Callable[[], dict[str, Any]]] = dict(
    zip(blocks.TRAINERS, (of_hugging_face, of_lightning, of_accelerate, of_lora), strict=True)
)


@pytest.mark.filterwarnings("ignore")  # the hosts' own
@pytest.mark.parametrize("section", READERS)
def test_a_section_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"acdc": acdc, **READERS[section]()}
    (block,) = (block for block in PAGE if block.section == section and block.language == "python")
    blocks.run(block, names)
    if section == "LoRA on a sparse base":
        assert not names["model"].q_proj.weight[:, ::2].any()
    elif section != "Accelerate":
        (callback,) = (one for one in callbacks(names["trainer"]) if type(one).__name__ == "SparsifierCallback")
        assert callback.result.sparsity == pytest.approx(0.9, abs=1e-3)


@pytest.mark.filterwarnings("ignore")  # the hosts' own
def test_the_page_on_faults_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = of_hugging_face()
    callback = SparsifierCallback(acdc.ACDC(sparsity=0.9, epochs=3))
    names["trainer"] = HuggingFaceTrainer(
        names["model"], names["args"], train_dataset=names["data"], callbacks=[callback]
    )
    names |= {"dcp": dcp, "states": {"weight": torch.ones(2)}, "step": 3, "rank": 0}
    for block in blocks.read("docs/faults.md"):
        if block.language == "python":
            blocks.run(block, names)
    assert str(names["folder"]).endswith("step-3")


def callbacks(trainer: Any) -> list[Any]:
    return trainer.callbacks if isinstance(trainer, Trainer) else trainer.callback_handler.callbacks
