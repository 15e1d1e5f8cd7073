"""The example server: what it answers, what it refuses and in which words, updates, and how it stops."""

import http.client
import io
import json
import signal
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.examples.servers import FOLDER, TOKEN, linear, module, started

pytestmark = pytest.mark.runtime

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
JSON, NPY, RAW = "application/json", "application/x-npy", "application/octet-stream"
LIMITS = {"threads": 1, "at_once": 4, "max_bytes": 4096, "max_batch": 16, "max_model_bytes": 1 << 20, "grace": 30}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ACDC_TOKEN", TOKEN)
    serving = module("server")
    serving.Handler.log_message = lambda *_: None
    one = serving.ModelServer(("127.0.0.1", 0), linear(tmp_path / "model.onnx", WEIGHT), Namespace(**LIMITS))
    thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.stop()
    thread.join()


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def client(server: Any) -> Any:
    return module("client").Client(url_of(server), TOKEN)


def ask(
    server: Any, method: str, path: str, body: bytes | None = None, kind: str = JSON, **headers: str
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(*server.server_address[:2])
    try:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path, body, {"Content-Type": kind, **named})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text: str) -> bytes:
    """An .npy file without elements, whose header says anything."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def test_every_kind_of_body_gives_the_same_outputs(server: Any, client: Any) -> None:
    expected = X @ WEIGHT
    np.testing.assert_allclose(client.predict(X), expected, rtol=1e-5)
    np.testing.assert_allclose(client.predict(np.asfortranarray(X, np.float64)), expected, rtol=1e-5)
    for inputs in (X.tolist(), {"input": X.tolist()}):
        np.testing.assert_allclose(client.predict_lists(inputs)["output"], expected, rtol=1e-5)
    status, answer = ask(server, "POST", "/predict", X.tobytes(), RAW)
    assert status == 200
    np.testing.assert_allclose(answer["outputs"]["output"], expected, rtol=1e-5)
    assert client.predict(np.zeros((1, 4), np.uint8)).tolist() == [[0, 0, 0]]


def test_the_model_is_described(server: Any, client: Any) -> None:
    described = client.model()
    assert described["inputs"] == [{"name": "input", "shape": ["batch", 4], "type": "tensor(float)"}]
    assert client.health() == {"status": "ok", "sha256": described["sha256"]}


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"", JSON, 400, "the body is not JSON"),
        (b"{", JSON, 400, "the body is not JSON"),
        (b"[" * 4000, JSON, 400, "the body is not JSON|expected"),
        (b"\xff\xfe", JSON, 400, "the body is not JSON"),
        (b"[1, 2]", JSON, 400, 'expected {"inputs"'),
        (b'{"inputs": "many"}', JSON, 400, "input 'input': expected numbers of tensor"),
        (b'{"inputs": null}', JSON, 400, 'expected {"inputs"'),
        (b'{"inputs": [[1, 2, 3, 4], [5]]}', JSON, 400, "all rows of one length"),
        (b'{"inputs": [[1, 2, 3]]}', JSON, 400, "its shape is [1, 3]; the model takes"),
        (b'{"inputs": 1}', JSON, 400, "its shape is []"),
        (b'{"inputs": [[1, 2, 3, NaN]]}', JSON, 400, "input 'input': it holds NaN or infinity"),
        (b'{"inputs": [[1, 2, 3, 1e99]]}', JSON, 400, "input 'input': it holds NaN or infinity"),
        (b'{"inputs": [[1, 2, 3, 1%s]]}' % (b"0" * 400), JSON, 400, "input 'input'"),
        (b'{"inputs": {"x": [[1, 2, 3, 4]]}}', JSON, 400, "input 'x': the model has no such input; it has 'input'"),
        (b'{"inputs": {}}', JSON, 400, "input 'input': it is missing"),
        (json.dumps({"inputs": [[0] * 4] * 17}).encode(), JSON, 413, "17 rows; this server takes 16"),
        (bytes(5000), RAW, 413, "5,000 bytes; this server takes 4,096"),
        (bytes(15), RAW, 400, "expected a multiple of 16"),
        (b"", RAW, 400, "expected a multiple of 16"),
        (b"none", NPY, 400, "not an .npy file"),
        (npy(X)[:-1], NPY, 400, "and not [5, 4] elements of float32"),
        (npy(X) + b"1", NPY, 400, "and not [5, 4] elements of float32"),
        (npy(np.array([None, {}]), allow_pickle=True), NPY, 400, "elements of object"),
        (npy(X.astype("<U4")), NPY, 400, "expected numbers of tensor(float)"),
        (npy(X > 0), NPY, 400, "expected numbers of tensor(float), not bool"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2**60, 4)}"), NPY, 400, "not an .npy file"),
        (header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**60}, 4)}}"), NPY, 400, "holds 0 bytes"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4)}"), NPY, 400, "holds 0 bytes"),
        (header("{'descr': '<V0', 'fortran_order': False, 'shape': (9, 9)}"), NPY, 400, "has no elements"),
        (header("(" * 3000), NPY, 400, "not an .npy file"),
        (b"\x93NUMPY\x09\x00", NPY, 400, "not an .npy file"),
        (b"a=1", "text/plain", 415, "Content-Type 'text/plain': expected application/json"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_what_is_wrong(server: Any, body: bytes, kind: str, status: int, message: str) -> None:
    found, answer = ask(server, "POST", "/predict", body, kind)
    assert (found, [*answer]) == (status, ["error"])
    assert any(part in answer["error"] for part in message.split("|"))
    assert ask(server, "GET", "/health")[0] == 200, "the server goes on"


def test_other_paths_lengths_and_methods(server: Any) -> None:
    assert ask(server, "GET", "/")[0] == 404
    assert ask(server, "POST", "/model", b"")[0] == 404
    for length in ("-1", "x", "9" * 5000):
        assert ask(server, "POST", "/predict", b"{}", Content_Length=length)[0] == 400
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert b" 411 " in connection.recv(100)
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{}")
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.recv(100)
    assert ask(server, "GET", "/health")[0] == 200


def test_a_body_far_beyond_the_limit_still_gets_its_answer(server: Any, client: Any) -> None:
    with pytest.raises(module("client").ServerError, match="413: 4,000,128 bytes; this server takes 4,096"):
        client.predict(np.zeros((1000, 1000), np.float32))


def test_a_busy_server_says_so(server: Any) -> None:
    for _ in range(LIMITS["at_once"]):
        assert server.slots.acquire(blocking=False)
    status, answer = ask(server, "POST", "/predict", b'{"inputs": [[1, 2, 3, 4]]}')
    assert (status, answer["error"]) == (503, "too many requests at once; try again in a second")
    for _ in range(LIMITS["at_once"]):
        server.slots.release()
    assert ask(server, "POST", "/predict", b'{"inputs": [[1, 2, 3, 4]]}')[0] == 200


# Updates


def test_an_update_takes_over_on_disk_and_in_memory(server: Any, client: Any, tmp_path: Path) -> None:
    new = linear(tmp_path / "new.onnx", -WEIGHT)
    before = client.health()["sha256"]
    assert client.update(new)["sha256"] == client.health()["sha256"] != before
    np.testing.assert_allclose(client.predict(X), -X @ WEIGHT, rtol=1e-5)
    assert server.path.read_bytes() == new.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "new.onnx"]


def test_requests_during_updates_are_answered_by_one_model_or_the_other(client: Any, tmp_path: Path) -> None:
    models = [linear(tmp_path / "a.onnx", WEIGHT), linear(tmp_path / "b.onnx", -WEIGHT)]
    allowed = [X @ WEIGHT, -X @ WEIGHT]
    wrong = list[Any]()

    def keep_asking(times: int) -> None:
        for _ in range(times):
            got = client.predict(X)
            if not any(np.allclose(got, one, rtol=1e-4) for one in allowed):
                wrong.append(got)

    threads = [threading.Thread(target=keep_asking, args=(20,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(8):
        client.update(models[turn % 2])
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("make", "status", "message"),
    [
        (lambda path: path.write_bytes(b"no model"), 400, "the model is refused: model: this is not an ONNX file"),
        (lambda path: linear(path, WEIGHT * np.nan), 400, "the model is refused: tensor 'weight': it holds NaN"),
        (lambda path: linear(path, np.ones((5, 3))), 409, "this server's are [('input', 'tensor(float)', ['any', 4])"),
        (lambda path: linear(path, WEIGHT, name="x"), 409, "[('x', 'tensor(float)', ['any', 4])"),
        (lambda path: linear(path, np.ones((600, 600))), 413, "this server takes 1,048,576"),
    ],
)
def test_a_bad_update_changes_nothing(
    server: Any, client: Any, tmp_path: Path, make: Any, status: int, message: str
) -> None:
    content, before = server.path.read_bytes(), client.health()
    make(tmp_path / "new.onnx")
    with pytest.raises(module("client").ServerError) as caught:
        client.update(tmp_path / "new.onnx")
    assert caught.value.status == status
    assert message in caught.value.reason
    assert (server.path.read_bytes(), client.health()) == (content, before)
    np.testing.assert_allclose(client.predict(X), X @ WEIGHT, rtol=1e-5)


def test_updates_need_the_token(server: Any, client: Any, tmp_path: Path) -> None:
    new = linear(tmp_path / "new.onnx", -WEIGHT)
    other = module("client").Client(client.url, "another")
    with pytest.raises(module("client").ServerError, match="401: expected Authorization: Bearer"):
        other.update(new)
    server.token = ""
    with pytest.raises(module("client").ServerError, match="403: updates are off: start the server with ACDC_TOKEN"):
        client.update(new)
    np.testing.assert_allclose(client.predict(X), X @ WEIGHT, rtol=1e-5)


# Processes


def test_sigterm_finishes_what_is_running_and_exits_with_0(tmp_path: Path) -> None:
    model = linear(tmp_path / "model.onnx", WEIGHT)
    command = [sys.executable, str(FOLDER / "server.py"), str(model), "--port", "0", "--threads", "1"]
    body = b'{"inputs": [[1, 2, 3, 4]]}'
    with started(command, tmp_path) as (process, url), socket.create_connection(_address(url)) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert b"100 Continue" in connection.recv(100), "the request is running"
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping: running requests finish first\n"
        connection.sendall(body)
        answer = b""
        while piece := connection.recv(1000):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in answer
        out, error = process.communicate()
    assert process.returncode == 0
    assert out == "stopped\n"
    assert "Traceback" not in error


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def test_a_bad_model_or_option_is_refused_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    serve = module("server").main
    for name, message in (("bad.onnx", "this is not an ONNX file"), ("none.onnx", "No such file or directory")):
        assert serve([str(tmp_path / name), "--port", "0"]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        serve([str(tmp_path / "bad.onnx"), "--at-once", "0"])
    assert "0: expected a whole number from 1" in capsys.readouterr().err


def test_the_client_s_command_line(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, url = module("client").main, url_of(server)
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    assert command(["predict", str(tmp_path / "x.npy"), "--url", url]) == 0
    assert capsys.readouterr().out == f"{np.array2string(np.ones((1, 4)) @ WEIGHT, precision=4)}\n"
    assert command(["predict", "--url", url]) == 0
    assert command(["health", "--url", url]) == 0
    assert '"status": "ok"' in capsys.readouterr().out
    assert command(["predict", str(tmp_path / "none.npy"), "--url", url]) == 1
    assert "client: " in capsys.readouterr().err
