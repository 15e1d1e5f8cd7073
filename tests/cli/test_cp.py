"""acdc cp: a whole copy, or none; nothing is overwritten."""

import os
from pathlib import Path

import pytest

from acdc.cli import main
from acdc.recipes import load


@pytest.mark.parametrize("name", load.shipped())
def test_a_copy_is_the_same_bytes_and_trains_the_same(name: str, tmp_path: Path) -> None:
    assert main(["cp", name, str(tmp_path / "copy.toml")]) == 0
    assert (tmp_path / "copy.toml").read_bytes() == load.text_of(name)
    copied, recipe = load.read(str(tmp_path / "copy.toml")).to_dict(), load.read(name).to_dict()
    assert copied.pop("name") == "copy"
    recipe.pop("name")
    assert copied == recipe
    assert os.listdir(tmp_path) == ["copy.toml"]


def test_into_a_folder_and_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", "digits", str(tmp_path)]) == 0
    assert f"acdc check {tmp_path / 'digits.toml'}" in capsys.readouterr().out
    assert main(["cp", str(tmp_path / "digits.toml"), str(tmp_path / "other.toml")]) == 0
    assert (tmp_path / "other.toml").read_bytes() == (tmp_path / "digits.toml").read_bytes()


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    main(["cp", "digits", str(tmp_path)])
    assert (tmp_path / "digits.toml").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "digits.toml").write_text("mine")
    (tmp_path / "link.toml").symlink_to(tmp_path / "nowhere")
    for target in (tmp_path, tmp_path / "digits.toml", tmp_path / "link.toml"):
        assert main(["cp", "digits", str(target)]) == 2
        assert "it exists, and nothing is overwritten" in capsys.readouterr().err
    assert (tmp_path / "digits.toml").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert len(os.listdir(tmp_path)) == 2


def test_without_links_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert main(["cp", "digits", str(tmp_path)]) == 0
    assert (tmp_path / "digits.toml").read_bytes() == load.shipped()["digits"].read_bytes()
    assert main(["cp", "digits", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("recipe", "target", "said"),
    [
        ("digit", "x.toml", "did you mean digits?"),
        ("gone.toml", "x.toml", "there is no such file"),
        ("digits", "x.yaml", "the name of a recipe file must end in .toml; use"),
        ("digits", "no/such/folder/x.toml", "No such file or directory"),
    ],
)
def test_what_is_refused(
    recipe: str, target: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cp", recipe, str(tmp_path / target)]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
