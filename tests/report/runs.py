"""Run folders as `acdc train` leaves them, made without training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from acdc.io import write_safetensors
from acdc.measure.dynamics import BINS
from acdc.recipes import load
from acdc.recipes.schema import Recipe

LAYERS = {"conv1.weight": 1000, "block.conv.weight": 8000, "fc.weight": 1000}
DENSE = 2_000_000  # FLOPs of an image


def recipe_of(settings: Sequence[str] = (), seed: int = 0) -> Recipe:
    own = any(setting.startswith(("method.name=", "method.schedule=")) for setting in settings)
    phases = [] if own else ["method.schedule=paper"]
    return load.read("digits", ["train.epochs=12", *phases, *settings]).with_seed(seed)


def make_run(
    folder: Path,
    *,
    settings: Sequence[str] = (),
    seed: int = 0,
    sparse: float = 0.96,
    twin: float = 0.98,
    baseline: float = 0.985,
    data: str = "digits",
    test: int = 400,
    classes: int = 10,
) -> Path:
    """A complete run: a baseline, the method, and the twin fine-tuned."""
    recipe = recipe_of(settings, seed)
    recipe = replace(recipe, data=replace(recipe.data, name=data))
    folder.mkdir(parents=True, exist_ok=True)
    method = recipe.build_method()
    schedule = recipe.schedule()
    assert method is not None
    assert schedule is not None
    phases = [schedule.phase_at(epoch, 1) for epoch in range(recipe.epochs)]
    sparsity = recipe.method.sparsity or 0.9
    rows = [row("dense", epoch, "dense", "dense", 0.0, baseline, recipe.epochs) for epoch in range(recipe.epochs)]
    ends = []
    for epoch, phase in enumerate(phases):
        zeros = sparsity if phase.kind == "sparse" else 0.1 * (phase.index > 0)
        final = sparse if phase.kind == "sparse" else twin
        rows.append(row("acdc", epoch, phase.name, phase.kind, zeros, final, recipe.epochs))
        if epoch + 1 == recipe.epochs or phases[epoch + 1].index != phase.index:
            ends.append(_end(phase.index, phase.name, phase.kind, epoch, zeros))
    first = next(epoch for epoch, phase in enumerate(phases) if phase.final)
    rows += [
        row("finetune", epoch, "dense", "dense", 0.1, twin, recipe.epochs) for epoch in range(first, recipe.epochs)
    ]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "phases.jsonl", ends)
    models = [
        model_row("dense baseline", "baseline", baseline, 0.0),
        model_row("AC/DC, sparse", "sparse", sparse, sparsity),
        model_row("AC/DC, dense twin", "dense", twin, 0.1),
        model_row("dense twin, fine-tuned", "finetuned", twin, 0.1),
    ]
    config = {
        "command": "train",
        "started": f"2026-11-15T12:00:{seed:02}+00:00",
        "recipe": recipe.to_dict(),
        "method": {"name": method.name, **method.config()},
        "data": {"train": 1397, "test": test},
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "hardware": {"device": "cpu", "cpu": "a processor", "cores": 2, "threads": 1},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({"models": models, "seconds": 12.5}))
    logits = torch.randn(test, classes, generator=torch.Generator().manual_seed(seed))
    changed = logits.clone()
    changed[: test // 10] = -changed[: test // 10]  # of a tenth the answer differs
    write_safetensors({folder / "predictions.safetensors": {"sparse": logits.half(), "dense": changed.half()}})
    return folder


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def add_remarks(folder: Path, *warnings: str, unread: int = 0) -> None:
    """As of a run that was warned of, and of which some test images could not be read."""
    change_config(folder, warnings=list(warnings))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"unreadable_test_images": unread}))


def row(run: str, epoch: int, phase: str, kind: str, zeros: float, final: float, epochs: int) -> dict[str, Any]:
    """Accuracy rises towards `final` and is there in the last three epochs."""
    missing = max(0, epochs - 3 - epoch) / epochs
    return {
        "run": run,
        "epoch": epoch,
        "step": 22 * (epoch + 1),
        "phase": phase,
        "kind": kind,
        "loss": 2.0 / (epoch + 1),
        "train_accuracy": final * (1 - missing),
        "test_accuracy": final * (1 - missing),
        "test_loss": 2.2 / (epoch + 1),
        "sparsity": zeros,
        "flops": round(DENSE * (1 - zeros)),
        "lr": 0.1 / (epoch + 1),
        "seconds": 0.5 if kind == "sparse" else 0.4,
        "eval_seconds": 0.05,
    }


def _end(index: int, phase: str, kind: str, epoch: int, zeros: float) -> dict[str, Any]:
    size = sum(LAYERS.values())
    kept = round(size * (1 - zeros))
    histogram = [0] * BINS
    for place in range(200, 240):
        histogram[place] = kept // 40
    nonzero = {name: round(count * (1 - zeros)) for name, count in LAYERS.items()}
    change = {"mask_change": 20.0 / (index + 1), "regrown": 1 / (index + 1), "explored": 0.1 + 0.01 * index}
    return {
        "run": "acdc",
        "index": index,
        "phase": phase,
        "kind": kind,
        "epoch": epoch,
        "nonzero": nonzero,
        "size": LAYERS,
        "dead_filters": {name: round(10 * zeros) for name in LAYERS},
        "filters": dict.fromkeys(LAYERS, 20),
        "flops": round(DENSE * (1 - zeros)),
        "histogram": histogram,
        "mask_change": change["mask_change"] if kind == "sparse" and index > 1 else None,
        "regrown": change["regrown"] if kind == "sparse" and index > 1 else None,
        "explored": change["explored"] if kind == "sparse" else None,
    }


def model_row(title: str, stem: str, accuracy: float, zeros: float) -> dict[str, Any]:
    size = sum(LAYERS.values())
    return {
        "model": title,
        "file": f"{stem}.safetensors",
        "test_accuracy": accuracy,
        "test_loss": 0.2,
        "sparsity": zeros,
        "reported_sparsity": zeros * size / (size + 100),
        "flops": round(DENSE * (1 - zeros)),
        "dense_flops": DENSE,
        "flops_ratio": 1 - zeros,
        "best": None if stem == "dense" else {"epoch": 10, "accuracy": accuracy + 0.005, "chosen_on": "test"},
    }
