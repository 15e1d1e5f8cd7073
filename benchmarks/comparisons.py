"""Comparisons of methods kept under results/comparisons, and their tables.

python -m benchmarks.comparisons DIR NAME                        keep a folder of `acdc compare-methods` under a name
python -m benchmarks.comparisons frontier --support acdc-95      what the support of kept runs does, mean over seeds

What is kept: result.json, the figures behind the tables; frontier.svg; and runs.tar.xz with every complete run's
settings, metrics, phases, result and log, which `acdc report` reads once unpacked.
"""

import argparse
import contextlib
import json
import os
import statistics
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acdc import methods
from acdc.io import write_json
from acdc.report import write
from acdc.report.groups import group_runs
from acdc.report.read import ReportError, comparison_runs, read_runs
from acdc.report.standings import Standing, as_json, standings_of
from acdc.runs import records
from acdc.runs.folder import ComparisonFolder
from acdc.runs.json_files import require
from acdc.runs.quality import quality_of
from benchmarks import keeping
from benchmarks.console import print_table, run, say
from benchmarks.record import RESULTS

Comparison = dict[str, Any]
_FORMS = {"held_out": "held-out images", "recalibrated": "BN recalibrated", "averaged": "weights averaged"}
Table = tuple[str, list[str], list[list[str]], str]


def keep(
    source: Path,
    name: str,
    results: Path = RESULTS,
    commit: str | None = None,
    note: str | None = None,
    *,
    figure: bool = True,
) -> Path:
    """Keep a comparison under results/; one that has grown may be kept again, but one that lacks a kept run is refused.

    What is kept holds no predictions: if it was unpacked to grow, the agreement of its old runs is carried over.
    """
    target = results / "comparisons" / name
    folders, before = check_keeping(source, target)
    target.mkdir(parents=True, exist_ok=True)
    comparison = require(records.Comparison, ComparisonFolder(source).file)
    contents = {
        "recipe": comparison.recipe,
        "epochs": comparison.epochs,
        "commands": list(comparison.commands),
        **keeping.where(folders, commit),
        "note": note or before.get("note"),
        "runs": sorted(folder.name for folder in folders),
        "missing": sorted(set(comparison.runs) - {folder.name for folder in folders}),
        "methods": [
            {"name": row.group.name, **_agreement(before, row.group.name, told), **told, **_other_forms(row)}
            for row, told in _told(folders)
        ],
    }
    if figure:
        with contextlib.suppress(ReportError):  # one method alone has no frontier
            write.make([source], target / "frontier.svg", "svg", "frontier")
    file = ComparisonFolder(source).file
    told = {file.name: file.read_bytes()}
    keeping.pack(target / keeping.ARCHIVE, {folder.name: folder for folder in sorted(folders)}, told)
    write_json(target / "result.json", contents)
    return target


def check_keeping(source: Path, target: Path) -> tuple[list[Path], Comparison]:
    """Return the complete runs of a comparison and what was kept of it before, or raise if it cannot be kept here."""
    folders = [folder for folder in comparison_runs(source) if (folder / "result.json").is_file()]
    if not folders:
        raise FileNotFoundError(f"{source} holds no complete run of a comparison")
    before: Comparison = {"runs": [], "methods": []}
    if (target / "result.json").is_file():
        before = json.loads((target / "result.json").read_text(encoding="utf-8"))
        if gone := sorted(set(before["runs"]) - {folder.name for folder in folders}):
            raise FileExistsError(f"{target} holds {gone[0]}, which {source} does not; keep this one by another name")
    return folders, before


def _told(folders: Sequence[Path]) -> Iterator[tuple[Standing, dict[str, Any]]]:
    standings = standings_of(group_runs(read_runs(folders)))
    return zip(standings, as_json(standings), strict=True)


