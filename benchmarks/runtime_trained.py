"""ONNX files with as many non-zero weights in every layer as a kept run's sparse model.

Run folders in results/runs hold no weights, but how many of each layer's are not zero at the end of every phase. Which
ones, and their values, are random here: neither changes how fast unstructured weights run.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acdc import models
from acdc.export.onnx import to_onnx


def write_as_trained(run: Path, path: Path) -> dict[str, Any]:
    """Write the network of a kept run's sparse model to `path`; return its sparsity and share of the dense FLOPs."""
    recipe = json.loads((run / "config.json").read_text())["recipe"]
    (sparse, *_) = json.loads((run / "result.json").read_text())["models"]
    counts = next(
        row["nonzero"]
        for row in reversed([json.loads(line) for line in (run / "phases.jsonl").read_text().splitlines()])
        if row["kind"] == "sparse"
    )
    model = models.build(recipe["model"]["name"], classes=100, seed=0, **recipe["model"].get("options", {})).eval()
    generator = torch.Generator().manual_seed(0)
    _keep(model, counts, generator)
    to_onnx(model, torch.randn(2, 3, 32, 32, generator=generator), path)
    return {"flops": sparse["flops"] / sparse["dense_flops"], "sparsity": sparse["sparsity"]}


def _keep(model: nn.Module, counts: dict[str, int], generator: torch.Generator) -> None:
    """Zero random weights until each layer has as many left as `counts` says, and keep its rows' norms."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in counts:
                order = torch.randperm(weight.numel(), generator=generator)
                before = weight.norm()
                weight.view(-1)[order[counts[name] :]] = 0
                weight *= before / weight.norm()
