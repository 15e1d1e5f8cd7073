"""acdc export: write a run's model as ONNX, as packed safetensors or for torch, and print its size before and after."""

import argparse
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import show_table
from acdc.errors import UsageError
from acdc.export.sizes import HEADER
from acdc.formatting import si
from acdc.train import run_export
from acdc.train.prepare import RunOptions
from acdc.train.run_export import FORMATS, Exported


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "export",
        description="Write a model of a run as ONNX (checked against torch by ONNX Runtime), as packed safetensors "
        "(read by acdc.load) or as a state dict for torch.load.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, a .safetensors file in it, or a checkpoint: RUN/checkpoints/NAME.pt",
    )
    parser.add_argument("--to", required=True, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--model", metavar="NAME", help="which of the run's models (default sparse)")
    parser.add_argument("--shrink", action="store_true", help="remove filters and channels that do nothing")
    parser.add_argument(
        "--keep-batch-norm", action="store_true", help="do not fold batch norms into convolutions (onnx)"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write it (default RUN/exports/NAME)")
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default $ACDC_DATA, or ./data)")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    if args.to not in FORMATS:
        raise UsageError([f"--to {args.to}: expected one of {', '.join(FORMATS)}; type --to onnx"])
    device, _ = options.read_device("cpu")
    folder, file = run_export.find_model(args.run, args.model)
    exported = run_export.export_model(
        folder,
        file,
        args.to,
        RunOptions(device=device, root=args.data, workers=0),
        out=Path(args.out) if args.out else None,
        smaller=args.shrink,
        fold_batch_norm=not args.keep_batch_norm,
    )
    _show(exported)
    return 0


def _show(exported: Exported) -> None:
    if exported.note:
        print(f"note: {exported.note}")
    if exported.changes:
        if exported.changes.layers:
            show_table(f"{exported.source}: layers that became smaller", HEADER, exported.changes.rows(), text=3)
        print(exported.changes.summary())
    if exported.onnx:
        print(exported.onnx)
    elif exported.changes and exported.changes.layers:
        print("load it with acdc.export.resize(model, state_dict), where model is built by the recipe")
    ratio = exported.bytes / exported.dense_bytes
    print(f"{exported.source}: {si(exported.dense_bytes, 'B')} as dense tensors")
    print(f"{exported.path}: {si(exported.bytes, 'B')} ({ratio:.2f}x)")
