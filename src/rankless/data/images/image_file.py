"""Decode image files to upright uint8 RGB images.

libjpeg-turbo (simplejpeg) decodes intact JPEGs. Pillow decodes all other files and JPEGs with problems,
because it supports more variants and determines whether a file is damaged. Both decode a JPEG to the same
bits.

An image that will be shown much smaller can be reduced during decoding; see :class:`Shown`.

The values of gray images with more than 8 bits are mapped to 0–255; see :data:`Values`.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rankless.errors import UserError
from rankless.files import reading

if TYPE_CHECKING:
    from torch import Tensor

_FORMATS = {  # Pillow's format names by extension
    ".bmp": ("BMP",),
    ".gif": ("GIF",),
    **dict.fromkeys((".jfif", ".jpeg", ".jpg"), ("JPEG", "MPO")),
    **dict.fromkeys((".pbm", ".pgm", ".ppm"), ("PPM",)),
    ".png": ("PNG",),
    **dict.fromkeys((".tif", ".tiff"), ("TIFF",)),
    ".webp": ("WEBP",),
}
EXTENSIONS = frozenset(_FORMATS)  # lowercase file extensions of images

MOST_PIXELS = 178_956_970
"""Maximum number of pixels that Pillow decodes. Even a small file can claim to have a huge image."""

MOST_BYTES = 1 << 30  # maximum size of an image file in bytes, which is more than MOST_PIXELS pixels need

Source = str | os.PathLike[str] | BinaryIO  # the path of a file, or an open file that starts with the image

Pixels = NDArray[np.uint8]  # RGB pixels, (H, W, 3)

Values = Literal["full", "auto"] | tuple[float, float]
"""The values of gray images with more than 8 bits that become 0 and 255: the lowest and highest value of the
number format (``full``, only for 16 bits) or of each image (``auto``), or two given values."""

GIVE_RANGE = "set data.range to [LOW, HIGH], or to auto (the lowest and highest value of each image)"

_ORIENTATION = 0x0112  # EXIF 2.32, table 4
_UPSIDE_DOWN = {3, 4, 6, 7}  # orientations that reverse the rows
_SIDEWAYS = {2, 3, 7, 8}  # orientations that reverse the columns
_TURNED = {5, 6, 7, 8}  # orientations that swap rows and columns after any reversal


class UnreadableImage(UserError):  # noqa: N818 - users see this name
    """Raised when an image file cannot be read."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        advice = "" if GIVE_RANGE in reason else "; replace or remove it"
        super().__init__(f"{self.path}: the image cannot be read: {reason}{advice}")

    def __reduce__(self) -> tuple[type[UnreadableImage], tuple[str, str]]:
        return UnreadableImage, (self.path, self.reason)  # loader processes send it to their rank


@dataclass(frozen=True)
class Shown:
    """How images will be shown. The size determines how much decoding may reduce them.

    Attributes:
        size: (H, W) of the input in pixels.
        fit: whether images fit inside the input, are stretched to it, or cover it.
        detail: images are reduced to 1/2, 1/4 or 1/8 as long as each side is at least ``detail`` times the
            shown size; 0 disables the reduction.
        values: how values with more than 8 bits are mapped to 0–255.
    """

    size: tuple[int, int]
    fit: Literal["letterbox", "stretch", "cover"] = "letterbox"
    detail: float = 2.0
    values: Values = "full"

    def reduction(self, height: int, width: int) -> int:
        """Return the reduction factor (1, 2, 4 or 8) for an upright image of the given size."""
        if not self.detail:
            return 1
        down, across = self.size[0] / height, self.size[1] / width
        scale = min(down, across) if self.fit == "letterbox" else max(down, across)
        return next((factor for factor in (8, 4, 2) if factor * scale * self.detail <= 1), 1)


class Header(NamedTuple):
    """Image properties from the header of the file."""

    size: tuple[int, int]  # (H, W) of the upright image
    format: str  # format of the content, such as PNG
    turned: bool  # whether the EXIF orientation swaps height and width
    unknown: str = ""  # the values if their range is unknown, such as "32-bit integers from 0 to 252"

    def contradicts(self, path: str) -> bool:
        """Return whether the extension of ``path`` belongs to a different image format."""
        ending = os.path.splitext(path)[1].lower()  # noqa: PTH122 - called for a million files
        return self.format not in _FORMATS.get(ending, (self.format,))


class Decoded(NamedTuple):
    """A decoded image."""

    image: Tensor  # uint8 RGB, (3, H, W)
    reduced: int  # reduction factor of both sides
    source: tuple[int, int]  # (H, W) of the upright image at full size


