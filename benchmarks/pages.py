"""The measurements that both README.md and the pages of docs/ show, between markers, from results/."""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acdc.formatting import si
from benchmarks import broad, budgets, comparisons, fault_tables, runs, scale, sharded_tables, theory_page
from benchmarks.hosts import host_table
from benchmarks.record import Row, read
from benchmarks.runtime_tables import speed_block, speed_sentence

_MODELS = {"resnet20": "ResNet20", "mobilenet_v1": "MobileNetV1", "resnet50": "ResNet50", "wrn28_10": "WRN-28-10"}
_SHOWN = 0.9  # the sparsity of the README's rows
Newest = dict[tuple[str, str], list[Row]]


def filled(root: Path, results: Path) -> dict[Path, str]:
    """Return the READMEs and the pages of docs/ with each `<!-- results:NAME -->` block regenerated."""
    docs = root / "docs"
    blocks = {
        root / "README.md": {"runs": _runs(results), "speed": speed_sentence(results)},
        docs / "wrn.md": {"runs": _all_runs(results)},
        docs / "methods-compared.md": {
            "frontier": _frontier(results, docs),
            "digits": _digits(results),
            "broad": broad.block(read(results / "broad.jsonl")),
            "budgets": budgets.blocks(results, docs / "methods-compared.md"),
        },
        docs / "costs.md": {"overhead": _overhead(results), "select": _select(results)},
        docs / "export.md": {"sizes": _sizes(results)},
        docs / "integrations.md": {"hosts": _hosts(results)},
        docs / "sharded.md": {"sharded": sharded_tables.block(results)},
        docs / "scale.md": {"scale": scale.block(results)},
        root / "runtime" / "README.md": {"speed": speed_block(results)},
        docs / "faults.md": {"faults": fault_tables.block(results)},
        docs / "theory.md": theory_page.blocks(results / "theory.jsonl"),
    }
    return {page: insert(page.read_text(encoding="utf-8"), of_page, page.name) for page, of_page in blocks.items()}


def insert(text: str, blocks: Mapping[str, str], page: str) -> str:
    """Return the page with these blocks in place of what is between their markers."""
    for name, block in blocks.items():
        pattern = rf"(<!-- results:{name} -->\n).*?(<!-- /results:{name} -->)"
        text, count = re.subn(pattern, lambda match, block=block: match[1] + block + match[2], text, flags=re.S)
        if count != 1:
            raise ValueError(f"{page} has {count} blocks <!-- results:{name} --> … <!-- /results:{name} -->; needs one")
    return text


def _newest(rows: Sequence[Row], key: str) -> Newest:
    runs: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if not row.get("quick"):
            runs.setdefault((str(row[key]), row["device"]), {}).setdefault(row["run"], []).append(row)
    return {configuration: by_run[max(by_run)] for configuration, by_run in runs.items()}


def _runs(results: Path) -> str:
    """Return one row for each setting at the README's sparsity that was run in full, and for dense training."""
    kept = [one for one in runs.read_all(results) if one["recipe"].method.sparsity in (_SHOWN, None)]
    lines = [
        "| test accuracy of the last epoch, top-1 | as trained, % | recalibrated, % | zeros "
        "| FLOPs, inference | FLOPs, training |",
        "|---|---|---|---|---|---|",
    ]
    for group in _dense_last(kept):
        main = runs.main_model(group)
        name, zeros, inference, training = _described(group)
        trained, anew = runs.percent(runs.of(group, main)), runs.accuracy(group, f"{main}-recalibrated")
        lines.append(f"| {name} | {trained} | {anew} | {zeros} | {inference} | {training} |")
    note = (
        f"<sub>{_hardware(kept)}; recalibrated: batch norm's statistics recomputed over the training set, as "
        "`acdc.recalibrate` does; theoretical FLOPs, relative to dense. "
        "[95 %, and all figures beside the paper's](docs/wrn.md).</sub>"
    )
    return "\n".join([*lines, "", note]) + "\n" if kept else ""


