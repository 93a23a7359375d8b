"""COCO data up to the score: crowds count neither way, an object is as large as its outline."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples
from rankless.data.datasets.open_split import examine
from rankless.recipe.schema import Data, Model, Recipe
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


def test_crowds_are_not_trained_on(examples: DetectionExamples) -> None:
    assert examples.item(0, 0).boxes.shape == (1, 4)
    truth = examples.ground_truth(0)
    assert truth.crowd is not None and truth.crowd.tolist() == [False, True]
    assert truth.difficult is not None and not truth.difficult.any()
