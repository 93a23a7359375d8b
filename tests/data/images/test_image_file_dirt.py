"""Dirt in images: each kind with its outcome, and nothing but UnreadableImage whatever the bytes are."""

from __future__ import annotations

import io
import os
import resource
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import PIL
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from rankless.data.images import image_file
from rankless.data.images.image_file import UnreadableImage, header, read, read_for
from rankless.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
RGB = Image.fromarray(PIXELS)
RED = (200, 30, 40)


def flat(mode: str, color: object) -> Image.Image:
    return Image.new(mode, (24, 16), color)  # type: ignore[arg-type]


def color_of(path: Path) -> list[int]:
    found = read(path)
    assert found.shape == (3, 16, 24) and header(path).size == (16, 24)
    low, high = found.amin((1, 2)), found.amax((1, 2))
    assert (high.int() - low.int()).max() <= 3
    return found.float().mean((1, 2)).round().int().tolist()


def near(found: list[int], expected: tuple[int, int, int], slack: int = 3) -> bool:
    return all(abs(a - b) <= slack for a, b in zip(found, expected, strict=True))


def deflated(size: int) -> bytes:
    """So many zeros (a multiple of 1 MiB), packed to a thousandth: one block of them again and again."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * (size >> 20) + b"\x03\0" + struct.pack(">HH", size % 65521, 1)


def png_with(kind: bytes, body: bytes, times: int = 1) -> bytes:
    buffer = io.BytesIO()
    RGB.save(buffer, "PNG")
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return buffer.getvalue()[:33] + chunk * times + buffer.getvalue()[33:]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "head"), [(b"zTXt", b"Comment\0\0"), (b"iTXt", b"Comment\0\1\0\0\0"), (b"iCCP", b"profile\0\0")]
)
def test_texts_that_unpack_to_gigabytes_take_no_memory(tmp_path: Path, kind: bytes, head: bytes) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png_with(kind, head + deflated(1 << 30)))
    assert file.stat().st_size < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for look in (read, header):
        try:
            assert look(file) is not None
        except UnreadableImage as error:
            assert str(file) in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


def test_many_texts_are_no_more_than_one(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png_with(b"zTXt", b"Comment\0\0" + deflated(1 << 20), 1024))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImage):
        read(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_kinds_of_pixels(tmp_path: Path) -> None:
    kinds: dict[str, tuple[Image.Image, tuple[int, int, int]]] = {
        "gray.jpg": (flat("L", 77), (77, 77, 77)),
        "gray_alpha.png": (flat("LA", (77, 9)), (77, 77, 77)),
        "alpha.webp": (flat("RGBA", (*RED, 255)), RED),
        "bilevel.tif": (flat("1", 0), (0, 0, 0)),
        "cmyk.tif": (flat("CMYK", (0, 255, 255, 0)), (255, 0, 0)),
        "lab.tif": (flat("LAB", (128, 128, 128)), (119, 119, 119)),
        "palette.png": (flat("RGB", RED).quantize(4), RED),  # its transparent entry keeps its color
        "palette.gif": (flat("RGB", RED).quantize(4), RED),
    }
    for name, (image, expected) in kinds.items():
        image.save(tmp_path / name, **({"transparency": 0} if image.mode == "P" else {}))
        assert near(color_of(tmp_path / name), expected, 4), name


def test_an_uncompressed_tiff_in_ycbcr(tmp_path: Path) -> None:
    file = tmp_path / "ycbcr.tif"
    flat("RGB", RED).convert("YCbCr").save(file)
    if int(PIL.__version__.partition(".")[0]) >= 13:
        assert near(color_of(file), RED, 4)
    else:  # Pillow takes it for RGBX, and finds that a quarter is missing
        with pytest.raises(UnreadableImage, match="truncated"):
            read(file)


@pytest.mark.parametrize("transform", [0, 2])
def test_adobes_cmyk_and_ycck(tmp_path: Path, transform: int) -> None:
    """Adobe stores inks inverted, as CMYK (transform 0) or YCCK (2); OpenCV reads the file on its own."""
    cv2 = pytest.importorskip("cv2")
    flat("CMYK", (0, 200, 100, 30)).save(tmp_path / "a.jpg", quality=95)
    content = (tmp_path / "a.jpg").read_bytes()
    at = content.index(b"Adobe\x00")
    assert content[at + 11] in (0, 2)
    changed = content[: at + 11] + bytes([transform]) + content[at + 12 :]
    (tmp_path / "a.jpg").write_bytes(changed)
    expected = cv2.imdecode(np.frombuffer(changed, np.uint8), cv2.IMREAD_COLOR)[8, 8, ::-1]
    assert near(color_of(tmp_path / "a.jpg"), tuple(expected.tolist()), 12)


def test_sixteen_bits_of_color_become_the_upper_eight(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    deep = np.empty((16, 24, 3), np.uint16)
    deep[:] = [(level << 8) | 90 for level in RED[::-1]]
    cv2.imwrite(str(tmp_path / "a.png"), deep)
    assert color_of(tmp_path / "a.png") == list(RED)


def test_profiles_are_not_applied(tmp_path: Path) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    RGB.save(tmp_path / "with.jpg", icc_profile=profile)
    RGB.save(tmp_path / "without.jpg")
    assert np.array_equal(read(tmp_path / "with.jpg"), read(tmp_path / "without.jpg"))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": "4:2:2"}])
def test_jpegs_have_pillows_bits(tmp_path: Path, options: dict[str, object]) -> None:
    for image in (RGB, RGB.resize((133, 77)), RGB.resize((61, 200)).convert("L")):
        image.save(tmp_path / "a.jpg", **options)
        with Image.open(tmp_path / "a.jpg") as slow:
            expected = np.asarray(slow.convert("RGB"))
        assert np.array_equal(read(tmp_path / "a.jpg").permute(1, 2, 0), expected)


def test_of_moving_images_the_first(tmp_path: Path) -> None:
    for ending in ("gif", "webp", "png", "tif"):
        frames = [flat("RGB", RED), flat("RGB", (0, 0, 255))]
        lossless = {"lossless": True} if ending == "webp" else {}
        frames[0].save(tmp_path / f"a.{ending}", save_all=True, append_images=frames[1:], **lossless)
        assert near(color_of(tmp_path / f"a.{ending}"), RED), ending


def test_names_and_links(tmp_path: Path) -> None:
    for name in ("with space.PNG", "图片/血液.Png", "🩸.png", "a.b.c.png", "-x.png", "%d.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        RGB.save(path, format="png")
        assert np.array_equal(read(path).permute(1, 2, 0), PIXELS), name
        assert header(str(path)).size == (20, 30)
    (tmp_path / "link.png").symlink_to(tmp_path / "-x.png")
    assert np.array_equal(read(tmp_path / "link.png").permute(1, 2, 0), PIXELS)
    (tmp_path / "dead.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(UnreadableImage, match="No such file"):
        read(tmp_path / "dead.png")


def test_what_is_no_file_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    started = time.monotonic()
    for name, reason in (
        ("folder.jpg", "Is a directory"),
        ("pipe.jpg", "it is a pipe; expected a regular file"),
    ):
        for reader in (read, header):
            with pytest.raises(UnreadableImage, match=reason):
                reader(tmp_path / name)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"hello, I am a text\n" * 30, "not in a known image format"),
        (b"<html><body>404 Not Found</body></html>", "not in a known image format"),
        (b"\xff\xd8\xff", "not in a known image format|truncated|broken|end of"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "not in a known image format"),
    ],
)
def test_files_that_are_no_images(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    for reader in (read, header):
        with pytest.raises(UnreadableImage, match=reason) as caught:
            reader(tmp_path / "a.jpg")
        assert isinstance(caught.value, UserError)
        assert str(tmp_path / "a.jpg") in str(caught.value) and "0x" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp"])
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_cut_short(tmp_path: Path, ending: str, share: float) -> None:
    RGB.resize((300, 200)).save(tmp_path / f"a.{ending}")
    content = (tmp_path / f"a.{ending}").read_bytes()
    (tmp_path / f"a.{ending}").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UnreadableImage):
        read(tmp_path / f"a.{ending}")


@pytest.mark.slow
def test_a_hundred_megapixels_are_read_and_more_than_the_limit_reported(tmp_path: Path) -> None:
    flat("L", 77).resize((10000, 10000)).save(tmp_path / "large.jpg")
    assert header(tmp_path / "large.jpg").size == (10000, 10000)
    found = read_for(tmp_path / "large.jpg", image_file.Shown((416, 416)))
    assert (found.reduced, tuple(found.image.shape)) == (8, (3, 1250, 1250))
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 20000, 9000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    content += struct.pack(">I", 10) + b"IDAT" + bytes(14)
    (tmp_path / "bomb.png").write_bytes(content)
    for reader in (read, header):
        with pytest.raises(UnreadableImage, match="at most 178 million pixels"):
            reader(tmp_path / "bomb.png")


def encoded(ending: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    target = io.BytesIO()
    RGB.resize((60, 40)).save(target, format=ending, exif=exif)
    return target.getvalue()


SOUND = {ending: encoded(ending) for ending in ("jpeg", "png", "webp", "tiff")}
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(content: bytes) -> None:
    for reader in (read, header, lambda file, name: read_for(file, image_file.Shown((4, 4)), name=name)):
        try:
            reader(io.BytesIO(content), name="a.jpg")  # type: ignore[operator]
        except UnreadableImage as error:
            assert error.path == "a.jpg" and error.reason


@QUICK
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\xff\xd8\xff\xe1", b"\x89PNG\r\n\x1a\n", b"II*\0", b"GIF89a"]),
)
def test_random_bytes(content: bytes, start: bytes) -> None:
    survives(start + content)


@QUICK
@given(st.sampled_from(sorted(SOUND)), st.data())
def test_mutated_images(ending: str, data: st.DataObject) -> None:
    content = bytearray(SOUND[ending])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(
        bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    )
