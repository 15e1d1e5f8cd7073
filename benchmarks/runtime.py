"""How fast acdc-runtime runs sparse networks beside other engines, at the FLOPs that the paper reports.

    python -m benchmarks.runtime                     # all networks, batches 1 and 16, 1 and all threads
    python -m benchmarks.runtime --only resnet50-g90 --batch 1 --threads 1 --rounds 5

Engines take turns on one file; ratios are taken within each round. Weights are random (see benchmarks.runtime_models),
fp32. g90: 90 % of all weights pruned by magnitude; u90: 90 % of each layer but the first and last (of a GPT block: of
each); t90: 90 % in tiles of 4 output channels x 1.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from acdc.serving import engines, timing
from benchmarks.console import say
from benchmarks.record import RESULTS, append, environment
from benchmarks.runtime_models import Network, calibrate, draw, prune_globally, prune_in_tiles, prune_uniformly

_PAPER = 0.18  # inference FLOPs of ResNet50 and MobileNetV1 at 90 %, of the dense network's
_TILES = partial(prune_in_tiles, sparsity=0.9, rows=4)
# Network, what its exponent is calibrated on (None: no calibration), and how it is pruned.
CASES: dict[str, tuple[str, Callable[[Network], None] | None, Callable[[Network], None]]] = {
    "resnet50-dense": ("resnet50", None, lambda network: None),
    "resnet50-g90": ("resnet50", partial(prune_globally, sparsity=0.9), partial(prune_globally, sparsity=0.9)),
    "resnet50-g95": ("resnet50", partial(prune_globally, sparsity=0.9), partial(prune_globally, sparsity=0.95)),
    "resnet50-u90": ("resnet50", None, partial(prune_uniformly, sparsity=0.9)),
    "resnet50-t90": ("resnet50", _TILES, _TILES),
    "mobilenet-dense": ("mobilenet", None, lambda network: None),
    "mobilenet-g90": ("mobilenet", partial(prune_globally, sparsity=0.9), partial(prune_globally, sparsity=0.9)),
    "resnet20-u90": ("resnet20", None, partial(prune_uniformly, sparsity=0.9)),
    "gpt_block-u90": ("gpt_block", None, partial(prune_uniformly, sparsity=0.9, ends=True)),
}


def make(name: str) -> Network:
    """Build one of the networks, pruned."""
    base, calibrated_on, prune = CASES[name]
    network = draw(base, calibrate(base, calibrated_on, _PAPER) if calibrated_on else 0.3)
    prune(network)
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join(CASES)}, with commas between")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--threads", default=",".join(map(str, sorted({1, len(os.sched_getaffinity(0))}))))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--engines", default="acdc-runtime,onnxruntime")
    parser.add_argument("--out", type=Path, default=RESULTS / "runtime.jsonl")
    args = parser.parse_args()
    chosen = engines.pick(args.engines)
    about = environment(torch.device("cpu"), None)
    for package in ("acdc-runtime", "onnx", *(e.needs[0] for e in chosen)):
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only.split(",") if args.only else CASES:
            network = make(name)
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(network.build(network).SerializeToString())
            facts = {"model": name, "flops": network.flops_fraction(), "sparsity": network.sparsity(), "seed": 0}
            say(f"{name}: {facts['sparsity']:.1%} of prunable weights are zero, FLOPs x {facts['flops']:.3f}")
            batches, threads = ([int(n) for n in text.split(",")] for text in (args.batch, args.threads))
            for table in timing.compare_engines(path, chosen, batches, threads, args.rounds):
                load = {"load": round(os.getloadavg()[0], 2)}
                append(args.out, [{**about, **load, **facts, **t.record()} for t in table])
                for t in table:
                    row = t.record()
                    ratio = f", x{row['ratio']:.2f} ({row['ratio_q1']:.2f}-{row['ratio_q3']:.2f})" if t.ratios else ""
                    times = row.get("problem") or f"{row['ms']:.1f} ms, fastest {row['ms_min']:.1f}{ratio}"
                    say(f"  batch {t.batch}, threads {t.threads}, {t.engine}: {times}")


if __name__ == "__main__":
    main()
