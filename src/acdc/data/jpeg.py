"""Image files to uint8 views of one size: what a worker process does, and all it needs to know.

JPEGs go through simplejpeg: libjpeg-turbo straight into an array, with the accurate transform and chroma upsampling, so
the same pixels as Pillow's. It also reports damage in the picture data that Pillow passes over in silence. Pillow reads
the rest: CMYK JPEGs, and PNGs and others whatever their name (ImageNet has 22 of the former and one of the latter).
"""

import io
import math
import multiprocessing
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

if TYPE_CHECKING:
    import numpy as np

SCALE = (0.08, 1.0)  # of the image's area
RATIO = (3 / 4, 4 / 3)  # width : height
_TRIES = 10
# libjpeg also scales by other eighths, but without SIMD: 7/8 takes longer than the whole image.
_DIVISORS = (8, 4, 2, 1)
# A reduced image must be this much larger than the view: it is sharper than what bilinear with antialiasing gives. At 2
# a view differs from the unreduced one by 1 grey level in the mean, at 1 by 5, and saves 20 % of the time or so.
_MARGIN = 2
_LIBRARIES = ("simplejpeg", "PIL", "numpy")

Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels of the whole image."""


@dataclass(frozen=True)
class Picture:
    """Holds an image whose header is read. decode(d) gives (⌈height/d⌉, ⌈width/d⌉, 3) for the divisors d offered."""

    height: int
    width: int
    divisors: Sequence[int]
    decode: "Callable[[int], np.ndarray]"


def check_installed() -> None:
    try:
        import PIL.Image  # noqa: F401
        import simplejpeg  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        raise ModuleNotFoundError(
            f"folders of images are read with simplejpeg and Pillow, and {error.name} is not installed; "
            'type: pip install "acdc-torch[imagenet]" (in a checkout: ".[imagenet]")',
            name=error.name,
        ) from error


def open_picture(data: bytes) -> Picture:
    import simplejpeg

    try:
        *sides, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # not a JPEG, or one of a kind that libjpeg-turbo's plain interface does not take
        return _open_with_pillow(data)
    if colours not in ("YCbCr", "RGB", "Gray"):
        return _open_with_pillow(data)
    height, width = map(int, sides)

    def decode(divisor: int) -> "np.ndarray":
        rows, columns = -(-height // divisor), -(-width // divisor)
        # These bounds leave exactly 1/divisor to choose. Strict: a complaint of libjpeg's is an error.
        return simplejpeg.decode_jpeg(
            data, fastdct=False, fastupsample=False, min_height=rows, min_width=columns, min_factor=divisor
        )

    return Picture(height, width, _DIVISORS, decode)


def _open_with_pillow(data: bytes) -> Picture:
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on odd metadata and palettes; what cannot be read raises
        try:
            pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        except UnidentifiedImageError:  # whose own message names a buffer
            raise ValueError(f"{len(data)} bytes of no known image format") from None
    return Picture(pixels.shape[0], pixels.shape[1], (1,), lambda _: pixels)


def random_box(height: int, width: int, rng: random.Random) -> Box:
    """Draw a box as torchvision's RandomResizedCrop does.

    Areas and ratios are drawn until they fit; else it is the largest centred crop allowed.
    """
    low, high = map(math.log, RATIO)
    for _ in range(_TRIES):
        area = height * width * (SCALE[0] + (SCALE[1] - SCALE[0]) * rng.random())
        ratio = math.exp(low + (high - low) * rng.random())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.random() * (height - h + 1)), int(rng.random() * (width - w + 1)), h, w
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def crop(picture: Picture, box: Box, size: int) -> Tensor:
    """Return the box at size x size. Decoded at 1/d where that leaves pixels to spare; the box then is on its grid."""
    divisor = next(d for d in picture.divisors if d == 1 or min(box[2:]) // d >= _MARGIN * size)
    top, left, height, width = (side // divisor for side in box)
    pixels = torch.from_numpy(picture.decode(divisor))
    return _resized(pixels[top : top + height, left : left + width], size, size)


def centre(picture: Picture, resize: int, size: int) -> Tensor:
    """Return the middle size x size of the image, its shorter side resized to `resize`; decoded whole."""
    short = min(picture.height, picture.width)
    height, width = (resize * side // short for side in (picture.height, picture.width))
    top, left = round((height - size) / 2), round((width - size) / 2)
    return _resized(torch.from_numpy(picture.decode(1)), height, width)[top : top + size, left : left + size]


def _resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """Resize bilinearly with antialiasing, as Pillow does; torch has vector code for uint8 with channels last."""
    image = pixels.unsqueeze(0).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    image = functional.interpolate(image, (height, width), mode="bilinear", antialias=True)
    return image[0].permute(1, 2, 0)


def generator(*key: int) -> random.Random:
    """Return a generator whose draws depend on `key` alone, the same on every machine and version of Python."""
    return random.Random(" ".join(map(str, key)))


class Request(NamedTuple):
    """Asks for the files of positions first, first + 1, … of an epoch. `attempt` counts replacements of a file."""

    epoch: int
    first: int
    names: list[str]
    labels: list[int]
    attempt: int = 0


class Bad(NamedTuple):
    """Names a file that could not be read, wanted at row `place` of the batch."""

    place: int
    name: str
    reason: str


class Read(NamedTuple):
    """Holds images (n, size, size, 3) as uint8, those of `bad` undefined; `flips` says which to mirror."""

    images: Tensor
    flips: Tensor
    labels: Tensor
    bad: list[Bad]
    first: int


@dataclass(frozen=True, kw_only=True)
class Reader(Dataset):
    """Reads whole batches: a worker hands back one uint8 tensor. Holds no list of files, so is cheap to send."""

    folder: Path
    seed: int
    train: bool
    flip: bool
    size: int
    resize: int

    def __getitem__(self, request: Request) -> Read:
        n = len(request.names)
        images, flips = torch.empty((n, self.size, self.size, 3), dtype=torch.uint8), torch.zeros(n, dtype=torch.bool)
        bad = []
        for place, name in enumerate(request.names):
            rng = generator(self.seed, request.epoch, request.first + place, request.attempt)
            flips[place] = self.train and rng.random() < 0.5 and self.flip  # crops do not depend on it
            try:
                picture = open_picture((self.folder / name).read_bytes())
                if self.train:
                    images[place] = crop(picture, random_box(picture.height, picture.width, rng), self.size)
                else:
                    images[place] = centre(picture, self.resize, self.size)
            except (ImportError, MemoryError):
                raise
            except Exception as error:  # decoders raise of every kind: OSError, ValueError, SyntaxError, struct.error
                bad.append(Bad(place, name, str(error) or type(error).__name__))
        return Read(images, flips, torch.tensor(request.labels, dtype=torch.int64), bad, request.first)


def prepare_worker(_: int) -> None:
    """Leave it to the process that reads to stop, and end as soon as that is gone, however it went.

    Ctrl-C and schedulers signal workers too, and the batch that the run waits for, to end its step, would not come;
    workers.py sees to those that come before this.
    torch's own watch is on the process that started the worker, and a fork server lives as long as its workers do.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
