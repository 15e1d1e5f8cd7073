"""Draw the accuracy of an AC/DC run over its phases: python docs/draw_run.py RUN_FOLDER OUT.svg

Reads config.json, metrics.jsonl and result.json of a complete run folder, as `acdc train` writes it.
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREY, SHADE = "#2f5d8a", "#c8641b", "#5b6166", "#fbeee2"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # the same letters in every browser
    "svg.hashsalt": "acdc",  # the same file from the same run
}


def main(run: Path, out: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    config, result = (json.loads((run / name).read_text()) for name in ("config.json", "result.json"))
    with mpl.rc_context(STYLE):
        figure = draw(rows, config, result)
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=100)
    plt.close(figure)


def draw(rows: list[dict[str, Any]], config: dict[str, Any], result: dict[str, Any]) -> Figure:
    acdc = [row for row in rows if row["run"] == "acdc"]
    dense = [row for row in rows if row["run"] == "dense"]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9, 5.2), sharex=True, height_ratios=(3.4, 1), gridspec_kw={"hspace": 0.08}
    )
    for epochs, _ in compressed_phases(acdc):
        for axes in (top, bottom):
            axes.axvspan(epochs[0], epochs[-1] + 1, color=SHADE, linewidth=0, zorder=0)
    draw_accuracy(top, dense, acdc, one_image=1 / config["data"]["test"])
    draw_sparsity(bottom, acdc)
    figure.suptitle(title(result), x=0.02, y=0.985, ha="left", fontsize=13.5, fontweight="bold")
    figure.text(0.02, 0.905, subtitle(config, result), ha="left", color=GREY, fontsize=10)
    figure.align_ylabels()
    figure.subplots_adjust(left=0.085, right=0.98, top=0.87, bottom=0.1)
    return figure


def draw_accuracy(axes: Axes, dense: list[dict[str, Any]], acdc: list[dict[str, Any]], one_image: float) -> None:
    """Over the logarithm of the error, so that the first epochs do not press the last ones flat."""
    for series, colour, name in ((dense, BLUE, "dense baseline"), (acdc, ORANGE, None)):
        axes.plot(middles(series), errors(series, one_image), color=colour, linewidth=1.6, label=name, zorder=2)
    for kind, fill, name in (("sparse", ORANGE, "AC/DC, compressed"), ("dense", "white", "AC/DC, dense")):
        part = [row for row in acdc if row["kind"] == kind]
        style = {"color": ORANGE, "markerfacecolor": fill, "marker": "o", "markersize": 5, "linewidth": 1.6}
        axes.plot(middles(part), errors(part, one_image), **{**style, "linestyle": "none"}, zorder=3)
        axes.plot([], [], **style, label=name)
    axes.set_yscale("log")
    axes.invert_yaxis()
    lowest, highest = axes.get_ylim()
    ticks = [tick for tick in (0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002) if highest <= tick <= lowest]
    axes.set_yticks(ticks, [f"{100 * (1 - tick):g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", color="#e4e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel("test accuracy (%), log of error")
    axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none", facecolor="white")


def draw_sparsity(axes: Axes, acdc: list[dict[str, Any]]) -> None:
    edges = [row["epoch"] for row in acdc] + [acdc[-1]["epoch"] + 1]
    axes.stairs([100 * row["sparsity"] for row in acdc], edges, fill=True, color=ORANGE)
    for epochs, name in compressed_phases(acdc):
        middle, upright = (epochs[0] + epochs[-1] + 1) / 2, len(epochs) * 8 < len(acdc)
        axes.text(
            middle, 45, name, color="white", fontsize=8.5, ha="center", va="center", rotation=90 if upright else 0
        )
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.set_ylabel("sparsity (%)")
    axes.set_xlabel("epoch (points: the model at the end of each; shaded: compressed phases)")
    axes.set_xlim(0, edges[-1])


def compressed_phases(acdc: list[dict[str, Any]]) -> list[tuple[list[int], str]]:
    """The epochs of each compressed phase, and its name."""
    phases = [(key, [row["epoch"] for row in group]) for key, group in groupby(acdc, lambda r: (r["kind"], r["phase"]))]
    return [(epochs, name) for (kind, name), epochs in phases if kind == "sparse"]


def middles(rows: list[dict[str, Any]]) -> list[float]:
    return [row["epoch"] + 0.5 for row in rows]


def errors(rows: list[dict[str, Any]], one_image: float) -> list[float]:
    """1 − accuracy; no error at all, which a logarithm cannot show, as half an image."""
    return [max(1 - row["test_accuracy"], one_image / 2) for row in rows]


def title(result: dict[str, Any]) -> str:
    dense, sparse = (100 * model["test_accuracy"] for model in result["models"][:2])
    return (
        f"{100 * result['models'][1]['sparsity']:.0f} % of the weights pruned: {sparse:.2f} % test accuracy "
        f"(dense baseline {dense:.2f} %)"
    )


def subtitle(config: dict[str, Any], result: dict[str, Any]) -> str:
    (sparse, twin), recipe = result["models"][1:3], config["recipe"]
    epochs, seed = recipe["train"]["epochs"], recipe["run"]["seeds"][0]
    return (
        f"AC/DC on {config['dataset']}, {epochs} epochs, one run (seed {seed}), "
        f"{config['data']['test']} test images; inference FLOPs {sparse['flops_ratio']:.2f}x of dense; "
        f"dense twin {100 * twin['test_accuracy']:.2f} %"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
