"""Test-time augmentation: boxes come back from every view, and views see what one does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from rankless.recipe.schema import Data, Evaluate, Model, Recipe
from rankless.structures import ClassificationBatch, DetectionItem, Detections, Letterbox
from rankless.tasks.classify import Classify
from rankless.tasks.detect import Detect
from rankless.tasks.tta import TTA, Transform, apply_transform, restore_boxes
from support.finds_rectangles import Finds, painted

NAMES = ("red", "green", "blue")
# Odd places, so that a pixel or a half lost on the way back would show.
BOXES = {0: (7, 21, 30, 52), 2: (67, 9, 90, 34)}


def task(tta: str) -> Detect:
    recipe = Recipe(
        model=Model(name="yolov3-tiny", width=0.25, image_size=(64, 96)),
        data=Data(root="nowhere"),
        evaluate=Evaluate(confidence=0.3, tta=tta),  # type: ignore[arg-type]
    )
    return Detect(recipe, NAMES)


def find(tta: str, sees=lambda box, width: True) -> tuple[Detections, Finds]:
    detect = task(tta)
    model = Finds(detect.model().heads, sees)
    place = Letterbox(0.5, 0.0, 0.0, 128, 192)  # boxes come back twice as large
    empty = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    item = DetectionItem(painted(64, 96, BOXES), *empty, 5, place)
    (found,) = detect.predict(model, detect.collate([item]))
    return found, model


def rows(found: Detections) -> dict[int, list[float]]:
    assert len(found.labels) == len(set(found.labels.tolist()))
    return {int(label): box.tolist() for label, box in zip(found.labels, found.boxes, strict=True)}


def wanted(*channels: int) -> dict[int, list[float]]:
    return {channel: [2.0 * side for side in BOXES[channel]] for channel in channels}


def test_a_symmetric_model_finds_the_same_in_a_mirror_and_nms_makes_one_of_two():
    plain, _ = find("none")
    flipped, model = find("flip")
    assert rows(plain).keys() == {0, 2}
    for channel, box in wanted(0, 2).items():
        assert rows(plain)[channel] == pytest.approx(box, abs=1e-3)
        assert rows(flipped)[channel] == pytest.approx(box, abs=1e-3)
    assert flipped.scores.tolist() == pytest.approx([0.81, 0.81])
    assert model.inputs == [(64, 96)] * 2


def test_what_one_view_is_blind_to_another_finds():
    def left_half(box, width):
        return box[2] < width / 2

    assert rows(find("none", left_half)[0]).keys() == {0}
    both = rows(find("flip", left_half)[0])
    assert both.keys() == {0, 2}
    assert both[2] == pytest.approx(wanted(2)[2], abs=1e-3)


def test_smaller_views_find_what_is_too_large():
    def small(box, width):
        return box[3] - box[1] < 22  # they are 31 and 25 high: 20.8 and 16.8 at 0.67, 25.7 and 20.8 at 0.83

    assert not rows(find("flip", small)[0])
    found, model = find("full", small)
    for channel, box in wanted(0, 2).items():
        assert rows(found)[channel] == pytest.approx(box, abs=4)  # a pixel of the view is 3 of the source
    # 64 × 96 at 0.83 is 53 × 80, at 0.67 43 × 64; with gray up to multiples of 32.
    assert model.inputs == [(64, 96)] * 2 + [(64, 96)] * 2 + [(64, 64)] * 2


def test_a_view_is_the_resized_image_and_gray():
    """Pillow's bilinear resize, which is antialiased too, is the oracle."""
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    for scale, mirrored in TTA["full"]:
        view = apply_transform(image, Transform(scale, mirrored))
        rows_, columns = round(64 * scale), round(96 * scale)
        source = Image.fromarray(image[0, 1].numpy())
        if mirrored:
            source = source.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        resized = np.array(source.resize((columns, rows_), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(view[0, 1, :rows_, :columns], resized, atol=1e-4)
        assert (view[..., rows_:, :] == 114 / 255).all() and (view[..., columns:] == 114 / 255).all()
    assert apply_transform(image, Transform(1.0, False)).equal(image)


@pytest.mark.parametrize("view", TTA["full"])
def test_boxes_go_there_and_back(view: Transform):
    box = torch.tensor([[10.0, 20, 40, 60], [0, 0, 96, 64]], dtype=torch.float64)
    there = box.clone()
    if view.mirrored:
        there[:, [0, 2]] = 96 - box[:, [2, 0]]
    there *= torch.tensor([round(96 * view.scale) / 96, round(64 * view.scale) / 64] * 2)
    np.testing.assert_allclose(restore_boxes(there, view, (64, 96)), box, atol=1e-5)


class Sides(nn.Module):
    """Two classes: how bright the left half is, and how bright the right."""

    def forward(self, images: Tensor) -> Tensor:
        half = images.shape[-1] // 2
        return torch.stack((images[..., :half].mean((1, 2, 3)), images[..., half:].mean((1, 2, 3))), 1)


def test_a_classifier_says_the_mean_of_its_probabilities():
    def recipe(tta: str) -> Recipe:
        model = Model(name="densenet121", image_size=32)
        return Recipe(task="classify", model=model, evaluate=Evaluate(tta=tta))  # type: ignore[arg-type]

    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[:, :, :, :16] = 255
    batch = ClassificationBatch(images, torch.zeros(2, 2), [0, 1])
    plain = Classify(recipe("none"), ("a", "b")).predict(Sides(), batch)
    # (1 - mean) / std less (0 - mean) / std is 1 / std: the mean of that over ImageNet's channels.
    apart = np.mean([1 / 0.229, 1 / 0.224, 1 / 0.225])
    logs = [-math.log(1 + math.exp(-apart)), -math.log(1 + math.exp(apart))]
    assert plain[0].log_probabilities.tolist() == pytest.approx(logs, abs=1e-4)
    flipped = Classify(recipe("flip"), ("a", "b")).predict(Sides(), batch)
    assert flipped[1].log_probabilities.tolist() == pytest.approx([math.log(0.5)] * 2, abs=1e-6)
