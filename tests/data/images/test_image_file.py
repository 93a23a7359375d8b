"""Reading images: every format against Pillow's own reading, and every kind of damage reported."""

import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from rankless.data.images.image_file import EXTENSIONS, UnreadableImage, header, is_image, levels, read

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
RGB = Image.fromarray(PIXELS)


def rows(sample: torch.Tensor) -> np.ndarray:
    assert sample.dtype == torch.uint8 and sample.shape[0] == 3
    return sample.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "tiff", "ppm"])
def test_lossless_formats_come_back_exactly(tmp_path: Path, ending: str) -> None:
    RGB.save(tmp_path / f"a.{ending}")
    assert np.array_equal(rows(read(tmp_path / f"a.{ending}")), PIXELS)
    assert header(str(tmp_path / f"a.{ending}")).size == (20, 30)


@pytest.mark.parametrize("ending", ["jpg", "webp", "gif"])
def test_lossy_formats_come_back_nearly(tmp_path: Path, ending: str) -> None:
    smooth = Image.fromarray(np.linspace(0, 255, 64).astype(np.uint8)[None].repeat(48, 0)).convert("RGB")
    smooth.save(tmp_path / f"a.{ending}")
    error = np.abs(rows(read(tmp_path / f"a.{ending}")).astype(int) - np.asarray(smooth))
    assert error.mean() < 3
    assert header(tmp_path / f"a.{ending}").size == (48, 64)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path: Path, ending: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    RGB.save(tmp_path / f"a.{ending}", exif=exif)
    with Image.open(tmp_path / f"a.{ending}") as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(rows(read(tmp_path / f"a.{ending}")), expected)
    assert header(tmp_path / f"a.{ending}").size == expected.shape[:2]


@pytest.mark.parametrize("xmp", [b'<x tiff:Orientation="6"/>', b"<x:xmpmeta/>"])
def test_an_orientation_that_only_xmp_states(tmp_path: Path, xmp: bytes) -> None:
    RGB.save(tmp_path / "a.jpg", xmp=xmp)
    with Image.open(tmp_path / "a.jpg") as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
        written = image.info.get("xmp", b"")  # Pillow writes it since version 11
    assert expected.shape[:2] == ((30, 20) if b"6" in written else (20, 30))
    assert np.array_equal(rows(read(tmp_path / "a.jpg")), expected)


@pytest.mark.parametrize(
    ("name", "format", "contradicts"),
    [
        ("a.jpg", "png", True),
        ("a.png", "jpeg", True),
        ("a.JPG", "webp", True),
        ("a.jfif", "jpeg", False),
        ("a.JPEG", "mpo", False),
        ("a.pgm", "ppm", False),
        ("a.tif", "tiff", False),
        ("a", "png", False),
    ],
)
def test_whether_the_ending_is_of_another_format(
    tmp_path: Path, name: str, format: str, contradicts: bool
) -> None:
    more = {"save_all": True, "append_images": [RGB]} if format == "mpo" else {}
    RGB.save(tmp_path / name, format=format, **more)
    found = header(tmp_path / name)
    assert (found.format, found.contradicts(name)) == (format.upper(), contradicts)


