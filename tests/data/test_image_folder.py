"""Folders of images: the same batches whatever reads them, pixels as Pillow's, and a clear word on what is wrong."""

import io
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from acdc.data import jpeg
from acdc.data.image_folder import MEAN, STD, ImageFolder
from tests.waiting import HANG

CLASSES = ("ant", "bee", "cat")
PER_CLASS = 7
SIZE, RESIZE = 32, 40


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Noise of all sizes, the larger the stronger, as in photographs."""
    rng, image, cell = np.random.default_rng(seed), np.full((height, width, 3), 128.0), max(height, width) // 2
    while cell > 1:
        noise = rng.normal(size=(height // cell + 2, width // cell + 2, 3)) * 60 * (cell / max(height, width)) ** 0.5
        big = np.kron(noise, np.ones((cell, cell, 1)))
        image += big[cell // 2 :][:height, cell // 2 :][:, :width]
        cell //= 2
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 90} | options if kind == "JPEG" else options))
    return file.getvalue()


def write_tree(root: Path) -> Path:
    for split, count in (("train", PER_CLASS), ("val", 3)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                seed = 100 * label + number + (1000 if split == "val" else 0)
                image = picture(48 + 5 * number, 90 - 9 * number, seed)
                (folder / f"{name}_{number}.JPEG").write_bytes(encode(image))
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("images"))


@pytest.fixture
def own_tree(tree: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(tree, tmp_path / "images"))


def numpy_state() -> list[int]:
    state: Any = np.random.get_state()
    return state[1].tolist()


@pytest.fixture
def folder(tree: Path) -> Iterator:
    """Makes ImageFolders and closes them."""
    made = []

    def make(root: Path = tree, split: str = "train", **options: Any) -> ImageFolder:
        usual: dict[str, Any] = {"batch_size": 4, "device": "cpu", "seed": 0, "train": split == "train", "workers": 0}
        usual |= {"size": SIZE, "resize": RESIZE, "bad_limit": 0}
        made.append(ImageFolder(root, split, **usual | options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def read(data: ImageFolder, epoch: int = 0, first: int = 0) -> list[tuple[Tensor, Tensor]]:
    return list(data.batches(epoch, first))


def assert_same(left: list[tuple[Tensor, Tensor]], right: list[tuple[Tensor, Tensor]]) -> None:
    assert len(left) == len(right)
    for (images, labels), (others, other_labels) in zip(left, right, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def pixels(images: Tensor) -> np.ndarray:
    """Normalised images back to (N, height, width, 3) grey levels."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    return ((images * std + mean) * 255).permute(0, 2, 3, 1).numpy()


def views(data: bytes, **options) -> np.ndarray:
    rng = options.pop("rng", None)
    opened = jpeg.open_picture(data)
    if rng is None:
        return jpeg.centre(opened, options["resize"], options["size"]).numpy().astype(int)
    return jpeg.crop(opened, jpeg.random_box(opened.height, opened.width, rng), options["size"]).numpy().astype(int)


# Batches


def test_shapes_types_and_counts(folder) -> None:
    data = folder()
    assert (data.samples, data.batch_size, data.steps) == (21, 4, 6)
    assert data.class_names == list(CLASSES)
    batches = read(data)
    assert [len(labels) for _, labels in batches] == [4, 4, 4, 4, 4, 1]
    images, labels = batches[0]
    assert images.shape == (4, 3, SIZE, SIZE)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_channels_first_on_request(folder) -> None:
    images, _ = read(folder(channels_last=False))[0]
    assert images.is_contiguous()
    assert_same(read(folder()), read(folder(channels_last=False)))


def test_evaluation_is_in_order_and_does_not_depend_on_the_epoch(folder) -> None:
    data = folder(split="val")
    labels = torch.cat([labels for _, labels in read(data)])
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert_same(read(data, 0), read(data, 5))


