"""Measure training from folders of JPEGs on a GPU against the step alone, and name what limits it.

The same ResNet50 step (fp16 or bf16 autocast, SGD) on three sources, taking turns, so many batches each:

    step     a batch that lies on the device: what the GPU can do
    loader   batches from acdc.data.image_folder to the device and nothing else: decoding, copying, normalising
    both     training on those batches

"both / step" is the median of the ratios within each round. Beside it stand the rates of the parts: images a second
that one process decodes and crops, and bytes a second from pinned memory to the device.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from acdc import models
from acdc.data import jpeg
from acdc.data.image_folder import ImageFolder
from benchmarks.console import print_table, progress, run, say
from benchmarks.jpeg import make_files
from benchmarks.record import RESULTS, Row, append, environment

STEP, LOADER, BOTH = "step", "loader", "both"
_DIFFERENT = 512  # files to make: making one takes longer than decoding a hundred
_KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    device = torch.device(options.device)
    shared = environment(device, options.commit)
    shared |= {
        "benchmark": "jpeg training",
        "model": options.model,
        "size": options.size,
        "precision": options.precision,
    }
    shared |= {"batch_size": options.batch, "workers": options.workers, "images": options.images, "n": options.rounds}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = make_files(Path(folder), min(options.images, _DIFFERENT))
        _repeat(files, options.images)
        shared["bytes_each"] = round(statistics.mean(file.stat().st_size for file in files))
        shared["decoded_per_process"] = decoding_rate(files[: options.parts], options.size)
        shared["copied_bytes_per_second"] = copying_rate(device, options.batch * options.size**2 * 3)
        rows = [{**shared, **row} for row in measure(Path(folder), device, options)]
    append(options.results, rows)
    _print(rows)
    say(f"written to {options.results}")
    return 0


def measure(root: Path, device: torch.device, options: argparse.Namespace) -> list[Row]:
    """Return a row for each source with images a second, and for `both` its share of the step's."""
    data = ImageFolder(
        root,
        "train",
        batch_size=options.batch,
        device=device,
        seed=0,
        train=True,
        workers=options.workers,
        size=options.size,
        resize=max(256, options.size),
        bad_limit=0,
    )
    step = training_step(options.model, device, options.precision)
    epochs = iter(range(10**9))
    batches = _endless(data, epochs)
    images, labels = next(batches)
    resident = images.clone(), labels.clone()
    sources: dict[str, Callable[[], object]] = {
        STEP: lambda: step(*resident),
        LOADER: lambda: next(batches),
        BOTH: lambda: step(*next(batches)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    with progress("training", (options.rounds + 1) * len(sources)) as begin:
        for round_ in range(options.rounds + 1):  # the first warms up, and is not counted
            for name, act in sources.items():
                begin(name)
                act()  # what the source before left in the queues is used up, or the workers are filled again
                _wait(device)
                start = time.perf_counter()
                for _ in range(options.steps):
                    act()
                _wait(device)
                if round_:
                    seconds[name].append((time.perf_counter() - start) / options.steps)
    data.close()
    return [
        {
            "source": name,
            "seconds": times,
            "images_per_second": options.batch / statistics.median(times),
            "of_step": statistics.median(a / b for a, b in zip(seconds[STEP], times, strict=True)),
        }
        for name, times in seconds.items()
    ]


def training_step(name: str, device: torch.device, precision: str) -> Callable[[Tensor, Tensor], None]:
    """Return one step of plain dense training: forward, backward, SGD."""
    model = models.build(name, classes=1000, in_channels=3, seed=0).to(device)
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    torch.backends.cudnn.benchmark = True

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast(device.type, _KINDS.get(precision), enabled=precision in _KINDS):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def decoding_rate(files: list[Path], size: int) -> float:
    """Return how many images a second one process reads, decodes and crops."""
    reader = jpeg.Reader(folder=files[0].parent, seed=0, train=True, flip=True, size=size, resize=max(256, size))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    start = time.perf_counter()
    reader[jpeg.Request(0, 0, [file.name for file in files], [0] * len(files))]
    seconds = time.perf_counter() - start
    torch.set_num_threads(threads)
    return len(files) / seconds


def copying_rate(device: torch.device, size: int) -> float:
    """Return the bytes a second that a batch of `size` bytes goes from pinned memory to the device with."""
    batch = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    times = []
    for _ in range(11):
        _wait(device)
        start = time.perf_counter()
        batch.to(device, non_blocking=True, copy=True)
        _wait(device)
        times.append(time.perf_counter() - start)
    return size / statistics.median(times)


def _repeat(files: list[Path], count: int) -> None:
    """Give the same files further names until there are `count`: an epoch then fills the queues."""
    for number in range(len(files), count):
        file = files[number % len(files)]
        file.with_name(f"{number}.JPEG").hardlink_to(file)


def _endless(data: ImageFolder, epochs: Iterator[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield whole batches, epoch after epoch."""
    for epoch in epochs:
        for images, labels in data.batches(epoch):
            if len(labels) == data.batch_size:
                yield images, labels


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _print(rows: list[Row]) -> None:
    first = rows[0]
    cells = [[row["source"], f"{row['images_per_second']:,.0f}", f"{row['of_step']:.2f}"] for row in rows]
    decode, copy = first["decoded_per_process"], first["copied_bytes_per_second"] / first["size"] ** 2 / 3
    note = (
        f"{first['model']}, {first['precision']}, {first['workers']} workers, n = {first['n']}. One process decodes "
        f"{decode:,.0f} images/s ({decode * first['workers']:,.0f} by all workers, if cores were all they share); "
        f"copying alone does {copy:,.0f} images/s."
    )
    print_table("Training from JPEGs", ["source", "images / s", "of the step"], cells, note)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jpeg_training", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--model", default="resnet50", choices=[name for name in models.names() if not models.is_language_model(name)]
    )
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16", "fp32"))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=16_384)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30, help="batches a source gives in its turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--parts", type=int, default=256, help="images that one process decodes")
    parser.add_argument("--folder", type=Path, help="where to make the files; best a RAM disk such as /dev/shm")
    parser.add_argument("--results", type=Path, default=RESULTS / "jpeg_training.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.images < options.batch:
        parser.error(f"--images {options.images}: expected {options.batch} or more, a whole batch")
    for name in ("size", "batch", "steps", "rounds", "workers", "parts"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected 1 or more")
    return options


if __name__ == "__main__":
    run(main)
