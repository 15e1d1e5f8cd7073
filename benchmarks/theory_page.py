"""The tables of docs/theory.md, from results/theory.jsonl, and results/cpl.json beside it, of acdc analyze cpl."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import Row, read


def fill(page: Path, results: Path) -> None:
    """Write the tables of the page anew."""
    from benchmarks.pages import insert

    page.write_text(insert(page.read_text(encoding="utf-8"), blocks(results), page.name), encoding="utf-8")


def blocks(results: Path) -> dict[str, str]:
    """Return each `<!-- results:NAME -->` block of the page."""
    rows = read(results)
    return {name: write(rows) for name, write in TABLES.items()} | {"cpl": _cpl(results.with_name("cpl.json"))}


def newest(rows: Sequence[Row], experiment: str) -> list[Row]:
    """Return the rows of an experiment's newest run that was no trial."""
    mine = [row for row in rows if row["experiment"] == experiment and not row["quick"]]
    last = max((row["run"] for row in mine), default="")
    return [row for row in mine if row["run"] == last]


def _table(header: Sequence[str], body: Sequence[Sequence[str]], rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in body)]
    return "\n".join([*lines, "", f"<sub>{_note(rows)}</sub>"]) + "\n"


def _note(rows: Sequence[Row]) -> str:
    first = rows[0]
    seeds = sorted({row["n"] for row in rows})
    return (
        f"{first['cpu']}, {first['threads']} thread, load {first['load']} before the run; numpy {first['numpy']}, "
        f"scipy {first['scipy']}, scikit-learn {first['scikit-learn']}; n = {', '.join(map(str, seeds))}; acdc at "
        f"{first['commit']}, {first['run'][:10]}."
    )


def _convergence(rows: list[Row]) -> str:
    mine, logistic = newest(rows, "convergence"), newest(rows, "logistic")
    body = [
        [f"least squares, κ = {row['condition']:g}", str(row["k"]), f"{row['k_needed']:.0f}",
         f"{row['measured_rate']:.3f} an iteration", f"{row['bound_rate']:.3f} an iteration"]
        for row in mine
    ]  # fmt: skip
    for row in logistic:
        used, allowed = statistics.mean(row["iterations"]), statistics.mean(row["bound_iterations"])
        body.append([f"logistic, ridge {row['ridge']:g}, β = {row['beta']:.2f}", str(row["k"]),
                     f"{row['k_needed']:.0f}", f"{used:.1f} iterations", f"{allowed:.0f} iterations"])  # fmt: skip
    return _table(["k* = 4", "k", "the theorem needs k above", "measured", "bound"], body, [*mine, *logistic])


def _concentrated(rows: list[Row]) -> str:
    mine = newest(rows, "concentrated")
    body = [
        [f"{row['problem']}, β = {row['beta']:.3g}", str(row["k"]), f"{row['alpha_everywhere']:.3g}",
         f"{row['k_needed_everywhere']:,.0f}", f"{row['alpha_on_path']:.3g}", f"{row['k_needed_on_path']:,.0f}",
         f"{row['features']}", f"{row['measured_rate']:.3f}"]
        for row in mine
    ]  # fmt: skip
    header = ["k* = 4", "k", "α at all k-sparse points", "needs k above", "α on IHT's path", "needs k above",
              "of N", "measured: f − f* an iteration"]  # fmt: skip
    return _table(header, body, mine)


def _noise(rows: list[Row]) -> str:
    mine = newest(rows, "noise")
    body = []
    for row in mine:
        if row["sigma2"] in (1e-4, 1e-2, 1.0):
            body.append([f"{row['alpha']:g}", f"{row['sigma2']:g}", f"{row['floor']:.3g}", f"{row['bound']:.3g}",
                         f"{row['paper']:.3g}", f"{row['bound'] / row['floor']:.1f}x"])  # fmt: skip
    header = ["α", "σ²", "measured E[f − f*]", "our bound", "the paper's 2σ²/α", "bound / measured"]
    return _table(header, body, mine)


