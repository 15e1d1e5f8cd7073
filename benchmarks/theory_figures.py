"""Draws docs/theory/*.svg from results/theory.jsonl: each bound beside what was measured."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.record import Row, read
from benchmarks.theory_page import newest

_COLOURS = ("#4269d0", "#e1812c", "#3a923a", "#c03d3e", "#9372b2", "#857aaa")
_STYLE: Any = {
    "svg.hashsalt": "acdc",  # the same file for the same numbers
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw every figure whose measurements are there."""
    rows, paths = read(results), []
    figures = {
        "convergence": _convergence,
        "noise": _noise,
        "threshold": _threshold,
        "rounds": _rounds,
        "recovery": _recovery,
    }
    for name, figure in figures.items():
        if mine := newest(rows, name):
            with plt.rc_context(_STYLE):
                drawn = figure(mine)
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{name}.svg"
                drawn.savefig(path, metadata={"Date": None}, bbox_inches="tight")
                plt.close(drawn)
            paths.append(path)
    return paths


def _convergence(rows: list[Row]) -> Any:
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for row, colour in zip(rows, _COLOURS, strict=False):
        curve = np.array(row["curve"])
        steps = np.arange(len(curve))
        axes.semilogy(steps, np.maximum(curve, 1e-16), color=colour,
                      label=f"κ = {row['condition']:g}, k = {row['k']} (needs k > {row['k_needed']:.0f})")  # fmt: skip
        axes.semilogy(steps, row["bound_rate"] ** steps, color=colour, linestyle="--", linewidth=1)
    axes.set(xlabel="iteration", ylabel="‖θ − θ*‖² / ‖θ₀ − θ*‖²", ylim=(1e-16, 3))
    axes.legend(title="measured; dashed: the bound", fontsize=8)
    return figure


def _noise(rows: list[Row]) -> Any:
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for alpha, colour in zip(sorted({row["alpha"] for row in rows}), _COLOURS, strict=False):
        mine = [row for row in rows if row["alpha"] == alpha]
        sigma2 = [row["sigma2"] for row in mine]
        axes.loglog(sigma2, [row["floor"] for row in mine], "o-", color=colour, label=f"α = {alpha:g}", markersize=4)
        axes.loglog(sigma2, [row["bound"] for row in mine], "--", color=colour, linewidth=1)
        axes.loglog(sigma2, [row["paper"] for row in mine], ":", color=colour, linewidth=1)
    axes.set(xlabel="σ², variance of the gradient", ylabel="E[f − f*], settled")
    axes.legend(title="measured; dashed: our bound;\ndotted: the paper's 2σ²/α", fontsize=8)
    return figure


def _threshold(rows: list[Row]) -> Any:
    figure, axes = plt.subplots(figsize=(6, 3.4))
    conditions = np.linspace(1.5, max(row["condition"] for row in rows) * 1.05, 200)
    axes.semilogy(conditions, (conditions - 1) ** 2, "--", color="#333333", label="theorem: recovers above (κ − 1)²")
    axes.semilogy(conditions, (conditions - 1) ** 2 / 4, ":", color="#333333", label="stuck up to (κ − 1)²/4")
    for recovered, marker, colour, label in ((True, "o", _COLOURS[2], "recovered"), (False, "x", _COLOURS[3], "stuck")):
        mine = [row for row in rows if (row["stuck"] > 0.5) == recovered]
        axes.semilogy([row["condition"] for row in mine], [row["k"] / row["k_star"] for row in mine], marker,
                      color=colour, label=f"measured: {label}", linestyle="none", markersize=5)  # fmt: skip
    axes.set(xlabel="condition number κ = β/α", ylabel="k / k*", ylim=(0.8, None))
    axes.legend(fontsize=8)
    return figure


def _rounds(rows: list[Row]) -> Any:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, panels = plt.subplots(1, len(problems), figsize=(8, 3.4), sharey=True)
    for axes, problem in zip(np.atleast_1d(panels), problems, strict=True):
        for row, colour in zip([row for row in rows if row["problem"] == problem], _COLOURS, strict=False):
            axes.semilogy(row["curve"], color=colour, label=row["solver"])
        axes.set(xlabel="passes over the samples", title=problem)
    np.atleast_1d(panels)[0].set_ylabel("f above the best found, relative")
    np.atleast_1d(panels)[-1].legend(fontsize=7)
    return figure


def _recovery(rows: list[Row]) -> Any:
    cases = list(dict.fromkeys((row["correlation"], row["entries"]) for row in rows))
    figure, panels = plt.subplots(1, len(cases), figsize=(9, 2.9), sharey=True)
    for axes, (correlation, entries) in zip(np.atleast_1d(panels), cases, strict=True):
        mine = [row for row in rows if (row["correlation"], row["entries"]) == (correlation, entries)]
        for solver, colour in zip(dict.fromkeys(row["solver"] for row in mine), _COLOURS, strict=False):
            line = [row for row in mine if row["solver"] == solver]
            axes.plot([row["samples"] for row in line], [row["recall"] for row in line], "o-", color=colour,
                      label=solver, markersize=3)  # fmt: skip
        axes.set(xlabel="samples", title=f"correlation {correlation:g}, {'±1' if entries == 'signs' else 'normal'}")
        axes.title.set_fontsize(9)
    np.atleast_1d(panels)[0].set_ylabel("share of the support found")
    np.atleast_1d(panels)[0].legend(fontsize=7)
    return figure
