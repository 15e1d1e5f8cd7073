"""What becomes of training samples with a random label: memorised, or put in their true class all the same.

    memorised   share predicted as the random label they were given
    true        share predicted as their true class
    other       the rest

The paper (§4, ResNet20 on CIFAR-10 with 1,000 random labels) finds that dense phases memorise and that compressed
phases, at 90 % and more, return most of the samples to their true class. Its four panels: read_curves, draw_panels.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from acdc.data.images import ImageData, Images, InMemory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KEYS = ("memorised", "true", "other")
_BATCH = 1000


class Memorization:
    """Looks at the corrupted samples of `data`, as they are and, where training augments, in views as it sees them.

    `crop`, `flip` and `seed` are those of training. Random labels that happen to be the true one are left out.
    """

    def __init__(
        self, data: ImageData, *, crop: int = 0, flip: bool = False, seed: int = 0, channels_last: bool = False
    ) -> None:
        if not data.corrupted:
            raise ValueError(
                f"{data.name} has no random labels, so there is nothing to memorise: set data.corrupt, or call "
                "acdc.data.labels.corrupt first"
            )
        wrong = data.corrupted["given"] != data.corrupted["true"]
        index, given, true = (data.corrupted[key][wrong] for key in ("index", "given", "true"))
        self.samples = len(index)
        if not self.samples:
            raise ValueError(f"{data.name}: every random label is the true one; corrupt more, or kind='always-wrong'")
        device = data.train.pixels.device
        self._given, self._true = given.to(device), true.to(device)
        pixels = data.train.pixels[index.to(device)]
        places = Images(pixels, torch.arange(self.samples, device=device))  # the labels say which sample it is
        shared: dict[str, Any] = {"batch_size": _BATCH, "seed": seed, "channels_last": channels_last}
        self._views = {"": InMemory(places, data, **shared)}
        if crop or flip:
            self._views["_augmented"] = InMemory(places, data, train=True, crop=crop, flip=flip, **shared)

    @torch.no_grad()
    def measure(
        self, model: nn.Module, *, epoch: int = 0, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> dict[str, float]:
        """Shares in evaluation mode: memorised, true, other; and the same with _augmented behind, where that differs.

        `epoch` decides the augmented views, `autocast` the precision. The device is asked once.
        """
        training = {module: module.training for module in model.modules()}
        model.eval()
        counts: list[Tensor] = []
        for views in self._views.values():
            for images, places in views.batches(epoch):
                with autocast():
                    said = model(images).argmax(1)
                counts += [(said == self._given[places]).sum(), (said == self._true[places]).sum()]
        for module, mode in training.items():
            module.training = mode
        found = torch.stack(counts).view(len(self._views), -1, 2).sum(1).tolist()
        return {
            f"{key}{suffix}": count / self.samples
            for suffix, (memorised, true) in zip(self._views, found, strict=True)
            for key, count in zip(_KEYS, (memorised, true, self.samples - memorised - true), strict=True)
        }


# The paper's four panels


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a panel: shares after each epoch, on the images as they are."""

    sparsity: float  # 0 is the dense baseline
    augmented: bool  # in training
    kinds: tuple[str, ...]  # of the epochs: "dense" or "sparse"
    memorised: tuple[float, ...]
    true: tuple[float, ...]
    seeds: int = 1

    @property
    def name(self) -> str:
        return f"{100 * self.sparsity:g} % sparse" if self.sparsity else "dense"


def read_curves(runs: Iterable[Path]) -> list[Curve]:
    """Of run folders with a memorization in their metrics.jsonl: dense first, then by sparsity; seeds are averaged."""
    found: dict[tuple[bool, float], dict[int, list[dict[str, Any]]]] = {}  # a baseline may stand in several runs
    for run in runs:
        recipe = json.loads((run / "config.json").read_text(encoding="utf-8"))["recipe"]
        rows = [row for row in _rows(run / "metrics.jsonl") if row.get("memorization")]
        if not rows:
            raise ValueError(f"{run}: its metrics.jsonl says nothing of memorization; set data.corrupt when training")
        augmented = bool(recipe["data"]["crop"] or recipe["data"]["flip"])
        for stage, part in groupby(rows, lambda row: row["run"]):
            if stage != "finetune":
                sparsity = 0.0 if stage == "dense" else recipe["method"]["sparsity"]
                found.setdefault((augmented, sparsity), {})[recipe["run"]["seeds"][0]] = list(part)
    return [_mean(*key, list(found[key].values())) for key in sorted(found)]