def _batches(rows: list[Row]) -> str:
    mine = newest(rows, "batches")
    sizes = sorted({row["batch"] for row in mine})
    at = {(row["step"], row["batch"]): row["f_over_start"] for row in mine}
    body = [[step, *(f"{at[step, size]:.2g}" for size in sizes)] for step in dict.fromkeys(row["step"] for row in mine)]
    return _table(["f after 150 iterations / f at 0", *(f"batch {size}" for size in sizes)], body, mine)


def _typical(rows: list[Row]) -> str:
    mine = newest(rows, "typical")
    ks = sorted({row["k"] for row in mine})
    body = []
    for correlation in sorted({row["correlation"] for row in mine}):
        line = [row for row in mine if row["correlation"] == correlation]
        body.append([f"{correlation:g}", f"{line[0]['condition']:.0f}", f"{line[0]['k_needed']:,.0f}",
                     *(f"{next(row['recall'] for row in line if row['k'] == k):.0%}" for k in ks)])  # fmt: skip
    header = ["correlation", "κ", "the theorem needs k above", *(f"found with k = {k}" for k in ks)]
    return _table(header, body, mine)


def _rounds(rows: list[Row]) -> str:
    mine = newest(rows, "rounds")
    problems = list(dict.fromkeys(row["problem"] for row in mine))
    at = {(row["solver"], row["problem"]): row["end"] for row in mine}
    solvers = list(dict.fromkeys(row["solver"] for row in mine))
    body = [[solver, *(f"{at[solver, problem]:.2g}" for problem in problems)] for solver in solvers]
    passes = mine[0]["passes"] if mine else 0
    return _table([f"f above the best found after {passes} passes, relative", *problems], body, mine)


def _stationary(rows: list[Row]) -> str:
    mine = newest(rows, "stationary")
    body = [
        [str(row["k"]), f"{row['of_bound']:.3f}", f"{row['worst_of_bound']:.3f}", f"{row['of_paper']:.4f}",
         f"{row['iterations']:.1f} of {row['bound_iterations']:.1f}",
         f"{row['of_fixed_point']:.2f} ({row['worst_of_fixed_point']:.2f})"]
        for row in mine
    ]  # fmt: skip
    header = ["k", "least ‖∇f‖∞ of √2(βR + ε), mean", "worst", "of the paper's βR√k + ε",
              "iterations to the bound, of those allowed", "last ‖∇f‖∞ of β·(least kept), mean (worst)"]  # fmt: skip
    return _table(header, body, mine)


def _recovery(rows: list[Row]) -> str:
    mine = newest(rows, "recovery")
    cases = list(dict.fromkeys((row["correlation"], row["entries"]) for row in mine))
    samples = sorted({row["samples"] for row in mine})
    shown = [count for count in samples if count in (80, 130, 240)] or samples
    body = []
    for solver in dict.fromkeys(row["solver"] for row in mine):
        cells, seconds = [], [row["seconds"] for row in mine if row["solver"] == solver]
        for case in cases:
            line = {row["samples"]: row for row in mine
                    if row["solver"] == solver and (row["correlation"], row["entries"]) == case}  # fmt: skip
            cells.append(" / ".join(f"{line[count]['recall']:.0%}" for count in shown))
        body.append([solver, *cells, f"{1e3 * statistics.median(seconds):.1f} ms"])
    names = [f"correlation {c:g}, {'±1' if entries == 'signs' else 'normal'}" for c, entries in cases]
    title = f"support found with {' / '.join(map(str, shown))} samples"
    return _table([title, *names, "median time"], body, mine)


def _held_out(rows: list[Row]) -> str:
    mine = newest(rows, "held out")
    families = list(dict.fromkeys(row["family"] for row in mine))
    body = []
    for solver in dict.fromkeys(row["solver"] for row in mine):
        line = [row for row in mine if row["solver"] == solver]
        body.append([solver, *(" / ".join(f"{row['recall']:.0%}" for row in line if row["family"] == family)
                               for family in families)])  # fmt: skip
    titles = []
    for family in families:
        line = [row for row in mine if row["family"] == family]
        counts = " / ".join(map(str, dict.fromkeys(row["samples"] for row in line)))
        titles.append(f"{family}: N = {line[0]['features']:,}, k = {line[0]['k']}, {counts} samples")
    return _table(["support found", *titles], body, mine)


