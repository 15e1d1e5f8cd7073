"""Images in memory: an epoch is a pure function of seed and epoch, and augmentation does what its slow version does."""

import pytest
import torch
from torch import Tensor

from acdc.data.images import ImageData, Images, InMemory, hold_out, share

SAMPLES, BATCH = 50, 8


def make(shape: tuple[int, int, int] = (3, 6, 5), scale: float = 255.0) -> ImageData:
    """Random images, no two alike; the label is the image's number."""
    generator = torch.Generator().manual_seed(0)
    train, test = (
        Images(torch.randint(1, 256, (count, *shape), dtype=torch.uint8, generator=generator), torch.arange(count))
        for count in (SAMPLES, 20)
    )
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    return ImageData(name="made", classes=SAMPLES, train=train, test=test, mean=mean, std=std, scale=scale)


def loader(data: ImageData, **options) -> InMemory:
    return InMemory(data.train, data, batch_size=BATCH, **{"train": True, "crop": 2, "flip": True} | options)


def whole(batches: InMemory, epoch: int = 0, first: int = 0) -> tuple[Tensor, Tensor]:
    images, labels = zip(*batches.batches(epoch, first), strict=True)
    return torch.cat(images), torch.cat(labels)


def same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(left[0], right[0]) and torch.equal(left[1], right[1])


# Pure epochs


def test_an_epoch_is_a_function_of_seed_and_epoch_alone() -> None:
    data = make()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = whole(loader(data, seed=3), 7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    used = loader(data, seed=3)
    whole(used, 6)
    assert same(whole(used, 7), first)
    assert not same(whole(used, 8), first)
    assert not same(whole(loader(data, seed=4), 7), first)


def test_every_image_comes_once_in_an_epoch_in_batches_of_the_size_asked_for() -> None:
    batches = loader(make())
    sizes = [len(labels) for _, labels in batches.batches(0)]
    assert sizes == [BATCH] * 6 + [2]
    assert (len(sizes), SAMPLES) == (batches.steps, batches.samples)
    assert whole(batches)[1].sort().values.tolist() == list(range(SAMPLES))


@pytest.mark.parametrize("first", [0, 1, 5, 6, 7])
def test_taken_up_inside_an_epoch_the_rest_is_the_same(first: int) -> None:
    batches = loader(make())
    full = list(batches.batches(2))
    rest = list(batches.batches(2, first))
    assert len(rest) == len(full) - first
    assert all(same(left, right) for left, right in zip(rest, full[first:], strict=True))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_see_the_batches_of_one(world: int, train: bool) -> None:
    data = make()
    one = loader(data, train=train).batches(1, 2)
    ranks = [loader(data, train=train, rank=rank, world=world) for rank in range(world)]
    assert {rank.steps for rank in ranks} == {loader(data).steps}
    parts = zip(*(rank.batches(1, 2) for rank in ranks), strict=True)
    for expected, part in zip(one, parts, strict=True):
        images, labels = (torch.cat(values) for values in zip(*part, strict=True))
        assert same((images, labels), expected)


@pytest.mark.parametrize("at_once", [2, 3, 100])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 3), (8, 9)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_batches_made_at_once_are_the_same(at_once: int, rank: int, world: int, channels_last: bool) -> None:
    """As a GPU makes them; also where the run is taken up inside the epoch, and in ranks without an image."""
    data, knobs = make(), {"rank": rank, "world": world, "channels_last": channels_last}
    one, many = (loader(data, **knobs) for _ in range(2))
    many._at_once = at_once
    for first in (0, 1, 5, 6):
        pairs = list(zip(many.batches(2, first), one.batches(2, first), strict=True))
        assert len(pairs) == one.steps - first
        assert all(same(mine, theirs) and mine[0].stride() == theirs[0].stride() for mine, theirs in pairs)


def test_shares_are_in_order_and_differ_by_one_at_most() -> None:
    for start, stop, world in [(0, 10, 3), (5, 6, 4), (3, 3, 2), (0, 9, 3)]:
        parts = [list(range(stop))[share(start, stop, rank, world)] for rank in range(world)]
        assert [number for part in parts for number in part] == list(range(start, stop))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


# Augmentation


