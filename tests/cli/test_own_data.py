"""A user's own images, Datasets and models in `acdc train`, without a change to the package."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from acdc import models
from acdc.cli import main
from tests import processes
from tests.train.problems import jpegs

SHORT = ("train.epochs=4", "train.batch_size=4", "run.baseline=false", "run.finetune=false", "rate.warmup=0")
CODE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Net(nn.Module):
    def __init__(self, classes, in_channels=3, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU())
        self.fc = nn.Linear(width, classes)
    def forward(self, x): return self.fc(self.body(x).mean(dim=(2, 3)))

class Numeric(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.largest = self.fc.weight.max().item()  # which a tensor without values does not have
    def forward(self, x): return super().forward(x) if x.sum() > -1 else None

def thousand(): return Net(1000)
def pooled(classes): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(20), nn.Flatten(), nn.Linear(4, classes))
def text(classes): return "no model"

def make(root, images=12):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, 10, 10), dtype=torch.uint8, generator=draw)
    return TensorDataset(pixels, torch.arange(images) % 3), TensorDataset(pixels[:6], torch.arange(6) % 3)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)


def acdc(verb: str, *settings: str, place: tuple[str, ...] = ()) -> int:
    words = [word for setting in (*SHORT, *settings) for word in ("--set", setting)]
    return main([verb, "digits", *words, "--device", "cpu", "--workers", "0", *place])


def refusal(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    """The same from `acdc check` and `acdc train`."""
    assert acdc("train", *settings) == 2
    error = capsys.readouterr().err
    assert acdc("check", *settings, place=("--no-timing",)) == 2
    assert capsys.readouterr().err == error
    return error


def test_any_folder_of_images_has_its_own_name_size_and_classes(tmp_path: Path, capsys) -> None:
    jpegs(tmp_path / "My flowers")
    place = ("--data", str(tmp_path / "My flowers"))
    assert acdc("train", "data.name=folder", "data.size=20", "model.name=own_code:Net", place=place) == 0
    out = capsys.readouterr().out
    run = tmp_path / "runs" / "digits-My.flowers-0001"
    assert out.startswith("My flowers: ")
    assert f"images of 3 x 20 x 20, {len(os.listdir(tmp_path / 'My flowers' / 'train'))} classes" in out
    config = json.loads((run / "config.json").read_text())
    assert (config["dataset"], config["recipe"]["data"]["name"]) == ("My flowers", "folder")
    page = (run / "report.html").read_text()
    assert re.search(r"<title>[^<]*own_code:Net on My flowers", page)
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert acdc("check", "data.name=folder", place=("--no-timing", *place)) == 0
    checked = capsys.readouterr().out
    assert "data: My flowers, " in checked
    assert "images of 3 x 224 x 224" in checked


def test_a_model_and_datasets_by_their_import_paths(tmp_path: Path, capsys) -> None:
    settings = ("model.name=own_code:Net", "model.width=4", "data.name=own_code:make", "data.images=9")
    assert acdc("train", *settings, place=("--no-report",)) == 0
    out = capsys.readouterr().out
    assert "own_code:make: 9 training and 6 test images of 3 x 10 x 10, 3 classes" in out
    assert "model: own_code:Net, 275 parameters" in out
    run = tmp_path / "runs" / "digits-own_code.make-0001"
    models = json.loads((run / "result.json").read_text())["models"]
    assert models
    (run / "result.json").unlink()
    assert main(["train", "--no-report", "--resume", str(run), "--device", "cpu"]) == 0
    assert json.loads((run / "result.json").read_text())["models"] == models


def test_a_model_whose_code_needs_numbers_is_built_for_real(capsys) -> None:
    place = ("--no-timing",)
    assert acdc("check", "model.name=own_code:Numeric", "data.name=own_code:make", place=place) == 0
    assert "model: own_code:Numeric, " in capsys.readouterr().out


def test_a_seed_decides_the_weights_of_a_model_that_takes_none() -> None:
    before = torch.get_rng_state()
    one, same, other = (
        models.build("own_code:Net", classes=3, seed=seed).state_dict()["fc.weight"] for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.name=own_gone:Net"], "model.name='own_gone:Net': the module own_gone cannot be imported"),
        (["model.name=own_code:Met"], "model.name='own_code:Met': own_code has no Met; did you mean Net?"),
        (["model.name=own_code:text"], "expected a torch.nn.Module, but it returns str; make it return the model"),
        (
            ["model.name=own_code:Net", "model.depth=3"],
            "model.depth=3: own_code:Net takes width; did you",
        ),
        (["model.name=own_code:"], "model.name='own_code:': expected a module and a function in it"),
        (["data.name=own_code:Net"], "data.classes: own_code:Net requires it; set it"),
        (
            ["data.name=own_code:thousand"],
            "data.name='own_code:thousand': expected two Datasets, but it",
        ),
        (["data.name=own_gone:make"], "data.name='own_gone:make': the module own_gone cannot be imported"),
        (["data.name=own_code:"], 'data.name = "own_code:": expected a module and a function '),
        (["data.name=own_code:make", "data.imgaes=3"], "data.imgaes=3: own_code:make takes images; did you mean"),
        (
            ["data.name=own_code:make", "model.name=own_code:thousand"],
            'model.name = "own_code:thousand": for one image of 3 x 10 x 10 it returns a tensor of [1, 1000]; expected '
            "one number for each of the 3 classes of the data, [1, 3]; make it accept classes=",
        ),
        (
            ["data.name=own_code:make", "model.name=own_code:pooled"],
            "model.name: it cannot process images of 3 x 10 x 10 (",
        ),
        (["data.name=folder", "data.size=0"], "data.size = 0: expected pixels, 1 or more"),
        (["data.name=folder", "data.size=big"], 'data.size = "big": expected a whole number'),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_folder_is_made(
    capsys, tmp_path: Path, settings: list[str], said: str
) -> None:
    assert said in refusal(capsys, *settings)
    assert not (tmp_path / "runs").exists()


def test_the_current_folder_is_importable_for_the_command(tmp_path: Path) -> None:
    """A console script has its own folder first on the path, as this file has."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "acdc"
    script.write_text("import sys\nfrom acdc.cli import main\nsys.exit(main())\n")
    words = ["check", "digits", "--no-timing", "--set", "model.name=own_code:Net", "--device", "cpu"]
    done = processes.run([sys.executable, script, *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model: own_code:Net, " in done.stdout
