"""Progressive resizing: sizes change at exact epochs, and evaluations see the full size."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from acdc.data.image_folder import ImageFolder
from acdc.data.image_sizes import ImageSizes, scaled
from acdc.data.images import InMemory, full_size_epoch
from tests.data.test_image_folder import SIZE, write_tree
from tests.data.test_images import loader, make, same, whole

SIZES = ImageSizes(first=2, full=5, step=1, end=4)


def test_sizes_change_at_exact_epochs() -> None:
    sizes = ImageSizes.over(100, first=20, full=32, step=4, by=0.5)
    assert sizes.changes() == {0: 20, 17: 24, 34: 28, 50: 32}
    assert [sizes.at(epoch) for epoch in (0, 16, 17, 33, 34, 49, 50, 99, 1000)] == [20, 20, 24, 24, 28, 28, 32, 32, 32]


def test_a_step_that_does_not_divide_leaves_the_last_one_shorter() -> None:
    assert ImageSizes.over(10, first=5, full=12, step=4, by=1.0).changes() == {0: 5, 6: 9, 10: 12}
    assert ImageSizes.over(2, first=5, full=12, step=100, by=0.1).changes() == {0: 5, 1: 12}


@given(
    st.integers(1, 300), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.floats(0.01, 1)
)  # fmt: skip
def test_sizes_never_shrink_and_end_full(epochs: int, first: int, more: int, step: int, by: float) -> None:
    sizes = ImageSizes.over(epochs, first=first, full=first + more, step=step, by=by)
    sides = [sizes.at(epoch) for epoch in range(epochs + 1)]
    assert sides[0] == first
    assert sides == sorted(sides)
    assert {side for side in sides if side < sizes.full} <= {*range(first, sizes.full, step)}
    assert sides[min(epochs, sizes.end)] == sides[-1] == sizes.full
    assert [*sizes.changes().values()] == sorted({*sides})


def test_the_longer_side_keeps_its_proportion() -> None:
    assert scaled((3, 32, 32), 20) == (3, 20, 20)
    assert scaled((1, 6, 9), 4) == (1, 4, 6)


# Images in memory


def test_they_are_the_images_of_full_size_scaled_down() -> None:
    data = make()  # 6 x 5 pixels
    plain, growing = loader(data), loader(data, sizes=SIZES, channels_last=True)
    for epoch, shape in ((0, (2, 2)), (1, (2, 2)), (2, (4, 3)), (3, (5, 4)), (4, (6, 5)), (9, (6, 5))):
        (large, labels), (small, again) = whole(plain, epoch), whole(growing, epoch)
        assert small.shape[2:] == shape
        assert torch.equal(labels, again), "in the same order, with the same crops"
        wanted = F.interpolate(large, shape, mode="bilinear", antialias=True) if shape != (6, 5) else large
        torch.testing.assert_close(small, wanted)
        assert small.is_contiguous(memory_format=torch.channels_last)


def test_a_part_of_an_epoch_is_its_end() -> None:
    growing = loader(make(), sizes=SIZES)
    images, labels = whole(growing, 2)
    assert same(whole(growing, 2, first=3), (images[24:], labels[24:]))


def test_the_full_size_epoch() -> None:
    data = make()
    assert full_size_epoch(loader(data)) == 0
    growing = loader(data, sizes=SIZES)
    assert full_size_epoch(growing) == 4
    assert next(growing.batches(4))[0].shape[2:] == (6, 5)
    assert next(growing.batches(3))[0].shape[2:] == (5, 4)


def test_without_sizes_nothing_changes() -> None:
    data = make()
    assert same(
        whole(loader(data), 3), whole(InMemory(data.train, data, batch_size=8, train=True, crop=2, flip=True), 3)
    )


# Images from folders


@pytest.mark.parametrize("workers", [0, 1])
def test_files_are_cropped_to_the_size_of_the_epoch(tmp_path: Path, workers: int) -> None:
    tree = write_tree(tmp_path / "images")
    sizes = ImageSizes(first=16, full=SIZE, step=8, end=2)
    options = {"device": "cpu", "seed": 0, "workers": workers, "size": SIZE, "resize": 40, "bad_limit": 0}
    folder = ImageFolder(tree, "train", train=True, batch_size=8, sizes=sizes, **options)
    plain = ImageFolder(tree, "train", train=True, batch_size=8, **options)
    try:
        for epoch, side in ((0, 16), (1, 24), (2, 32), (0, 16)):
            (images, labels), (large, same_labels) = next(folder.batches(epoch)), next(plain.batches(epoch))
            assert images.shape == (8, 3, side, side)
            assert torch.equal(labels, same_labels)
            shrunk = F.interpolate(large, (side, side), mode="bilinear", antialias=True)
            assert (images - shrunk).abs().mean() < 0.15, "the same crops, scaled from the file at once"
            if side == SIZE:
                assert torch.equal(images, large)
    finally:
        folder.close()
        plain.close()
