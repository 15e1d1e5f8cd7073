"""Folders of images in ImageNet's layout, decoded and cropped in worker processes, finished on the device.

A worker returns a whole batch of uint8 images; the device mirrors and normalises it. Which files a batch holds, and how
each is cropped and mirrored, depend only on (seed, epoch, position in the epoch): not on the number of workers or
ranks, nor on where an epoch was resumed.
"""

import atexit
import hashlib
import logging
import multiprocessing
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from acdc.data import IMAGE_SIZE, folders
from acdc.data.image_sizes import ImageSizes
from acdc.data.images import BadImagesError, WorkerError
from acdc.data.jpeg import Bad, Read, Reader, Request, check_installed, generator, prepare_worker
from acdc.typed_data import Limits

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
Pixels = Annotated[int, Limits(least=1, cap=10_000, text="pixels, 1 or more")]
Classes = Annotated[int, Limits(least=1, cap=1_000_000, text="a number of class folders, 1 or more")]
_AHEAD = 2  # batches that each worker reads ahead; this rank's share waits in shared memory (/dev/shm)

_Copy = tuple[Tensor, Tensor, Tensor]
"""Pixels as read, the indices of those to mirror, and labels."""

log = logging.getLogger("acdc")


class ImageFolder:
    """One split of a tree of images, in batches.

    With `train`: shuffled, with RandomResizedCrop and, with `flip`, half of them mirrored. Without: in order, the
    shorter side resized to `resize`, the centre cropped. A file that cannot be read is logged and its name added to
    `skipped`. In training another image, drawn by the same rule, replaces it; in evaluation its row is left out, so
    accuracy is over the images that were read, and its index is in `unread` until the next evaluation begins.

    More than `bad_limit` such files are an error. No rank of several raises it in the middle of an epoch, where the
    others would wait for it: it continues with black images, and the loop raises the error on all ranks at once, for
    the files of all of them (`refuse_too_many`); or it is raised at the start of this rank's next epoch.

    `classes` is the number of classes required. `sizes` are those of training images that grow; see image_sizes.py.
    """

    def __init__(
        self,
        root: str | Path,
        split: str,
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int,
        train: bool,
        workers: int,
        rank: int = 0,
        world: int = 1,
        channels_last: bool = True,
        size: Pixels = IMAGE_SIZE,
        resize: Pixels = 256,
        bad_limit: int,
        classes: Classes | None = None,
        flip: bool = True,
        sizes: ImageSizes | None = None,
    ) -> None:
        check_installed()
        _check(split, batch_size, workers, rank, world, size, resize, bad_limit)
        self.root, self.split = Path(root).expanduser(), split
        self.batch_size, self.rank, self.world = batch_size, rank, world
        self.device, self.seed, self.train, self.workers = torch.device(device), seed, train, workers
        self.channels_last, self.bad_limit, self.sizes = channels_last, bad_limit, sizes
        self.class_names = folders.list_classes(self.root, classes)
        self._names, labels = folders.list_files(self.root, split, self.class_names)
        self.labels = torch.tensor(labels)
        self.samples = len(self._names)
        self.skipped: list[str] = []
        self.unread: list[int] = []
        self._reader = Reader(
            folder=self.root / split, seed=seed, train=train, flip=flip, size=size, resize=resize, sizes=sizes
        )
        self._requests = _Requests()
        self._loader: DataLoader | None = None
        self._reads: Iterator[Read] = iter(())
        self._turn = 0

    @property
    def steps(self) -> int:
        return -(-self.samples // self.batch_size)

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of batches first, first + 1, … of an epoch: normalised float32 images, int64 labels.

        The share is torch.tensor_split(batch, world)[rank], so it is empty if the last batch is smaller than the
        world. Only one iterator works at a time: calling this again ends the one before.
        """
        if not 0 <= first <= self.steps:
            raise ValueError(
                f"first={first}: expected a batch from 0 to {self.steps}, the number of batches in an epoch"
            )
        self.refuse_too_many(self.skipped)
        self._turn += 1
        self.unread = []
        return self._finish(self._copied(self._whole(epoch, first, self._turn)))

    def names_checksum(self) -> str:
        """Return a checksum of the names of all files and classes, which changes if one is renamed or missing."""
        return hashlib.sha256("\n".join(self._names).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Stop the workers. They start again with the next batches()."""
        self._turn += 1
        # torch does this on deletion, which a traceback that refers to the iterator delays; and it stops a worker that
        # hangs in a read by a signal, which workers ignore.
        getattr(self._reads, "_shutdown_workers", lambda: None)()
        for worker in getattr(self._reads, "_workers", ()):
            worker.kill()
        self._reads, self._loader = iter(()), None

    # Requests for images

    def _order(self, epoch: int) -> Tensor:
        if not self.train:
            return torch.arange(self.samples)
        shuffle = torch.Generator().manual_seed(generator(self.seed, epoch).getrandbits(63))
        return torch.randperm(self.samples, generator=shuffle)

    def _plan(self, epoch: int, first: int) -> Iterator[Request]:
        order = self._order(epoch)
        for step in range(first, self.steps):
            start = step * self.batch_size
            each, more = divmod(min(self.batch_size, self.samples - start), self.world)
            start += self.rank * each + min(self.rank, more)
            share = order[start : start + each + (self.rank < more)]
            yield Request(epoch, start, [self._names[index] for index in share.tolist()], self.labels[share].tolist())

    # Images from the workers

    def _open(self) -> DataLoader:
        processes = {}
        if self.workers:
            # Not fork: it copies CUDA's state, and the locks of threads that do not exist in the copy. The server is a
            # clean process; it imports what a worker needs once, and all workers share it.
            processes = {"multiprocessing_context": "spawn", "worker_init_fn": prepare_worker}
            if "forkserver" in multiprocessing.get_all_start_methods():
                from acdc.data.workers import context

                processes["multiprocessing_context"] = context()
            processes |= {"persistent_workers": True, "prefetch_factor": _AHEAD}
        return DataLoader(
            self._reader,
            batch_size=None,  # the reader assembles batches itself
            sampler=self._requests,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # the loader draws a seed every epoch: not from the run's generator
            **processes,
        )

    def _whole(self, epoch: int, first: int, turn: int) -> Iterator[Read]:
        """Yield what the workers read, with unreadable files replaced or left out."""
        if turn == self._turn:
            self._requests.next = self._plan(epoch, first)
            if self._loader is not None:
                self._reads = iter(self._loader)
            else:
                self._loader = self._open()
                self._reads = iter(self._loader)
                atexit.register(_close, weakref.ref(self))  # registered last, so it runs before torch's handlers
        for _ in range(first, self.steps):
            if turn != self._turn:
                raise RuntimeError(
                    f"these batches of epoch {epoch} ended when batches() or close() was called on the same data; "
                    "use one iterator at a time, or a second ImageFolder"
                )
            read = self._next()
            for bad in read.bad:
                self._skip(bad)
            if not read.bad:
                yield read
            elif self.train:
                yield self._replaced(read, epoch)
            else:
                unread = {bad.place for bad in read.bad}
                self.unread += [read.first + place for place in sorted(unread)]
                keep = [place for place in range(len(read.labels)) if place not in unread]
                yield read._replace(images=read.images[keep], flips=read.flips[keep], labels=read.labels[keep])

    def _next(self) -> Read:
        try:
            return next(self._reads)
        except (RuntimeError, EOFError, OSError) as error:  # the last two if its batch had arrived before it died
            if isinstance(error, RuntimeError) and "exited unexpectedly" not in str(error):
                raise
            raise WorkerError(
                f"workers={self.workers}: a worker process died. Either it ran out of memory or of /dev/shm: set "
                "fewer workers. Or the script starts again in every worker: put its code under "
                'if __name__ == "__main__":. With workers=0, images are read in this process'
            ) from error

    def _replaced(self, read: Read, epoch: int) -> Read:
        """Put other images in the rows of unreadable ones. They are few, so they are read here."""
        for bad in read.bad:
            position, attempt, again = read.first + bad.place, 0, [bad]
            while again:
                if self.world > 1 and self._too_many(self.skipped):
                    read.images[bad.place] = 0
                    break
                attempt += 1
                index = int(generator(self.seed, epoch, position, -attempt).random() * self.samples)
                request = Request(epoch, position, [self._names[index]], [int(self.labels[index])], attempt)
                images, flips, labels, again, _ = self._reader[request]
                for worse in again:
                    self._skip(worse)
                read.images[bad.place], read.flips[bad.place], read.labels[bad.place] = images[0], flips[0], labels[0]
        return read

    def _skip(self, bad: Bad) -> None:
        if bad.name in self.skipped:
            return
        self.skipped.append(bad.name)
        log.warning("skipped %s: %s", self.root / self.split / bad.name, bad.reason)
        if self.world == 1:
            self.refuse_too_many(self.skipped)

    def _too_many(self, skipped: Sequence[str]) -> bool:
        return len(skipped) > self.bad_limit or len(skipped) == self.samples

    def refuse_too_many(self, skipped: Sequence[str]) -> None:
        """Raise a BadImagesError if more files cannot be read than may be skipped."""
        if not self._too_many(skipped):
            return
        count, listing = len(skipped), ", ".join(skipped[:3])
        enough = 2 * count if count < self.samples else None
        instead = f", or set data.bad_limit={enough} to continue without them" if enough else ""
        raise BadImagesError(
            f"data.bad_limit={self.bad_limit}: {count} of the {self.samples} images in {self.root / self.split} could "
            f"not be read, starting with {listing}; at most {min(self.bad_limit, self.samples - 1)} may be skipped. "
            f"Copy these files again from their archive{instead}",
            enough,
        )

    # On the device

    def _copied(self, reads: Iterator[Read]) -> Iterator[_Copy]:
        """Copy to the device; to a GPU one batch ahead on a separate stream, so that copying overlaps with a step."""
        if self.device.type != "cuda":
            for read in reads:
                yield self._copy(read)
            return
        stream = torch.cuda.Stream(self.device)
        waiting = None
        for read in reads:
            with torch.cuda.stream(stream):
                copies = self._copy(read), stream.record_event()
            if waiting:
                yield _arrived(*waiting)
            waiting = copies
        if waiting:
            yield _arrived(*waiting)

    def _copy(self, read: Read) -> _Copy:
        flipped = read.flips.nonzero().flatten()  # computed here: on a GPU it would have to wait for the result
        flipped, labels, images = (x.to(self.device, non_blocking=True) for x in (flipped, read.labels, read.images))
        return images, flipped, labels

    def _finish(self, copies: Iterator[_Copy]) -> Iterator[tuple[Tensor, Tensor]]:
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        # Whole rows of pixels at once: three channels are too few for a CPU's vector instructions.
        side, mean, std = 0, torch.empty(0), torch.empty(0)
        for pixels, flipped, labels in copies:
            if side != (side := pixels.shape[2]):
                mean, std = (torch.tensor(x, device=self.device).mul_(255).repeat(side) for x in (MEAN, STD))
            if self.train:
                pixels[flipped] = pixels[flipped].flip(2)
            images = pixels.flatten(2).to(torch.float32).sub_(mean).div_(std).view(pixels.shape)
            yield images.permute(0, 3, 1, 2).contiguous(memory_format=layout), labels


class _Requests:
    """The loader's sampler: one object for all epochs, so that the loader and its workers persist."""

    next: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.next


def _close(data: weakref.ref[ImageFolder]) -> None:
    """Stop the workers when Python exits: it waits for them, and they wait for requests."""
    if (still := data()) is not None:
        still.close()


def _arrived(tensors: _Copy, copied: torch.Event) -> _Copy:
    """Return the copies, for use on the current stream."""
    stream = torch.cuda.current_stream(tensors[0].device)
    stream.wait_event(copied)
    for tensor in tensors:
        tensor.record_stream(stream)
    return tensors


def _check(
    split: str, batch_size: int, workers: int, rank: int, world: int, size: int, resize: int, bad_limit: int
) -> None:
    wrong = []
    if split not in folders.SPLITS:
        wrong.append(f"split={split!r}: expected one of {', '.join(folders.SPLITS)}")
    if world < 1 or not 0 <= rank < world:
        wrong.append(f"rank={rank}, world={world}: expected a rank from 0 to world - 1")
    if batch_size < max(world, 1):
        wrong.append(f"batch_size={batch_size}: expected {max(world, 1)} or more, an image for every rank")
    if not 1 <= size <= resize:
        wrong.append(f"size={size}, resize={resize}: expected 1 ≤ size ≤ resize, such as size=224, resize=256")
    wrong += [
        f"{name}={value}: expected 0 or more"
        for name, value in (("workers", workers), ("bad_limit", bad_limit))
        if value < 0
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
