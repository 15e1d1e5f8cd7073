"""Asks examples/serving/server.py: numpy and the standard library are all it needs.

    python examples/serving/client.py predict images.npy       # without a file, random inputs of the model's sizes
    python examples/serving/client.py model                    # its inputs and outputs, and which file it is
    ACDC_TOKEN=... python examples/serving/client.py update new.onnx

In a program:

    client = Client("http://127.0.0.1:8000")
    logits = client.predict(images)
"""

import argparse
import io
import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


class ServerError(Exception):
    """The server's answer to a request that it refused: the status, and its reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Client:
    url: str
    token: str = ""  # for updates: the server's ACDC_TOKEN
    timeout: float = 60

    def health(self) -> dict[str, Any]:
        return json.loads(self._ask("GET", "/health"))

    def model(self) -> dict[str, Any]:
        """Return names, shapes and types of the model's inputs and outputs, and its sha256."""
        return json.loads(self._ask("GET", "/model"))

    def predict(self, batch: np.ndarray) -> np.ndarray:
        """Return the first output for a batch; arrays travel as .npy files."""
        file = io.BytesIO()
        np.save(file, batch, allow_pickle=False)
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
        return np.load(io.BytesIO(self._ask("POST", "/predict", file.getvalue(), headers)), allow_pickle=False)

    def predict_lists(self, inputs: Any) -> dict[str, Any]:
        """Return every output as lists, for nested lists, or for such lists by input name."""
        body = json.dumps({"inputs": inputs}).encode()
        return json.loads(self._ask("POST", "/predict", body, {"Content-Type": "application/json"}))["outputs"]

    def update(self, model: Path) -> dict[str, Any]:
        """Replace the model in service; the old one stays if the new one is refused."""
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {self.token}"}
        return json.loads(self._ask("PUT", "/model", model.read_bytes(), headers))

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, body, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            try:
                reason = str(json.loads(text)["error"])
            except (ValueError, KeyError, TypeError):
                reason = error.reason
            raise ServerError(error.code, reason) from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ask a model server.", allow_abbrev=False)
    parser.add_argument("verb", choices=("predict", "model", "health", "update"))
    parser.add_argument("file", nargs="?", type=Path, help="of predict: an .npy file; of update: an ONNX file")
    here = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}"
    parser.add_argument("--url", default=here, help="default %(default)s")
    args = parser.parse_intermixed_args(arguments)
    client = Client(args.url, os.environ.get("ACDC_TOKEN", ""))
    try:
        if args.verb == "predict":
            batch = np.load(args.file, allow_pickle=False) if args.file else _random(client.model()["inputs"])
            print(np.array2string(client.predict(batch), precision=4, suppress_small=True))
        elif args.verb == "update":
            if args.file is None:
                parser.error("update needs a file: client.py update new.onnx")
            print(f"in service: sha256 {client.update(args.file)['sha256']}")
        else:
            print(json.dumps(client.model() if args.verb == "model" else client.health(), indent=2))
    except (ServerError, OSError, ValueError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    return 0


def _random(inputs: list[dict[str, Any]]) -> np.ndarray:
    if len(inputs) != 1 or inputs[0]["type"] != "tensor(float)":
        raise ValueError("the model has other inputs than one of floats: name an .npy file")
    shape = [size if isinstance(size, int) else 2 for size in inputs[0]["shape"]]
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


if __name__ == "__main__":
    sys.exit(main())
