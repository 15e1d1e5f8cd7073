"""What the pages take for granted: a user's model, data and loop, small enough to train in a moment."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import acdc

EPOCHS = 10


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        model(torch.zeros(1, 64))


def of_a_loop() -> dict[str, Any]:
    """Return the names of a plain loop before it has begun."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 8, 64, generator=generator)
    loader = [(x, x[:, :10].argmax(1)) for x in images]
    return {
        "acdc": acdc,
        "torch": torch,
        "nn": nn,
        "build_model": build_model,
        "evaluate": evaluate,
        "loader": loader,
        "loss": nn.functional.cross_entropy,
        "loss_fn": nn.functional.cross_entropy,
        "model": build_model(),
        "x": images[0],
        "__name__": "a page",
    }


def of_a_loop_that_runs() -> dict[str, Any]:
    """Return the names of a loop whose sparsifier is attached, before its first step."""
    names = of_a_loop()
    optimizer = torch.optim.SGD(names["model"].parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    method = acdc.ACDC(sparsity=0.9, epochs=EPOCHS, twin="best")
    steps = len(names["loader"])
    sparsifier = acdc.attach(names["model"], optimizer, method, steps_per_epoch=steps, scheduler=scheduler, quiet=True)
    return {**names, "optimizer": optimizer, "scheduler": scheduler, "method": method, "sparsifier": sparsifier}


def of_a_trained_model() -> dict[str, Any]:
    """Return the names of a loop that has ended: a result, and all that it was trained with."""
    names = of_a_loop_that_runs()
    model, optimizer, sparsifier = names["model"], names["optimizer"], names["sparsifier"]
    for _ in range(EPOCHS):
        for x, y in names["loader"]:
            optimizer.zero_grad()
            names["loss"](model(x), y).backward()
            optimizer.step()
        names["scheduler"].step()
        if sparsifier.phase.kind == "dense":
            sparsifier.report_metric(0.5)
    result = sparsifier.finish()
    sparsifier.detach()
    acdc.export.save_sparse(result.sparse, Path("sparse.safetensors"))
    return {**names, "result": result, "accumulation": 1, "accuracy": 0.9, "ema_model": build_model()}
