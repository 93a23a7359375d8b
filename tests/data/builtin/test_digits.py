"""The built-in digits: who is in which split, what a scene holds, and that its boxes are true."""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.ops import box_iou

from rankless.data.builtin import digits as builtin
from rankless.data.builtin.digits import DigitScenes
from rankless.data.builtin.digits.scenery import HEADROOM, Draws, color
from rankless.errors import UserError
from rankless.randomness import generator
from rankless.structures import Sample


@pytest.fixture(scope="module")
def train() -> DigitScenes:
    return DigitScenes("train", 1000, seed=3)


@pytest.fixture(scope="module")
def val() -> DigitScenes:
    return DigitScenes("val", 256)


@pytest.fixture(scope="module")
def samples(train: DigitScenes) -> list[Sample]:
    return [train.read(index) for index in range(400)]


def digest(sample: Sample) -> str:
    parts = (sample.image, sample.boxes, sample.labels)
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def shown_and_hidden(scenes: DigitScenes, index: int, digit: int) -> NDArray[np.float64]:
    """(H, W): the largest change of any channel that leaving out one digit's ink makes."""
    shown, hidden = scenes._render(index), scenes._render(index, hidden=digit)
    return np.abs(shown.image.numpy().astype(float) - hidden.image.numpy()).max(axis=0)


def alone(sample: Sample, digit: int) -> bool:
    return int((box_iou(sample.boxes[digit : digit + 1], sample.boxes) > 0).sum()) == 1


def test_splits_share_no_image_and_together_hold_all(train: DigitScenes, val: DigitScenes) -> None:
    images, labels = builtin.stored_digits()
    truth = {(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)}
    assert len({image for image, _ in truth}) == 1797  # no duplicates that could straddle the split
    held = [
        {(image.tobytes(), label) for label, images in enumerate(scenes._digits) for image in images}
        for scenes in (train, val)
    ]
    assert held[0].isdisjoint(held[1])
    assert held[0] | held[1] == truth
    for training, validation in zip(train._digits, val._digits, strict=True):  # of every class a fifth
        assert len(validation) / (len(training) + len(validation)) == pytest.approx(0.2, abs=0.005)


def test_the_stored_digits_equal_those_of_scikit_learn() -> None:
    stored = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = builtin.stored_digits()
    assert images.shape == (1797, 8, 8) and np.array_equal(images, stored.images)
    assert np.array_equal(labels, stored.target)
    made = runpy.run_path(str(Path(__file__).with_name("make_digits.py")))
    assert gzip.decompress(made["FILE"].read_bytes()) == made["content"]()


@pytest.mark.slow
def test_a_scene_depends_on_seed_split_and_index_alone(samples: list[Sample], val: DigitScenes) -> None:
    before = torch.get_num_threads()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    try:
        torch.set_num_threads(2)
        other = DigitScenes("train", 12, seed=3)
        for index in (11, 0, 7):
            assert digest(other.read(index)) == digest(samples[index])
    finally:
        torch.set_num_threads(before)
    scenes = [DigitScenes("train", 2, seed=seed) for seed in (0, 1)]
    assert len({digest(s.read(index)) for s in (*scenes, val) for index in (0, 1)}) == 6


def test_the_truth_of_a_scene_is_drawn_once(val: DigitScenes) -> None:
    drawn, truth = val.read(3), val.ground_truth(3)
    assert torch.equal(truth.boxes, drawn.boxes)
    assert torch.equal(truth.labels, drawn.labels)
    assert val.ground_truth(3) is truth


