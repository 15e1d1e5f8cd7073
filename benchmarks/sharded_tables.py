"""The table of sharded selections, in results/README.md and docs/sharded.md."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import Row, read

Table = tuple[str, list[str], list[list[str]], str]
INTRO = """
## Selecting over shards

`python -m benchmarks.sharded`: the same selection over shards of the weights, which take turns in one process; a
network's time is not in it. "Time / unsharded" is the median of the ratios within n rounds. Memory is that of all
shards together, by the number of weights; the masks are 1 byte of it. "All equal": where every weight is a tie.
"""


def sharded_table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    header = ["weights", "shards", "time, all shards", "time / unsharded", "peak extra memory", "beyond the mask"]
    header += ["all-reduces", "largest", "all equal", "same masks", "n"]
    cells = [
        [
            f"{row['size']:,}",
            str(row["shards"]),
            f"{row['median']:.2f} s" if row["median"] >= 1 else f"{row['median'] * 1e3:.3g} ms",
            f"{row['ratio']:.2f}",
            *(
                "not measured" if row[key] is None else f"{row[key]:.2f} B/weight"
                for key in ("peak_bytes_per_weight", "peak_beyond_mask")
            ),
            str(len(row["all_reduces"])),
            f"{max(row['all_reduces']) / 1024:.0f} KiB",
            f"{len(row['all_reduces_all_equal'])}, {max(row['all_reduces_all_equal']) / 1024:.0f} KiB",
            "yes" if row["same_masks"] else "no",
            str(row["n"]),
        ]
        for row in rows
    ]
    loads = ", ".join(dict.fromkeys(str(row["load"]) for row in rows))
    note = (
        f"{first['device_name']}, {first['cores']} cores, torch threads {first['threads']}, load before the runs "
        f"{loads}; torch {first['torch']}, Python {first['python']}, acdc {first['acdc']} at "
        f"{first['commit'] or 'an unknown commit'}; {first['run'][:10]}."
    )
    return f"Selection over shards on {first['device_name']}", header, cells, note


def newest(results: Path) -> list[list[Row]]:
    """Return the newest row of each size and number of shards, by device."""
    devices: dict[tuple[str, str], dict[tuple[int, int], Row]] = {}
    for row in sorted(read(results / "sharded.jsonl"), key=lambda row: row["run"]):
        devices.setdefault((row["device"], row["device_name"]), {})[row["size"], row["shards"]] = row
    return [[rows[key] for key in sorted(rows)] for _, rows in sorted(devices.items())]


def block(results: Path) -> str:
    """Return the tables for docs/sharded.md."""
    text = ""
    for rows in newest(results):
        _, header, cells, note = sharded_table(rows)
        lines = [header, ["--:"] * len(header), *cells]
        text += "\n".join(f"| {' | '.join(line)} |" for line in lines)
        text += f"\n\n<sub>`python -m benchmarks.sharded`; {note} [raw](../results/sharded.jsonl).</sub>\n"
    return text
