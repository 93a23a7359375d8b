"""An imported Darknet network finds the boxes that OpenCV finds with the same files."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

import rankless
from rankless.interop.importing import import_weights
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.network import Network
from rankless.models.darknet.reshape import with_classes, with_width
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.detectors.darknet import MODELS
from rankless.models.weights_files.darknet_weights import write_weights

CLASSES, SIDE, CONFIDENCE, IOU = 2, 160, 0.2, 0.45


def seeded(network: Network, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights whose outputs vary: random ones, the norms with the statistics of images (N, 3, H, W)."""
    torch.manual_seed(7)
    model = DetectionModel(network).train()
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.momentum = 1.0
            nn.init.uniform_(one.weight, 0.7, 1.3)
            nn.init.normal_(one.bias, std=0.3)
        elif isinstance(one, nn.Conv2d) and one.bias is not None:
            nn.init.normal_(one.weight, std=5 / one.in_channels**0.5)
            one.weight.data.view(-1, 5 + CLASSES, one.in_channels)[:, 2:4] *= 0.1  # so that boxes overlap
    with torch.no_grad():
        model(pixels)
    return model.state_dict()


def found_by_opencv(cfg: Path, weights: Path, network: Network, image: Path) -> np.ndarray:
    """Rows of a box xyxy in pixels, score and class, the best first, of OpenCV's own layers and NMS."""
    net = cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    pixels = cv2.imread(str(image))
    height, width = pixels.shape[:2]
    net.setInput(cv2.dnn.blobFromImage(pixels, 1 / 255, (SIDE, SIDE), swapRB=True))
    parts = net.forward([f"yolo_{number + 1}" for number in network.predictors()])
    rows = np.concatenate([part.reshape(-1, 5 + CLASSES) for part in parts]).astype(np.float64)
    center, sides = rows[:, :2] * (width, height), rows[:, 2:4] * (width, height)
    labels, scores = rows[:, 5:].argmax(1), rows[:, 5:].max(1)
    corners = np.concatenate((center - sides / 2, sides), 1)
    kept = cv2.dnn.NMSBoxesBatched(corners.tolist(), scores.tolist(), labels.tolist(), CONFIDENCE, IOU)
    boxes = np.concatenate((corners[kept, :2], corners[kept, :2] + sides[kept]), 1)
    boxes = boxes.clip(0, [width, height, width, height])
    found = np.column_stack((boxes, scores[kept], labels[kept]))
    return seen(found[np.argsort(-found[:, 4])])


def seen(found: np.ndarray) -> np.ndarray:
    """The rows of boxes that are not so thin in the image that rounding decides whether they count."""
    return found[(found[:, 2:4] - found[:, :2] > 0.01).all(1)]


@pytest.mark.parametrize("name", ["yolov3-tiny", "yolov4-tiny"])
def test_boxes_of_an_imported_network_are_those_of_opencv(name: str, tmp_path: Path) -> None:
    network = with_classes(with_width(MODELS[name].network(), 0.25), CLASSES)
    image, cfg, weights = tmp_path / "image.png", tmp_path / "small.cfg", tmp_path / "small.weights"
    cv2.imwrite(
        str(image),
        np.random.default_rng(3).integers(0, 255, (12, 16, 3), np.uint8).repeat(10, 0).repeat(10, 1),
    )
    text = re.sub(r"(?m)^(width|height) *=.*", rf"\1={SIDE}", write_cfg(network))
    cfg.write_text(text)
    network = read_cfg(str(cfg)).network
    assert network.size == (SIDE, SIDE)
    blob = cv2.dnn.blobFromImage(cv2.imread(str(image)), 1 / 255, (SIDE, SIDE), swapRB=True)
    state = seeded(network, torch.from_numpy(blob).repeat(2, 1, 1, 1))
    write_weights(weights, network, state)
    import_weights(weights, tmp_path / "ours.safetensors", cfg=cfg, names=None)
    model = rankless.load(
        tmp_path / "ours.safetensors",
        ["evaluate.nms=iou", f"evaluate.iou={IOU}"],
        confidence=CONFIDENCE,
        device="cpu",
    )
    (ours,) = model.predict([str(image)])
    # Its layers leave out scores below thresh, and its norms add 1e-6 to the variance, Darknet's 1e-5.
    (tmp_path / "theirs.cfg").write_text(text.replace("[yolo]", "[yolo]\nthresh=0.0001"))
    same = {key: value + 9e-6 if key.endswith("running_var") else value for key, value in state.items()}
    write_weights(tmp_path / "theirs.weights", network, same)
    wanted = found_by_opencv(tmp_path / "theirs.cfg", tmp_path / "theirs.weights", network, image)
    assert len(wanted) > 5
    assert len(set(wanted[:, 5])) > 1
    found = seen(np.column_stack((ours.xyxy, ours.scores, ours.classes)))
    np.testing.assert_array_equal(found[:, 5], wanted[:, 5])
    np.testing.assert_allclose(found[:, 4], wanted[:, 4], atol=1e-3)
    np.testing.assert_allclose(found[:, :4], wanted[:, :4], atol=0.1)