@pytest.mark.processes
def test_a_scene_is_the_same_in_another_process(tmp_path: Path, forked: Any) -> None:
    program = (
        "import sys, hashlib, pickle\n"
        "scenes = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for index in (5, 2):\n"
        "    p = scenes.read(index)\n"
        "    data = b''.join(part.numpy().tobytes() for part in (p.image, p.boxes, p.labels))\n"
        "    print(hashlib.sha256(data).hexdigest())\n"
    )
    scenes = DigitScenes("train", 1000, seed=3)
    scenes.read(0)  # what these make must not travel
    scenes.ground_truth(0)
    sent = pickle.dumps(scenes)
    assert len(sent) < 120_000
    assert not pickle.loads(sent)._truths
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "scenes").write_bytes(sent)
    done = forked("program.py", "scenes", cwd=tmp_path)
    assert done.stdout.split() == [digest(scenes.read(5)), digest(scenes.read(2))]


@pytest.mark.slow
def test_types_shapes_and_boxes_inside(samples: list[Sample]) -> None:
    for sample in samples:
        image, boxes, labels = sample.image, sample.boxes, sample.labels
        assert image.shape == (3, *builtin.SIZE) and image.dtype == torch.uint8 and image.is_contiguous()
        assert boxes.shape == (len(labels), 4)
        assert boxes.dtype == torch.float32 and labels.dtype == torch.int64
        assert boxes.min() >= 0 and boxes.max() <= 160 and (boxes[:, 2:] - boxes[:, :2]).min() >= 3


@pytest.mark.slow
def test_one_to_twelve_digits_evenly(samples: list[Sample]) -> None:
    counts = np.bincount([len(sample.labels) for sample in samples], minlength=14)
    assert counts[0] == counts[13:].sum() == 0
    # 400 scenes over 12 numbers: 33.3 each, deviation 5.5
    assert counts[1:13].min() >= 12
    assert counts[1:13].max() <= 55


@pytest.mark.slow
def test_classes_in_balance(samples: list[Sample]) -> None:
    counts = torch.bincount(torch.cat([sample.labels for sample in samples]), minlength=10)
    expected = counts.sum().item() / 10
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == 10
    assert chi_squared < 27.9  # the 99.9th percentile with nine degrees of freedom


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "low", "high"), [(512, 26, 236), (256, 13, 118), (160, 17, 74), (128, 17, 59), (96, 17, 44)]
)
def test_sizes_are_roughly_log_uniform(side: int, low: int, high: int) -> None:
    scenes = DigitScenes("train", 150, seed=3, size=(side, side))
    boxes = torch.cat([scenes.read(index).boxes for index in range(150)])
    heights = (boxes[:, 3] - boxes[:, 1]).log()
    assert heights.min() >= math.log(0.85 * low)  # a warped digit may be lower than its glyph
    assert heights.max() <= math.log(high)
    thirds = torch.histc(heights, 3, min=math.log(low), max=math.log(0.92 * high)) / len(heights)
    assert min(thirds) > 0.2  # a third each if sizes were exactly log-uniform and never shrunk for room


