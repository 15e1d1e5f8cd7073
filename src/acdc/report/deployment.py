"""What a report says about running a model elsewhere: the sizes of its files, and its measured speed."""

from dataclasses import dataclass

from acdc.core.result import SPARSE
from acdc.report.read import Run
from acdc.runs.folder import RunFolder
from acdc.runs.records import SpeedRow, SpeedTable
from acdc.sparsity import packed
from acdc.sparsity.gaps import expected_bytes


def model_sizes(run: Run, file: str, sparsity: float, reported: float | None) -> tuple[int | None, int | None]:
    """Return the bytes of a model's tensors, and of its packed file.

    Where the file is not there, both are worked out from the counts of weights, in 32-bit floats.
    """
    path = run.folder / file
    stored = packed.dense_bytes(path) if file and path.is_file() else None
    if stored is None and not run.ends:
        return None, None
    size = sum(run.ends[-1].size.values()) if run.ends else 0
    zeros = round(sparsity * size)
    norms = round(zeros / reported) - size if reported else 0
    dense, is_packed = stored or (4 * (size + max(0, norms)), False)
    if is_packed:
        return dense, path.stat().st_size
    saved = 4 * zeros - expected_bytes(size, size - zeros)
    return dense, dense - max(0, saved)


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model of a run on disk."""

    name: str
    what: str
    bytes: int


UNPACKED = "dense fp32"  # not a file
_KINDS = {".onnx": "ONNX", ".safetensors": "safetensors", ".pt": "state dict for torch.load"}


def files(run: Run) -> list[ModelFile]:
    """Return the sparse model's file and what was exported from the run, as far as they are there."""
    found = []
    if (main := run.folder / SPARSE).is_file():
        stored = packed.dense_bytes(main)
        if stored is not None:
            found.append(ModelFile(name=UNPACKED, what="every weight of the sparse model", bytes=stored[0]))
            what = "the sparse model, packed" if stored[1] else "the sparse model, not packed"
            found.append(ModelFile(name=main.name, what=what, bytes=main.stat().st_size))
    exports = RunFolder(run.folder).exports
    for path in sorted(exports.iterdir(), key=lambda path: (path.stem, path.suffix)) if exports.is_dir() else ():
        if path.suffix in _KINDS and path.is_file() and not path.name.startswith("."):
            shrunk = ", without dead channels" if path.stem.endswith("-shrunk") else ""
            name, size = f"{exports.name}/{path.name}", path.stat().st_size
            found.append(ModelFile(name=name, what=_KINDS[path.suffix] + shrunk, bytes=size))
    return found


Speed = tuple[SpeedTable, SpeedRow]


def fastest(run: Run) -> Speed | None:
    """Return acdc-runtime's time for one image on the most threads, if bench has measured it."""
    rows = [
        (table, row)
        for table in run.speed.models
        for row in table.rows
        if row.engine == "acdc-runtime" and row.batch == 1 and row.ms is not None
    ]
    return max(rows, key=lambda pair: (pair[1].threads, -(pair[1].ms or 0)), default=None)
