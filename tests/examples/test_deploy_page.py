"""Runs every command and program of docs/deploy.md, in its order, and compares what is served with torch."""

import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

import acdc
from acdc.models.resnet_cifar import digits_net
from tests import processes
from tests.examples.servers import ROOT, module, started

pytestmark = pytest.mark.runtime

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S) for line in block.splitlines()]
# What makes them short; they are the page's in all else.
SHORTER = {
    "acdc train": ["--epochs", "4", "--no-report", "--set", "run.baseline=false", "--set", "run.finetune=false"],
    "acdc bench": ["--batch", "1", "--threads", "1", "--rounds", "1", "--engines", "acdc-runtime,onnxruntime"],
}


def words_of(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command, and its words, with the tests' own Python and acdc."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    words = words[len(variables) :]
    words += SHORTER.get(" ".join(words[:2]), [])
    programs = {"acdc": [sys.executable, "-m", "acdc"], "python": [sys.executable]}
    return variables, [*programs.get(words[0], [words[0]]), *words[1:]]


def fetch(words: list[str]) -> str:
    """Do what curl does with these words, as not every machine has it."""
    curl, header_option, header, data_option, data, url = words
    assert (curl, header_option, data_option) == ("curl", "-H", "-d")
    request = urllib.request.Request(f"http://{url}", data.encode(), dict([header.split(": ", 1)]))
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def run(line: str, folder: Path, port: str) -> str:
    """Run the commands of a line, and return what they print."""
    printed = ""
    for command in line.split(" && "):
        variables, words = words_of(command.replace("localhost:8000", f"localhost:{port}"))
        if words[0] == "curl":
            printed += fetch(words)
            continue
        environment = {**os.environ, **variables, "PORT": port}
        if "-m" in words:
            done = processes.run(words, cwd=folder, env=environment)
        else:
            done = subprocess.run(words, cwd=folder, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def expected(folder: Path, name: str, images: np.ndarray) -> np.ndarray:
    model = digits_net().eval()
    model.load_state_dict(acdc.load(folder / "runs" / "digits" / f"{name}.safetensors"))
    with torch.no_grad():
        return model(torch.from_numpy(images)).numpy()


def test_the_page_has_five_steps() -> None:
    steps = re.findall(r"^\*\*(\w+)\.\*\* ", PAGE.split("## ")[0], re.M)
    assert steps == ["Train", "Export", "Bench", "Serve", "Update"]


def test_every_command_of_the_page(folder: Path) -> None:
    train, export, bench, serve, update, *asked = LINES
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for line in (train, export, bench):
        printed = run(line, folder, port)
    assert "kept in runs/digits/speed.json" in printed
    images = np.random.default_rng(0).standard_normal((9, 1, 8, 8)).astype(np.float32)
    variables, words = words_of(serve)
    with started(words, folder, **variables, PORT=port) as (_, url):
        client = module("client").Client(url)
        served = client.predict(images)
        np.testing.assert_allclose(served, expected(folder, "sparse", images), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(client.predict_lists(images.tolist())["output"], served, rtol=1e-5)
        assert "in service: sha256" in run(update, folder, port)
        np.testing.assert_allclose(client.predict(images), expected(folder, "dense", images), rtol=1e-4, atol=1e-4)
        (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
        names = {"Client": module("client").Client, "images": images}
        exec(program.replace(":8000", f":{port}"), names)
        np.testing.assert_allclose(names["logits"], expected(folder, "dense", images), rtol=1e-4, atol=1e-4)
        assert len(asked) == 2
        for line in asked:
            assert "[[" in run(line, folder, port)
