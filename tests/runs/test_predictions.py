"""Predictions know the file they were made from, and the images they are of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from acdc.io import IntegrityError, write_safetensors
from acdc.runs import predictions
from acdc.runs.folder import PREDICTIONS as FILE
from acdc.runs.json_files import RecordError
from acdc.runs.predictions import Made, Source


def add(run: Path, name: str, logits: torch.Tensor, unread: tuple[int, ...] = ()) -> None:
    save_file({"weight": logits}, run / f"{name}.safetensors")
    predictions.add(run, {name: Made(logits, unread)})


def test_they_are_added_to_those_there_and_tied_to_their_model(tmp_path: Path) -> None:
    assert predictions.kept(tmp_path) == {}
    add(tmp_path, "sparse", torch.ones(3, 2))
    add(tmp_path, "dense", torch.zeros(3, 2))
    add(tmp_path, "sparse", torch.ones(2, 2), (1,))
    assert {name: len(rows) for name, rows in load_file(tmp_path / FILE).items()} == {"sparse": 2, "dense": 3}
    found = predictions.kept(tmp_path)
    assert (found["sparse"].rows, found["sparse"].classes, found["sparse"].unread) == (2, 2, (1,))
    assert (found["dense"].unread, {one.source for one in found.values()}) == ((), {Source.TIED})
    assert found["dense"].logits().tolist() == [[0, 0]] * 3


def test_several_are_added_in_one_write_or_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "sparse", torch.ones(3, 2))
    before, written = (tmp_path / FILE).read_bytes(), []
    for name in ("dense", "finetuned"):
        save_file({"weight": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    several = {"dense": Made(torch.zeros(3, 2)), "finetuned": Made(torch.zeros(2, 2), (1,))}
    with pytest.raises(FileNotFoundError):
        predictions.add(tmp_path, {**several, "none": Made(torch.zeros(3, 2))})
    assert (tmp_path / FILE).read_bytes() == before
    write = predictions.write_safetensors
    monkeypatch.setattr(predictions, "write_safetensors", lambda *said: written.append(write(*said)))
    predictions.add(tmp_path, several)
    assert len(written) == 1
    found = predictions.kept(tmp_path)
    assert {name: one.unread for name, one in found.items()} == {"sparse": (), "dense": (), "finetuned": (1,)}
    assert {one.source for one in found.values()} == {Source.TIED}


def test_what_became_of_the_model(tmp_path: Path) -> None:
    model = tmp_path / "sparse.safetensors"

    def source() -> Source:
        return predictions.kept(tmp_path)["sparse"].source

    add(tmp_path, "sparse", torch.ones(3, 2))
    whole = model.read_bytes()
    save_file({"weight": torch.zeros(3, 2)}, model)
    assert source() is Source.OTHER
    model.unlink()
    assert source() is Source.GONE
    model.write_bytes(whole)
    assert source() is Source.TIED
    model.write_bytes(whole[:-3])
    assert source() is Source.OTHER


def test_whether_they_are_of_the_same_images(tmp_path: Path) -> None:
    add(tmp_path, "all", torch.ones(9, 2))
    for name, unread in (("one", (3,)), ("same", (3,)), ("another", (4,)), ("older", ())):
        add(tmp_path, name, torch.ones(8, 2), unread)
    found = predictions.kept(tmp_path)

    def why_not(a: str, b: str) -> str | None:
        return predictions.why_not_of_same_images(found[a], found[b], 9)

    assert why_not("one", "same") is None
    assert why_not("one", "another") == "one lacks number 4, the other lacks number 5"
    assert why_not("one", "all") == "one lacks number 4, the other lacks none"
    assert why_not("one", "older") == "it has 8 predictions for 9 test images, and nothing says for which"
    assert predictions.without(range(1200, 1206)) == "number 1,201, 1,202, 1,203, 1,204, 1,205 and 1 more"


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    add(tmp_path, "sparse", torch.ones(3, 2))
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:20])
    with pytest.raises(ValueError, match=r"predictions.safetensors: it is truncated, or not a safetensors file"):
        predictions.kept(tmp_path)


def test_a_file_with_a_flipped_bit_is_neither_used_nor_added_to(tmp_path: Path) -> None:
    """Adding would write the damage anew, with a digest that vouches for it."""
    add(tmp_path, "sparse", torch.ones(3, 2))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"predictions.safetensors: its contents do not match the digest"):
        predictions.kept(tmp_path)
    with pytest.raises(IntegrityError, match="do not match the digest"):
        add(tmp_path, "dense", torch.ones(3, 2))
    assert (tmp_path / FILE).read_bytes() == content


def test_a_file_that_another_tool_wrote_is_refused(tmp_path: Path) -> None:
    save_file({"sparse": torch.ones(3, 2)}, tmp_path / FILE)
    with pytest.raises(ValueError, match=r"predictions.safetensors: it has no digest: another tool wrote it"):
        predictions.kept(tmp_path)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({"models": [1]}, r"its metadata: models = \[…\]: expected a table"),
        ({"models": {"sparse": {"unread": "x"}}}, r'its metadata: models.sparse.unread = "x": expected a list'),
        (
            {"models": {"sparse": {"unread": [-1]}}},
            r"models.sparse.unread\[0\] = -1: expected a whole number",
        ),
        ({"models": {"sparse": {"made_from": 3}}}, r"its metadata: models.sparse.made_from = 3: expected text"),
    ],
)
def test_metadata_of_another_type_is_refused_by_its_part(tmp_path: Path, details: dict[str, Any], said: str) -> None:
    write_safetensors({tmp_path / FILE: {"sparse": torch.ones(3, 2)}}, details)
    with pytest.raises(RecordError, match=said):
        predictions.kept(tmp_path)
    with pytest.raises(RecordError, match=said):
        add(tmp_path, "dense", torch.ones(3, 2))