def test_gray_bilevel_and_palette(tmp_path: Path) -> None:
    gray = PIXELS[..., 0]
    Image.fromarray(gray).save(tmp_path / "l.png")
    assert np.array_equal(rows(read(tmp_path / "l.png")), gray[..., None].repeat(3, 2))
    Image.fromarray(gray > 99).save(tmp_path / "one.png")
    assert np.array_equal(rows(read(tmp_path / "one.png"))[..., 1], np.where(gray > 99, 255, 0))
    palette = RGB.quantize(16)
    palette.save(tmp_path / "p.png", transparency=bytes([0, 128, 255]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow warns of a palette with alpha
        assert np.array_equal(rows(read(tmp_path / "p.png")), np.asarray(palette.convert("RGB")))


def test_sixteen_bits_become_the_upper_eight(tmp_path: Path) -> None:
    deep = (PIXELS[..., 0].astype(np.uint16) << 8) | 0x5A
    Image.fromarray(deep).save(tmp_path / "a.png")
    Image.fromarray(deep).save(tmp_path / "a.tif")
    for name in ("a.png", "a.tif"):
        assert np.array_equal(rows(read(tmp_path / name))[..., 2], PIXELS[..., 0])


_DEEP = np.random.default_rng(1).integers(0, 4096, (20, 30))


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("a.png", _DEEP.astype(np.uint16)),
        ("a.tif", _DEEP.astype(np.uint16)),
        ("a.tif", (_DEEP * 500_000).astype(np.int32)),
        ("a.tif", (_DEEP - 1024).astype(np.int32)),  # Hounsfield units
        ("a.tif", (_DEEP / 4096).astype(np.float32)),
    ],
)
def test_values_of_more_than_eight_bits_are_mapped_as_the_formula_says(tmp_path, name, pixels) -> None:
    Image.fromarray(pixels).save(tmp_path / name)
    middle = float(np.median(pixels))
    for values in ("auto", (float(pixels.min()), middle), (middle, 2 * float(pixels.max()))):
        low, high = (pixels.min(), pixels.max()) if values == "auto" else values
        expected = ((pixels.astype(np.float64) - low) * 255 / (high - low)).round().clip(0, 255)
        assert np.array_equal(rows(read(tmp_path / name, values=values)), expected[..., None].repeat(3, 2))
    known = pixels.dtype == np.uint16
    unknown = header(tmp_path / name).unknown
    assert (f"from {pixels.min():,.10g} to {pixels.max():,.10g}" in unknown) != known
    if not known:
        with pytest.raises(UnreadableImage, match=r"whose range is unknown; set data.range to .*image\)$"):
            read(tmp_path / name)


def test_values_that_are_not_finite_and_images_of_one_value(tmp_path: Path) -> None:
    Image.fromarray(np.array([[np.nan, -np.inf, 1], [2, 3, np.inf]], np.float32)).save(tmp_path / "a.tif")
    assert rows(read(tmp_path / "a.tif", values="auto"))[..., 0].tolist() == [[0, 0, 0], [128, 255, 255]]
    Image.fromarray(np.full((2, 2), 700, np.uint16)).save(tmp_path / "b.png")
    assert not rows(read(tmp_path / "b.png", values="auto")).any()


def test_eight_bits_have_their_range_and_deep_colors_are_refused(tmp_path: Path) -> None:
    RGB.save(tmp_path / "a.png")
    assert np.array_equal(rows(read(tmp_path / "a.png", values=(0, 9))), PIXELS)
    scanlines = b"".join(b"\0" + line.tobytes() for line in (_DEEP.repeat(3, 1)).astype(">u2"))
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", 30, 20, 16, 2, 0, 0, 0),
        b"IDAT": zlib.compress(scanlines),
        b"IEND": b"",
    }
    made = (
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts.items()
    )
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(made))
    assert np.array_equal(rows(read(tmp_path / "b.png"))[..., 0], _DEEP >> 8)
    assert levels(tmp_path / "b.png").used == 16
    with pytest.raises(UnreadableImage, match="does not apply to colors with 16 bits"):
        read(tmp_path / "b.png", values="auto")


def test_the_tensor_is_its_own(tmp_path: Path) -> None:
    RGB.save(tmp_path / "a.png")
    sample = read(tmp_path / "a.png")
    sample += 1  # a read-only buffer would warn
    assert not np.array_equal(rows(sample), PIXELS)


def test_the_error_pickles() -> None:
    problem = UnreadableImage("a.jpg", "cut short")
    copy = pickle.loads(pickle.dumps(problem))
    assert isinstance(copy, UnreadableImage)
    assert (copy.path, copy.reason, copy.problems) == ("a.jpg", "cut short", problem.problems)


def test_endings_are_compared_in_lower_case() -> None:
    assert is_image("A/B.JPG") and is_image("x.WebP") and not is_image("x.txt") and not is_image("jpg")
    assert all(ending == ending.lower() and ending.startswith(".") for ending in EXTENSIONS)
