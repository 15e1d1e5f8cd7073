"""Trains a tiny GPT-2 in Hugging Face's Trainer and saves every other step; started again, it goes on.

python -m tests.drills.hf_run FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

import torch

import acdc
from acdc.integrations.huggingface import SparsifierCallback, newest_checkpoint
from tests.integrations.hf_models import gpt2, trainer

# What ends the names of a log's clocks; and the mean over the run, which the Trainer takes from the last resume on.
LEFT_OUT = ("runtime", "per_second", "train_loss")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    callback = SparsifierCallback(acdc.ACDC.paper(sparsity=0.75, epochs=6))
    often = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 3, "logging_strategy": "steps"}
    host = trainer(gpt2(), folder, callback, **often, logging_steps=1)
    host.train(resume_from_checkpoint=newest_checkpoint(folder))
    callback.result.save(folder / "result")
    rows = [{key: value for key, value in row.items() if not key.endswith(LEFT_OUT)} for row in host.state.log_history]
    (folder / "log.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    warnings.simplefilter("ignore", acdc.SparsityWarning)
    main(Path(sys.argv[1]))
