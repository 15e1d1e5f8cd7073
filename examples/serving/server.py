"""Serves an ONNX model over HTTP with acdc-runtime. No torch, and nothing beyond numpy and the standard library.

    python examples/serving/server.py served/model.onnx --port 8000

    POST /predict   a batch: JSON {"inputs": [[...]]}, an .npy file (application/x-npy), or raw little-endian elements
                    (application/octet-stream). The answer is JSON, or .npy with "Accept: application/x-npy"
    GET  /model     names, shapes and types of inputs and outputs
    GET  /health    200 while requests are taken, 503 once the server is stopping
    PUT  /model     another ONNX file with the same inputs and outputs, tried before it takes over. Requests that are
                    running finish on the old model. Needs "Authorization: Bearer $ACDC_TOKEN"; without ACDC_TOKEN in
                    the server's environment, updates are off

A request that cannot be answered gets {"error": ...} in words: 400 (what was sent), 413 (too large), 503 (too busy).
SIGTERM and Ctrl-C stop accepting, finish what is running and exit with 0. Inputs are those of the network: scale and
normalise images as in training. Put a proxy with TLS in front before anyone else can reach it.
"""

import argparse
import hashlib
import hmac
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from acdc_runtime import InferenceSession, ModelError  # pyright: ignore[reportMissingImports]
from bodies import JSON, NPY, TYPES, RequestError, bad, read_inputs, to_lists, to_npy, too_large

_MOST_DISCARDED = 64 << 20  # bytes


# The model


