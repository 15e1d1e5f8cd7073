"""Reading JPEGs for training: images per second of acdc.data.image_folder against a plain loader of the usual kind.

Both read the same generated files, of ImageNet's sizes, with as many workers, taking turns, an epoch each; the ratio is
the median of the ratios within each round. The plain loader is what most scripts do: Pillow, RandomResizedCrop, mirror,
float tensor, normalise, default collate, all in the workers. "acdc" ends with the same floats, made in the process that
reads; "acdc, uint8" leaves them to the GPU. What an image costs in one process, step by step, is measured beside it.
"""

import argparse
import importlib.metadata
import io
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from acdc.data import jpeg
from acdc.data.image_folder import MEAN, STD, ImageFolder
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment

SIDES = ((500, 375), (500, 375), (375, 500), (500, 333), (333, 500), (500, 400), (400, 300), (500, 500))
QUALITY = 90
SIZE = 224
OURS, RAW, PLAIN = "acdc", "acdc, uint8", "plain"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    shared = environment(torch.device("cpu"), options.commit)
    shared |= {name: importlib.metadata.version(name) for name in ("simplejpeg", "pillow")}
    shared |= {"benchmark": "jpeg", "images": options.images, "workers": options.workers, "n": options.rounds}
    say(f"jpeg: {shared['device_name']}, {shared['cores']} cores, torch {shared['torch']}, load {shared['load']}")
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder), options.images)
        shared["bytes_each"] = round(statistics.mean(file.stat().st_size for file in files))
        rows = measure_loaders(Path(folder), files, options.workers, options.batch, options.rounds)
        rows += measure_parts(files[: options.parts], options.rounds)
    append(options.results, [{**shared, **row} for row in rows])
    _print(rows, shared)
    say(f"written to {options.results}")
    return 0


# Files


