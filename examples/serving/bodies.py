"""Bodies of requests and answers: arrays as JSON, as .npy files and as raw elements; anything else is refused."""

import io
import json
import math
from http import HTTPStatus
from typing import Any

import numpy as np

NPY, RAW, JSON = "application/x-npy", "application/octet-stream", "application/json"
TYPES = {"tensor(float)": np.dtype("<f4"), "tensor(int64)": np.dtype("<i8"), "tensor(bool)": np.dtype("?")}


class RequestError(Exception):
    """A request that is refused: the status, and why in words for the client."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def bad(reason: str) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, reason)


def too_large(reason: str) -> RequestError:
    return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)


def read_inputs(body: bytes, kind: str, infos: list[Any]) -> dict[str, np.ndarray]:
    """Return arrays by input name, or raise a RequestError. The session checks their shapes."""
    if kind == JSON:
        return _read_json(body, infos)
    if kind not in (NPY, RAW):
        kinds = f"expected {JSON}, {NPY} or {RAW}"
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type {kind[:80]!r}: {kinds}")
    if len(infos) != 1:
        raise bad(f"this model has {len(infos)} inputs; send them as JSON, by name")
    info = infos[0]
    array = _read_npy(body) if kind == NPY else _read_raw(body, info)
    return {info.name: _cast(array, info)}


def _read_json(body: bytes, infos: list[Any]) -> dict[str, np.ndarray]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}") from None
    inputs = content.get("inputs") if isinstance(content, dict) else None
    if inputs is None:
        raise bad('expected {"inputs": ...}: nested lists of numbers, or such lists by input name')
    if not isinstance(inputs, dict):
        if len(infos) != 1:
            raise bad(f'expected {{"inputs": {{name: lists}}}} for {", ".join(info.name for info in infos)}')
        inputs = {infos[0].name: inputs}
    known, arrays = {info.name: info for info in infos}, dict[str, np.ndarray]()
    for name, value in inputs.items():
        if name not in known:
            raise bad(f"input {name[:80]!r}: the model has no such input; it has {', '.join(map(repr, known))}")
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            raise bad(f"input {name!r}: expected nested lists of numbers, all rows of one length") from None
        arrays[name] = _cast(array, known[name])
    return arrays


def _read_npy(body: bytes) -> np.ndarray:
    """Read an .npy file without np.load, which allocates what the header claims before it looks at the rest."""
    file, known = io.BytesIO(body), np.lib.format
    try:
        version = known.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its version is {version}")
        read_header = known.read_array_header_1_0 if version == (1, 0) else known.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except Exception as error:  # the header is Python's syntax, and numpy raises what its tokenizer and parser do
        raise bad(f"the body is not an .npy file: {error}") from None
    left = len(body) - file.tell()
    if dtype.hasobject or dtype.subdtype or min(shape, default=0) < 0 or left != math.prod(shape) * dtype.itemsize:
        raise bad(f"the .npy file holds {left:,} bytes, and not {list(shape)} elements of {dtype}")
    array = np.frombuffer(body, dtype, offset=file.tell()) if left else np.empty(0, dtype)
    if array.size != math.prod(shape):
        raise bad(f"the .npy file holds {dtype}, which has no elements")
    return array.reshape(shape, order="F" if fortran else "C")


def _read_raw(body: bytes, info: Any) -> np.ndarray:
    row = [size for size in info.shape[1:] if isinstance(size, int)]
    if len(row) != len(info.shape) - 1:
        raise bad(f"raw elements need a model whose sizes are fixed; input {info.name!r} takes {info.shape}")
    width = math.prod(row) * TYPES[info.type].itemsize
    if not body or len(body) % width:
        raise bad(f"{len(body):,} bytes; expected a multiple of {width:,}: rows of {row}, {TYPES[info.type]}")
    return np.frombuffer(body, TYPES[info.type]).reshape(-1, *row)


def _cast(array: np.ndarray, info: Any) -> np.ndarray:
    wanted = TYPES[info.type]
    if array.dtype.kind not in {"f": "fiu", "i": "iu", "b": "b"}[wanted.kind]:
        raise bad(f"input {info.name!r}: expected numbers of {info.type}, not {array.dtype}")
    with np.errstate(over="ignore"):  # becomes infinity, which is refused by name
        return np.ascontiguousarray(array, wanted).reshape(array.shape)


def to_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def to_lists(array: np.ndarray) -> Any:
    """Return nested lists; what is not finite becomes null, as JSON has no word for it."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        values = array.astype(object)
        values[~np.isfinite(array)] = None
        return values.tolist()
    return array.tolist()
