"""ONNX files: the operators one expects, any batch size, ONNX Runtime's outputs those of torch, clear refusals."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import acdc
from acdc.errors import ArgumentError
from acdc.export import OnnxFile
from acdc.export import onnx as exporter
from tests.export.pruned import prune, with_statistics


class Small(nn.Module):
    """A residual block and a classifier: each operator of acdc's residual networks once or twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.stem(x)))
        return self.fc(torch.relu(x + self.norm2(self.conv(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return prune(with_statistics(Small()), acdc.Unstructured(), 0.9)


@pytest.fixture(scope="module")
def folded(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> OnnxFile:
    return acdc.export.to_onnx(model, torch.randn(1, 1, 8, 8), tmp_path_factory.mktemp("folded") / "model.onnx")


@pytest.fixture
def translated(folded: OnnxFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the translation, which takes a second, in tests of what happens to the file afterwards."""

    class Program:
        def save(self, path: Path, *, external_data: bool) -> None:
            assert not external_data
            path.write_bytes(folded.path.read_bytes())

    monkeypatch.setattr(exporter, "_translate", lambda *given: Program())


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def run(path: Path, **inputs: Tensor) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: value.numpy() for name, value in inputs.items()}))


def test_the_file_computes_what_torch_does_for_any_batch(model: nn.Module, folded: OnnxFile) -> None:
    assert set(operators(folded.path)) == {"Conv", "Relu", "Add", "ReduceMean", "Gemm"}
    assert [entry.name for entry in folded.path.parent.iterdir()] == ["model.onnx"]
    assert folded.size == folded.path.stat().st_size
    assert folded.largest_difference is not None
    assert folded.largest_difference < 1e-4
    for batch in (1, 3, 17):
        inputs = torch.randn(batch, 1, 8, 8)
        with torch.no_grad():
            expected = model.eval()(inputs)
        outputs = run(folded.path, input=inputs)
        torch.testing.assert_close(torch.as_tensor(outputs[0]), expected, rtol=1e-4, atol=1e-4)
    assert "by" in str(folded)
    assert "(1 sample)" in str(folded)


def test_zeros_stay_zeros_and_no_path_of_this_machine_is_in_it(model: nn.Module, folded: OnnxFile) -> None:
    content = folded.path.read_bytes()
    assert str(Path(acdc.__file__).parent).encode() not in content
    assert str(Path(__file__).parent).encode() not in content
    assert b"site-packages" not in content
    weights = {one.name: numpy_helper.to_array(one) for one in onnx.load(folded.path).graph.initializer}
    zeros = sum(int((weight == 0).sum()) for weight in weights.values() if weight.ndim > 1)
    assert zeros >= sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1) > 0


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(self.conv(x)) + y, x.mean(1)


def test_two_inputs_and_outputs_and_a_batch_norm_that_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    model, path = with_statistics(Two()).eval(), tmp_path / "x.onnx"
    example = (torch.randn(2, 1, 4, 4), torch.randn(2, 2, 2, 2))
    file = acdc.export.to_onnx(model, example, path, fold_batch_norm=False)
    assert capfd.readouterr() == ("", ""), "nothing of torch's progress and log"
    assert (file.inputs, file.outputs) == (("input_0", "input_1"), ("output_0", "output_1"))
    assert operators(path) == {"Conv": 1, "BatchNormalization": 1, "Add": 1, "ReduceMean": 1}
    x, y = torch.randn(5, 1, 4, 4), torch.randn(5, 2, 2, 2)
    with torch.no_grad():
        expected = model(x, y)
    for one, other in zip(run(path, input_0=x, input_1=y), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("translated")
def test_a_file_that_differs_is_not_written(model: nn.Module, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(exporter, "outputs_of", lambda *given: [torch.zeros(2, 10)])
    with pytest.raises(RuntimeError, match=r"x.onnx was not written: ONNX Runtime's outputs differ from torch's by"):
        acdc.export.to_onnx(model, torch.randn(2, 1, 8, 8), tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (Branches(), torch.zeros(2, 3), r"torch.onnx cannot translate Branches \(Could not guard on data-dependent"),
        (nn.Linear(3, 2).half(), torch.zeros(2, 3), "expected float32 weights"),
        (nn.Linear(3, 2), (), "expected tensors with a batch"),
        (nn.Linear(3, 2), torch.zeros(0, 3), "expected tensors with a batch"),
        (nn.Linear(3, 2), [[1.0]], "expected a batch of inputs"),
        (nn.Linear(3, 2), torch.zeros(2, 4), r"example: Linear does not run on it \(mat1 and mat2 shapes cannot be"),
        (
            nn.Linear(3, 2).state_dict(),
            torch.zeros(2, 3),
            "model: expected the network itself, .* not OrderedDict",
        ),
    ],
)
def test_what_is_refused(model: nn.Module, example: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        acdc.export.to_onnx(model, example, tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_place_that_cannot_be_written_is_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such folder; create it first: '.*/none'"):
        acdc.export.to_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "none" / "x.onnx")
    with pytest.raises(IsADirectoryError, match="this is a folder; give the name of a file in it"):
        acdc.export.to_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        acdc.export.save_sparse({"w": torch.zeros(2)}, tmp_path / "none" / "x.safetensors")


def test_what_onnx_runtime_cannot_run_is_not_written(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).double()
    with pytest.raises(RuntimeError, match=r"was not written: ONNX Runtime cannot run it \(.*; write model.float\(\)"):
        acdc.export.to_onnx(model, torch.zeros(2, 1, 4, 4, dtype=torch.float64), tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_missing_packages_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exporter, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"need onnx and onnxscript, .* pip install 'acdc-torch\[onnx\]'"):
        acdc.export.to_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "x.onnx")


@pytest.mark.usefixtures("translated")
def test_without_onnxruntime_the_file_says_that_it_was_not_checked(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(exporter, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    file = acdc.export.to_onnx(model, torch.zeros(2, 1, 8, 8), tmp_path / "x.onnx")
    assert file.largest_difference is None
    assert "not checked, as onnxruntime is not installed" in str(file)


def test_importing_export_loads_neither_onnx_nor_torch() -> None:
    code = "import sys, acdc.export; print({'onnx', 'onnxscript', 'onnxruntime', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
