"""acdc analyze: check the theory's assumptions on the models that a run kept. `cpl`: is the gradient concentrated?"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import show_table
from acdc.data.images import BadImagesError
from acdc.errors import UsageError
from acdc.formatting import si
from acdc.io import write_json
from acdc.runs.folder import RunFolder
from acdc.theory.bounds import theorem_1
from acdc.train import hardware, saved_models, trajectory
from acdc.train.prepare import PreparedRun, RunOptions
from acdc.train.trajectory import Summary, TrajectoryPoint

_SHARES = (0.01, 0.001)  # of the prunable weights, beside what the run keeps
_BATCHES = 50


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "analyze", description="Check the assumptions of the theory on a run.", allow_abbrev=False
    )
    kinds = parser.add_subparsers(title="analyses", metavar="ANALYSIS", required=True)
    cpl = kinds.add_parser(
        "cpl",
        description="Measure the concentrated PL condition at every checkpoint and model that a run kept: how much of "
        "the gradient its r largest entries hold, and the α that (r, α)-CPL allows there.",
        allow_abbrev=False,
    )
    cpl.add_argument("run", metavar="RUN", help="a run's folder")
    cpl.add_argument(
        "--shares", metavar="X,X", help="r as shares of the prunable weights (default: what the run keeps, .01, .001)"
    )
    cpl.add_argument(
        "--batches", metavar="N", help=f"training batches to take f over (default {_BATCHES}; 0: a whole epoch)"
    )
    cpl.add_argument("--json", metavar="FILE", help="also write every number there")
    options.add_place(cpl)
    cpl.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why = options.read_device(args.device)
    place = RunOptions(device=device, why_device=why, root=args.data, workers=options.read_workers(args.workers))
    batches, folder = _read_batches(args.batches), Path(args.run)
    if not RunFolder(folder).begun:
        raise UsageError([f"RUN {folder}: {saved_models.why_no_run(folder, folder)}"])
    recipe = saved_models.trained_recipe(folder)
    saved_models.refuse_text(folder, recipe, "this analysis")
    prepared = saved_models.reopen_run(folder, recipe, place)
    problems: list[str] = []
    try:
        shares = _read_shares(args.shares, prepared)
        print(f"device: {device.type} ({why}), fp32")
        if difference := saved_models.data_difference(folder, prepared.data):
            print(f"note: these are not the data of the run: {difference}")
        counts = trajectory.kept_counts(prepared, shares)
        points = trajectory.follow(folder, prepared, counts, problems, batches=batches or None, on_begin=_say)
    except BadImagesError as error:
        raise UsageError([str(error)]) from None
    finally:
        prepared.data.close()
    if not points and not problems:
        raise UsageError([f"RUN {folder}: no checkpoint and no model in it yet; type: acdc train --resume {folder}"])
    if points:
        followed = trajectory.of_the_method(points, prepared.recipe.method.name)
        summaries = [trajectory.summarise(followed, r, _needed) for r in counts]
        _show(folder, points, counts, summaries)
        if args.json:
            _write(Path(args.json), prepared, points, summaries)
    for text in problems:
        print(f"acdc: {text}", file=sys.stderr)
    return 2 if problems else 0


def _needed(alpha: float, beta: float, k_star: int) -> float:
    """Return the k from which on Theorem 1 holds, for k* = r; no f has an α of CPL above 4β."""
    return theorem_1(alpha=alpha, beta=max(beta, alpha / 4), k=k_star, k_star=k_star).k_needed


def _say(file: str) -> None:
    if sys.stderr.isatty():
        print(f"measuring {file}", file=sys.stderr)


def _show(folder: Path, points: list[TrajectoryPoint], counts: list[int], summaries: list[Summary]) -> None:
    size, samples = points[0].concentration.size, points[0].concentration.samples
    header = ["model", "epoch", "phase", "f", "‖∇f‖²", "σ²", "β ≥"]
    header += [text for r in counts for text in (f"share of {si(r)}", f"α of {si(r)}")]
    rows = []
    for point in points:
        found = point.concentration
        epoch = "" if point.epoch is None else f"{point.epoch:g}"
        row = [point.file, epoch, point.phase, f"{found.value:.4g}", f"{found.gradient:.3g}", f"{found.variance:.3g}"]
        row.append("" if point.smoothness is None else f"{point.smoothness:.3g}")
        rows.append([*row, *(text for r in counts for text in (f"{found.share(r):.1%}", f"{found.alpha(r):.3g}"))])
    show_table(f"{folder}: the gradient of {si(size)} prunable weights, over {samples:,} images", header, rows)
    print("share of r: ‖T_r(∇f)‖²/‖∇f‖²; α of r: at least this in ‖T_r(∇f)‖² ≥ (α/2)(f − f*), taking f* as 0")
    for one in summaries:
        text = f"r = {one.r:,}: the share is {one.least_share:.1%} or more, CPL holds with α = {one.alpha_proved:.3g}"
        if one.alpha_at_most is not None:
            text += f" and with no α above {one.alpha_at_most:.3g}"
        if one.k_needed is not None and one.beta is not None:
            verdict = "more than there are weights" if one.k_needed > size else "within the model's weights"
            text += f"; if β is a Lipschitz constant, {one.beta:.3g} or more, Theorem 1 needs k > {si(one.k_needed)}, "
            text += verdict
        print(text)


def _write(path: Path, prepared: PreparedRun, points: list[TrajectoryPoint], summaries: list[Summary]) -> None:
    rows = [
        {
            **asdict(point),
            "share": {str(r): point.concentration.share(r) for r in point.concentration.largest},
            "alpha": {str(r): point.concentration.alpha(r) for r in point.concentration.largest},
        }
        for point in points
    ]
    content = {
        "recipe": prepared.recipe.to_dict(),
        **hardware.describe(prepared.device),
        "points": rows,
        "summary": [asdict(one) for one in summaries],
    }
    try:
        write_json(path, content)
    except OSError as error:
        raise UsageError([f"--json {path}: {error.strerror}; type another file"]) from None
    print(f"written: {path}")


def _read_batches(text: str | None) -> int:
    if text is None:
        return _BATCHES
    if not text.isdigit() or len(text) > 9:
        raise UsageError([f"--batches {text}: expected a whole number, 0 for an epoch; type --batches {_BATCHES}"])
    return int(text)


def _read_shares(text: str | None, prepared: PreparedRun) -> list[float]:
    """Return the shares typed, or what the run keeps of its weights and the usual ones below it."""
    if text is not None:
        try:
            shares = [float(part) for part in text.split(",")]
        except ValueError:
            shares = []
        if not shares or not all(0 < share <= 1 for share in shares):
            raise UsageError([f"--shares {text}: expected fractions of the weights, above 0; type --shares .1,.01"])
        return shares
    sparsity = getattr(prepared.method, "sparsity", None)
    kept = 1.0 - sparsity if sparsity else 1.0
    return [*([kept] if sparsity else []), *(share for share in _SHARES if share < kept)]