def _all_runs(results: Path) -> str:
    """Return the same rows with every way to read an accuracy, and the paper's."""
    kept = runs.read_all(results)
    lines = [
        "| top-1 accuracy, % | last epoch | BN recalibrated† | best epoch* | the paper* | zeros "
        "| FLOPs: inference, training |",
        "|---|---|---|---|---|---|---|",
    ]
    for group in _dense_last(kept):
        main = runs.main_model(group)
        name, zeros, inference, training = _described(group)
        lines.append(
            f"| {name} | {runs.percent(runs.of(group, main))} | {runs.accuracy(group, f'{main}-recalibrated')} "
            f"| {runs.percent(runs.best(group, main))} | {runs.published(group)[1]} | {zeros} "
            f"| {inference}, {training} |"
        )
    note = (
        f"<sub>{_hardware(kept)}. † the last epoch's weights, batch norm's statistics recomputed over the training set "
        f"([why](#what-closes-the-gap-to-the-paper)). * {runs.CHOSEN}.</sub>"
    )
    return "\n".join([*lines, "", note]) + "\n" if kept else ""


def _dense_last(kept: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return sorted(runs.grouped(kept), key=lambda group: runs.main_model(group) == "baseline")


def _described(group: Sequence[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Return the name of these seeds' setting, its zeros, and its FLOPs in inference and training."""
    first = group[0]
    model = first["models"][runs.main_model(group)]
    training = statistics.mean(one["training"] for one in group)
    about, method = first["recipe"].about.partition(":")[0], first["recipe"].method
    named = f"the paper's phases ({method.schedule})" if method.schedule else "the phases that acdc chooses"
    if not method.schedule and first["recipe"].model.options.get("dropout"):
        named += f", dropout {'lowered' if first['lowers_dropout'] else 'kept'}"
    phases = f", {named}" if method.name == "acdc" else ""
    return (
        f"{about}{phases}, {runs.seeds(group)}",
        f"{model['sparsity']:.0%}",
        f"{model['flops_ratio']:.2f}x",
        f"{training:.2f}x",
    )


def _hardware(kept: Sequence[dict[str, Any]]) -> str:
    gpus = ", ".join(sorted({one["hardware"].get("gpu") or one["hardware"]["cpu"] for one in kept}))
    torches = ", ".join(sorted({one["versions"]["torch"] for one in kept}))
    return f"{gpus}, torch {torches}, bf16"


def _frontier(results: Path, folder: Path) -> str:
    """Return a row for each method, a column for each requested sparsity; dense training comes last."""
    kept = comparisons.read_all(results).get("frontier")
    if kept is None:
        return ""
    asked = sorted({one["asked"] for one in kept["methods"] if one["asked"] is not None})
    names = list(dict.fromkeys(one["name"] for one in kept["methods"]))
    lines = [
        "| test accuracy, % (training FLOPs) | " + " | ".join(f"{share:.0%} zeros" for share in asked) + " |",
        "|---" * (1 + len(asked)) + "|",
    ]
    most = max(len(one["values"]) for one in kept["methods"])
    for name in names:
        by_share = {one["asked"]: one for one in kept["methods"] if one["name"] == name}
        cells = [_frontier_cell(by_share[share], most) if share in by_share else "–" for share in asked]
        if None in by_share:  # dense training, or zeros as training found them: the column they come nearest to
            one = by_share[None]
            found = "none" if not one["sparsity"] else f"{one['sparsity']:.1%}"
            nearest = min(range(len(asked)), key=lambda index: abs(asked[index] - one["sparsity"]))
            cells[nearest] = f"{_frontier_cell(one, most)}, zeros: {found}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", comparisons.figure("frontier", results, folder / "methods-compared.md")]
    lines.append(f"<sub>{kept['recipe']}, {kept['epochs']} epochs. {comparisons.note(kept)}</sub>")
    return "\n".join(lines) + "\n"


def _frontier_cell(one: dict[str, Any], most: int) -> str:
    n = len(one["values"])
    fewer = f", {n} seed{'s' if n > 1 else ''}" if n < most else ""
    return f"{comparisons.percent(one['values'])} ({one['training']:.2f}x{fewer})"


def _digits(results: Path) -> str:
    rows = next(iter(_newest(read(results / "digits.jsonl"), "dataset").values()), None)
    if not rows:
        return ""

    def of(model: str, key: str = "test_accuracy") -> list[float]:
        return [row[key] for row in rows if row["model"] == model]

    def accuracy(model: str) -> str:
        values = of(model)
        return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values):.2f} %"

    seeds, first = len({row["seed"] for row in rows}), rows[0]
    sparsity = statistics.mean(of("AC/DC, sparse", "sparsity"))
    return (
        "| digits, small ResNet | dense baseline | AC/DC, sparse | AC/DC, dense twin | zeros | FLOPs |\n"
        "|---|---|---|---|---|---|\n"
        f"| test accuracy, {seeds} seeds | {accuracy('dense baseline')} | {accuracy('AC/DC, sparse')} "
        f"| {accuracy('AC/DC, dense twin')} | {sparsity:.0%} "
        f"| {statistics.mean(of('AC/DC, sparse', 'flops_ratio')):.2f}x |\n\n"
        f"<sub>{first['cpu']}, torch {first['torch']}, {epochs_of(first)} epochs; one test image is 0.25 %. "
        "Theoretical FLOPs of the sparse model.</sub>\n"
    )


