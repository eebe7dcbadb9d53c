"""Images in files, read when they are asked for; Pillow decodes them."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import known_arguments, real, whole
from codauc._internal.files import regular_file
from codauc.data.rows import Rows

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
SCALES = {  # mean and std; those of RGB are ImageNet's, as most published weights expect
    1: ((0.5,), (0.5,)),
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class ImageFiles(Rows):
    """Image files as rows: float32 [channels, size, size] each, decoded when gathered.

    An image is turned upright (EXIF), resized to a shorter side of `size` (bilinear, antialiased;
    smaller images grow), and its middle square kept. Its values are `(pixel / 255 - mean) / std`,
    by default with ImageNet's mean (0.485, 0.456, 0.406) and std (0.229, 0.224, 0.225) for RGB
    (`channels=3`), and 0.5 and 0.5 for grey (`channels=1`).

    Relative `files` belong to `root`, by default to the present directory. PNG, JPEG, BMP, GIF,
    TIFF and WebP are recognised by their content. Of several frames the first is taken, and what is
    transparent lies on white. Grey of 16 bits is divided by 257 and not rounded. A file that does
    not decode is an error that names it, when it is read.

    >>> import tempfile, PIL.Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PIL.Image.new("RGB", (40, 30), "red").save(f"{folder}/red.png")
    ...     images = ImageFiles([f"{folder}/red.png"], size=8, mean=0, std=1)
    ...     images.gather(torch.tensor([0, 0])).mean((2, 3))
    tensor([[1., 0., 0.],
            [1., 0., 0.]])
    """

    @known_arguments
    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        size: int = 224,
        *,
        root: str = "",
        channels: int = 3,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> None:
        _pillow()
        self.size = whole("size", size, least=1, remedy="it is the side in pixels, such as 224")
        self.channels = whole("channels", channels, least=1, remedy="use 3 (RGB) or 1 (grey)")
        if self.channels not in SCALES:
            raise ValueError(f"channels={channels!r}: expected 3 (RGB) or 1 (grey); choose one.")
        usual_mean, usual_std = SCALES[self.channels]
        self.mean = _by_channel("mean", mean, usual_mean)
        self.std = _by_channel("std", std, usual_std)
        if isinstance(files, str | bytes | os.PathLike):
            raise ValueError(
                f"files={files!r}: expected several paths; write [{files!r}], or use image_folder."
            )
        if not isinstance(files, Iterable):
            raise ValueError(f"files={files!r}: expected several paths; give a list of them.")
        # One block of bytes: small in memory, and pickled at once.
        self._root, self._names = os.path.abspath(root), np.array([_bytes(name) for name in files])
        if not len(self):
            raise ValueError("files holds 0 paths: expected at least 1; name the images.")

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> str:
        """The absolute path of a sample's file."""
        return os.path.join(self._root, self.name(index))

    def name(self, index: int) -> str:
        """The path of a sample's file as it was given, which holds wherever the directory is."""
        return os.fsdecode(bytes(self._names[index]))

    def take(self, indices: Tensor) -> ImageFiles:
        """The samples of these numbers, in this order."""
        taken = copy.copy(self)
        taken._names = self._names[self._numbers(indices)]
        return taken

    def gather(self, indices: Tensor) -> Tensor:
        """The images of these numbers [n, channels, size, size], in this order."""
        numbers = self._numbers(indices).tolist()
        x = torch.empty(len(numbers), self.channels, self.size, self.size, dtype=torch.float32)
        for sample, number in zip(x, numbers, strict=True):
            sample.copy_(_pixels(self.path(number), self.size, self.channels))
        mean, std = (torch.tensor(v, dtype=x.dtype).view(-1, 1, 1) for v in (self.mean, self.std))
        return x.div_(255).sub_(mean).div_(std)

    @known_arguments
    def check(
        self, *, pixels: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Read the header of every file, or with `pixels` all of it; the first bad one is an error.

        After each file `progress(files done, files in all)` is called.
        """
        for number in range(len(self)):
            with _reading(self.path(number)) as image:
                if pixels:
                    _plain(image, self.channels)
            if progress is not None:
                progress(number + 1, len(self))

    def _numbers(self, indices: Tensor) -> NDArray[np.int64]:
        if indices.dim() != 1 or indices.dtype != torch.int64:
            raise ValueError(
                f"indices: got {indices.dtype} of shape {list(indices.shape)}, expected "
                "torch.int64 of shape [n]; use for example torch.tensor([0, 1])."
            )
        numbers: NDArray[np.int64] = indices.cpu().numpy()
        outside = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(outside):
            raise ValueError(
                f"indices: got {outside[0]}, expected 0 to {len(self) - 1}; there are no others."
            )
        return numbers


def _bytes(name: str | os.PathLike[str]) -> bytes:
    try:
        return os.fsencode(name)
    except TypeError:
        raise ValueError(
            f"files holds {name!r} of type {type(name).__name__}: expected paths, as str or "
            "pathlib.Path; name the images."
        ) from None


def _by_channel(name: str, value: Any, usual: tuple[float, ...]) -> tuple[float, ...]:
    if value is None:
        return usual
    values = list(value) if isinstance(value, Iterable) else [value] * len(usual)
    if len(values) != len(usual):
        raise ValueError(
            f"{name}={value!r}: expected {len(usual)} numbers, one per channel, or one."
        )
    above = 0 if name == "std" else -np.inf
    remedy = "it applies to pixels from 0 to 1"
    return tuple(real(name, number, above=above, remedy=remedy) for number in values)


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise ValueError(
            "Pillow is not installed: expected it to read images; pip install 'codauc[images]'."
        ) from error
    return PIL.Image


def decoded(data: bytes, where: str, size: int) -> Tensor:
    """The pixels of an image file's content, as `ImageFiles` reads them: uint8 [3, size, size]."""
    with _reading(where, BytesIO(data)) as image:
        return _squared(image, size, 3).round().to(torch.uint8).expand(3, -1, -1)


@contextmanager
def _reading(path: str, content: BytesIO | None = None) -> Iterator[Image]:
    """The file's image, its header read; whatever fails with it is an error naming the file."""
    pillow = _pillow()
    with warnings.catch_warnings():
        # Pillow warns of broken metadata, such as EXIF; the pixels beside it are sound.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        try:
            with pillow.open(content or regular_file(path), formats=FORMATS) as image:
                _usable(image)
                yield image
        # Broken files make Pillow raise errors of many kinds, from OSError to SyntaxError.
        except Exception as error:
            raise ValueError(
                f"{path} cannot be read ({error or type(error).__name__}): expected a whole image, "
                f"{', '.join(FORMATS)}; replace the file or take it out."
            ) from error


def _usable(image: Image) -> None:
    if image.mode in ("I", "F"):
        raise ValueError("it has signed or 32-bit pixels, of no known range: convert to 8 bits")
    if max(image.size) > 100 * min(image.size):  # resized, it could fill the memory
        raise ValueError(f"it has {image.size} pixels, one side above 100 times the other")


def _pixels(path: str, size: int, channels: int) -> Tensor:
    """The pixels, from 0 to 255: [channels, size, size], or [1, size, size] if all are equal."""
    with _reading(path) as image:
        return _squared(image, size, channels)


def _squared(image: Image, size: int, channels: int) -> Tensor:
    image.load()  # which turns a TIFF, so that the next line finds nothing left to do
    turn = _turn(image)
    plain = _plain(image, channels)
    upright = plain if turn is None else plain.transpose(turn)
    pixels = torch.from_numpy(np.array(_square(upright, size)))
    return pixels.permute(2, 0, 1) if pixels.dim() == 3 else pixels.unsqueeze(0)


def _plain(image: Image, channels: int) -> Image:
    """Decoded, without palette and alpha: RGB, or grey with pixels of 8 bits or floats."""
    pillow = _pillow()
    if image.mode.startswith("I;16"):
        plain: Image = pillow.fromarray(_grey(image))
        return plain
    if image.has_transparency_data:
        white = pillow.new("RGBA", image.size, "white")
        image = pillow.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB" if channels == 3 else "L")


def _grey(image: Image) -> NDArray[np.float32]:
    """Grey of 16 bits (a TIFF may have 12) as floats from 0 to 255."""
    tags = getattr(image, "tag_v2", {})
    bits, kind = int(tags.get(258, (16,))[0]), tags.get(262)
    grey: NDArray[np.float32] = np.asarray(image).astype(np.float32) * 255 / (2**bits - 1)
    if kind == 0:  # white is zero, which Pillow turns round for 8 bits only
        np.subtract(255, grey, out=grey)
    return grey


def _turn(image: Image) -> Transpose | None:
    """What makes the image upright. Pillow's own function fails where EXIF is partly broken."""
    turn = _pillow().Transpose
    upright = (
        *(None, None, turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM),
        *(turn.TRANSPOSE, turn.ROTATE_270, turn.TRANSVERSE, turn.ROTATE_90),
    )
    return dict(enumerate(upright)).get(image.getexif().get(0x0112, 1))


def _square(image: Image, size: int) -> Image:
    """The shorter side resized to `size`, the middle of the longer kept, as torchvision does."""
    short = min(image.size)
    width, height = (size * side // short for side in image.size)
    image = image.resize((width, height), _pillow().Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