def _agreement(before: Comparison, name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the agreement that was kept before for the same runs."""
    same = [
        one
        for one in before["methods"]
        if (one["name"], one["asked"], one["values"]) == (name, told["asked"], told["values"])
    ]
    return {key: value for one in same for key, value in one.items() if key.startswith("agreement")}


def _other_forms(row: Standing) -> dict[str, list[float]]:
    """Return the sparse model's accuracy with recomputed batch-norm statistics, of its averaged weights, and on
    held-out training images.
    """
    forms: dict[str, list[float]] = {}
    for one in row.group.runs:
        if one.rows and (held_out := one.rows[-1].validation_accuracy) is not None:
            forms.setdefault("held_out", []).append(held_out)
        models = one.result.models if one.result else ()
        by_file = {Path(model.file).stem: quality_of(model).of(model) for model in models}
        main = next(iter(by_file), "")
        for key, ending in (("recalibrated", "recalibrated"), ("averaged", "ema")):
            if (file := f"{main}-{ending}") in by_file:
                forms.setdefault(key, []).append(by_file[file])
    return forms


def read_all(results: Path = RESULTS) -> dict[str, Comparison]:
    files = sorted((results / "comparisons").glob("*/result.json"))
    return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def comparison_table(name: str, kept: Comparison) -> Table:
    forms = [form for form in _FORMS if any(form in one for one in kept["methods"])]
    header = ["method", "zeros", "test accuracy, %", *(_FORMS[form] for form in forms), "inference", "training"]
    header += ["agrees with its twin", "with the dense run", "seeds"]
    body = [
        [
            one["name"],
            f"{one['sparsity']:.2%}",
            percent(one["values"]),
            *(percent(one.get(form, [])) for form in forms),
            f"{one['inference']:.2f}x",
            f"{one['training']:.2f}x",
            _share(one, "agreement_with_twin"),
            _share(one, "agreement_with_dense"),
            str(len(one["values"])),
        ]
        for one in kept["methods"]
    ]
    return f"{name}: {kept['recipe']}, {kept['epochs']} epochs", header, body, note(kept)


def figure(name: str, results: Path, page: Path) -> str:
    """Return the kept figure of a comparison as Markdown for a page; "" if it has none."""
    path = results / "comparisons" / name / "frontier.svg"
    if not path.is_file():
        return ""
    alt = "Test accuracy against training FLOPs, a mark for each method"
    return f"![{alt}]({os.path.relpath(path, page.parent)})\n"


def note(kept: Comparison) -> str:
    """Return where and with what a comparison was measured, and what is still missing."""
    left = f" Not trained yet: {describe_missing(kept)}." if kept["missing"] else ""
    what = "Last epoch, mean ± std over seeds; costs as fractions of dense."
    also = f" {kept['note']}" if kept.get("note") else ""
    return f"{keeping.place(kept)} {what}{also}{left}"


def describe_missing(kept: Comparison) -> str:
    """Describe the missing runs, with methods by their titles: "at 90 % GMP, RigL (seed 2); STR-4e-4"."""
    seeds: dict[str, list[str]] = {}
    for name in kept["missing"]:
        group, _, seed = name.rpartition("-seed")
        seeds.setdefault(group, []).append(seed)
    trained = {(one["name"], one["asked"]) for one in kept["methods"]}
    by_share: dict[str, list[str]] = {}
    for group, missing in seeds.items():
        name, _, share = group.rpartition("-")
        title, asked = methods.find(name).title() if name in methods.names() else name, _fraction(share)
        if name not in methods.names() and (name, asked) not in trained:  # no sparsity was asked for, or a variant
            title, asked, share = group, None, ""
        some = f" (seed {' and '.join(missing)})" if (title, asked) in trained else ""
        by_share.setdefault(f"at {share} % " if share else "", []).append(title + some)
    return "; ".join(f"{share}{', '.join(titles)}" for share, titles in by_share.items())


def _fraction(percent: str) -> float | None:
    return float(percent) / 100 if percent.replace(".", "", 1).isdigit() else None


def percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def _share(one: dict[str, Any], key: str) -> str:
    if key not in one:
        return "–"
    spread = one[f"{key}_std"]
    return f"{one[key]:.1%}" if spread is None else f"{100 * one[key]:.1f} ± {100 * spread:.1f} %"


def support(name: str, group: str, results: Path = RESULTS) -> Table:
    """Tabulate, by phase, weights still 0 in dense phases, changes of masks, and the share of weights ever kept."""
    ends: list[list[dict[str, Any]]] = []
    with tarfile.open(results / "comparisons" / name / keeping.ARCHIVE) as archive:
        for entry in archive.getnames():
            if entry.startswith(f"{group}-seed") and entry.endswith("/phases.jsonl"):
                content = archive.extractfile(entry)
                assert content is not None, "a file, as its name says"
                ends.append([json.loads(line) for line in content.read().splitlines()])
    if not ends:
        raise FileNotFoundError(f"{name} has no run {group}-seed…")
    body = [
        [
            str(phase[0]["epoch"] + 1),
            phase[0]["phase"],
            _mean(phase, "inactive", "{:.1%}"),
            _mean(phase, "mask_change", "{:.2f} %"),
            _mean(phase, "explored", "{:.1%}"),
        ]
        for phase in zip(*ends, strict=True)
    ]
    header = ["after epoch", "phase", "still 0", "masks changed by", "ever kept"]
    return f"{group}: what the support does", header, body, f"means over {len(ends)} seeds"


def _mean(ends: Sequence[dict[str, Any]], key: str, form: str) -> str:
    values = [end[key] for end in ends if end[key] is not None]
    return form.format(statistics.fmean(values)) if values else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.comparisons", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="written by acdc compare-methods")
    parser.add_argument("name", help="what it is called under results/comparisons")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="commit of the code that ran")
    parser.add_argument("--note", help="what a reader of the table should know, such as runs that ended elsewhere")
    parser.add_argument("--support", metavar="RUNS", help="show this method's support in a kept comparison")
    options = parser.parse_args(arguments)
    if options.support:
        print_table(*support(options.name, options.support, options.results))
    elif options.folder:
        say(f"kept: {keep(options.folder, options.name, options.results, options.commit, options.note)}")
    else:
        parser.error("type the folder to keep before the name, or --support")
    return 0


if __name__ == "__main__":
    run(main)