def test_an_epoch_of_training_holds_every_image_once_in_an_order_of_its_own(folder, tree: Path) -> None:
    """By way of one-colour images, which no crop changes."""
    root = tree.parent / "colours"
    for split in ("train", "val"):
        (root / split / "one").mkdir(parents=True)
        for level in range(0, 200, 20):
            image = Image.new("RGB", (50, 40), (level, level, level))
            (root / split / "one" / f"{level}.png").write_bytes(encode(image, "PNG"))
    data = folder(root, batch_size=3)
    orders = []
    for epoch in (0, 1):
        found = np.concatenate([pixels(images)[:, 0, 0, 0].round() for images, _ in data.batches(epoch)])
        assert sorted(found) == list(range(0, 200, 20))
        orders.append(found.tolist())
    assert orders[0] != orders[1]
    other = folder(root, batch_size=3, seed=1)
    assert np.concatenate([pixels(images)[:, 0, 0, 0].round() for images, _ in other.batches(0)]).tolist() != orders[0]


def test_crops_change_with_the_epoch_and_the_seed(folder) -> None:
    """Position 0 of two epochs; were the draws the same, every box would be too."""
    boxes = {jpeg.random_box(375, 500, jpeg.generator(seed, epoch, 0, 0)) for seed in range(3) for epoch in range(3)}
    assert len(boxes) == 9


# The same batches, whatever reads them


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_reads_the_same(folder, workers: int) -> None:
    alone, data = folder(), folder(workers=workers)
    for epoch in (0, 1):
        assert_same(read(alone, epoch), read(data, epoch))
    val = folder(split="val")
    assert_same(read(val), read(folder(split="val", workers=workers)))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("split", ["train", "val"])
def test_ranks_together_read_what_one_reads(folder, world: int, split: str) -> None:
    whole = read(folder(split=split))
    shares = [read(folder(split=split, rank=rank, world=world)) for rank in range(world)]
    for step, (images, labels) in enumerate(whole):
        for rank in range(world):
            assert_same([shares[rank][step]], [(images.tensor_split(world)[rank], labels.tensor_split(world)[rank])])


def test_an_epoch_is_resumed_at_any_batch(folder) -> None:
    data = folder(workers=1)
    whole = read(data, 3)
    for first in (1, 4, 6):
        assert_same(whole[first:], read(data, 3, first))


def test_an_epoch_left_early_does_not_touch_the_next(folder) -> None:
    data, expected = folder(workers=2), read(folder(), 1)
    begun = data.batches(0)
    next(begun)
    assert_same(read(data, 1), expected)
    with pytest.raises(RuntimeError, match="one iterator at a time"):
        next(begun)


def test_workers_stay_between_epochs_and_end_on_close(folder) -> None:
    before = set(multiprocessing.active_children())
    data = folder(workers=2)
    first = read(data)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    read(data, 1)
    assert set(multiprocessing.active_children()) - before == started
    data.batches(2).__next__()
    data.close()
    assert set(multiprocessing.active_children()) <= before
    assert_same(read(data), first)


READ_FOR_EVER = """
import multiprocessing, sys, time
from acdc.data.image_folder import ImageFolder
data = ImageFolder(sys.argv[1], "train", batch_size=4, device="cpu", seed=0, train=True, workers=2, bad_limit=0)
batches = data.batches(0)
next(batches)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
time.sleep(100_000)
"""