def _rows(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: a crash may have cut the last one short."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _mean(augmented: bool, sparsity: float, seeds: Sequence[Sequence[Mapping[str, Any]]]) -> Curve:
    """As far as all of them go."""
    epochs = list(zip(*seeds, strict=False))
    memorised, true = (
        tuple(statistics.mean(row["memorization"][key] for row in rows) for rows in epochs)
        for key in ("memorised", "true")
    )
    kinds = tuple(rows[0]["kind"] for rows in epochs)
    return Curve(sparsity=sparsity, augmented=augmented, kinds=kinds, memorised=memorised, true=true, seeds=len(seeds))


def draw_panels(curves: Sequence[Curve], out: Path) -> None:
    """Without augmentation on the left and with it on the right; true class above, random label below; an SVG."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("drawing needs matplotlib; type: pip install 'acdc-torch[plot]'") from None
    if not curves:
        raise ValueError("no curves to draw: read_curves gives those of run folders")
    sides = sorted({curve.augmented for curve in curves})
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4 * len(sides), 7.6), layout="constrained", facecolor="white")
        panels = figure.subplots(2, len(sides), sharex=True, sharey=True, squeeze=False)
        for column, augmented in enumerate(sides):
            here = [curve for curve in curves if curve.augmented == augmented]
            for axes, key in zip(panels[:, column], ("true", "memorised"), strict=True):
                _panel(axes, here, key)
            panels[1, column].set_xlabel("epoch (shaded: compressed phases)")
        panels[0, 0].set_ylabel("put in their true class (% of samples)")
        panels[1, 0].set_ylabel("memorised (% of samples)")
        handles, names = panels[0, 0].get_legend_handles_labels()
        several = max(curve.seeds for curve in curves)
        title = f"mean of up to {several} seeds" if several > 1 else None
        figure.legend(handles, names, title=title, loc="outside lower center", ncols=len(names), frameon=False)
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


_INK, _SHADE, _DENSE = "#3f464c", "#f3ece2", "#2f5d8a"
_SPARSE = ("#f0b27f", "#de8a45", "#b85a14", "#7a3606")  # darker is sparser
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # the same letters in every browser
    "svg.hashsalt": "acdc",  # the same file from the same runs
}


def _panel(axes: "Axes", curves: Sequence[Curve], key: str) -> None:
    phased = next((curve for curve in curves if "sparse" in curve.kinds), curves[0])
    start = 0
    for kind, epochs in groupby(phased.kinds):
        length = len(list(epochs))
        if kind == "sparse":
            axes.axvspan(start, start + length, color=_SHADE, linewidth=0, zorder=0)
        start += length
    sparse = [curve for curve in curves if curve.sparsity]
    for curve in curves:
        place = sparse.index(curve) * (len(_SPARSE) - 1) // max(1, len(sparse) - 1) if curve.sparsity else 0
        colour = _SPARSE[place] if curve.sparsity else _DENSE
        shares = [100 * share for share in getattr(curve, key)]
        axes.plot([epoch + 1 for epoch in range(len(shares))], shares, color=colour, linewidth=1.5, label=curve.name)
    axes.set_xlim(0, max(len(curve.kinds) for curve in curves))
    axes.set_ylim(0, 100)
    axes.grid(axis="y", color="#e4e6e8", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(_finding(curves, key), loc="left", fontsize=10, fontweight="bold", color=_INK)


def _finding(curves: Sequence[Curve], key: str) -> str:
    """What the last epoch shows of the sparsest, beside the dense baseline and its own last dense phase."""
    verb = "in their true class" if key == "true" else "memorised"
    first, last = curves[0], curves[-1]
    where = f"at {100 * last.sparsity:g} % sparsity" if last.sparsity else "when dense"
    said = f"{'With' if first.augmented else 'Without'} augmentation: {_percent(last, key, -1)} {verb} {where}"
    beside = []
    if last.sparsity and not first.sparsity:
        beside.append(f"dense baseline {_percent(first, key, -1)}")
    if last.sparsity and "dense" in last.kinds:
        dense = max(epoch for epoch, kind in enumerate(last.kinds) if kind == "dense")
        beside.append(f"last dense phase {_percent(last, key, dense)}")
    return "\n".join(filter(None, (said, ", ".join(beside))))


def _percent(curve: Curve, key: str, epoch: int) -> str:
    return f"{100 * getattr(curve, key)[epoch]:.0f} %"
