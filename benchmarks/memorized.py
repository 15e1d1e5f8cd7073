"""Results of the memorization experiment: a table at the ends of phases, and the block of docs/memorization.md.

Both from results/memorization/result.json, which `python -m benchmarks.memorization --keep` writes.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acdc.recipes import load
from benchmarks import keeping
from benchmarks.record import read

Kept = dict[str, Any]
Table = tuple[str, list[str], list[list[str]], str]

# The paper's words (§4), in short; of 50 and 75 % it has curves alone. By augmentation and sparsity.
PAPER = {
    (False, 0.0): "memorises all",
    (False, 0.9): "compressed phases put most in their true class, dense phases memorise",
    (False, 0.95): "compressed phases put most in their true class, dense phases memorise",
    (True, 0.0): "memorises about 60 %",
    (True, 0.9): "about 90 % in their true class",
    (True, 0.95): "about 90 % in their true class",
}
_FIGURE = (
    "![Four panels over the epochs: the shares of the images put in their true class, and memorised, without "
    "augmentation and with it](../results/memorization/memorization.svg)\n"
)


def seed_of(run: Path) -> int:
    return keeping.settings_of(run)["recipe"]["run"]["seeds"][0]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return read(run / "metrics.jsonl")


def collect(runs: Sequence[Path], commit: str | None) -> Kept:
    """Return what the table needs of complete runs, and what ran them."""
    recipes = [load.from_dict(keeping.settings_of(run)["recipe"]) for run in runs]
    return {
        "model": recipes[0].model.name,
        "data": recipes[0].data.name,
        "epochs": recipes[0].epochs,
        "random_labels": recipes[0].data.corrupt,
        "kind": recipes[0].data.corrupt_kind,
        "precision": sorted({recipe.train.precision for recipe in recipes}),
        "seeds": sorted({recipe.run.seeds[0] for recipe in recipes}),
        "left_dense": {  # by the sparsity at which they were
            str(recipe.method.sparsity): list(recipe.method.exclude) for recipe in recipes if recipe.method.exclude
        },
        **keeping.where(runs, commit),
        "runs": [
            {
                "name": run.name,
                "seed": recipe.run.seeds[0],
                "augmented": bool(recipe.data.crop or recipe.data.flip),
                "sparsity": 0.0 if recipe.method.name == "dense" else recipe.method.sparsity,
                **_ends(run),
            }
            for run, recipe in zip(runs, recipes, strict=True)
        ],
    }


def _ends(run: Path) -> dict[str, Any]:
    """Return shares and test accuracy at the end of the last dense phase and of the last compressed one, if any.

    The last epoch of dense training is the end of its only phase.
    """
    last = {row["kind"]: row for row in rows_of(run)}
    return {
        name: {"epoch": row["epoch"], "test_accuracy": row["test_accuracy"], **row["memorization"]}
        for name, kind in (("dense", "dense"), ("compressed", "sparse"))
        if (row := last.get(kind))
    }


def read_kept(results: Path) -> Kept | None:
    file = results / "memorization" / "result.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def table(kept: Kept) -> Table:
    header = [
        "training",
        "last dense phase: memorised / true class (%)",
        "final compressed phase: memorised / true class (%)",
        "last dense phase, augmented views",
        "final compressed phase, augmented views",
        "test accuracy: dense / compressed (%)",
        "the paper",
    ]
    body = []
    for (augmented, sparsity), runs in _grouped(kept).items():
        shares = [
            [_percent(runs, phase, f"{key}{view}", 1) for key in ("memorised", "true")]
            for view in ("", "_augmented")
            for phase in ("dense", "compressed")
        ]
        shares.append([_percent(runs, phase, "test_accuracy", 2) for phase in ("dense", "compressed")])
        name = f"{_side(augmented)}, {f'AC/DC {sparsity:.0%}' if sparsity else 'dense'}"
        cells = (" / ".join(pair) if pair != ["–", "–"] else "–" for pair in shares)
        body.append([name, *cells, PAPER.get((augmented, sparsity), "–")])
    title = f"{kept['random_labels']:,} random labels: {kept['model']} on {kept['data']}, {kept['epochs']} epochs"
    return title, header, body, note(kept)


def note(kept: Kept) -> str:
    wrong = "always wrong" if kept["kind"] == "always-wrong" else "drawn from all classes, true ones left out"
    several = len(kept["seeds"]) > 1
    seeds = f"seed{'s' if several else ''} {', '.join(map(str, kept['seeds']))}; n = {len(kept['seeds'])} of each run"
    return (
        f"{keeping.place(kept)} {', '.join(kept['precision'])}; {seeds}{', mean ± std' if several else ''}; "
        f"random labels {wrong}. {_left_dense(kept)} Dense training has one dense phase, all of it. The paper in "
        "short; the published code trains in fp32 and draws random labels from all classes."
    )


def _left_dense(kept: Kept) -> str:
    """Say which layers were not pruned, of runs that know it: the first were kept before any were left dense."""
    at = ", ".join(f"{float(sparsity):.0%}" for sparsity in sorted(kept.get("left_dense", {}), key=float))
    return f"The downsampling convolutions are dense at {at}, as published." if at else "All layers are pruned."


def _grouped(kept: Kept) -> dict[tuple[bool, float], list[dict[str, Any]]]:
    """Group the seeds of each run."""
    groups: dict[tuple[bool, float], list[dict[str, Any]]] = {}
    for run in sorted(kept["runs"], key=lambda run: (run["augmented"], run["sparsity"], run["seed"])):
        groups.setdefault((run["augmented"], run["sparsity"]), []).append(run)
    return groups


def _side(augmented: bool) -> str:
    return f"{'with' if augmented else 'no'} augmentation"


def _percent(runs: Sequence[dict[str, Any]], phase: str, key: str, digits: int) -> str:
    values = [100 * run[phase][key] for run in runs if key in run.get(phase, {})]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def block(results: Path, markdown: Callable[[Table], str]) -> str:
    """Return the figure, the table and what they show, in numbers; or that nothing is kept."""
    kept = read_kept(results)
    if kept is None:
        return "\nNothing is kept yet.\n"
    return f"\n{_FIGURE}{markdown(table(kept))}\n## What we see\n\n{seen(kept)}\n"


def seen(kept: Kept) -> str:
    """List our numbers for each of the paper's statements, in its order and without a verdict."""
    groups, lines = _grouped(kept), []
    for augmented, sparsity in PAPER:
        if not (runs := groups.get((augmented, sparsity))):
            continue
        memorised, true = ([_percent(runs, p, k, 1) for p in ("dense", "compressed")] for k in ("memorised", "true"))
        who = "the last dense phase" if sparsity else "dense training"
        sentence = f"{who} ends with {memorised[0]} % memorised and {true[0]} % in their true class"
        if sparsity:
            sentence += f", the final compressed phase with {memorised[1]} % and {true[1]} %"
        where = f"{_side(augmented).capitalize()}{f', {sparsity:.0%} sparsity' if sparsity else ''}"
        lines.append(f"- {where}: {sentence}. The paper: {PAPER[augmented, sparsity]}.")
    n = len(kept["seeds"])
    return "\n".join([f"In numbers, n = {n} of each run:", "", *lines])
