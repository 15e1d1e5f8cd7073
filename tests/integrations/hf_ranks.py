"""What each of two ranks runs under torchrun: a whole run, a run that stops inside a compressed phase, the rest."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

import acdc
from acdc.integrations.huggingface import SparsifierCallback
from tests.integrations.hf_models import gpt2, trainer

STOP = 7  # of 24: two ranks share the batches


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step == STOP


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    parts: dict[str, dict[str, Any]] = {}
    for name, run, callbacks, resume in (
        ("whole", "whole", (), None),
        ("first", "parts", (Stop(),), None),
        ("again", "parts", (), True),
    ):
        callback = SparsifierCallback(acdc.ACDC.paper(sparsity=0.75, epochs=6))
        host = trainer(gpt2(), folder / run, callback, *callbacks, save_strategy="steps", save_steps=STOP)
        host.train(resume_from_checkpoint=resume)
        if name != "first":
            result = callback.result
            parts[name] = {"sparse": result.sparse, "dense": result.dense, "masks": result.masks}
    torch.save(parts, folder / f"{os.environ['RANK']}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore", acdc.SparsityWarning)
    main(Path(sys.argv[1]))
