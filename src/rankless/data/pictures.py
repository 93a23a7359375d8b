"""Reading picture files: one decoder, one orientation, always uint8 RGB.

Pillow decodes everything: torchvision's decoders are deprecated since 0.29 and read fewer formats, and a
picture that two decoders see differently would train differently on two machines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from PIL import Image, UnidentifiedImageError

from rankless.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

EXTENSIONS = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
"""Endings by which a file counts as a picture, compared in lower case."""

_ORIENTATION = 0x0112  # EXIF 2.32, table 4
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadablePicture(UserError):  # noqa: N818 - it is what the user sees
    """A picture file that cannot be read.

    Args:
        path: the file.
        reason: what the decoder said.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        super().__init__(
            f"The picture {self.path} cannot be read: {reason}. Replace it, or take it out of the data."
        )

    def __reduce__(self) -> tuple[type[UnreadablePicture], tuple[str, str]]:
        return UnreadablePicture, (self.path, self.reason)  # it crosses from loader processes


def is_picture(path: str | os.PathLike[str]) -> bool:
    """Whether the file's ending is one of :data:`EXTENSIONS`."""
    return os.path.splitext(path)[1].lower() in EXTENSIONS  # noqa: PTH122 - asked of a million files


def read(path: str | os.PathLike[str] | BinaryIO, *, name: str = "") -> Tensor:
    """A picture as uint8 RGB, (3, H, W), turned upright by its EXIF orientation.

    Grey becomes RGB, alpha is dropped, 16 bits become the upper 8, of an animation the first frame is read.

    Args:
        path: a file, or an opened one.
        name: of an opened file, for reports.

    Raises:
        UnreadablePicture: missing, damaged, cut short, or no picture.
    """
    try:
        with Image.open(path) as image:
            turn = _orientation(image)
            image.load()
            pixels = _rgb(image)
    except Exception as error:  # on a damaged file a decoder raises anything, from struct.error to KeyError
        raise UnreadablePicture(name or str(path), _reason(error)) from error
    if turn in _TRANSPOSE:
        pixels = pixels.transpose(_TRANSPOSE[turn])
    import torch  # here, because processes that only ask for sizes start ten times as fast without

    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


def size(path: str | os.PathLike[str] | BinaryIO, *, name: str = "") -> tuple[int, int]:
    """(H, W) of what :func:`read` would return, from the file's header alone (a TIFF is decoded).

    Args:
        path: a file, or an opened one.
        name: of an opened file, for reports.

    Raises:
        UnreadablePicture: missing, or the header is no picture's.
    """
    height, width, turned = _header(path, name)
    return (width, height) if turned else (height, width)


def sideways(path: str | os.PathLike[str]) -> bool:
    """Whether the picture's EXIF orientation turns it by a quarter; False where its header cannot be read."""
    try:
        return _header(path, "")[2]
    except UnreadablePicture:
        return False


def _header(path: str | os.PathLike[str] | BinaryIO, name: str) -> tuple[int, int, bool]:
    """Height and width as stored, and whether EXIF swaps them."""
    try:
        with Image.open(path) as image:
            if image.format == "TIFF":
                image.load()  # only then every version of Pillow has turned it
            width, height = image.size
            return height, width, _orientation(image) >= 5
    except Exception as error:
        raise UnreadablePicture(name or str(path), _reason(error)) from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1..8 that is still to be applied to an opened, not yet decoded picture."""
    if image.format == "TIFF":
        return 1  # Pillow turns a TIFF itself while it decodes
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # asking further would decode the picture to look behind its pixels
    return cast(int, image.getexif().get(_ORIENTATION, 1))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255 instead of scaling
        upper = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(upper.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating point numbers of no stated range, expected 8 or 16 bits")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its content is no picture of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rstrip(".") or type(error).__name__