def make_files(root: Path, count: int) -> list[Path]:
    """Write root/train/0/*.JPEG, half of them with full and half with quartered chroma, and one file for val."""
    rng = np.random.default_rng(0)
    files = [root / "train" / "0" / f"{number}.JPEG" for number in range(count)]
    for path in (*files[:1], root / "val" / "0" / "0.JPEG"):
        path.parent.mkdir(parents=True)
    with progress("making images", count) as begin:
        for number, path in enumerate(files):
            begin(f"{number}")
            image = Image.fromarray(make_image(*SIDES[number % len(SIDES)], rng))
            image.save(path, quality=QUALITY, subsampling=2 * (number // len(SIDES) % 2))
    (root / "val" / "0" / "0.JPEG").write_bytes(files[0].read_bytes())
    return files


def make_image(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Draw noise whose amplitude falls with frequency, as in a photograph, stronger in brightness than in colour."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = math.inf
    noise = rng.normal(size=(4, *frequency.shape)) + 1j * rng.normal(size=(4, *frequency.shape))
    brightness, *colours = np.fft.irfft2(noise / frequency**1.1, s=(height, width))
    channels = [128 + 45 * brightness / brightness.std() + 10 * colour / colour.std() for colour in colours]
    return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)


# The plain loader


class Plain(Dataset):
    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.mean, self.std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.files[index].open("rb") as file:
            image = Image.open(file).convert("RGB")
        return self.finish(plain_crop(image)), 0

    def finish(self, image: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        return pixels.sub_(self.mean).div_(self.std)


def plain_crop(image: Image.Image) -> Image.Image:
    """Apply torchvision's RandomResizedCrop and RandomHorizontalFlip to a Pillow image, with torch's random numbers."""
    top, left, height, width = _plain_box(image.height, image.width)
    image = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.5 else image


def _plain_box(height: int, width: int) -> tuple[int, int, int, int]:
    low, high = (math.log(ratio) for ratio in jpeg.RATIO)
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*jpeg.SCALE).item()
        ratio = math.exp(torch.empty(1).uniform_(low, high).item())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(torch.randint(0, height - h + 1, (1,))), int(torch.randint(0, width - w + 1, (1,))), h, w
    return 0, 0, height, width  # these sizes have ratios within bounds


# Measuring


def measure_loaders(root: Path, files: list[Path], workers: int, batch: int, rounds: int) -> list[Row]:
    ours = ImageFolder(
        root, "train", batch_size=batch, device="cpu", seed=0, train=True, workers=workers, size=SIZE, bad_limit=0
    )
    plain = DataLoader(Plain(files), batch, shuffle=True, num_workers=workers, persistent_workers=True)
    epochs: dict[str, Callable[[int], Iterable[Sequence[Any]]]] = {
        OURS: ours.batches,
        RAW: lambda epoch: _unfinished(ours, epoch),
        PLAIN: lambda _: plain,
    }
    times: dict[str, list[float]] = {name: [] for name in epochs}
    order = random.Random(0)
    with progress("loaders", (rounds + 1) * len(epochs)) as begin:
        for round_ in range(rounds + 1):  # the first starts the workers, and is not counted
            for name in order.sample(list(epochs), len(epochs)):
                begin(f"{name}, round {round_}" if round_ else f"{name}, warm-up")
                start = time.perf_counter()
                seen = sum(len(batch[0]) for batch in epochs[name](round_))
                seconds = time.perf_counter() - start
                if seen != len(files):
                    raise RuntimeError(f"{name} gave {seen} of {len(files)} images")
                if round_:
                    times[name].append(seconds)
    ours.close()
    rows = []
    for name in times:
        ratios = [b / a for a, b in zip(times[name], times[PLAIN], strict=True)]
        rows.append(
            {
                "loader": name,
                "batch_size": batch,
                "seconds": times[name],
                "images_per_second": len(files) / statistics.median(times[name]),
                "speed_of_plain": statistics.median(ratios),
                "quartiles": statistics.quantiles(ratios, n=4)[::2] if rounds > 1 else ratios * 2,
            }
        )
    return rows


def _unfinished(data: ImageFolder, epoch: int) -> Iterator[jpeg.Read]:
    data._turn += 1
    return data._whole(epoch, 0, data._turn)


def measure_parts(files: list[Path], rounds: int) -> list[Row]:
    """Measure the milliseconds per image of each step in one process, both ways in turns over the same images."""
    data = [file.read_bytes() for file in files]
    images = [Image.open(io.BytesIO(x)).convert("RGB") for x in data]
    arrays = [torch.from_numpy(np.array(image)) for image in images]
    boxes = [jpeg.random_box(image.height, image.width, random.Random(i)) for i, image in enumerate(images)]
    crops = [array[:SIZE, :SIZE].contiguous() for array in arrays]
    small = [Image.fromarray(crop.numpy()) for crop in crops]
    finish_plain = Plain(files).finish
    batch, flipped, labels = torch.stack(crops), torch.arange(0, len(crops), 2), torch.zeros(len(crops))
    reader = ImageFolder(
        files[0].parents[2], "train", batch_size=1, device="cpu", seed=0, train=True, workers=0, bad_limit=0
    )

    def resize_plain() -> None:
        for image, (top, left, height, width) in zip(images, boxes, strict=True):
            image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)

    def resize_ours() -> None:
        for array, box in zip(arrays, boxes, strict=True):
            jpeg.crop(jpeg.Picture(array.shape[0], array.shape[1], (1,), lambda _, a=array: a.numpy()), box, SIZE)

    def floats_plain() -> None:
        torch.stack([finish_plain(image) for image in small])

    def floats_ours() -> None:
        next(reader._finish(iter([(batch, flipped, labels)])))

    steps: dict[str, dict[str, Callable[[], object]]] = {
        "decode": {
            PLAIN: lambda: [Image.open(io.BytesIO(x)).convert("RGB") for x in data],
            OURS: lambda: [jpeg.open_picture(x).decode(1) for x in data],
        },
        "crop, resize": {PLAIN: resize_plain, OURS: resize_ours},
        "float, normalise, stack": {PLAIN: floats_plain, OURS: floats_ours},
    }
    rows = []
    with progress("steps", (rounds + 1) * len(steps)) as begin:
        for step, ways in steps.items():
            times: dict[str, list[float]] = {name: [] for name in ways}
            for round_ in range(rounds + 1):
                begin(step)
                for name, work in ways.items():
                    start = time.perf_counter()
                    work()
                    if round_:
                        times[name].append((time.perf_counter() - start) / len(data) * 1000)
            rows += [
                {"part": step, "loader": name, "milliseconds": times[name], "median": statistics.median(times[name])}
                for name in ways
            ]
    return rows


def _print(rows: list[Row], shared: Row) -> None:
    size = f"{shared['images']} images of {shared['bytes_each'] / 1000:.0f} kB"
    note = f"{size}, {shared['workers']} workers, n = {shared['n']}"
    cells = []
    for row in rows:
        if "part" not in row:
            low, high = row["quartiles"]
            ratio = f"{row['speed_of_plain']:.2f} ({low:.2f}–{high:.2f})"
            cells.append([row["loader"], f"{row['images_per_second']:.0f}", ratio])
    print_table("Loaders", ["loader", "images / s", "of plain (quartiles)"], cells, note)
    parts = {row["part"]: {} for row in rows if "part" in row}
    for row in rows:
        if "part" in row:
            parts[row["part"]][row["loader"]] = f"{row['median']:.2f}"
    header = ["step", f"{PLAIN}, ms", f"{OURS}, ms"]
    print_table("An image, one process", header, [[part, ms[PLAIN], ms[OURS]] for part, ms in parts.items()], "medians")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jpeg", description=__doc__)
    parser.add_argument("--images", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--parts", type=int, default=64, help="images for the steps in one process")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch in the process that reads")
    parser.add_argument("--results", type=Path, default=RESULTS / "jpeg.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    for name in ("images", "rounds", "workers", "batch", "parts", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected 1 or more")
    return options


if __name__ == "__main__":
    run(main)
