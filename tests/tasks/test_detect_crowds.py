"""COCO data up to the score: crowds count neither way, an object is as large as its outline."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples, collate
from rankless.data.datasets.open_split import examine
from rankless.models.heads.anchor_free.codec import AnchorFreeHead
from rankless.models.heads.anchor_free.loss import AnchorFreeLoss
from rankless.models.heads.yolo.codec import YoloHead
from rankless.models.heads.yolo.loss import YoloLoss
from rankless.recipe.loss_kinds import Yolov4Loss
from rankless.recipe.schema import Augment, Data, Model, Recipe
from rankless.structures import Detections
from rankless.tasks.detect import Detect


@pytest.fixture
def examples(tmp_path: Path) -> DetectionExamples:
    """One image with a cup of 900 pixels in a large box, and a crowd of cups."""
    Image.new("RGB", (400, 300)).save(tmp_path / "a.png")
    boxes = [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 100, 100], "area": 900, "iscrowd": 0},
        {"id": 2, "image_id": 1, "category_id": 1, "bbox": [200, 0, 200, 300], "area": 5, "iscrowd": 1},
    ]
    whole = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": boxes,
        "categories": [{"id": 1, "name": "cup"}],
    }
    (tmp_path / "train.json").write_text(json.dumps(whole))
    return DetectionExamples(BoxedImages(examine(str(tmp_path), "train", "coco")), (64, 64), 0, None)


def test_crowds_and_areas_are_scored(examples: DetectionExamples, tmp_path: Path) -> None:
    data = Data(root=str(tmp_path), val="train", format="coco")
    model = Model(name="yolov4-tiny", width=0.125, image_size=64)
    task = Detect(Recipe(model=model, data=data), class_names=("cup",))
    boxes = torch.tensor([[210.0, 10, 240, 60], [250, 10, 290, 60], [0, 0, 100, 100]])  # two lie in the crowd
    scores = task.score([Detections(0, boxes, torch.tensor([0.9, 0.8, 0.7]), torch.zeros(3).long())])
    assert (scores["AP"], scores["APs"]) == (pytest.approx(1), pytest.approx(1))
    assert scores["APm"] is scores["APl"] is None


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_crowd_is_neither_an_object_nor_background(examples: DetectionExamples, flip: float) -> None:
    """For a logit of x, the gradient is σ(x), and exactly 0 if the box or the point is in the crowd."""
    examples.augment = Augment(preset="none", flip=flip)
    batch = collate([examples.item(0, 0)])
    # The image is 64 × 48 pixels of the input, 8 from above; its right half is the crowd.
    crowd = [0.0, 8.0, 32.0, 56.0] if flip else [32.0, 8.0, 64.0, 56.0]
    assert batch.ignored is not None and batch.ignored.tolist() == [[pytest.approx(crowd)]]
    assert batch.boxes[batch.valid].shape == (1, 4)
    batch.valid = torch.zeros_like(batch.valid)  # the object would be a positive
    x, anchors = 0.3, ((10.0, 10.0), (40.0, 30.0))

    raw = torch.zeros(1, 2 * 6, 8, 8, dtype=torch.float64)
    raw[:, [4, 10]] = x
    YoloLoss(Yolov4Loss(), "yolov4")(
        [raw.requires_grad_()], [YoloHead(anchors, mask=(0, 1), stride=8)], batch
    ).sum.backward()
    assert raw.grad is not None
    seen = set()
    for anchor, (width, height) in enumerate(anchors):
        for row in range(8):
            for column in range(8):
                left, top = 8 * column + 4 - width / 2, 8 * row + 4 - height / 2
                across = max(0.0, min(left + width, crowd[2]) - max(left, crowd[0]))
                down = max(0.0, min(top + height, crowd[3]) - max(top, crowd[1]))
                excused = across * down > width * height / 2
                expected = 0.0 if excused else 1 / (1 + math.exp(-x))
                assert raw.grad[0, 6 * anchor + 4, row, column] == pytest.approx(expected, rel=1e-12, abs=0)
                seen.add((anchor, excused))
    assert len(seen) == 4

    points = torch.full((1, 5, 8, 8), x, dtype=torch.float64, requires_grad=True)
    AnchorFreeLoss()([points], [AnchorFreeHead(stride=8, bins=0)], batch).sum.backward()
    assert points.grad is not None
    expected = torch.full((8, 8), 1 / (1 + math.exp(-x)), dtype=torch.float64)
    expected[1:7, slice(0, 4) if flip else slice(4, 8)] = 0
    torch.testing.assert_close(points.grad[0, 4], expected, rtol=1e-12, atol=0)


def test_detections_in_a_region_of_a_class_to_ignore_are_not_scored(tmp_path: Path) -> None:
    Image.new("RGB", (400, 300)).save(tmp_path / "a.png")
    listed = [(1, [0, 0, 100, 100]), (2, [150, 0, 50, 50]), (7, [200, 0, 200, 300])]
    whole = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [
            {"id": at, "image_id": 1, "category_id": label, "bbox": box}
            for at, (label, box) in enumerate(listed, 1)
        ],
        "categories": [{"id": label, "name": name} for label, name in ((7, "haze"), (1, "cup"), (2, "cat"))],
    }
    (tmp_path / "train.json").write_text(json.dumps(whole))
    data = Data(root=str(tmp_path), val="train", format="coco", ignore_class=("haze",))
    task = Detect(Recipe(model=Model(name="yolov4-tiny", width=0.125, image_size=64), data=data))
    assert task.class_names == ("cup", "cat")
    boxes = torch.tensor([[210.0, 10, 240, 60], [250, 10, 290, 60], [0, 0, 100, 100], [150, 0, 200, 50]])
    found = Detections(0, boxes, torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([0, 1, 0, 1]))
    assert task.score([found])["AP"] == pytest.approx(1)
    other = Detect(task.recipe, class_names=("dog", "cat", "cup"))  # a model with other labels
    swapped = replace(found, labels=torch.tensor([2, 1, 2, 1]))
    assert other.score([swapped])["AP"] == pytest.approx(1)
    of_other = other.collate([other.evaluation_data().item(0, 0)])
    assert of_other.labels.tolist() == [[2, 1]] and of_other.ignored is not None
    details = task.report_details([found])
    assert details["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    batch = task.collate([task.training_data().item(0, 0)])
    assert batch.valid.sum() == 2 and batch.ignored is not None and batch.ignored.shape == (1, 1, 4)


def test_crowds_are_known(examples: DetectionExamples) -> None:
    truth = examples.ground_truth(0)
    assert truth.crowd is not None and truth.crowd.tolist() == [False, True]
    assert truth.difficult is not None and not truth.difficult.any()
