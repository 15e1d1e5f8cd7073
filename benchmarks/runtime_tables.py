"""The table of results/runtime.jsonl: engines beside each other on the same files."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import Row, read

INTRO = """
## Running sparse networks on a CPU

`python -m benchmarks.runtime`: ONNX files with random weights, fp32, pruned so that FLOPs are the paper's. Each engine
has a process of its own, which is stopped while another has its turn. "x ONNX Runtime" is the median, with quartiles,
of the ratios within each round, to ONNX Runtime on the same file, which gains nothing from zeros. g90 and g95: 90 and
95 % of all weights by magnitude; u90: 90 % of each layer but the first and last (GPT block: of each); t90: 90 % in
tiles of 4 output channels x 1; wrn28_10: as many weights in each layer as AC/DC kept at 90 and 95 % ([runs](runs)).
acdc-runtime-avx2 is acdc-runtime with the kernels it takes on processors without AVX-512; the other engines still use
AVX-512 beside it. "Load" is the time to open the file, choose kernels and run once; "memory" the most that the engine's
process held, Python included. Where other programs hold the cores, an engine whose threads wait for each other looks
worse than it is.
"""


def runtime_table(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]], str]:
    header = ["network", "FLOPs", "threads", "engine", "ms", "fastest", "x ONNX Runtime", "output differs", "load"]
    header += ["memory", "n"]
    cells = []
    for row in rows:
        share = f"{row['flops']:.3f}" if "flops" in row else ""
        begin = [row["model"], share, str(row["threads"]), row["engine"]]
        if "problem" in row:
            cells.append([*begin, row["problem"], *[""] * 6])
            continue
        ratio = f"{row['ratio']:.2f} ({row['ratio_q1']:.2f}–{row['ratio_q3']:.2f})" if "ratio" in row else ""
        apart = f"{row['difference']:.1e}" if row.get("difference") is not None else ""
        memory = f"{row['peak_bytes'] / 2**20:.0f} MB" if row.get("peak_bytes") else ""
        ends = [f"{row['load_seconds']:.1f} s", memory, str(row["n"])]
        cells.append([*begin, f"{row['ms']:.1f}", f"{row['ms_min']:.1f}", ratio, apart, *ends])
    first = rows[0]
    loads = [row["load"] for row in rows]
    note = (
        f"{first['cpu']}, {first['cores']} cores, 1-minute load {min(loads)} to {max(loads)}; "
        f"onnxruntime {first.get('onnxruntime', 'unknown')}, Python {first['python']}, acdc {first['acdc']} at "
        f"{first['commit'] or 'an unknown commit'}; {first['run'][:10]}."
    )
    return f"Batch {first['batch']} on {first['device_name']}", header, cells, note


def _newest(results: Path) -> dict[tuple[str, int, str], Row]:
    """Return the ratios on all cores of the newest run at each batch size, by model, batch and engine."""
    rows = [row for row in read(results / "runtime.jsonl") if "ratio" in row and row["threads"] == row["cores"]]
    runs = {batch: max(r["run"] for r in rows if r["batch"] == batch) for batch in {r["batch"] for r in rows}}
    return {(r["model"], r["batch"], r["engine"]): r for r in rows if r["run"] == runs[r["batch"]]}


def speed_sentence(results: Path) -> str:
    """Return acdc-runtime's ratios to ONNX Runtime for ResNet50, one image at a time, as a sentence."""
    kinds = {"resnet50-g90": "at 90 % zeros", "resnet50-g95": "at 95 %", "resnet50-t90": "at 90 % in 4 x 1 tiles"}
    newest = _newest(results)
    rows = {words: row for model, words in kinds.items() if (row := newest.get((model, 1, "acdc-runtime")))}
    if not rows:
        return "Not measured yet.\n"
    last = next(iter(rows.values()))
    ratios = ", ".join(f"{row['ratio']:.1f}x {words}" for words, row in rows.items())
    engine, cores = last.get("onnxruntime", ""), f"{last['cores']} cores of an {last['device_name']}"
    return (
        f"On CPUs the sparse model also runs faster, with [acdc-runtime](runtime/README.md): ResNet50 {ratios}.\n"
        f"<sub>Times as fast as ONNX Runtime {engine} on the same file; one image at a time, random weights at the "
        f"paper's FLOPs, fp32, {cores}, n = {last['n']}.</sub>\n"
    )


def speed_block(results: Path) -> str:
    """Return acdc-runtime's ratios to ONNX Runtime on all cores, of the newest run at each batch size."""
    newest = _newest(results)
    if not newest:
        return "Not measured yet.\n"
    last = max(newest.values(), key=lambda row: row["run"])
    engines = [e for e in ("acdc-runtime", "acdc-runtime-avx2") if any(key[2] == e for key in newest)]
    batches = [b for b in (1, 16, 64) if any(key[1] == b for key in newest)]
    names = {"acdc-runtime": "", "acdc-runtime-avx2": ", AVX2 alone"}
    header = ["network", *(f"batch {b}{names[e]}" for e in engines for b in batches)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for model in dict.fromkeys(key[0] for key in newest):
        found = [newest.get((model, b, e)) for e in engines for b in batches]
        cells = ["" if r is None else f"{r['ratio']:.2f} ({r['ratio_q1']:.2f}–{r['ratio_q3']:.2f})" for r in found]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    note = (
        f"<sub>`python -m benchmarks.runtime` on {last['device_name']}, {last['cores']} cores: times faster than ONNX "
        f"Runtime {last.get('onnxruntime', '')} on the same file, medians with quartiles; "
        "[what the names mean, times, memory and other engines]"
        "(../results/README.md#running-sparse-networks-on-a-cpu).</sub>"
    )
    return "\n".join([*lines, "", note, ""])
