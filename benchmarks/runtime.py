"""How fast acdc-runtime runs sparse networks beside other engines, at the FLOPs that the paper reports.

    python -m benchmarks.runtime                     # everything below: about 15 minutes on two quiet cores
    python -m benchmarks.runtime --only resnet50-g90 --batch 1 --threads 1 --rounds 5
    acdc export RUN --to onnx && python -m benchmarks.runtime --models RUN/sparse.onnx     # one's own

Each engine has a process of its own, which is stopped while another has its turn; ratios are taken within each round.
Weights are random (see benchmarks.runtime_models), fp32. g90: 90 % of all weights pruned by magnitude; u90: 90 % of
each layer but the first and last (of a GPT block: of each); t90: 90 % in tiles of 4 output channels x 1; wrn28_10: as
many in each layer as in the kept runs (benchmarks.runtime_trained).
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from acdc.serving import engines, timing
from benchmarks.console import say
from benchmarks.record import RESULTS, append, environment
from benchmarks.runtime_models import Network, calibrate, draw, prune_globally, prune_in_tiles, prune_uniformly
from benchmarks.runtime_trained import write_as_trained

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
TRAINED = {
    "wrn28_10-acdc90": "cifar100-wrn28-10-cifar100_20-90-seed0",
    "wrn28_10-acdc95": "cifar100-wrn28-10-cifar100_20-95-seed0",
}
_BESIDE_ALL = ("resnet50-g90", "mobilenet-g90")  # networks that every installed engine runs, also in batches of 64
_ENGINES = "acdc-runtime,acdc-runtime-avx2,onnxruntime"


def make(name: str) -> Network:
    """Build one of the networks, pruned."""
    base, calibrated_on, prune = CASES[name]
    network = draw(base, calibrate(base, calibrated_on, _PAPER) if calibrated_on else 0.3)
    prune(network)
    return network


def write(name: str, path: Path) -> dict[str, Any]:
    """Write one of the networks to `path`; return its sparsity and share of the dense FLOPs."""
    if name in TRAINED:
        return write_as_trained(RESULTS / "runs" / TRAINED[name], path)
    network = make(name)
    path.write_bytes(network.build(network).SerializeToString())
    return {"flops": network.flops_fraction(), "sparsity": network.sparsity()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join([*CASES, *TRAINED])}, with commas between")
    parser.add_argument("--models", help="ONNX files to measure instead, with commas between")
    parser.add_argument("--batch", help="default: 1 and 16, and 64 for " + ", ".join(_BESIDE_ALL))
    parser.add_argument("--threads", default=",".join(map(str, sorted({1, len(os.sched_getaffinity(0))}))))
    parser.add_argument("--rounds", type=int, default=10, help="at batch 1; half as many, 5 at least, for larger ones")
    parser.add_argument("--engines", help=f"default: {_ENGINES}; all installed ones for " + ", ".join(_BESIDE_ALL))
    parser.add_argument("--out", type=Path, default=RESULTS / "runtime.jsonl")
    args = parser.parse_args()
    about = environment(torch.device("cpu"), None)
    for package in ("acdc-runtime", "onnx", "onnxruntime", "openvino"):
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    with tempfile.TemporaryDirectory() as folder:
        if args.models:
            for file in map(Path, args.models.split(",")):
                _measure(args, about, file.stem, file, {})
            return
        for name in args.only.split(",") if args.only else [*CASES, *TRAINED]:
            path = Path(folder) / f"{name}.onnx"
            facts = {**write(name, path), "seed": 0}
            say(f"{name}: {facts['sparsity']:.1%} of prunable weights are zero, FLOPs x {facts['flops']:.3f}")
            _measure(args, about, name, path, facts)
            path.unlink()


def _measure(args: argparse.Namespace, about: dict[str, Any], name: str, path: Path, facts: dict[str, Any]) -> None:
    chosen = engines.pick(args.engines or (None if name in _BESIDE_ALL else _ENGINES))
    if name in _BESIDE_ALL and not args.engines:
        chosen += engines.pick("acdc-runtime-avx2")
    batches = [int(n) for n in args.batch.split(",")] if args.batch else [1, 16, *([64] if name in _BESIDE_ALL else [])]
    threads = [int(n) for n in args.threads.split(",")]
    for batch in batches:
        rounds = args.rounds if batch == 1 else max(min(5, args.rounds), args.rounds // 2)
        # Batches of 64 are what all cores are for, and take long on one.
        counts = threads if batch < 64 or args.batch else threads[-1:]
        for table in timing.compare_engines(path, chosen, [batch], counts, rounds):
            load = {"load": round(os.getloadavg()[0], 2), "model": name}
            append(args.out, [{**about, **load, **facts, **t.record()} for t in table])
            for t in table:
                row = t.record()
                ratio = f", x{row['ratio']:.2f} ({row['ratio_q1']:.2f}-{row['ratio_q3']:.2f})" if t.ratios else ""
                times = row.get("problem") or f"{row['ms']:.1f} ms, fastest {row['ms_min']:.1f}{ratio}"
                say(f"  batch {t.batch}, threads {t.threads}, {t.engine}: {times}")


if __name__ == "__main__":
    main()
