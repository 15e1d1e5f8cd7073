"""Sizes on disk: packed safetensors against plain ones, at 90 and 95 % zeros.

Weights are those of seed 0, pruned by magnitude in each layer alike. Sizes depend on how many are left, and a little on
where: layers of unequal sparsity, as global magnitude leaves them, take less for the same number of weights.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import acdc
from acdc.formatting import si
from acdc.sparsity.distributions import budgets
from acdc.sparsity.masks import apply_, new_mask
from benchmarks.console import print_table, run
from benchmarks.record import RESULTS, Row, append, environment

MODELS = {"resnet20": 10, "wrn28_10": 100, "mobilenet_v1": 1000, "resnet50": 1000}
SPARSITIES = (0.9, 0.95)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    shared, rows = environment(torch.device("cpu"), options.commit), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            for sparsity in SPARSITIES:
                rows.append({"benchmark": "sizes", **measure(name, sparsity, Path(folder)), **shared})
    append(options.results, rows)
    header = ["model", "zeros", "plain", "packed", "packed / plain"]
    cells = [
        [
            row["model"],
            f"{row['sparsity']:.0%}",
            si(row["plain"], "B"),
            si(row["packed"], "B"),
            f"{row['packed'] / row['plain']:.4f}",
        ]
        for row in rows
    ]
    print_table("Sizes on disk", header, cells, f"torch {shared['torch']}, acdc at {shared['commit']}")
    return 0


def measure(name: str, sparsity: float, folder: Path) -> Row:
    """Return the bytes of both files, whose tensors are the same."""
    model = prune(acdc.models.build(name, classes=MODELS[name], seed=0), sparsity)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "plain")
    acdc.export.save_sparse(state, folder / "packed")
    again = acdc.load(folder / "packed")
    assert all(torch.equal(again[key], value) for key, value in state.items())
    return {
        "model": name,
        "sparsity": sparsity,
        "seed": 0,
        "plain": (folder / "plain").stat().st_size,
        "packed": (folder / "packed").stat().st_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def prune(model: nn.Module, sparsity: float) -> nn.Module:
    """Zero the smallest weights of each layer."""
    weights, pattern = acdc.find_prunable(model).weights, acdc.Unstructured()
    masks = {weight.name: new_mask(weight.param) for weight in weights}
    scores: dict[str, Tensor] = {weight.name: weight.param.detach() for weight in weights}
    pattern.write_masks(weights, scores, budgets("uniform", weights, sparsity), masks)
    for weight in weights:
        apply_(weight.param, masks[weight.name])
    return model


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME")
    parser.add_argument("--results", type=Path, default=RESULTS / "sizes.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(main)
