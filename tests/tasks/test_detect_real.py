"""A real Darknet network against what OpenCV and Darknet's own program make of the same input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.geometry.letterbox import Placing, whole
from rankless.interop.importing import import_weights
from rankless.models.weights_files import weights
from rankless.structures import DetectionItem, Letterbox
from rankless.tasks.detect import Detect

pytestmark = pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="needs RANKLESS_REAL_DATA")
NAME = "yolo-fastest-1.1"


def found(
    root: Path, folder: Path, changes: list[str], placed: tuple[torch.Tensor, Letterbox] | None = None
) -> list[dict[str, Any]]:
    """What the imported network finds in a placed image, or in the stored input of the dog's."""
    path = folder / "net.safetensors"
    folder_of = root / "weights"
    import_weights(
        folder_of / f"{NAME}.weights",
        path,
        cfg=folder_of / f"{NAME}.cfg",
        names=folder_of / "coco.names",
        overrides=["evaluate.confidence=0.25", *changes],
    )
    loaded = weights.load(path)
    task = Detect(loaded.recipe, class_names=loaded.class_names)
    model = task.model()
    weights.load_into(model, loaded.state, str(path))
    stored = np.load(root / "golden" / f"{NAME}_dog_raw.npz")["input_u8_rgb_hwc"]
    image = torch.from_numpy(stored).permute(2, 0, 1)
    where = Letterbox(1.0, 0.0, 0.0, 576, 768, (320 / 768, 320 / 576))
    image, where = placed or (image, where)
    item = DetectionItem(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)
    (result,) = task.predict(model.eval(), task.collate([item]))
    rows = zip(result.labels.tolist(), result.scores.tolist(), result.boxes.tolist(), strict=True)
    return [{"name": loaded.class_names[label], "score": s, "xyxy": box} for label, s, box in rows]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("stretch_iou", ["evaluate.nms=iou"]),
        ("stretch_diou", ["evaluate.nms=diou"]),
        ("stretch_iou_argmax", ["evaluate.nms=iou", "evaluate.multi_label=false"]),
    ],
)
def test_boxes_after_nms(kind: str, changes: list[str], tmp_path: Path) -> None:
    root = Path(os.environ["RANKLESS_REAL_DATA"])
    wanted = json.loads((root / f"golden/{NAME}.json").read_text())["images"]["dog"][kind]
    got = found(root, tmp_path, changes)
    assert [one["name"] for one in got] == [one["name"] for one in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine["score"] == pytest.approx(theirs["score"], abs=0.01)
        clipped = np.clip(theirs["xyxy"], 0, [768, 576, 768, 576])
        np.testing.assert_allclose(mine["xyxy"], clipped, atol=1.0)


@pytest.mark.parametrize("image", ["dog", "horses", "person"])
def test_boxes_on_a_letterboxed_input(image: str, tmp_path: Path) -> None:
    root = Path(os.environ["RANKLESS_REAL_DATA"])
    stored = json.loads((root / f"golden/{NAME}.json").read_text())["images"][image]
    wanted = stored["letterbox128_iou"]
    photo = torch.from_numpy(np.array(Image.open(root / f"images/{image}.jpg"))).permute(2, 0, 1)
    placed = whole(photo, (320, 320), "letterbox", placing=Placing(antialias=False, gray=128))
    got = found(root, tmp_path, ["data.fit=letterbox", "evaluate.nms=iou"], placed)
    assert [one["name"] for one in got] == [one["name"] for one in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine["score"] == pytest.approx(theirs["score"], abs=0.01)
        clipped = np.clip(theirs["xyxy"], 0, stored["w_h"] * 2)
        np.testing.assert_allclose(mine["xyxy"], clipped, atol=0.5)


def test_the_recipe_is_that_of_the_file(tmp_path: Path) -> None:
    root = Path(os.environ["RANKLESS_REAL_DATA"])
    found(root, tmp_path, [])
    recipe = weights.load(tmp_path / "net.safetensors").recipe
    assert (recipe.data.fit, recipe.evaluate.nms) == ("stretch", "diou")
    assert "[yolo]" in recipe.model.cfg
