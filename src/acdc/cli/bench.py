"""acdc bench: how fast engines run an ONNX file here, beside each other."""

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import show_table
from acdc.errors import ArgumentError, UsageError
from acdc.runs.speed import save_speed
from acdc.serving import engines, timing
from acdc.train import run_export
from acdc.train.prepare import RunOptions


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "bench",
        description="Run an ONNX file with every engine installed, in turns, and print medians with quartiles, ratios "
        "to ONNX Runtime, and how far outputs differ from its.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="an ONNX file with one float32 input, or a run's folder: its sparse model is exported and measured, and "
        "the result kept in RUN/speed.json, for acdc report",
    )
    parser.add_argument("--batch", default="1,16,64", metavar="N,N", help="batch sizes (default %(default)s)")
    parser.add_argument("--threads", metavar="N,N", help="thread counts (default 1 and all cores)")
    parser.add_argument("--rounds", default="10", metavar="N", help="runs of each engine (default %(default)s)")
    parser.add_argument(
        "--engines", metavar="A,B", help=f"some of {', '.join(engines.ENGINES)} (default: those installed)"
    )
    parser.add_argument("--json", metavar="FILE", help="also append every row there, as JSON lines")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    cores = len(os.sched_getaffinity(0))
    batches = _counts("--batch", args.batch)
    threads = _counts("--threads", args.threads) if args.threads else sorted({1, cores})
    (rounds,) = _counts("--rounds", args.rounds, only=1)
    try:
        chosen = engines.pick(args.engines)
        if not chosen:
            raise UsageError(["no engine is installed; type: pip install ./runtime onnxruntime"])
        path, home = run_export.find_onnx(args.model, RunOptions(device=options.read_device("cpu")[0], workers=0))
        about = {"run": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), **timing.machine()}
        rows: list[dict[str, Any]] = []
        print(f"{path.name}: {about['cpu']}, {about['cores']} cores, load {about['load']}, {rounds} rounds")
        for table in timing.compare_engines(path, chosen, batches, threads, rounds):
            _show(table)
            rows += [timed.record() for timed in table]
            if args.json:
                _append(Path(args.json), path, about, table)
        if home is not None:
            print(f"kept in {save_speed(home, path.resolve(), about, rows)}; acdc report {home} shows it")
    except ArgumentError as error:
        raise UsageError([str(error)]) from None
    return 0


def _counts(option: str, text: str, only: int | None = None) -> list[int]:
    parts = text.split(",")
    if not all(p.isdigit() and 0 < int(p) < 10_000 for p in parts) or (only and len(parts) != only):
        raise UsageError([f"{option} {text}: expected whole numbers from 1, with commas between; type {option} 1"])
    return [int(p) for p in parts]


def _show(table: list[timing.Timing]) -> None:
    rows, notes = [], []
    for t in table:
        if t.problem:
            notes.append(f"{t.engine}: {t.problem}")
            continue
        low, middle, high = t.quartiles(t.ms)
        ratio = "–"
        if t.ratios:
            a, b, c = t.quartiles(t.ratios)
            ratio = f"{b:.2f} ({a:.2f}–{c:.2f})"
        apart = "–" if t.difference is None else f"{t.difference:.1e}" + ("" if t.agrees else " !")
        rows.append([t.engine, f"{middle:.2f}", f"{low:.2f}–{high:.2f}", f"{min(t.ms):.2f}", ratio, apart])
    header = ["engine", "ms", "quartiles", "fastest", f"x {timing.BASE}", "output differs"]
    show_table(f"batch {table[0].batch}, threads {table[0].threads}", header, rows)
    for note in notes:
        print(f"cannot run: {note}")


def _append(file: Path, model: Path, about: dict[str, Any], table: list[timing.Timing]) -> None:
    shared = {"model": model.name, **about}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        for t in table:
            out.write(json.dumps({**shared, **t.record()}) + "\n")
