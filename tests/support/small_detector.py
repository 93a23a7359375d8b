"""A detector of four layers, images for it, and what a reader of the documentation does with its exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.inference.predict import predict
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe.model_kinds import YoloModel
from rankless.recipe.schema import Data, Recipe

NAMES = ("cat", "dog with a hat", "狗")
SIDE, CONFIDENCE, IOU = 64, 0.3, 0.3
CFG = """\
[net]
width=64
height=64
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky
[maxpool]
size=4
stride=4
[convolutional]
filters=16
size=1
stride=1
pad=1
activation=linear
[yolo]
mask=0,1
anchors=18,24, 23,17
classes=3
num=2
"""


def detector(cfg: str = CFG) -> tuple[YoloModel, Any]:
    """A network of four layers whose boxes overlap and whose scores lie on both sides of the confidence."""
    recipe = YoloModel(cfg=cfg)
    torch.manual_seed(0)
    model: Any = build(recipe, len(NAMES)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 4:
                parameter.mul_(20)
            elif name.endswith("conv.bias"):
                parameter.normal_()
                parameter.view(2, -1)[:, 2:4] = 0.7
    return recipe, model


def save(path: Path) -> Path:
    model, network = detector()
    recipe = Recipe(model=model, data=Data(root="gone"))
    weights.save(path, network.state_dict(), recipe=recipe, class_names=NAMES)
    return path


def images_in(folder: Path) -> list[str]:
    """Images of other shapes than the input, so that they are letterboxed."""
    rng = np.random.default_rng(0)
    paths = []
    for number, shape in enumerate(((90, 60), (48, 130), (64, 64))):
        coarse = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
        paths.append(str(folder / f"{number}.png"))
        coarse.resize(shape, Image.Resampling.NEAREST).save(paths[-1])
    return paths


def of_page(page: str, mark: str) -> str:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"<!-- {mark} -->\n```python\n")[2].partition("```")[0]


def prints_the_objects(
    code: str,
    trained: Path,
    photo: Image.Image,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a reader types prints, for a photo, what ``rankless predict`` finds in it."""
    photo.save(folder / "photo.jpg")
    monkeypatch.chdir(folder)
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    changes = [f"evaluate.iou={IOU}", "precision=fp32"]
    (wanted,) = predict(trained, ["photo.jpg"], confidence=CONFIDENCE, overrides=changes).images
    rows = [re.fullmatch(r"(.+) (\d\.\d{3}) (\[.*\])", line) for line in printed]
    found = [
        (row[1], float(row[2]), np.clip(json.loads(row[3]), 0, [*photo.size] * 2)) for row in rows if row
    ]
    # Here boxes beside the image are left out.
    seen = [one for one in found if (one[2][2:] > one[2][:2]).all()]
    assert len(found) == len(printed) and len(seen) == len(wanted.detections) > 3
    for (name, score, corners), box in zip(seen, wanted.detections, strict=True):
        assert (name, score) == (box["name"], pytest.approx(box["score"], abs=6e-4))
        np.testing.assert_allclose(corners, box["box"], atol=0.06)
