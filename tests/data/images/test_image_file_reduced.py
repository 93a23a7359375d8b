"""Images reduced while they are decoded: against the mean of the whole image's pixels, and in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from rankless.data.datasets.annotated import BoxedImages, ClassifiedImages
from rankless.data.datasets.classification import ClassificationExamples
from rankless.data.datasets.detection import DetectionExamples
from rankless.data.images.image_file import Shown, read, read_for
from rankless.data.index.raw import RawBuilder
from rankless.data.index.validation import validate
from rankless.geometry.letterbox import to_input, to_source
from rankless.recipe.schema import Augment, Data


def smooth(height: int, width: int) -> Image.Image:
    small = np.random.default_rng(5).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def boxed(path: Path, box: list[float], size: tuple[int, int]) -> BoxedImages:
    made = RawBuilder()
    made.add_box(made.add_image(str(path), size=size), box, 0, 1)
    return BoxedImages(validate(made.raw(names=["thing"]), "test"))


def mean_of_blocks(pixels: np.ndarray, factor: int) -> np.ndarray:
    """(H, W, 3) float64: the mean of every factor × factor block, of what there is at the border."""
    rows, columns = (np.arange(0, side, factor) for side in pixels.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(pixels, rows, 0), columns, 1)
    counts = np.diff(np.append(rows, pixels.shape[0]))[:, None] * np.diff(np.append(columns, pixels.shape[1]))
    return sums / counts[..., None]


@pytest.mark.parametrize(
    ("size", "fit", "detail", "factor"),
    [
        ((1664, 1664), "letterbox", 2.0, 2),
        ((1663, 1663), "letterbox", 2.0, 1),  # halved it would be less than twice as large as shown
        ((3000, 20000), "letterbox", 2.0, 8),
        ((3000, 20000), "cover", 2.0, 2),  # the short side is shown at 416 of 3000
        ((1664, 1664), "letterbox", 0.0, 1),
    ],
)
def test_the_factor_by_hand(size: tuple[int, int], fit: str, detail: float, factor: int) -> None:
    assert Shown((416, 416), fit, detail).reduction(*size) == factor  # type: ignore[arg-type]


@given(
    st.integers(1, 30000), st.integers(1, 30000), st.floats(0.5, 8), st.sampled_from(["letterbox", "stretch"])
)
def test_what_is_shown_keeps_its_detail(height: int, width: int, detail: float, fit: str) -> None:
    size = (320, 416)
    factor = Shown(size, fit, detail).reduction(height, width)  # type: ignore[arg-type]
    down, across = size[0] / height, size[1] / width
    scales = [min(down, across)] * 2 if fit == "letterbox" else [down, across]
    kept = [1 / factor / scale for scale in scales]
    assert factor == 1 or min(kept) >= detail * (1 - 1e-9)
    assert factor == 8 or min(kept) / 2 < detail * (1 + 1e-9)  # and not less was reduced than could be


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("size", [(400, 648), (401, 647)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_reduced_pixels_are_means_in_their_place(
    tmp_path: Path, ending: str, size: tuple[int, int], orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth(*size).save(tmp_path / f"a.{ending}", exif=exif, **({"quality": 95} if ending == "jpg" else {}))
    with Image.open(tmp_path / f"a.{ending}") as image:
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    for factor in (2, 4, 8):
        shown = Shown(tuple(side // (2 * factor) for side in upright.shape[:2]), "stretch", 1.9)  # type: ignore[arg-type]
        found = read_for(tmp_path / f"a.{ending}", shown)
        assert (found.reduced, found.source) == (factor, upright.shape[:2])
        expected = mean_of_blocks(upright.astype(np.float64), factor)
        error = np.abs(found.image.permute(1, 2, 0).numpy() - expected)
        assert error.max() <= (1 if ending != "jpg" else 6), (factor, error.max())
        assert error.mean() < 1


def test_the_place_on_the_input_is_of_the_source(tmp_path: Path) -> None:
    """A white square found again by its pixels: in training, in evaluation, and lifted back to the source."""
    source = np.zeros((1205, 1603, 3), np.uint8)
    source[400:800, 640:1200] = 255
    Image.fromarray(source).save(tmp_path / "a.png")
    data = boxed(tmp_path / "a.png", [640, 400, 1200, 800], (1205, 1603))
    still = Augment(flip=0, scale=0, translate=0, hue=0, saturation=0, value=0)
    for augment in (None, still):
        item = DetectionExamples(data, (96, 96), 0, augment).item(0, 0)
        assert (item.letterbox.height, item.letterbox.width) == (1205, 1603)
        assert item.letterbox.scale == pytest.approx(96 / 1603, rel=0.01)
        lit = (item.image[0] > 127).nonzero()  # (n, 2) rows and columns; the gray around is 114
        (top, left), (bottom, right) = lit.min(0).values.tolist(), (lit.max(0).values + 1).tolist()
        assert np.abs(np.subtract(item.boxes[0].tolist(), (left, top, right, bottom))).max() < 0.6
        back = to_source(item.boxes, item.letterbox)
        torch.testing.assert_close(back, torch.tensor([[640.0, 400, 1200, 800]]), rtol=0, atol=1e-2)
        torch.testing.assert_close(to_input(back, item.letterbox), item.boxes, rtol=0, atol=1e-3)


def test_without_detail_nothing_is_reduced(tmp_path: Path) -> None:
    smooth(900, 1200).save(tmp_path / "a.jpg")
    data = boxed(tmp_path / "a.jpg", [0, 0, 100, 100], (900, 1200))
    whole = DetectionExamples(data, (64, 64), 0, None, data=Data(detail=0)).images
    reduced = DetectionExamples(data, (64, 64), 0, None).images
    assert isinstance(whole, BoxedImages)
    assert whole.read(0).reduced == 1
    assert reduced.read(0).reduced == 8
    assert torch.equal(whole.read(0).image, read(tmp_path / "a.jpg"))


def test_a_classifier_reads_large_images_reduced(tmp_path: Path) -> None:
    smooth(900, 1300).save(tmp_path / "a.jpg", quality=95)
    data = boxed(tmp_path / "a.jpg", [0, 0, 1, 1], (900, 1300)).annotations
    whole = replace(data, class_names=("one", "two"), boxes=data.boxes[:0], labels=data.labels + 1)
    folder = ClassifiedImages(whole, None, "here")
    for crop in (1.0, 0.5):
        made = [
            ClassificationExamples(
                folder, (64, 64), 0, Augment(crop=crop), augmented=False, data=Data(detail=detail)
            ).item(0, 0)
            for detail in (0.0, 2.0)
        ]
        assert made[1].target.tolist() == [0, 1]
        assert 0 < (made[0].image.int() - made[1].image.int()).abs().max() <= 8
    opened = ClassificationExamples(folder, (64, 64), 0, Augment(), augmented=True).images
    assert tuple(opened.read(0).shape) == (3, 225, 325)
