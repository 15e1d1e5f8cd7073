"""A comparison's folder as `acdc compare-methods` leaves it, made without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from acdc.io import write_safetensors
from acdc.recipes import load
from tests.report.runs import model_row, row, write_lines

EPOCHS = 12
METHODS = ("dense", "acdc", "gmp", "rigl", "top_kast", "set", "str", "dpf", "static", "one_shot")
LEARNED = ("str",)


def make_comparison(
    out: Path,
    names: Sequence[str] = METHODS,
    sparsities: Sequence[float] = (0.9, 0.95),
    seeds: Sequence[int] = (0, 1, 2),
    variants: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    epochs: int = EPOCHS,
) -> Path:
    """Every method a little worse than the one before it; STR's zeros differ from seed to seed; fewer epochs, worse."""
    held: dict[str, Any] = {"recipe": "digits", "epochs": epochs, "started": "2026-11-15T12:00:00+00:00"}
    held |= {"commands": ["acdc compare-methods digits"], "runs": {}, "cells": {}}
    entries = {name: (name, ()) for name in names} | dict(variants or {})
    out.mkdir(parents=True)
    for number, (name, (method, settings)) in enumerate(entries.items()):
        shares: Sequence[float | None] = [None] if method in ("dense", *LEARNED) else sparsities
        for share in shares:
            for seed in seeds:
                accuracy = 0.9852 - 0.004 * number - (share or (0.9 if method in LEARNED else 0)) / 20 + 0.002 * seed
                accuracy -= 0.2 * max(0.0, 1 / epochs - 1 / EPOCHS)
                cell = f"{name}{f'-{100 * share:g}' if share else ''}-seed{seed}"
                recipe = make_cell(out / cell, method, share, settings, seed, accuracy, epochs)
                held["runs"][cell] = recipe
                held["cells"][cell] = {"variant": name, "method": method, "settings": list(settings), "sparsity": share}
    (out / "comparison.json").write_text(json.dumps(held))
    return out


def make_cell(
    folder: Path,
    method: str,
    share: float | None,
    settings: Sequence[str],
    seed: int,
    accuracy: float,
    epochs: int = EPOCHS,
) -> dict[str, Any]:
    said = [f"train.epochs={epochs}", f"method.name={method}", f"method.sparsity={'' if share is None else share}"]
    recipe = load.read("digits", [*said, "run.baseline=false", "run.finetune=false", *settings]).with_seed(seed)
    folder.mkdir()
    built = recipe.build_method()
    zeros = 0.0 if method == "dense" else share if share is not None else 0.91 + 0.003 * seed
    kind = "dense" if method == "dense" else "sparse"
    rows = []
    for epoch in range(epochs):
        now = "dense" if method == "acdc" and epoch < epochs // 2 else kind
        rows.append(row(method, epoch, now, now, zeros if now == "sparse" else 0.0, accuracy, epochs))
    write_lines(folder / "metrics.jsonl", rows)
    main = ("dense baseline", "baseline") if method == "dense" else (f"{method}, sparse", "sparse")
    models = [model_row(*main, accuracy, zeros)]
    if method == "acdc":
        models.append(model_row("AC/DC, dense twin", "dense", accuracy, 0.0))
    config = {
        "started": "2026-11-15T12:00:00+00:00",
        "recipe": recipe.to_dict(),
        "method": {"name": built.name, **built.config()} if built else {"name": "dense"},
        "data": {"train": 1397, "test": 400},
        "hardware": {"device": "cpu", "cpu": "a processor"},
        "versions": {"torch": "2.13.0"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({"models": models, "seconds": 12.5}))
    same = torch.randn(400, 10, generator=torch.Generator().manual_seed(seed))
    write_safetensors({folder / "predictions.safetensors": _predictions(method, share, same)})
    return recipe.to_dict()


def _predictions(method: str, share: float | None, same: torch.Tensor) -> dict[str, torch.Tensor]:
    """At 90 % of other answers 40 of 400, at 95 % 80; AC/DC's twin differs from its sparse model in 20."""
    if method == "dense":
        return {"baseline": same}
    sparse = same.clone()
    sparse[: {0.9: 40, 0.95: 80}.get(share or 0, 4)] *= -1
    if method != "acdc":
        return {"sparse": sparse}
    twin = sparse.clone()
    twin[-20:] *= -1
    return {"sparse": sparse, "dense": twin}
