"""AC/DC as torchtitan trains: a model on the meta device, fully_shard, weights made in place, distributed checkpoints.

    torchrun --nproc-per-node 2 examples/torchtitan_style.py OUT [--stop-after 20]     # again: it resumes

Lines marked + are all acdc needs. The order matters: shard, give the weights memory and values, build the optimizer,
attach. A model still on the meta device is refused.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard

import acdc  # +
from acdc.models.gpt import GPT

BATCH, LENGTH, VOCABULARY = 8, 16, 32


def init_weights(module: nn.Module) -> None:
    """Initialise a layer in place, as torchtitan's models do in init_weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.RMSNorm):
        nn.init.ones_(module.weight)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60, help="a multiple of 20")
    parser.add_argument("--stop-after", type=int, help="end after so many steps, to try resuming")
    options = parser.parse_args(arguments)
    last = options.stop_after or options.steps
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    if device.type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())

    with torch.device("meta"):
        model = GPT(VOCABULARY, layers=2, width=32, heads=2, context=LENGTH, tied=False)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)
    torch.manual_seed(0)
    model.apply(init_weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    method = acdc.ACDC(sparsity=0.8, epochs=20)  # +
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=options.steps // 20)  # +

    first, folder = 0, options.out / "checkpoint"
    if folder.exists():
        states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        load(states, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        sparsifier.load_checkpoint(folder)  # +
        first = sparsifier.step
    loss = torch.zeros(())
    for step in range(first, last):
        draw = torch.Generator().manual_seed(dist.get_world_size() * step + rank)
        half = torch.randint(VOCABULARY, (BATCH, LENGTH // 2), generator=draw)
        tokens = torch.cat([half, half], dim=1).to(device)  # the second half repeats the first
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if last < options.steps:
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        save({**states, "sparsifier": sparsifier.state_dict()}, checkpoint_id=folder)  # +
    else:
        result = sparsifier.finish(gather="rank0")  # +
        if rank == 0:
            result.save(options.out / "result")
            print(f"loss {loss.item():.6f}, sparsity {result.sparsity:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
