"""A detector that finds red, green and blue rectangles, for tests of what is made of its detections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rankless.data.datasets.detection import collate
from rankless.geometry.letterbox import Placing, to_source
from rankless.models.weights_files import weights
from rankless.recipe.schema import Model, Recipe
from rankless.structures import Detections
from rankless.tasks import detect, open_task

COLORS = ("red", "green", "blue")
SCORES = (0.9, 0.8, 0.7)
BOX = {"red": (40, 60, 140, 220), "green": (200, 20, 380, 120), "blue": (220, 160, 300, 280)}


class ColorFinder:
    """Stands for the detect task: one box around all that has a color on the network's input."""

    def __init__(self, recipe: Recipe, class_names: tuple[str, ...], *, exported: bool = False) -> None:
        self.recipe, self.class_names, self.size = recipe, class_names, recipe.model.image_size
        self.placing = Placing()

    activations = ()

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def collate(self, items):
        return collate(items)

    def predict(self, model: nn.Module, batch) -> list[Detections]:
        assert not model.training and torch.is_inference_mode_enabled()
        assert not self.recipe.evaluate.multi_label  # a box has its best class
        return [self._one(*one) for one in zip(batch.images, batch.letterboxes, strict=True)]

    def _one(self, image, where) -> Detections:
        boxes, scores, labels = [], [], []
        for label, score in enumerate(SCORES):
            others = [image[other].int() for other in range(3) if other != label]
            rows, columns = ((image[label] > 170) & (others[0] < 100) & (others[1] < 100)).nonzero().T
            if len(rows) and score > self.recipe.evaluate.confidence:
                boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                scores.append(score)
                labels.append(label)
        found = to_source(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), where)
        most = self.recipe.evaluate.detections
        parts = (found, torch.tensor(scores), torch.tensor(labels, dtype=torch.int64))
        return Detections(0, *(part[:most] for part in parts))


@pytest.fixture
def colors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A weights file whose model finds colors."""
    monkeypatch.setattr(detect, "Detect", ColorFinder)
    path = tmp_path / "colors.safetensors"
    recipe = Recipe(model=Model(image_size=(192, 256), width=0.25))
    weights.save(path, nn.Linear(1, 1).state_dict(), recipe=recipe, class_names=COLORS)
    return path


@pytest.fixture(scope="session")
def paint() -> Callable[..., np.ndarray]:
    """``paint(*colors, size=(400, 300), shift=0)``: gray pixels (H, W, 3) with a rectangle per color."""

    def painted(*names: str, size: tuple[int, int] = (400, 300), shift: int = 0) -> np.ndarray:
        pixels = np.full((size[1], size[0], 3), 120, np.uint8)
        for name in names:
            x1, y1, x2, y2 = BOX[name]
            pixels[y1:y2, x1 + shift : x2 + shift] = [250 * (name == one) for one in COLORS]
        return pixels

    return painted


@pytest.fixture
def painted_file(paint: Callable[..., np.ndarray], tmp_path: Path) -> Callable[..., Path]:
    """``painted_file(name, *colors)`` writes an image into a folder and returns its path."""

    def write(name: str, *names: str, size=(400, 300), shift=0, **options: object) -> Path:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(paint(*names, size=size, shift=shift)).save(path, **options)
        return path

    return write


@pytest.fixture
def untrained(tmp_path: Path) -> Callable[..., Path]:
    """``untrained(recipe, names)`` saves a real model of the recipe with random weights."""

    def save(recipe: Recipe, names: tuple[str, ...]) -> Path:
        torch.manual_seed(0)
        path = tmp_path / "untrained.safetensors"
        state = open_task(recipe, names).model().state_dict()
        weights.save(path, state, recipe=recipe, class_names=names)
        return path

    return save