def epochs_of(row: Row) -> int:
    recipe = row["recipe"]
    return recipe["train"]["epochs"] if "train" in recipe else recipe["epochs"]  # as the first version wrote it


def _overhead(results: Path) -> str:
    newest = _newest(read(results / "overhead.jsonl"), "net")
    if not newest:
        return ""
    lines = [
        "| a training step against plain dense training | dense phase | compressed phase | `torch.nn.utils.prune` |",
        "|---|---|---|---|",
    ]
    for (net, _), rows in sorted(newest.items(), key=lambda item: (item[0][1], item[0][0])):
        ratio = {row["method"]: f"{row['median']:.3f}" for row in rows}
        first = rows[0]
        lines.append(
            f"| {net} ({first['parameters'] / 1e6:.1f}M), {first['device_name']}, {first['precision']}, "
            f"{first['batch']}, n = {first['n']} | {ratio['acdc, dense phase']} | {ratio['acdc, compressed phase']} "
            f"| {ratio['torch prune']} |"
        )
    return "\n".join(lines) + "\n"


def _select(results: Path) -> str:
    newest = _newest(read(results / "select.jsonl"), "size")
    if not newest:
        return ""
    lines = [
        "| exact top-10 % masks | ours | numpy.partition | torch.kthvalue | torch.topk | `global_unstructured` |",
        "|---|---|---|---|---|---|",
    ]
    order = ("acdc top_k", "numpy.partition", "torch.kthvalue", "torch.topk", "prune.global_unstructured")
    for (size, device), rows in sorted(newest.items(), key=lambda item: (item[0][1], int(item[0][0]))):
        by_name = {row["method"]: row for row in rows}
        cells = [_cell(by_name.get(name)) for name in order]
        lines.append(f"| {int(size) / 1e6:,.0f}M weights, {rows[0]['device_name'] if device == 'cuda' else 'CPU'} | "
                     + " | ".join(cells) + " |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _sizes(results: Path) -> str:
    """Return the newest size of each model's file, plain and packed, smallest model first."""
    newest = _newest(read(results / "sizes.jsonl"), "model")
    if not newest:
        return ""
    lines = ["| fp32, unstructured | zeros | plain | packed | packed / plain |", "|---|--:|--:|--:|--:|"]
    rows = sorted((row for run in newest.values() for row in run), key=lambda row: (row["plain"], row["sparsity"]))
    for row in rows:
        lines.append(
            f"| {_MODELS.get(row['model'], row['model'])} | {row['sparsity']:.0%} | {si(row['plain'], 'B')} "
            f"| {si(row['packed'], 'B')} | {row['packed'] / row['plain']:.3f} |"
        )
    seeds, torches = (", ".join(sorted({str(row[key]) for row in rows})) for key in ("seed", "torch"))
    note = (
        "<sub>`python -m benchmarks.sizes`: bytes of files, which do not depend on the machine; weights of seed "
        f"{seeds}, pruned by magnitude in each layer alike; n = 1; torch {torches}; "
        "[raw](../results/sizes.jsonl).</sub>"
    )
    return "\n".join([*lines, "", note]) + "\n"


def _hosts(results: Path) -> str:
    """Return the newest step of each trainer, with and without acdc."""
    rows = [row for run in _newest(read(results / "hosts.jsonl"), "host").values() for row in run]
    if not rows:
        return ""
    title, header, cells, note = host_table(rows)
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)]
    return "\n".join([*lines, "", f"<sub>{title}. {note} [Raw](../results/hosts.jsonl).</sub>"]) + "\n"


def _cell(row: Row | None) -> str:
    if row is None or "median" not in row:
        return "–"
    seconds = row["median"]
    time = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
    return f"{time}, {row['peak_beyond_mask']:.1f} B" if row.get("peak_beyond_mask") is not None else time