def slow(image: Tensor, data: ImageData, crop: int, down: int, right: int, mirror: bool) -> Tensor:
    """One image, one pixel at a time: black border, window, mirror, then (pixel / scale − mean) / std."""
    channels, height, width = image.shape
    out = torch.empty(channels, height, width)
    for channel in range(channels):
        for row in range(height):
            for column in range(width):
                across = width - 1 - column if mirror else column
                y, x = row + down - crop, across + right - crop
                inside = 0 <= y < height and 0 <= x < width
                pixel = int(image[channel, y, x]) if inside else 0
                out[channel, row, column] = (pixel / data.scale - data.mean[channel]) / data.std[channel]
    return out


@pytest.mark.parametrize("scale", [255.0, 16.0])
@pytest.mark.parametrize(("crop", "flip"), [(2, True), (3, False), (0, True), (0, False)])
def test_agrees_with_the_slow_version(crop: int, flip: bool, scale: float) -> None:
    data = make(scale=scale)
    batches = loader(data, crop=crop, flip=flip)
    images, labels = whole(batches, 3)
    order, *drawn = batches._draw(3)
    assert torch.equal(labels, order)
    places = zip(*(values.flatten().tolist() for values in drawn), strict=True)
    for image, label, (down, right, mirror) in zip(images, labels, places, strict=True):
        expected = slow(data.train.pixels[label], data, crop, down, right, mirror)
        torch.testing.assert_close(image, expected, rtol=1e-5, atol=1e-5)


def test_all_windows_come_and_half_are_mirrored() -> None:
    data = make((3, 1, 1))
    many = Images(torch.zeros(4000, 3, 1, 1, dtype=torch.uint8), torch.zeros(4000, dtype=torch.int64))
    _, down, right, mirror = InMemory(many, data, batch_size=BATCH, train=True, crop=4, flip=True)._draw(0)
    counts = (down * 9 + right).flatten().bincount(minlength=81)
    assert counts.min() > 20  # of 49 on average
    assert mirror.float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_augmentation_is_off_unless_training() -> None:
    data = make()
    evaluated = InMemory(data.test, data, batch_size=BATCH, crop=2, flip=True)
    images, labels = whole(evaluated)
    assert labels.tolist() == list(range(20))
    plain = torch.stack([slow(image, data, 0, 0, 0, False) for image in data.test.pixels])
    torch.testing.assert_close(images, plain, rtol=1e-5, atol=1e-5)
    assert same(whole(evaluated, 5), (images, labels))


@pytest.mark.parametrize("crop", [0, 2])
def test_channels_last_holds_the_same_values(crop: int) -> None:
    data = make()
    for (left, _), (right, _) in zip(
        loader(data, crop=crop).batches(0), loader(data, crop=crop, channels_last=True).batches(0), strict=True
    ):
        assert torch.equal(left, right)
        assert left.is_contiguous()
        assert right.is_contiguous(memory_format=torch.channels_last)


def test_the_data_stay_as_they_were() -> None:
    data = make()
    before = data.train.pixels.clone()
    for images, _ in loader(data, crop=0, flip=False).batches(0):
        images.zero_()
    whole(loader(data))
    assert torch.equal(data.train.pixels, before)


# Setting images aside


def test_held_out_images_and_the_rest_are_the_whole() -> None:
    data = make()
    split = hold_out(data, 12)
    assert split.validation is not None
    assert (len(split.train), len(split.validation)) == (SAMPLES - 12, 12)
    numbers = torch.cat([split.train.labels, split.validation.labels])
    assert numbers.sort().values.tolist() == list(range(SAMPLES))
    for part in (split.train, split.validation):
        assert torch.equal(part.pixels, data.train.pixels[part.labels])
    assert split.test is data.test


def test_the_split_is_a_function_of_its_seed() -> None:
    data = make()
    first, again, other = (hold_out(data, 12, seed=seed).train.labels for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("count", [0, -1, SAMPLES])
def test_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}: made has 50 training images; set aside 1 to 49"):
        hold_out(make(), count)


def test_moving_takes_every_part_along() -> None:
    moved = hold_out(make(), 5).to("meta")
    assert moved.validation is not None
    for part in (moved.train, moved.test, moved.validation):
        assert part.pixels.device.type == part.labels.device.type == "meta"
