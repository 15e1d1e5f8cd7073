"""The tables of results/language.jsonl: steps of Transformer-XL, and the selection of its weights."""

from collections.abc import Sequence

from benchmarks.record import Row

INTRO = """
## Transformer-XL at full size

`python -m benchmarks.language --only throughput`: training steps on words drawn by Zipf's law, with forward, backward,
clipping, LAMB and the memory of the segment before. Copies of the model take turns; ratios are medians within rounds.
"Reference" computes relative attention score by score, as in Dai et al.'s appendix B; "fused" gives torch's kernel the
term of the positions as a bias. "Batches of a text" are read from its tokens as in training, "the same batch" is
there already. Memory is what a step takes beside weights and optimizer state.
"""


def language_table(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]], str]:
    first = rows[0]
    size = f"{first['model']}: {first['parameters'] / 1e6:.1f} M parameters"
    where = f"on {first['device_name']}"
    host = f"host {first['cpu']}, {first['cores']} cores, torch threads {first['threads']}, load {first['load']}"
    made = f"torch {first['torch']}, Python {first['python']}, acdc {first['acdc']}"
    note = f"{host}; {made} at {first['commit'] or 'an unknown commit'}; {first['run'][:10]}."
    if first["part"] == "selection":
        cells = [
            [row["variant"], f"{row['weights']:,}", f"{1000 * row['median']:.1f} ms", str(row["n"])] for row in rows
        ]
        title = f"{size}, selection of {1 - first['sparsity']:.0%} by global magnitude, {where}"
        return title, ["weights", "number", "time", "n"], cells, note
    header = ["step", "time", "tokens/s", f"time / {first['base']}", "memory", "n"]
    cells = [
        [
            row["variant"],
            f"{1000 * row['median']:.1f} ms",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['ratio']:.3f}",
            "not measured" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f} GiB",
            str(row["n"]),
        ]
        for row in rows
    ]
    lengths = f"segments of {first['target_length']} with {first['memory_length']} of memory"
    title = f"{size}, {first['part']}: batches of {first['batch']} {lengths}, {first['precision']}, {where}"
    return title, header, cells, f"Each of the n timings is of {first['steps_per_timing']} steps; {note}"
