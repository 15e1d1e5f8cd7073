"""acdc doctor: what it finds, and the exit code that says whether the default run can work."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from acdc.cli import doctor, main
from acdc.data import cifar


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACDC_DATA", raising=False)


def examined(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["doctor", *arguments]) == code
    return capsys.readouterr().out


def lines(out: str, word: str) -> list[str]:
    return [line.strip() for line in out.splitlines() if word in line]


def test_a_machine_that_can_train(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = examined(capsys)
    assert f"ok  torch {importlib.metadata.version('torch')}" in out
    assert lines(out, "scikit-learn")[0].startswith("ok")
    assert lines(out, "CPU:")[0].startswith("ok")
    assert f"{tmp_path / 'runs'} is writable" in out
    assert "BAD" not in out
    assert out.endswith("the default run works here; run: acdc train\n")
    assert list(tmp_path.iterdir()) == [], "it only looks"


def test_a_missing_package_names_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    out = examined(capsys, code=1)
    assert 'BAD no scikit-learn, for the default run\'s data\n      run: pip install "acdc-torch[digits]"' in out
    assert 'no  no matplotlib, for figures\n      run: pip install "acdc-torch[plot]"' in out
    assert "the default run does not work here: fix what is marked BAD (1)" in out


def test_an_old_torch_is_bad(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: "2.9.1+cpu" if name == "torch" else real(name))
    out = examined(capsys, code=1)
    assert 'BAD torch 2.9.1+cpu: acdc needs 2.11 or newer\n      run: pip install "torch>=2.11"' in out


def test_the_versions_it_asks_for_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(doctor.__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert {f"{name}>={least}" for name, least in doctor.NEEDED.items()} == set(project["dependencies"])
    assert {extra for extra, _, _ in doctor.OPTIONAL} == set(project["optional-dependencies"]) - {"dev"}


def test_no_compiler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "no  no C++ compiler: torch.compile stays off" in examined(capsys)


def test_a_folder_that_cannot_be_written_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    assert "BAD" in lines(examined(capsys, code=1), "runs")[0]


# Data


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    out = examined(capsys)
    for name in ("cifar10", "cifar100", "imagenet"):
        assert f"no  {name}: not found" in out
    assert cifar.PAGE in out


def test_cifar_present_in_part_altered_and_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "data" / cifar.CIFAR100.folder
    place.mkdir(parents=True)
    (place / "train").write_bytes(b"x")
    assert "lacks test, meta" in examined(capsys)
    for name in ("test", "meta"):
        (place / name).write_bytes(b"x")
    assert f"ok  cifar100: data/{cifar.CIFAR100.folder} (acdc doctor --full verifies it)" in examined(capsys)
    assert "train: altered: its md5 is" in examined(capsys, "--full")
    monkeypatch.setattr(doctor.data, "load", lambda name, root: None)
    assert "all md5s are the official ones" in examined(capsys, "--full")


def test_cifar_as_an_archive_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / cifar.CIFAR10.archive).write_bytes(b"x")
    out = examined(capsys, "--data", str(tmp_path))
    assert f"ok  cifar10: {tmp_path / cifar.CIFAR10.archive}" in out
    monkeypatch.setenv("ACDC_DATA", str(tmp_path))
    assert f"ok  cifar10: {tmp_path / cifar.CIFAR10.archive}" in examined(capsys)
    assert "is altered or incomplete" in examined(capsys, "--full")


def test_a_folder_of_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / split / name / "1.png")
    out = examined(capsys, "--data", str(tmp_path))
    assert "ok  imagenet: 2 classes (acdc doctor --full counts the images)" in out
    out = examined(capsys, "--data", str(tmp_path), "--full")
    assert "ok  imagenet: 2 classes, 2 images in train, 2 images in val\n" in out
    (tmp_path / "val" / "dog" / "1.png").unlink()
    assert "no  imagenet: root=" in examined(capsys, "--data", str(tmp_path), "--full")
    (tmp_path / "val" / "dog").rmdir()
    assert "but not the same ones" in examined(capsys, "--data", str(tmp_path))