def too_large(length: int) -> str:
    """Return an error message for an image file that is too large (``length`` bytes)."""
    return f"the file has {length:,} bytes; expected at most {MOST_BYTES:,}"


def is_image(path: str | os.PathLike[str]) -> bool:
    """Return whether the path has an extension in :data:`EXTENSIONS`."""
    return os.path.splitext(path)[1].lower() in EXTENSIONS  # noqa: PTH122 - called for a million files


def read(path: Source, *, name: str = "", values: Values = "full") -> Tensor:
    """Read an image as uint8 RGB, (3, H, W), rotated upright according to its EXIF orientation.

    Grayscale images are converted to RGB, alpha channels are dropped, and 16-bit values are reduced to their
    upper 8 bits unless ``values`` are given. Only the first frame of an animation is read. Color profiles are
    not applied.
    """
    return read_for(path, Shown((0, 0), detail=0, values=values), name=name).image


def read_for(path: Source, shown: Shown | None, *, name: str = "") -> Decoded:
    """Read an image like :func:`read`, but reduce it by averaging pixels as far as ``shown`` allows.

    ``name`` replaces the path in error messages.
    """
    try:
        data = _content(path)
        pixels, factor, source = _upright_jpeg(data, shown) or _any_image(data, shown)
    except Exception as error:  # damaged files cause many types of errors, such as struct.error and KeyError
        raise UnreadableImage(name or str(path), _reason(error, path)) from error
    import torch  # processes that only read image sizes start ten times as fast without torch

    return Decoded(torch.from_numpy(pixels).permute(2, 0, 1), factor, source)


def _upright_jpeg(data: bytes, shown: Shown | None) -> tuple[Pixels, int, tuple[int, int]] | None:
    """Decode an intact JPEG without an EXIF orientation; return None if Pillow is needed.

    The result consists of the pixels, the reduction factor, and the (H, W) of the image at full size.
    """
    if not data.startswith(b"\xff\xd8\xff") or b"Exif" in data or b"Orientation" in data:  # EXIF or XMP
        return None
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if colors not in ("YCbCr", "RGB", "Gray") or height * width > MOST_PIXELS:
        return None
    factor = 1 if shown is None else shown.reduction(height, width)
    pixels = _jpeg(data, height, width, factor)
    return None if pixels is None else (pixels, factor, (height, width))


def _any_image(data: bytes, shown: Shown | None) -> tuple[Pixels, int, tuple[int, int]]:
    values = shown.values if shown else "full"
    with _quiet(), Image.open(io.BytesIO(data)) as image:
        if values != "full" and _has_deep_colors(image):
            raise ValueError("data.range does not apply to colors with 16 bits; convert the image to 8 bits")
        width, height = _header(image)
        turn = _orientation(image)
        source = (width, height) if turn in _TURNED else (height, width)
        factor = 1 if shown is None else shown.reduction(*source)
        return _pixels(image, data, turn, factor, values), factor, source


def header(path: Source, *, name: str = "") -> Header:
    """Read the header of an image. Only TIFF images need to be decoded."""
    try:
        with _quiet(), _opened(path) as file, Image.open(file) as image:
            width, height = _header(image)
            turned = _orientation(image) in _TURNED
            size = (width, height) if turned else (height, width)
            return Header(size, image.format or "", turned, _unknown_values(image))
    except Exception as error:
        raise UnreadableImage(name or str(path), _reason(error, path)) from error


def sideways(path: Source) -> bool:
    """Return whether the EXIF orientation rotates an image by 90°; False if the header is unreadable."""
    try:
        return header(path).turned
    except UnreadableImage:
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _opened(path: Source) -> Iterator[BinaryIO]:
    if not isinstance(path, str | os.PathLike):
        yield path
        return
    with io.BufferedReader(reading.opened(path, MOST_BYTES)) as file:
        yield file


def _content(path: Source) -> bytes:
    if isinstance(path, str | os.PathLike):
        return reading.read_bytes(path, MOST_BYTES)
    path.seek(0)
    return path.read()


