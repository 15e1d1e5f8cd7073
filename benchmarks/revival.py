"""The fate of filters that were pruned whole when their phase ends: first gradients after each decompression.

python -m benchmarks.revival --sparsity 0.95 --seed 1

Batch norm divides by the square root of variance + 1e-5. A filter without weights has variance 0: its first gradient
comes back 316 times larger than that of a filter with variance 1, or not at all where nothing reads it either.
"""

import argparse
import statistics

import torch
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.recipes import load
from acdc.train import loading, optim
from acdc.train.distributed import World
from acdc.train.optim import Rates
from benchmarks.console import print_table, run

Table = tuple[str, list[str], list[list[str]], str]


def measure(settings: list[str]) -> Table:
    """Train the digits recipe in a plain loop and look at gradients where a dense phase begins."""
    recipe, device = load.read("digits", settings), torch.device("cpu")
    problem = loading.load(recipe, device, world=World())
    model, train, method = problem.new_model(recipe), problem.loaders.train, recipe.build_method()
    assert method is not None, "the recipe's is AC/DC"
    optimizer = optim.build(recipe.optimizer, model, device, recipe.train.precision)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=train.steps)
    starts = tuple(start for start, _ in method.schedule.starts(train.steps))
    rates = Rates(recipe.stretched_rate(), recipe.optimizer.lr, recipe.epochs, train.steps, starts)
    cells = []
    for epoch in range(recipe.epochs):
        for images, labels in train.batches(epoch):
            for group in optimizer.param_groups:
                group["lr"] = rates.at(sparsifier.step)
            masks = sparsifier.masks
            sparsifier.begin_step()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            if masks and sparsifier.phase.kind == "dense":
                cells.append([str(epoch), *_gradients(sparsifier, masks)])
            optimizer.step()
    header = ["decompressed at epoch", "filters pruned whole", "of these without a gradient", "median of the rest"]
    header += ["largest", "other filters", "median", "largest"]
    note = f"L2 norms of filters' gradients in the first step; zeros {method.sparsity:.0%}, seed {recipe.run.seeds[0]}"
    return "First gradients after a decompression", header, cells, note


def _gradients(sparsifier: acdc.Sparsifier, masks: dict[str, torch.Tensor]) -> list[str]:
    whole, others = list[float](), list[float]()
    params = {weight.name: weight.param for weight in sparsifier.layers.weights}
    for name, mask in masks.items():
        grad = params[name].grad
        assert grad is not None, "backward has just run"
        norms, pruned = grad.flatten(1).norm(dim=1), ~mask.flatten(1).any(1)
        whole += norms[pruned].tolist()
        others += norms[~pruned].tolist()
    alive = [norm for norm in whole if norm]
    return [
        str(len(whole)),
        str(len(whole) - len(alive)),
        *(f"{pick(alive):.3g}" if alive else "–" for pick in (statistics.median, max)),
        str(len(others)),
        *(f"{pick(others):.3g}" if others else "–" for pick in (statistics.median, max)),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.revival", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="change the digits recipe")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = [
        "method.schedule=paper",
        f"method.sparsity={options.sparsity}",
        f"run.seeds=[{options.seed}]",
        *options.set,
    ]
    print_table(*measure(settings))
    return 0


if __name__ == "__main__":
    run(main)
