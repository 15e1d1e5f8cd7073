"""Small models of Hugging Face's, initialised at random, with data, and a Trainer for them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (  # pyright: ignore[reportMissingImports]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

SAMPLES, BATCH = 32, 4


def gpt2(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def vit(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(**sizes, intermediate_size=32, num_labels=4))


def texts(samples: int = SAMPLES) -> list[dict[str, Any]]:
    tokens = torch.randint(0, 32, (samples, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def images(samples: int = SAMPLES) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(samples, 3, 8, 8, generator=generator)
    return [{"pixel_values": x, "labels": torch.tensor(i % 4)} for i, x in enumerate(pixels)]


def trainer(model: Any, folder: Path, *callbacks: TrainerCallback, **settings: Any) -> Trainer:
    given = {
        "num_train_epochs": 6, "per_device_train_batch_size": BATCH, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "use_cpu": True, "learning_rate": 1e-2, "logging_strategy": "no", **settings,
    }  # fmt: skip
    data = images() if isinstance(model, ViTForImageClassification) else texts()
    args = TrainingArguments(output_dir=str(folder), **given)
    return Trainer(model, args, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks))
