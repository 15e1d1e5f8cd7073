"""CIFAR's official files: read alike from folder and archive, checked by md5, and nothing in them run.

The files here are tiny ones in the official format (a pickle of Python 2), with a table of their own md5s.
"""

import hashlib
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acdc.data import cifar, load
from acdc.data.cifar import CIFAR10, CIFAR100, Collection, load_cifar10, load_cifar100, unpickle

LOADERS = {"CIFAR10": load_cifar10, "CIFAR100": load_cifar100}


# Writing what Python 2 wrote


def old_pickle(value: object) -> bytes:
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(value: object) -> bytes:
    match value:
        case int():
            return b"J" + struct.pack("<i", value)
        case bytes():
            return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value
        case list():
            return b"](" + b"".join(map(opcodes, value)) + b"e"
        case dict():
            return b"}(" + b"".join(opcodes(part) for item in value.items() for part in item) + b"u"
        case torch.Tensor():
            array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            shape = b"".join(map(opcodes, value.shape))
            content = b"T" + struct.pack("<i", value.numel()) + bytes(value.flatten().tolist())
            return array + b"(K\x01" + shape + b"\x86" + kind + b"\x89" + content + b"tb"
    raise TypeError(type(value))


def write(root: Path, wanted: Collection) -> Collection:
    """A few images in every file of the collection, under root/folder; the collection with their md5s."""
    folder = root / wanted.folder
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    md5 = {}
    for name in wanted.md5:
        if name == wanted.meta:
            content = {b"num_vis": 3072, wanted.class_names: [b"apple", b"bear", b"cup", b"dog"]}
        else:
            pixels = torch.randint(256, (5, 3072), dtype=torch.uint8, generator=generator)
            labels = torch.randint(4, (5,), generator=generator).tolist()
            content = {b"filenames": [b"a.png"] * 5, wanted.labels: labels, b"coarse_labels": [0] * 5, b"data": pixels}
        written = old_pickle(content)
        (folder / name).write_bytes(written)
        md5[name] = hashlib.md5(written).hexdigest()
    archive = root / wanted.archive
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, wanted.folder)
    return replace(wanted, md5=md5, archive_md5=hashlib.md5(archive.read_bytes()).hexdigest())