@pytest.mark.slow
def test_boxes_overlap_at_most_slightly(samples: list[Sample]) -> None:
    touching = 0
    for sample in samples:
        iou = box_iou(sample.boxes, sample.boxes).fill_diagonal_(0)
        assert iou.max() <= 0.05 + 1e-6
        low = torch.maximum(sample.boxes[:, None, :2], sample.boxes[None, :, :2])
        high = torch.minimum(sample.boxes[:, None, 2:], sample.boxes[None, :, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (sample.boxes[:, 2:] - sample.boxes[:, :2]).prod(-1)
        assert ((shared / area).fill_diagonal_(0)).max() <= 0.1 + 1e-6
        touching += int((iou > 0).any())
    assert touching > 40  # and they do overlap sometimes


@pytest.mark.slow
def test_boxes_are_the_extent_of_the_ink(train: DigitScenes, samples: list[Sample]) -> None:
    checked = 0
    for index in range(20):
        for digit in range(len(samples[index].labels)):
            if not alone(samples[index], digit):
                continue
            change = shown_and_hidden(train, index, digit)
            x1, y1, x2, y2 = samples[index].boxes[digit].int().tolist()
            outside = change.copy()
            outside[y1:y2, x1:x2] = 0
            assert outside.max() == 0  # no ink beyond the box
            # The ink at every side covers a quarter of a pixel at least: a quarter of the contrast, less the
            # texture beneath. An eighth tells it from nothing and from a box one pixel too wide.
            visible = change > 0.125 * np.quantile(change[y1:y2, x1:x2], 0.9)
            rows, columns = np.nonzero(visible.any(1))[0], np.nonzero(visible.any(0))[0]
            extent = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            assert np.abs(extent - [x1, y1, x2, y2]).max() <= 1
            checked += bool((extent == [x1, y1, x2, y2]).all())
    assert checked > 50  # nearly all of them to the pixel


@pytest.mark.slow
def test_every_digit_can_be_seen(train: DigitScenes, samples: list[Sample]) -> None:
    for index in range(12):
        image = samples[index].image.double()
        for digit in range(len(samples[index].labels)):
            change = torch.from_numpy(shown_and_hidden(train, index, digit))
            ink, paper = change > 0.6 * change.max(), torch.zeros_like(change, dtype=torch.bool)
            x1, y1, x2, y2 = samples[index].boxes[digit].int().tolist()
            paper[y1:y2, x1:x2] = True
            paper &= change == 0
            luma = (image * torch.tensor([0.299, 0.587, 0.114]).double()[:, None, None]).sum(0)
            assert abs(luma[ink].median() - luma[paper].median()) > 25


@pytest.mark.slow
def test_labels_say_which_digit_was_drawn(val: DigitScenes) -> None:
    known = DigitScenes("train", 1)._digits
    stored = np.concatenate(known).reshape(-1, 64).astype(float)
    stored_labels = np.repeat(np.arange(10), [len(images) for images in known])
    right = total = 0
    for index in range(36):
        sample = val.read(index)
        for digit in range(len(sample.labels)):
            x1, y1, x2, y2 = sample.boxes[digit].int().tolist()
            if y2 - y1 < 24 or not alone(sample, digit):
                continue
            ink = shown_and_hidden(val, index, digit)[y1:y2, x1:x2]
            sheet = np.zeros((y2 - y1, max(y2 - y1, x2 - x1)))
            left = (sheet.shape[1] - (x2 - x1)) // 2
            sheet[:, left : left + x2 - x1] = ink
            small = np.asarray(Image.fromarray(sheet.astype(np.float32)).resize((8, 8), Image.Resampling.BOX))
            vector = small.reshape(64) * (16 / small.max())
            nearest = stored_labels[((stored - vector) ** 2).sum(1).argmin()]
            right += int(nearest == sample.labels[digit])
            total += 1
    assert total > 45
    assert right / total > 0.8  # a tenth if labels and ink did not belong together


def test_no_color_leaves_the_headroom() -> None:
    rng = Draws(generator(0, "colors"))
    colors = np.array([color(rng, rng.uniform(HEADROOM, 255 - HEADROOM)) for _ in range(500)])
    assert colors.min() >= HEADROOM
    assert colors.max() <= 255 - HEADROOM


@pytest.mark.slow
@pytest.mark.parametrize("size", [(192, 320), (64, 96), (32, 32), (416, 416)])
def test_other_sizes(size: tuple[int, int]) -> None:
    scenes = DigitScenes("train", 6, size=size)
    for index in range(6):
        sample = scenes.read(index)
        assert sample.image.shape == (3, *size) and len(sample.labels) >= 1
        assert sample.boxes.min() >= 0 and (sample.boxes[:, 2:] <= torch.tensor(size[::-1])).all()


def test_names(val: DigitScenes) -> None:
    assert len(val) == 256 and val.source(12) == "digits/val/12"
    assert val.class_names == tuple("0123456789")
    with pytest.raises(UserError, match="no split 'test'; expected train or val"):
        DigitScenes("test", 1)