def test_workers_end_with_a_run_that_is_killed(tree: Path) -> None:
    """They and their server hold its standard output, so that ends when they all have."""
    command = [sys.executable, "-c", READ_FOR_EVER, str(tree)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        workers = [int(pid) for pid in run.stdout.readline().split()]
        assert len(workers) == 2
        run.kill()
        try:
            run.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            raise


LEAVE_THEM = """
import multiprocessing, os, signal, sys, threading
from acdc.data.image_folder import ImageFolder
for number in (stops := (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
    signal.signal(number, lambda *_: None)  # not ignored, which they would inherit
begun = threading.Event()
def all_the_while():
    while not begun.wait(0.003):
        for number in stops:
            os.killpg(os.getpid(), number)
threading.Thread(target=all_the_while).start()  # from before there is a process to start them
data = ImageFolder(sys.argv[1], "train", batch_size=4, device="cpu", seed=0, train=True, workers=2, bad_limit=0)
try:
    read, alive = len(list(data.batches(0))), len(multiprocessing.active_children())  # none if their server is gone
finally:
    begun.set()
with multiprocessing.get_context("forkserver").Pool(1) as pool:  # another's, which terminate() still ends
    print(read, alive, pool.apply(signal.pthread_sigmask, (signal.SIG_BLOCK, [])))
"""


def test_workers_and_their_server_outlive_signals_to_all_and_end_with_a_script_that_does_not_close(tree: Path) -> None:
    """From the moment they are started on, while Python itself begins in them."""
    command = [sys.executable, "-c", LEAVE_THEM, str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout) == (0, "6 2 set()\n"), done.stderr


def test_a_worker_that_dies_is_explained(folder) -> None:
    data = folder(workers=1, batch_size=1)
    before = set(multiprocessing.active_children())
    batches = data.batches(0)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    worker.kill()
    with pytest.raises(RuntimeError, match=r"workers=1: a worker process died.*__main__"):
        list(batches)


def test_a_worker_that_hangs_is_ended(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a read from a network that is gone: it hears no request to end."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    data = folder(workers=1, batch_size=1)
    before = set(multiprocessing.active_children())
    next(data.batches(0))
    (worker,) = set(multiprocessing.active_children()) - before
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    data.close()
    worker.join(HANG)
    assert not worker.is_alive()


def test_no_draw_from_the_run_s_own_generators(folder) -> None:
    states = torch.get_rng_state(), random.getstate(), numpy_state()
    read(folder(workers=1))
    read(folder())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), numpy_state()) == states[1:]


# Pixels


def test_training_views_are_those_of_a_plain_reference(folder, tree: Path) -> None:
    """Pillow all the way: decode, crop, resize, mirror. Draws in the order documented: mirror, then the box."""
    data = folder(seed=7)
    order = data._order(2).tolist()
    names = sorted(str(path.relative_to(tree / "train")) for path in (tree / "train").rglob("*.JPEG"))
    found = np.concatenate([pixels(images) for images, _ in data.batches(2)])
    labels = torch.cat([labels for _, labels in data.batches(2)])
    mirrored = 0
    for position, index in enumerate(order):
        rng = jpeg.generator(7, 2, position, 0)
        mirror = rng.random() < 0.5
        image = Image.open(tree / "train" / names[index]).convert("RGB")
        top, left, height, width = jpeg.random_box(image.height, image.width, rng)
        image = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        expected = np.asarray(image)[:, ::-1] if mirror else np.asarray(image)
        assert np.abs(found[position] - expected).max() <= 1.01
        assert CLASSES[labels[position]] == names[index].split("/")[0]
        mirrored += mirror
    assert 0 < mirrored < len(order)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (40, 300), (257, 256), (30, 20), (1025, 1301)])
def test_evaluation_is_resize_then_centre_crop(height: int, width: int) -> None:
    data = encode(picture(height, width))
    image = Image.open(io.BytesIO(data))
    scale = 256 / min(height, width)
    w, h = (256, int(256 * height / width)) if width < height else (int(256 * width / height), 256)
    assert abs(w - width * scale) < 1
    assert abs(h - height * scale) < 1
    left, top = round((w - 224) / 2), round((h - 224) / 2)
    expected = image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    found = views(data, resize=256, size=224)
    assert found.shape == (224, 224, 3)
    assert np.abs(found - np.asarray(expected)).max() <= 1