@pytest.fixture(params=LOADERS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def small(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """Files in tmp_path that the loader takes for the official ones; the archive is moved to tmp_path/packed."""
    collection = write(tmp_path, getattr(cifar, name))
    monkeypatch.setattr(cifar, name, collection)
    (tmp_path / "packed").mkdir()
    (tmp_path / collection.archive).rename(tmp_path / "packed" / collection.archive)
    return collection


# Reading


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_images_and_labels_are_those_of_the_files(name: str, small: Collection, tmp_path: Path) -> None:
    data = LOADERS[name](tmp_path)
    for part, files in ((data.train, small.train), (data.test, small.test)):
        whole = [pickle.loads((tmp_path / small.folder / file).read_bytes(), encoding="bytes") for file in files]
        pixels = torch.cat([torch.from_numpy(batch[b"data"]) for batch in whole])
        assert torch.equal(part.pixels.flatten(1), pixels)
        assert part.pixels.shape == (5 * len(files), 3, 32, 32)
        assert part.labels.tolist() == [label for batch in whole for label in batch[small.labels]]
        assert (part.pixels.dtype, part.labels.dtype) == (torch.uint8, torch.int64)
    assert (data.name, data.classes, data.shape) == (small.name, 4, (3, 32, 32))


def test_the_folder_itself_its_parent_and_the_archive_read_the_same(
    name: str, small: Collection, tmp_path: Path
) -> None:
    first, *others = (LOADERS[name](root) for root in (tmp_path, tmp_path / small.folder, str(tmp_path / "packed")))
    for other in others:
        assert torch.equal(first.train.pixels, other.train.pixels)
        assert torch.equal(first.train.labels, other.train.labels)
        assert torch.equal(first.test.pixels, other.test.pixels)
        assert torch.equal(first.test.labels, other.test.labels)
    assert list((tmp_path / "packed").iterdir()) == [tmp_path / "packed" / small.archive], "nothing is unpacked"


def test_the_environment_variable_names_the_root(
    name: str, small: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACDC_DATA", str(tmp_path))
    assert load(small.name).name == small.name
    monkeypatch.setenv("ACDC_DATA", str(tmp_path / "elsewhere"))
    assert load(small.name, root=tmp_path).name == small.name, "an argument wins"
    monkeypatch.delenv("ACDC_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="root = 'data' does not exist"):
        load(small.name)


def test_the_paper_s_normalisation() -> None:
    assert (CIFAR10.mean, CIFAR10.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert (CIFAR100.mean, CIFAR100.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


# Refusing


def test_by_default_only_the_official_files_are_read(name: str, tmp_path: Path) -> None:
    official = getattr(cifar, name)
    made = write(tmp_path, official)
    with pytest.raises(ValueError, match="are not the official ones") as error:
        LOADERS[name](tmp_path)
    for file in official.md5:
        line = f"{file}: altered: its md5 is {made.md5[file]}, but the official file's is {official.md5[file]}"
        assert line in str(error.value)
    assert official.archive in str(error.value)
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in str(error.value)


def test_an_altered_or_cut_archive_is_refused(name: str, small: Collection, tmp_path: Path) -> None:
    archive = tmp_path / "packed" / small.archive
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="altered or incomplete") as error:
        LOADERS[name](archive.parent)
    assert small.archive_md5 in str(error.value)


def test_all_missing_and_altered_files_are_named_at_once(name: str, small: Collection, tmp_path: Path) -> None:
    folder = tmp_path / small.folder
    (folder / small.meta).unlink()
    with (folder / small.test[0]).open("ab") as file:
        file.write(b" ")
    with pytest.raises(FileNotFoundError) as error:
        LOADERS[name](tmp_path)
    message = str(error.value)
    assert f"2 of {len(small.md5)} files in {str(folder)!r}" in message
    assert f"{small.meta}: missing" in message
    assert f"{small.test[0]}: altered" in message
    assert f"{small.train[0]}:" not in message


def test_a_root_without_the_data_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    collection = getattr(cifar, name)
    file = tmp_path / "file"
    file.touch()
    for root, fault in ((tmp_path, "holds neither"), (tmp_path / "x", "does not exist"), (file, "is a file")):
        with pytest.raises(FileNotFoundError, match=fault) as error:
            LOADERS[name](root)
        assert f"root = {str(root)!r}" in str(error.value)
        assert f"Download {collection.archive} from https://www.cs.toronto.edu/~kriz/cifar.html" in str(error.value)


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\nU\x04true\x85R.",
        b"cbuiltins\neval\nU\x011\x85R.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c__builtin__\ngetattr\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ],
)
def test_nothing_but_an_array_is_unpickled(stream: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="does not belong in a CIFAR file"):
        unpickle(stream)


def test_an_array_of_another_kind_is_not_misread() -> None:
    stream = old_pickle(torch.zeros(2, 3, dtype=torch.uint8))
    array: Any = unpickle(stream)
    assert array.tensor().shape == (2, 3)
    for altered in (stream.replace(b"U\x02u1", b"U\x02i8"), stream.replace(b"tb\x89T", b"tb\x88T")):
        assert altered != stream
        with pytest.raises(pickle.UnpicklingError, match="uint8 in C order"):
            unpickle(altered)


def test_the_table_covers_what_is_read() -> None:
    for collection, files in ((CIFAR10, 7), (CIFAR100, 3)):
        assert {*collection.train, *collection.test, collection.meta} == set(collection.md5)
        assert len(collection.md5) == files
        assert all(len(md5) == 32 for md5 in (*collection.md5.values(), collection.archive_md5))