def _header(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of an open image before its EXIF orientation is applied."""
    if image.format == "TIFF":
        image.load()  # after this, all versions of Pillow have applied the orientation
    return image.size


def _pixels(image: Image.Image, data: bytes, turn: int, factor: int, values: Values) -> Pixels:
    width, height = image.size
    # If the size is not a multiple of the factor, rotate first, so that the partial blocks are at the end.
    uneven = (turn in _UPSIDE_DOWN and height % factor) or (turn in _SIDEWAYS and width % factor)
    early = 1 if uneven else factor
    plain = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L")
    pixels = _jpeg(data, height, width, early) if plain else None
    if pixels is None:
        whole = rgb(image, values)
        pixels = np.array(whole if early == 1 else whole.reduce(early))
    turned = pixels[:: -1 if turn in _UPSIDE_DOWN else 1, :: -1 if turn in _SIDEWAYS else 1]
    pixels = np.ascontiguousarray(turned.transpose(1, 0, 2) if turn in _TURNED else turned)
    return np.array(Image.fromarray(pixels).reduce(factor)) if uneven else pixels


def _jpeg(data: bytes, height: int, width: int, factor: int) -> Pixels | None:
    """Decode and reduce a JPEG of the given size with libjpeg-turbo; return None if there is any problem."""
    height, width = -(-height // factor), -(-width // factor)
    least = (height, width) if factor > 1 else (0, 0)
    try:
        pixels = simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], strict=True)
    except ValueError:  # also raised for files that Pillow can repair
        return None
    return cast(Pixels, pixels) if pixels.shape == (height, width, 3) else None


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, that must still be applied to an open image."""
    if image.format == "TIFF":
        return 1  # Pillow applies the orientation of a TIFF itself
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # getexif would decode the image to search after the pixels
    return cast(int, image.getexif().get(_ORIENTATION, 1))


def rgb(image: Image.Image, values: Values = "full") -> Image.Image:
    """Convert an image to 8-bit RGB; raise ValueError if the range of its values is unknown."""
    image.load()
    if image.mode == "RGB":
        return image
    if image.mode[0] in "IF":
        return Image.fromarray(_to_8_bits(image, values)).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image, values: Values) -> Pixels:
    if values != "full":
        return to_8_bits(np.asarray(image), values)
    if unknown := _unknown_values(image):
        raise ValueError(f"the values are {unknown}, whose range is unknown; {GIVE_RANGE}")
    upper = np.asarray(image) >> 8
    return cast(Pixels, upper.clip(0, 255).astype(np.uint8))


def to_8_bits(pixels: NDArray[Any], values: tuple[float, float] | Literal["auto"]) -> Pixels:
    """Map values linearly to 0–255: ``round((value - low) * 255 / (high - low))``, clipped, in float64.

    ``auto`` uses the lowest and highest finite value. NaN becomes 0, as do all values if they are equal.
    """
    numbers = pixels.astype(np.float64)
    if values == "auto":
        finite = numbers[np.isfinite(numbers)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    else:
        low, high = values
    if low == high:
        return np.zeros(pixels.shape, np.uint8)
    mapped = np.nan_to_num((numbers - low) * 255 / (high - low), nan=0.0)
    return cast(Pixels, np.rint(mapped).clip(0, 255).astype(np.uint8))


class Levels(NamedTuple):
    """The values of an image with 16 bits, and how many different values remain in their upper 8 bits."""

    low: int
    high: int
    used: int


def levels(path: Source) -> Levels | None:
    """Return the values of an image with 16 bits; None for other images, which are not decoded."""
    try:
        with _quiet(), _opened(path) as file, Image.open(file) as image:
            if not (deep := _has_deep_colors(image)) and not _is_16_bit_gray(image):
                return None
            pixels = np.asarray(image)
            missing = 8 if deep else 0  # Pillow reduces colors to their upper 8 bits
            used = np.count_nonzero(np.bincount((pixels >> (8 - missing)).ravel()))
            return Levels(int(pixels.min()) << missing, int(pixels.max()) << missing, int(used))
    except Exception as error:
        raise UnreadableImage(str(path), _reason(error, path)) from error


def _is_16_bit_gray(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _has_deep_colors(image: Image.Image) -> bool:
    """Return whether an image that is not loaded yet has 16 bits per color channel."""
    tiles = getattr(image, "tile", ()) if image.mode in ("RGB", "RGBA", "LA") else ()
    return any(";16" in str(tile[3]) for tile in tiles)


def _unknown_values(image: Image.Image) -> str:
    if image.mode[0] not in "IF" or _is_16_bit_gray(image):
        return ""
    pixels = np.asarray(image)
    kind = "floating-point numbers" if image.mode == "F" else "integers of up to 32 bits"
    return f"{kind} from {np.nanmin(pixels):,.10g} to {np.nanmax(pixels):,.10g}"


def _reason(error: Exception, path: Source) -> str:
    if isinstance(error, UnidentifiedImageError):
        with suppress(OSError), _opened(path) as file:
            file.seek(0)
            if not file.read(1):
                return "the file is empty (0 bytes)"
        return "the content is not in a known image format"
    if isinstance(error, Image.DecompressionBombError):
        return f"the image is too large; expected at most {MOST_PIXELS // 10**6} million pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rstrip(".") or type(error).__name__