@pytest.mark.parametrize("divisor", [2, 4, 8])
@pytest.mark.parametrize("options", [{"subsampling": 2}, {"subsampling": 0}, {"progressive": True}])
def test_large_crops_are_decoded_at_reduced_scale_without_loss(divisor: int, options: dict) -> None:
    data, asked = encode(picture(130 * divisor + 13, 150 * divisor + 7), **options), []
    opened = jpeg.open_picture(data)

    def decode(d: int) -> np.ndarray:
        asked.append(d)
        return opened.decode(d)

    spied = jpeg.Picture(opened.height, opened.width, opened.divisors, decode)
    box = (13, 7, 128 * divisor, 140 * divisor)
    found = jpeg.crop(spied, box, 64).numpy().astype(int)
    assert asked == [divisor]
    top, left, height, width = (side // divisor * divisor for side in box)
    reference = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
    difference = np.abs(found - np.asarray(reference.resize((64, 64), Image.Resampling.BILINEAR)))
    assert difference.mean() < 1.5
    assert difference.max() <= 12
    jpeg.crop(spied, (0, 0, 128 * divisor - 1, 128 * divisor), 64)
    jpeg.centre(spied, 32, 32)
    assert asked[1:] == [divisor // 2, 1]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("1", "PNG"), ("L", "BMP")],
)
def test_odd_kinds_of_images_whatever_their_name(mode: str, kind: str) -> None:
    data = encode(picture(50, 60).convert(mode), kind)
    expected = Image.open(io.BytesIO(data)).convert("RGB").resize((38, 32), Image.Resampling.BILINEAR)
    found = views(data, resize=32, size=32)
    assert np.abs(found - np.asarray(expected)[:, 3:35]).max() <= 1


def test_boxes_lie_inside_and_have_the_area_and_ratio_asked_for() -> None:
    rng = random.Random(0)
    areas, ratios = [], []
    for _ in range(2000):
        top, left, height, width = jpeg.random_box(375, 500, rng)
        assert 0 <= top <= top + height <= 375
        assert 0 <= left <= left + width <= 500
        areas.append(height * width / (375 * 500))
        ratios.append(width / height)
    assert 0.07 < min(areas) < 0.1
    assert 0.9 < max(areas) <= 1
    assert 0.74 < min(ratios) < 0.76
    assert 1.31 < max(ratios) < 1.35
    assert 0.35 < np.mean(areas) < 0.54  # large boxes of other ratios do not fit and are drawn again


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1), (1, 300), (3, 2)])
def test_boxes_of_images_no_draw_fits(height: int, width: int) -> None:
    for seed in range(20):
        top, left, h, w = jpeg.random_box(height, width, random.Random(seed))
        assert h >= 1
        assert w >= 1
        assert top + h <= height
        assert left + w <= width
    crop = views(encode(picture(height, width)), size=SIZE, rng=random.Random(0))
    assert crop.shape == (SIZE, SIZE, 3)


# Files that cannot be read


