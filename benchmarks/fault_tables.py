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
    """Return the counts of the newest drill, with where and when it was."""
    rows = read(results / "faults.jsonl")
    rows = [row for row in rows if row["run"] == max(row["run"] for row in rows)]
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
    first = rows[0]
    note = (
        f"<sub>{'Every run ended equal' if not lost else f'{lost} faults in runs that did not end equal'}. "
        + (f"Not run: {', '.join(missing)}. " if missing else "")
        + f"`python -m tests.drills --seed {first['seed']}`, {first['cpu']}, {first['cores']} cores, fp32; "
        f"torch {first['torch']}, transformers {first.get('transformers', 'none')}, Python {first['python']}, "
        f"acdc {first['acdc']} at {first['commit'] or 'an unknown commit'}; {first['run'][:10]}; "
        "[raw](../results/faults.jsonl).</sub>"
    )
    return "\n".join([*lines, "", note]) + "\n"


def _cell(rows: list[Row]) -> str:
    count, recovered = (sum(row[key] for row in rows) for key in ("count", "recovered"))
    if not count:
        return "–"
    return str(count) if recovered == count else f"{count} ({recovered} ended equal)"
