"""Feeds damaged models to a build of acdc-runtime with AddressSanitizer and UndefinedBehaviorSanitizer.

    python runtime/fuzz.py --build                 # once: compiles the checked core into runtime/build/fuzz
    python runtime/fuzz.py --inputs 100000         # prints counts; exit code 1 if anything but a refusal went wrong

Seeds are the random graphs of the tests. Each is changed in its bytes, or in its fields: sizes, attributes, names,
operators, element types. A session is made from the result and, where that works, run. A run passes when every input
either gives arrays or is refused by a ModelError. Input i is a function of i alone: --first I --inputs 1 repeats it.
"""

import argparse
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build" / "fuzz"
_MEMORY = 4000  # MiB a session may plan for a run that is tried; the sanitizer stops a process that takes 1000 more
_ENDS = (0, 1, -1, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))


def build() -> None:
    """Compile the core with both sanitizers, and put the Python files beside it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    flags = ["-DACDC_SANITIZE=address,undefined", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(
        ["cmake", "-S", str(HERE), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *flags], check=True
    )
    subprocess.run(["cmake", "--build", str(BUILD), "--parallel", "2"], check=True)
    package = BUILD / "acdc_runtime"
    package.mkdir(exist_ok=True)
    for source in (HERE / "python" / "acdc_runtime").glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    for core in BUILD.glob("_core*.so"):
        (package / core.name).write_bytes(core.read_bytes())


def damaged(index: int) -> bytes:
    """Return damaged model number `index`."""
    from graphs import random_map_graph, random_token_graph, seeded

    draws = random.Random(index)
    make = random_map_graph if draws.random() < 0.7 else random_token_graph
    model, _ = make(seeded(draws.randrange(400)))
    for _ in range(draws.choice((1, 1, 2, 4))):
        if draws.random() < 0.6:
            _damage_fields(model, draws)
    content = bytearray(model.SerializeToString())
    if draws.random() < 0.4:
        for _ in range(draws.choice((1, 2, 8))):
            _damage_bytes(content, draws)
    return bytes(content)


def _damage_bytes(content: bytearray, draws: random.Random) -> None:
    at = draws.randrange(len(content)) if content else 0
    kind = draws.randrange(4)
    if not content:
        content += b"\x08"
    elif kind == 0:
        content[at] ^= 1 << draws.randrange(8)
    elif kind == 1:
        del content[at : at + draws.choice((1, 4, 100))]
    elif kind == 2:
        content[at:at] = bytes(draws.randrange(256) for _ in range(draws.choice((1, 4, 20))))
    else:
        del content[at:]


def _damage_fields(model, draws: random.Random) -> None:
    graph = model.graph
    node = draws.choice(graph.node) if graph.node else None
    tensor = draws.choice(graph.initializer) if graph.initializer else None
    kind = draws.randrange(9)
    if kind == 0 and tensor is not None and tensor.dims:
        tensor.dims[draws.randrange(len(tensor.dims))] = draws.choice(_ENDS)
    elif kind == 1 and graph.input:
        dims = draws.choice(graph.input).type.tensor_type.shape.dim
        if dims:
            draws.choice(dims).dim_value = draws.choice(_ENDS)
    elif kind == 2 and node is not None and node.attribute:
        attribute = draws.choice(node.attribute)
        if attribute.ints:
            attribute.ints[draws.randrange(len(attribute.ints))] = draws.choice(_ENDS)
        elif draws.random() < 0.5:
            attribute.i = draws.choice(_ENDS)
        else:
            attribute.type = draws.randrange(12)
    elif kind == 3 and node is not None and node.input:
        names = [t.name for t in graph.initializer] + [o for n in graph.node for o in n.output] + ["", "ghost"]
        node.input[draws.randrange(len(node.input))] = draws.choice(names)
    elif kind == 4 and node is not None:
        node.op_type = draws.choice(
            [n.op_type for n in graph.node] + ["Gather", "MatMul", "Gemm", "Resize", "Slice", "Split"]
        )
    elif kind == 5 and tensor is not None:
        tensor.data_type = draws.randrange(17)
    elif kind == 6 and tensor is not None and tensor.dims:
        tensor.dims[:] = draws.sample(list(tensor.dims), len(tensor.dims))
    elif kind == 7 and tensor is not None:
        tensor.raw_data = bytes(draws.randrange(256) for _ in range(len(tensor.raw_data)))
    elif node is not None:
        graph.node.remove(node)


def try_inputs(first: int, count: int) -> Counter:
    """Load and run each damaged model; count what came of it."""
    import numpy as np
    from acdc_runtime import InferenceSession, ModelError

    found: Counter = Counter()
    for i in range(first, first + count):
        content = damaged(i)
        print(i, file=sys.stderr, flush=True)
        try:
            session = InferenceSession(content, threads=1 + i % 2, tune=False, kernels=("", "avx2", "generic")[i % 3])
            feed = {}
            for info in session.get_inputs():
                shape = [s if isinstance(s, int) else 1 for s in info.shape or []]
                kind = {"tensor(float)": np.float32, "tensor(int64)": np.int64}.get(info.type, np.bool_)
                feed[info.name] = np.zeros(shape, kind) if np.prod(shape, dtype=float) < 1 << 22 else None
            if any(v is None for v in feed.values()) or session.memory() > _MEMORY << 20:
                found["loaded, too large to try"] += 1
                continue
            session.run(None, feed)
            found["ran"] += 1
        except ModelError:
            found["refused"] += 1
        except Exception as error:
            found[f"WRONG {type(error).__name__}"] += 1
            print(f"input {i}: {type(error).__name__}: {error}", file=sys.stderr)
            print(f"WRONG input {i}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true", help="compile the checked core first")
    parser.add_argument("--inputs", type=int, default=0, help="how many damaged models to try")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sys.path[:0] = [str(BUILD), str(HERE / "tests")]
        for outcome, n in try_inputs(args.first, args.inputs).items():
            print(f"COUNT {n} {outcome}")
        return 0
    if args.build:
        build()
    if not args.inputs:
        return 0
    # The C++ library too: the sanitizer looks up its `throw` before the core has loaded it.
    libraries = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    settings = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:hard_rss_limit_mb={_MEMORY + 1000}",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    total: Counter = Counter()
    crashes = []
    first, end = args.first, args.first + args.inputs
    while first < end:
        count = min(1000, end - first)
        command = [sys.executable, __file__, "--worker", "--first", str(first), "--inputs", str(count)]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, errors="replace")
        for line in done.stdout.splitlines():
            if line.startswith("COUNT "):
                _, n, outcome = line.split(" ", 2)
                total[outcome] += int(n)
            elif line.startswith("WRONG "):
                print(line)
        tried = [int(x) for x in done.stderr.splitlines() if x.isdigit()]
        if done.returncode:
            last = tried[-1] if tried else first
            crashes.append(last)
            print(f"CRASH at input {last}, exit code {done.returncode}:\n" + "\n".join(done.stderr.splitlines()[-25:]))
            total["tried before a crash"] += last - first
            first = last + 1
        else:
            first += count
        print(f"{first - args.first} inputs: {dict(total)}, {len(crashes)} crashes", flush=True)
    return 1 if crashes or any(k.startswith("WRONG") for k in total) else 0


if __name__ == "__main__":
    sys.exit(main())