def spoil(root: Path, *names: str) -> None:
    """Each in another way: truncated, not an image, empty, gone, damaged inside."""
    ways = ["cut", "text", "empty", "gone", "inside"]
    for name, way in zip(names, ways, strict=False):
        path = root / name
        data = path.read_bytes()
        if way == "gone":
            path.unlink()
            path.symlink_to(root)  # listed before, then not a file any more
            continue
        middle = data[:1200] + bytes(range(100, 164)) + data[1264:]
        path.write_bytes({"cut": data[: len(data) // 2], "text": b"no image", "empty": b"", "inside": middle}[way])


BAD = ("train/ant/ant_1.JPEG", "train/bee/bee_4.JPEG", "train/cat/cat_0.JPEG")


def test_training_replaces_unreadable_files_the_same_way_everywhere(folder, own_tree: Path, tree: Path, caplog) -> None:
    spoil(own_tree, *BAD)
    data = folder(own_tree, bad_limit=3)
    good = read(folder(tree))
    with caplog.at_level(logging.WARNING, "acdc"):
        found = read(data)
        again = read(data)
    assert sorted(data.skipped) == [name.partition("/")[2] for name in BAD]
    assert len(caplog.records) == 3, "named once each"
    assert all(str(own_tree / name) in caplog.text for name in BAD)
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 1]
    assert_same(found, again)
    differing = sum(
        not torch.equal(image, other)
        for (images, _), (others, _) in zip(found, good, strict=True)
        for image, other in zip(images, others, strict=True)
    )
    assert differing == 3, "only the rows of unreadable files change"
    assert_same(found, read(folder(own_tree, bad_limit=3, workers=2)))
    ranks = [read(folder(own_tree, bad_limit=3, rank=rank, world=2)) for rank in (0, 1)]
    joined = [(torch.cat([a, b]), torch.cat([x, y])) for (a, x), (b, y) in zip(*ranks, strict=True)]
    assert_same(found, joined)
    assert_same(found[2:], read(folder(own_tree, bad_limit=3), first=2))


def test_a_replacement_has_the_label_of_its_image(folder, own_tree: Path) -> None:
    """One-colour classes, so that an image tells its label; half of the files are unreadable."""
    for label, name in enumerate(CLASSES):
        for number, path in enumerate(sorted((own_tree / "train" / name).iterdir())):
            path.write_bytes(encode(Image.new("RGB", (40, 40), (100 * label,) * 3)) if number % 2 else b"")
    data = folder(own_tree, bad_limit=20)
    for images, labels in data.batches(0):
        assert np.round(pixels(images)[:, 0, 0, 0] / 100).astype(int).tolist() == labels.tolist()
    assert len(data.skipped) == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_leaves_unreadable_files_out(folder, own_tree: Path, tree: Path, workers: int) -> None:
    spoil(own_tree, "val/bee/bee_1.JPEG")
    data = folder(own_tree, "val", bad_limit=1, workers=workers)
    found, whole = read(data), read(folder(tree, "val"))
    assert (data.samples, data.steps, data.skipped) == (9, 3, ["bee/bee_1.JPEG"])
    assert_same([found[0], found[2]], [whole[0], whole[2]])
    assert_same([found[1]], [(whole[1][0][1:], whole[1][1][1:])])  # position 4 is the first of batch 1
    assert data.unread == [4]
    (own_tree / "val/bee/bee_1.JPEG").write_bytes((tree / "val/bee/bee_1.JPEG").read_bytes())
    read(data)
    assert data.unread == [], "of the latest evaluation"


def test_a_batch_of_unreadable_files_alone_is_empty(folder, own_tree: Path) -> None:
    spoil(own_tree, "val/cat/cat_2.JPEG")
    images, labels = read(folder(own_tree, "val", bad_limit=1))[2]
    assert (images.shape, labels.shape) == ((0, 3, SIZE, SIZE), (0,))


@pytest.mark.parametrize("way", range(5))
def test_every_kind_of_damage_is_noticed(folder, own_tree: Path, way: int) -> None:
    data = folder(own_tree, "val", bad_limit=1)
    names = ["val/ant/none"] * 5
    names[way] = "val/ant/ant_0.JPEG"
    (own_tree / "val/ant/none").write_bytes(b"")
    spoil(own_tree, *names[: way + 1])
    read(data)
    assert data.skipped == ["ant/ant_0.JPEG"]


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_unreadable_files_stop_the_run(folder, own_tree: Path, workers: int) -> None:
    spoil(own_tree, *BAD)
    data = folder(own_tree, bad_limit=2, workers=workers)
    with pytest.raises(
        RuntimeError, match=r"bad_limit=2: 3 of the 21 images in .*train could not be read, starting with "
    ) as e:
        read(data)
    for part in (*(name.partition("/")[2] for name in BAD), "at most 2", "set data.bad_limit=6"):
        assert part in str(e.value)


def test_one_of_several_ranks_does_not_stop_alone(folder, own_tree: Path) -> None:
    """The others would wait for it: it goes on, and says so where all ranks ask."""
    for path in (own_tree / "train").rglob("*.JPEG"):
        path.write_bytes(b"")
    data = folder(own_tree, bad_limit=2, rank=1, world=2)
    assert all((images == images[:, :, :1, :1]).all() for images, _ in read(data)), "black ones"
    with pytest.raises(RuntimeError, match="bad_limit=2: 21 of the 21 images"):
        data.refuse_too_many([str(number) for number in range(21)])
    with pytest.raises(RuntimeError, match="bad_limit=2: "):
        data.batches(1)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_folder_without_a_readable_image_stops_the_run(folder, own_tree: Path, split: str) -> None:
    for path in (own_tree / split).rglob("*.JPEG"):
        path.write_bytes(b"")
    with pytest.raises(RuntimeError, match="could not be read"):
        read(folder(own_tree, split, bad_limit=100))


# What is refused


def test_other_files_and_hidden_ones_are_not_listed(folder, own_tree: Path) -> None:
    for name in ("ant/notes.txt", "ant/._ant_0.JPEG", ".DS_Store", "list.txt"):
        (own_tree / "train" / name).write_bytes(b"")
    (own_tree / "train" / ".cache").mkdir()
    data = folder(own_tree)
    assert (data.samples, data.class_names) == (21, list(CLASSES))


def test_missing_root(folder, tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"root=.*none': no such folder; expected .* Pass the folder that holds"
    ):
        folder(tmp_path / "none")


@pytest.mark.parametrize("missing", ["train", "val"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_missing_split(folder, own_tree: Path, missing: str, split: str) -> None:
    (own_tree / missing).rename(own_tree / "other")
    with pytest.raises(FileNotFoundError, match=rf"holds other, \w+ but no folder {missing}; |no folder {missing}; "):
        folder(own_tree, split)


def test_val_without_class_folders(folder, own_tree: Path) -> None:
    shutil.rmtree(own_tree / "val")
    (own_tree / "val").mkdir()
    (own_tree / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    with pytest.raises(ValueError, match=r"val holds 1 images but no class folders; expected .* Move each image"):
        folder(own_tree)


def test_empty_class_folder(folder, own_tree: Path) -> None:
    for path in (own_tree / "train" / "bee").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"1 of the 3 class folders in train hold no images: bee; .* Unpack these"):
        folder(own_tree)
    assert folder(own_tree, "val").samples == 9


def test_differing_classes(folder, own_tree: Path) -> None:
    (own_tree / "train" / "dog").mkdir()
    (own_tree / "val" / "bee").rename(own_tree / "val" / "wasp")
    expected = (
        "train has 4 classes and val has 3, .* train has 2 that val does not: bee, dog; val has 1 .* wasp. Both must"
    )
    with pytest.raises(ValueError, match=expected):
        folder(own_tree)


def test_number_of_classes(folder) -> None:
    assert folder(classes=3).samples == 21
    with pytest.raises(ValueError, match=r"classes=1000: .* has 3 class folders; expected .* set classes=3"):
        folder(classes=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "test"}, "split='test': expected one of train, val"),
        ({"batch_size": 0}, "batch_size=0: expected 1 or more"),
        ({"batch_size": 1, "world": 2}, "batch_size=1: expected 2 or more"),
        ({"rank": 2, "world": 2}, "rank=2, world=2: expected a rank from 0 to world - 1"),
        ({"workers": -1}, "workers=-1: expected 0 or more"),
        ({"bad_limit": -1}, "bad_limit=-1: expected 0 or more"),
        ({"size": 64, "resize": 32}, "size=64, resize=32: expected 1 ≤ size ≤ resize"),
    ],
)
def test_settings_out_of_range(folder, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        folder(**{"train": True} | options)


@pytest.mark.parametrize("first", [-1, 7])
def test_a_batch_out_of_range(folder, first: int) -> None:
    with pytest.raises(ValueError, match=f"first={first}: expected a batch from 0 to 6"):
        folder().batches(0, first)


@pytest.mark.parametrize("module", ["simplejpeg", "PIL"])
def test_missing_decoders_are_named_with_what_to_type(folder, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"{module}.Image", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "acdc-torch\[imagenet\]"'):
        folder()