@dataclass(frozen=True)
class Served:
    """A model in service. Handlers take the reference once, so an update never changes a request half-way."""

    session: InferenceSession
    sha256: str

    @classmethod
    def load(cls, content: bytes, threads: int | None) -> "Served":
        """Load a model and run it once on zeros; raises a ModelError that names the node or tensor."""
        session = InferenceSession(content, threads=threads)
        feed = {
            info.name: np.zeros([size if isinstance(size, int) else 1 for size in info.shape or []], TYPES[info.type])
            for info in session.get_inputs()
        }
        if not all(np.isfinite(output).all() for output in session.run(None, feed)):
            raise ModelError("outputs", "they are not finite for inputs of zeros")
        return cls(session, hashlib.sha256(content).hexdigest())

    def describe(self) -> dict[str, Any]:
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        return {"sha256": self.sha256, "inputs": list(map(asdict, inputs)), "outputs": list(map(asdict, outputs))}

    def signature(self) -> list[Any]:
        """Return what a client relies on: names, types and fixed sizes."""
        infos = [*self.session.get_inputs(), *self.session.get_outputs()]
        return [(i.name, i.type, [size if isinstance(size, int) else "any" for size in i.shape or []]) for i in infos]


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True  # connections that are idle must not keep the process alive; running requests are waited for

    def __init__(self, address: tuple[str, int], path: Path, args: argparse.Namespace) -> None:
        self.path, self.limits, self.token = path, args, os.environ.get("ACDC_TOKEN", "")
        self.served = Served.load(path.read_bytes(), args.threads)
        self.updating, self.slots = threading.Lock(), threading.BoundedSemaphore(args.at_once)
        self.running, self.stopping = 0, False
        self.idle = threading.Condition()
        super().__init__(address, Handler)

    def update(self, content: bytes) -> Served:
        """Put another model in service, on disk and in memory, or raise and leave both as they are."""
        with self.updating:
            try:
                new = Served.load(content, self.limits.threads)
            except ModelError as error:
                raise bad(f"the model is refused: {error}") from None
            if new.signature() != self.served.signature():
                theirs = f"{new.signature()}; this server's are {self.served.signature()}"
                raise RequestError(HTTPStatus.CONFLICT, f"its inputs and outputs are {theirs}")
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.path)
            except OSError as error:
                raise RequestError(HTTPStatus.INSUFFICIENT_STORAGE, f"it cannot be stored: {error.strerror}") from None
            finally:
                temporary.unlink(missing_ok=True)
            self.served = new
            return new

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away in one line."""
        print(f"{client_address[0]}: {sys.exception()!r}", file=sys.stderr)

    def stop(self) -> None:
        """Accept nothing more, and wait for requests that are running."""
        self.stopping = True
        self.shutdown()
        with self.idle:
            self.idle.wait_for(lambda: not self.running, timeout=self.limits.grace)
        self.server_close()


# Requests


class Handler(BaseHTTPRequestHandler):
    server: ModelServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "acdc-serve"
    timeout = 30  # seconds that a client may take to send a request

    def parse_request(self) -> bool:
        """Count a request as running before "100 Continue" lets the client send the rest of it."""
        self._count(1)
        counted = False
        try:
            parsed = super().parse_request()
            counted = parsed and hasattr(self, f"do_{self.command}")  # _answer counts it off
        finally:
            if not counted:
                self._count(-1)
        return parsed

    def _count(self, requests: int) -> None:
        with self.server.idle:
            self.server.running += requests
            self.server.idle.notify_all()

    def do_GET(self) -> None:
        self._answer({"/health": self._health, "/model": lambda: self.server.served.describe()})

    def do_POST(self) -> None:
        self._answer({"/predict": self._predict})

    def do_PUT(self) -> None:
        self._answer({"/model": self._update})

    def _answer(self, routes: dict[str, Any]) -> None:
        """Find the handler of a path, and send what it returns, or what it raises as an error in words."""
        length = self.headers.get("Content-Length", "0")
        self.unread = 0
        try:
            if not (length.isascii() and length.isdigit() and len(length) < 16):
                raise bad(f"Content-Length {length[:40]!r}: expected a number of bytes")
            self.unread = int(length)
            route = routes.get(self.path.partition("?")[0])
            if route is None:
                known = "POST /predict, GET /model, GET /health, PUT /model"
                raise RequestError(HTTPStatus.NOT_FOUND, f"{self.command} {self.path[:80]}: there are {known}")
            status, answer = HTTPStatus.OK, route()
        except RequestError as error:
            status, answer = error.status, {"error": error.reason}
        except TimeoutError:
            status, answer = HTTPStatus.REQUEST_TIMEOUT, {"error": "the request took too long to arrive"}
        except Exception as error:  # a bug of ours: the client learns that it is not theirs, the log has the rest
            self.log_error("%s: %s", type(error).__name__, error)
            status, answer = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the server failed; its log says why"}
        try:
            self._send(status, answer)
            self._discard()
        finally:
            self._count(-1)

    def _send(self, status: HTTPStatus, answer: Any) -> None:
        if isinstance(answer, bytes):
            kind, body = NPY, answer
        else:
            kind, body = JSON, json.dumps(answer).encode()
        if status != HTTPStatus.OK or self.server.stopping:
            self.close_connection = True  # the rest of a refused request may still be on its way
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _discard(self) -> None:
        """Read what is left of a refused request, within limits: a client that is still sending reads no answer."""
        left = min(self.unread, _MOST_DISCARDED)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
            left -= len(piece)

    def _health(self) -> dict[str, Any]:
        if self.server.stopping:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        return {"status": "ok", "sha256": self.server.served.sha256}

    def _predict(self) -> Any:
        if not self.server.slots.acquire(blocking=False):
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once; try again in a second")
        try:
            served = self.server.served
            inputs = read_inputs(self._body(self.server.limits.max_bytes), self._kind(), served.session.get_inputs())
            for name, array in inputs.items():
                if array.ndim and len(array) > self.server.limits.max_batch:
                    most = f"this server takes {self.server.limits.max_batch}"
                    raise too_large(f"input {name!r}: {len(array)} rows; {most}")
                if not np.isfinite(array).all():
                    raise bad(f"input {name!r}: it holds NaN or infinity")
            try:
                outputs = served.session.run(None, inputs)
            except ModelError as error:
                raise bad(str(error)) from None
        finally:
            self.server.slots.release()
        if NPY in self.headers.get("Accept", ""):
            return to_npy(outputs[0])
        names = [info.name for info in served.session.get_outputs()]
        rows = {name: to_lists(output) for name, output in zip(names, outputs, strict=True)}
        return {"outputs": rows, "sha256": served.sha256}

    def _update(self) -> dict[str, Any]:
        token = self.server.token
        if not token:
            raise RequestError(HTTPStatus.FORBIDDEN, "updates are off: start the server with ACDC_TOKEN set")
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
            raise RequestError(HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer, and the server's ACDC_TOKEN")
        new = self.server.update(self._body(self.server.limits.max_model_bytes))
        self.log_message("model updated: sha256 %s", new.sha256)
        return new.describe()

    def _kind(self) -> str:
        return self.headers.get("Content-Type", JSON).partition(";")[0].strip().lower()

    def _body(self, most: int) -> bytes:
        if "Content-Length" not in self.headers:
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        length = self.unread
        if length > most:
            raise too_large(f"{length:,} bytes; this server takes {most:,}")
        body, self.unread = self.rfile.read(length), 0
        if len(body) != length:
            raise bad(f"{len(body):,} of {length:,} bytes arrived")
        return body


# Start and stop


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Serve an ONNX model over HTTP.", allow_abbrev=False)
    parser.add_argument("model", type=Path, help="an ONNX file, which updates replace")
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s: this machine alone")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")), help="default $PORT, or 8000")
    parser.add_argument("--threads", type=_positive, help="that share the work of one request (default: all cores)")
    parser.add_argument("--at-once", type=_positive, default=8, help="requests computed at once (default %(default)s)")
    parser.add_argument("--max-bytes", type=_positive, default=16 << 20, help="of a request (default %(default)s)")
    parser.add_argument("--max-batch", type=_positive, default=1024, help="rows of a request (default %(default)s)")
    parser.add_argument("--max-model-bytes", type=_positive, default=2 << 30, help="of an update (default %(default)s)")
    parser.add_argument("--grace", type=float, default=30, help="seconds for running requests (default %(default)s)")
    args = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = ModelServer((args.host, args.port), args.model, args)
    except (ModelError, ValueError, OSError) as error:
        print(f"server: {args.model}: {error}", file=sys.stderr)
        return 2
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    host, port = server.server_address[:2]
    print(f"serving {args.model} on http://{host!s}:{port}", flush=True)
    stop.wait()
    server.stopping = True  # answers say "Connection: close" from now on
    print("stopping: running requests finish first", flush=True)
    server.stop()
    thread.join()
    print("stopped", flush=True)
    return 0


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
