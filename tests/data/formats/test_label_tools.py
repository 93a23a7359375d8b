"""What labeling tools and hubs export: every layout is recognized, with its class names and boxes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import label_tools
import pytest
from label_tools import TRUTH, Truth

from rankless.curation.checking import check
from rankless.data.datasets.open_split import examine
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import UserError

LAYOUTS = {
    "cvat_coco": "COCO JSON",
    "cvat_voc": "Pascal VOC",
    "cvat_yolo": "Darknet (YOLO)",
    "cvat_ultralytics": "Darknet (YOLO)",
    "label_studio_coco": "COCO JSON",
    "label_studio_yolo": "Darknet (YOLO)",
    "label_studio_voc": "Pascal VOC",
    "roboflow_coco": "COCO JSON",
    "roboflow_yolo": "Darknet (YOLO)",
    "roboflow_voc": "Pascal VOC",
    "roboflow_csv": "CSV",
    "fiftyone_coco": "COCO JSON",
    "fiftyone_yolo": "Darknet (YOLO)",
    "fiftyone": "FiftyOne",
    "hugging_face": "Hugging Face",
    "hugging_face_list": "Hugging Face",
    "hugging_face_numbers": "Hugging Face",
    "parquet": "Hugging Face",
    "parquet_old": "Hugging Face",
}
ONE_SPLIT = {name for name in LAYOUTS if name.startswith("label_studio")}
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
EVERY = [
    pytest.param(name, marks=needs_pyarrow if name.startswith("parquet") else ()) for name in LAYOUTS
]


def exported(layout: str, root: Path, truth: Truth = TRUTH) -> Path:
    getattr(label_tools, layout)(root / layout, truth)
    return root / layout


def found(annotations: Annotations) -> dict[str, list[tuple[str, tuple[float, ...]]]]:
    """Class names and boxes by the image's stem, without what the tools make of a name."""
    return {
        re.sub("[-_]", " ", re.sub(r"^[0-9a-f]{8}-|_jpg\.rf\..*", "", Path(annotations.path(index)).stem)): [
            (annotations.class_names[label], tuple(round(side, 3) for side in box))
            for box, label, *_ in annotations.objects(index)
        ]
        for index in range(len(annotations))
    }


@pytest.mark.parametrize("layout", EVERY)
def test_class_names_and_boxes(layout: str, tmp_path: Path) -> None:
    root = exported(layout, tmp_path)
    train = found(examine(str(root), "train"))
    if layout in ONE_SPLIT:
        assert train == TRUTH["train"] | TRUTH["valid"]
    else:
        if layout == "roboflow_csv":
            assert "empty" not in train  # its rows are boxes
            train["empty"] = []
        assert train == TRUTH["train"]
        assert found(examine(str(root), "val")) == TRUTH["valid"]
    checked = check(str(root))
    assert not [line for findings in checked.findings.values() for line in findings.stopping()]
    assert any(f"read as {LAYOUTS[layout]} because" in line for line in examine(str(root), "train").about)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith("cvat")])
def test_a_task_of_cvat_without_subsets_is_the_training_split(layout: str, tmp_path: Path) -> None:
    root = exported(layout, tmp_path, {"train": TRUTH["train"]})
    assert found(examine(str(root), "train")) == TRUTH["train"]
