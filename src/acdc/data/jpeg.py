"""The decoding of image files to uint8 views of one size, which is all that a worker process does.

simplejpeg decodes JPEGs: libjpeg-turbo straight into an array, with the accurate transform and chroma upsampling, which
gives the same pixels as Pillow. It also reports damage in the picture data that Pillow silently ignores. Pillow reads
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

from acdc.data.image_sizes import ImageSizes

if TYPE_CHECKING:
    import numpy as np

SCALE = (0.08, 1.0)  # share of the image's area
RATIO = (3 / 4, 4 / 3)  # width : height
_TRIES = 10
# libjpeg also scales by other eighths, but without SIMD: 7/8 takes longer than the whole image.
_DIVISORS = (8, 4, 2, 1)
# A reduced image must be this much larger than the view, since it is sharper than antialiased bilinear resizing. At 2 a
# view differs from the unreduced one by 1 grey level on average, at 1 by 5, which saves about 20 % of the time.
_MARGIN = 2
_LIBRARIES = ("simplejpeg", "PIL", "numpy")

Box = tuple[int, int, int, int]
"""Top, left, height, width, in pixels of the whole image."""


@dataclass(frozen=True)
class Picture:
    """An image whose header has been read. decode(d) gives (⌈height/d⌉, ⌈width/d⌉, 3) for the divisors d on offer."""

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
            f"folders of images are read with simplejpeg and Pillow, but {error.name} is not installed; "
            'run: pip install "acdc-torch[imagenet]" (in a checkout: ".[imagenet]")',
            name=error.name,
        ) from error


def open_picture(data: bytes) -> Picture:
    import simplejpeg

    try:
        *sides, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # not a JPEG, or one of a kind that libjpeg-turbo's plain interface does not accept
        return _open_with_pillow(data)
    if colours not in ("YCbCr", "RGB", "Gray"):
        return _open_with_pillow(data)
    height, width = map(int, sides)

    def decode(divisor: int) -> "np.ndarray":
        rows, columns = -(-height // divisor), -(-width // divisor)
        # These bounds leave exactly 1/divisor to choose. Strict: a libjpeg warning is an error.
        return simplejpeg.decode_jpeg(
            data, fastdct=False, fastupsample=False, min_height=rows, min_width=columns, min_factor=divisor
        )

    return Picture(height, width, _DIVISORS, decode)


def _open_with_pillow(data: bytes) -> Picture:
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata and palettes; unreadable files raise
        try:
            pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
        except UnidentifiedImageError:  # whose own message names a buffer
            raise ValueError(f"{len(data)} bytes in no known image format") from None
    return Picture(pixels.shape[0], pixels.shape[1], (1,), lambda _: pixels)


def random_box(height: int, width: int, rng: random.Random) -> Box:
    """Draw a box as torchvision's RandomResizedCrop does.

    Areas and ratios are drawn until they fit; after too many attempts it is the largest centred crop allowed.
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
    """Return the box at size x size, decoded at 1/d if that leaves pixels to spare; the box is then on its grid."""
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
    """A request for the files at positions first, first + 1, … of an epoch. `attempt` counts replacements of a file."""

    epoch: int
    first: int
    names: list[str]
    labels: list[int]
    attempt: int = 0


class Bad(NamedTuple):
    """A file that could not be read, for row `place` of the batch."""

    place: int
    name: str
    reason: str


class Read(NamedTuple):
    """Images of shape (n, size, size, 3) as uint8, those in `bad` undefined; `flips` says which to mirror."""

    images: Tensor
    flips: Tensor
    labels: Tensor
    bad: list[Bad]
    first: int


@dataclass(frozen=True, kw_only=True)
class Reader(Dataset):
    """A reader of whole batches: a worker returns one uint8 tensor. It holds no list of files: it is cheap to send."""

    folder: Path
    seed: int
    train: bool
    flip: bool
    size: int
    resize: int
    sizes: ImageSizes | None = None  # of training images that grow

    def __getitem__(self, request: Request) -> Read:
        n, size = len(request.names), self.sizes.at(request.epoch) if self.sizes else self.size
        images, flips = torch.empty((n, size, size, 3), dtype=torch.uint8), torch.zeros(n, dtype=torch.bool)
        bad = []
        for place, name in enumerate(request.names):
            rng = generator(self.seed, request.epoch, request.first + place, request.attempt)
            flips[place] = self.train and rng.random() < 0.5 and self.flip  # crops do not depend on it
            try:
                picture = open_picture((self.folder / name).read_bytes())
                if self.train:
                    images[place] = crop(picture, random_box(picture.height, picture.width, rng), size)
                else:
                    images[place] = centre(picture, self.resize, self.size)
            except (ImportError, MemoryError):
                raise
            except Exception as error:  # decoders raise all kinds: OSError, ValueError, SyntaxError, struct.error
                bad.append(Bad(place, name, str(error) or type(error).__name__))
        return Read(images, flips, torch.tensor(request.labels, dtype=torch.int64), bad, request.first)


def prepare_worker(_: int) -> None:
    """Ignore signals, which the parent handles, and exit as soon as the parent is gone, however it ended.

    Ctrl-C and schedulers signal workers too, and the batch that the run needs to finish its step would not come;
    workers.py handles signals that arrive before this.
    torch itself watches the process that started the worker, but a fork server lives as long as its workers do.
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
