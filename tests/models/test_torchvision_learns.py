"""One of torchvision's detectors learns a few scenes by heart, through the task as a training uses it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from rankless.data.datasets.detection import DetectionExamples
from rankless.geometry.boxes import pairwise_iou
from rankless.models.detectors.torchvision import MODELS
from rankless.recipe.schema import Data, Evaluate, Model, Recipe
from rankless.structures import DetectionBatch, DetectionItem, Letterbox
from rankless.tasks.detect import Detect
from thorough import THOROUGH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
IMAGES, SIDE, MOST_STEPS = 2, 128, 400
# FCOS predicts at a point every 8 pixels: it can never learn an object that lies between its points.
SMALLEST = {"torchvision/fcos_resnet50_fpn": 8.0}
# At five times this rate FCOS finds six of eleven objects after 400 steps; at this one all after twenty.
LEARNING_RATE = {"torchvision/fcos_resnet50_fpn": 1e-4}


def prepared(model: Any) -> Any:
    """The model with norms that use the batch's statistics."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # Of two images the coarse maps hold so few values that running statistics are others.
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    return model


def share_found(task: Detect, model: nn.Module, batch: DetectionBatch) -> float:
    """The fraction of the digits that are found with their class and an IoU above 0.5."""
    hits = []
    for index, found in enumerate(task.predict(model.eval(), batch)):
        boxes, labels = (values[index][batch.valid[index]] for values in (batch.boxes, batch.labels))
        overlap = pairwise_iou(boxes.unsqueeze(0), found.boxes.unsqueeze(0))[0]
        hits.append(((overlap > 0.5) & (labels.unsqueeze(1) == found.labels)).any(1))
    return float(torch.cat(hits).float().mean())


def scenes(data: DetectionExamples, smallest: float) -> list[DetectionItem]:
    """The first scenes whose objects are all wider and higher than so many pixels."""
    items = (data.item(index, 0) for index in range(len(data)))
    large = (one for one in items if bool((one.boxes[:, 2:] - one.boxes[:, :2] > smallest).all()))
    return list(itertools.islice(large, IMAGES))


@pytest.mark.parametrize("name", [name for name in MODELS if THOROUGH or "ssdlite" in name])  # the smallest
def test_scenes_are_learnt_by_heart(name: str) -> None:
    recipe = Recipe(
        model=Model(name=name, image_size=SIDE),
        data=Data(train_images=64, val_images=1),
        evaluate=Evaluate(confidence=0.25, iou=0.5),
    )
    task = Detect(recipe)
    torch.manual_seed(0)
    model = prepared(task.model().to(memory_format=torch.channels_last))
    data = task.training_data()
    batch = task.collate(scenes(data, SMALLEST.get(name, 0.0)))
    batch.letterboxes = [Letterbox(1.0, 0.0, 0.0, SIDE, SIDE)] * IMAGES  # boxes in pixels of the input
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE.get(name, 5e-4))
    losses, found = [], 0.0
    for step in range(1, MOST_STEPS + 1):
        loss = task.loss(model.train(), batch)
        mean = loss.sum / loss.count.clamp(min=1)
        optimizer.zero_grad()
        mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(float(mean.detach()))
        if step % 10 == 0:
            found = share_found(task, model, batch)
            if found == 1 and losses[-1] < 0.5 * losses[0]:
                break
    assert losses[-1] < 0.5 * losses[0]
    assert found == 1