def _seeds(count: int) -> str:
    return "one seed only" if count == 1 else f"{count} seeds"


def _speed(rows: list[Row]) -> str:
    scale, omp = newest(rows, "scale"), newest(rows, "omp")
    first = _table(
        [f"{scale[0]['features']:,} features x {scale[0]['samples']:,} samples, {scale[0]['entries']:,} entries, "
         f"k = {scale[0]['k']:,}", "its products alone", "an iteration", "iteration / products"],
        [[row["rule"], f"{1e3 * row['products_seconds']:.1f} ms", f"{1e3 * row['iteration_seconds']:.1f} ms",
          f"{row['median']:.2f} ({min(row['ratios']):.2f} – {max(row['ratios']):.2f})"] for row in scale],
        scale,
    ) if scale else ""  # fmt: skip
    names = ("IHT, cycles", "IHT", "OMP")
    second = _table(
        [f"k = {omp[0]['k']:,}, {omp[0]['features']:,} features, {_seeds(omp[0]['n'])}",
         "recall: IHT with cycles, IHT, OMP", "CPU seconds", "OMP / IHT with cycles", "OMP / IHT"],
        [[f"{row['samples']:,} samples, correlation {row['correlation']:g}, "
          f"{'±1' if row['entries'] == 'signs' else 'normal'}",
          ", ".join(f"{statistics.mean(row['recall'][name]):.1%}" for name in names),
          ", ".join(f"{statistics.mean(row['seconds'][name]):.1f}" for name in names),
          *(f"{statistics.median(row['ratios'][name]):.1f}x" for name in names[:2])] for row in omp],
        omp,
    ) if omp else ""  # fmt: skip
    return first + ("\n" if first and second else "") + second


def _cpl(file: Path) -> str:
    if not file.exists():
        return ""
    kept = json.loads(file.read_text(encoding="utf-8"))
    counts = [one["r"] for one in kept["summary"]]
    size = kept["points"][0]["concentration"]["size"]
    header = ["epoch", "phase", "f", "σ²/‖∇f‖²", *(f"share of r = {r / size:.1%}" for r in counts),
              *(f"α, r = {r / size:.1%}" for r in counts)]  # fmt: skip
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for point in kept["points"]:
        if point["step"] is None:
            continue
        found = point["concentration"]
        cells = [f"{point['epoch']:g}", point["phase"], f"{found['value']:.3f}",
                 f"{found['variance'] / found['gradient']:.1f}"]  # fmt: skip
        cells += [f"{point['share'][str(r)]:.0%}" for r in counts]
        cells += [f"{point['alpha'][str(r)]:.3f}" for r in counts]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| over the run | share at least | CPL holds with α | and with none above | β at least "
              "| Theorem 1 needs k above, of " + f"{size:,} |", "|---" * 6 + "|"]  # fmt: skip
    for one in kept["summary"]:
        lines.append(f"| r = {one['r']:,} | {one['least_share']:.1%} | {one['alpha_proved']:.3g} "
                     f"| {one['alpha_at_most']:.3g} | {one['beta']:.3g} | {one['k_needed']:,.0f} |")  # fmt: skip
    where, recipe = kept["hardware"], kept["recipe"]
    gpu = where.get("gpu", where["cpu"])
    lines += ["", f"<sub>{recipe['name']}, {recipe['train']['epochs']} epochs, seed {recipe['run']['seeds'][0]}, "
              f"n = 1; f over {kept['points'][0]['concentration']['samples']:,} images; {gpu}, torch "
              f"{kept['versions']['torch']}.</sub>"]  # fmt: skip
    return "\n".join(lines) + "\n"


TABLES = {
    "convergence": _convergence,
    "concentrated": _concentrated,
    "noise": _noise,
    "batches": _batches,
    "typical": _typical,
    "rounds": _rounds,
    "stationary": _stationary,
    "recovery": _recovery,
    "held-out": _held_out,
    "speed": _speed,
}
