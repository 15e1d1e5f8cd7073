"""The table of results/faults.jsonl: how often each fault met each host, and whether its run ended as it had to."""

from pathlib import Path

from benchmarks.record import Row, read

_TITLES = {
    "images": "`acdc train`, images",
    "images, RigL": "the same, RigL",
    "images, SNFS": "the same, SNFS",
    "text": "`acdc train`, text",
    "ddp": "`acdc train`, images, 2 processes",
    "huggingface": "Hugging Face Trainer",
    "fsdp": "FSDP2, 2 processes",
}


def block(results: Path) -> str:
    """Return the counts of each host's newest drill, with where and when it was."""
    rows = read(results / "faults.jsonl")
    newest = {row["host"]: row["run"] for row in sorted(rows, key=lambda row: row["run"])}
    rows = [row for row in rows if row["run"] == newest[row["host"]]]
    if not rows:
        return ""
    hosts = [name for name in _TITLES if any(row["host"] == name for row in rows)]
    kinds = sorted({row["kind"] for row in rows}, key=str.lower)
    lines = [
        "| fault | " + " | ".join(_TITLES[host] for host in hosts) + " | all |",
        "|---" + "|--:" * (len(hosts) + 1) + "|",
    ]
    for kind in kinds:
        cells = [_cell([row for row in rows if (row["host"], row["kind"]) == (host, kind)]) for host in hosts]
        lines.append(f"| {kind} | {' | '.join(cells)} | {_cell([row for row in rows if row['kind'] == kind])} |")
    sums = [_cell([row for row in rows if row["host"] == host]) for host in hosts]
    lines.append(f"| all | {' | '.join(sums)} | **{_cell(rows)}** |")
    runs = {host: next(row["runs"] for row in rows if row["host"] == host) for host in hosts}
    lines.append(f"| runs | {' | '.join(map(str, runs.values()))} | {sum(runs.values())} |")
    lost = sum(row["count"] - row["recovered"] for row in rows)
    missing = [title for name, title in _TITLES.items() if name not in hosts]
    note = (
        f"<sub>{'Every run ended equal' if not lost else f'{lost} faults in runs that did not end equal'}. "
        + (f"Not run: {', '.join(missing)}. " if missing else "")
        + f"`python -m tests.drills --seed {_all(rows, 'seed')}`, {_all(rows, 'cpu')}, {_all(rows, 'cores')} cores, "
        f"fp32; torch {_all(rows, 'torch')}, transformers {_all(rows, 'transformers')}, Python {_all(rows, 'python')}, "
        f"acdc {_all(rows, 'acdc')} at {_all(rows, 'commit')}; {', '.join(sorted({row['run'][:10] for row in rows}))}; "
        "[raw](../results/faults.jsonl).</sub>"
    )
    return "\n".join([*lines, "", note]) + "\n"


def _cell(rows: list[Row]) -> str:
    count, recovered = (sum(row[key] for row in rows) for key in ("count", "recovered"))
    if not count:
        return "–"
    return str(count) if recovered == count else f"{count} ({recovered} ended equal)"


def _all(rows: list[Row], key: str) -> str:
    return ", ".join(sorted({str(row.get(key, "unknown")) for row in rows}))
