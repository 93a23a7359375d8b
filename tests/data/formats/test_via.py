"""VIA JSON: projects and exported annotations of the VGG Image Annotator, versions 1 and 2."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError
from support.label_tools import converted, objects, put, write

SHAPES: list[dict[str, Any]] = [
    {"name": "rect", "x": 2, "y": 3, "width": 20, "height": 10},
    {"name": "polygon", "all_points_x": [30, 40, 36], "all_points_y": [5, 8, 35]},
    {"name": "circle", "cx": 20, "cy": 30, "r": 4.5},
    {"name": "ellipse", "cx": 40, "cy": 24, "rx": 10, "ry": 5, "theta": math.pi / 2},
    {"name": "point", "cx": 7, "cy": 7},
    {"name": "polyline", "all_points_x": [1, 2], "all_points_y": [1, 2]},
]
TRUTH = [
    ("cat", (2, 3, 22, 13)), ("cat", (30, 5, 40, 35)), ("cat", (15.5, 25.5, 24.5, 34.5)),
    ("cat", (35, 14, 45, 34)),
]  # fmt: skip


def images(attributes: Any, shapes: Any = None) -> dict[str, Any]:
    """As VIA 2 exports annotations; the image b has no regions."""
    regions = [
        {"shape_attributes": each, "region_attributes": attributes}
        for each in (SHAPES if shapes is None else shapes)
    ]
    return {
        "a.jpg1234": {"filename": "a.jpg", "size": 1234, "regions": regions, "file_attributes": {"x": "y"}},
        "b.jpg77": {"filename": "b.jpg", "size": 77, "regions": [], "file_attributes": {}},
    }


def made(root: Path, content: Any) -> Path:
    for name in "ab":
        put(root / f"{name}.jpg", name)
    write(root / "via_region_data.json", json.dumps(content))
    return root


def version_1(found: dict[str, Any]) -> dict[str, Any]:
    for image in found.values():
        image["regions"] = {str(at): region for at, region in enumerate(image["regions"])}
    return found


PROJECT = {"_via_settings": {}, "_via_attributes": {"region": {}, "file": {}}, "_via_image_id_list": []}


@pytest.mark.parametrize(
    "content",
    [
        images({"animal": "cat"}),
        version_1(images({"animal": "cat"})),
        {**PROJECT, "_via_img_metadata": images({"animal": "cat"})},
        images({"animal": {"cat": True, "dog": False}}),  # check boxes
        images({"color": "red", "Label": "cat"}),
    ],
)
def test_shapes_become_boxes(tmp_path, content):
    root = made(tmp_path / "pets", content)
    annotations = examine(str(root), "train")
    found = objects(annotations)
    assert found["b.jpg"] == [] and annotations.class_names == ("cat",)
    assert [name for name, _ in found["a.jpg"]] == ["cat"] * 4
    for (_, box), (_, expected) in zip(found["a.jpg"], TRUTH, strict=True):
        assert box == pytest.approx(expected, abs=1e-5)
    assert annotations.findings.counts == {"outline": 3, "not a box": 2, "empty": 1}
    assert converted(root) == found


def test_regions_without_attributes_have_one_class(tmp_path):
    annotations = examine(str(made(tmp_path, images({}))), "train")
    assert annotations.class_names == ("object",)
    assert any("regions have no attributes, so their class is 'object'" in note for note in annotations.about)


def test_splits_are_folders(tmp_path):
    made(tmp_path / "train", images({"animal": "cat"}))
    made(tmp_path / "val", images({"animal": "dog"}))
    assert examine(str(tmp_path), "val").class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (images({"color": "red", "size": "big"}), r"several attributes \('color', 'size'\); expected one"),
        (
            images({"a": {"cat": True, "dog": True}}),
            "unnamed class: region 1: .*expected the name of a class",
        ),
        (images({"a": "cat"}, [{"name": "rect", "x": None}]), "not a number: region 1"),
        (
            images({"a": "cat"}, [{"name": "star"}]),
            "other form: region 1: the shape is 'star'; expected one of rect, ",
        ),
        (images({"a": "cat"}, [7]), "not a number: region 1"),
        (
            {"_via_img_metadata": {"x": {"regions": []}}},
            "no valid image; the first problem: .*; expected 'filename'",
        ),
        ({"_via_img_metadata": []}, "no images; expected a project or exported annotations"),
        (
            {"project": {}, "attribute": {}, "file": {}, "metadata": {}, "view": {"1": {"fid_list": ["1"]}}},
            "this is a project of VIA 3; expected",
        ),
    ],
)
def test_what_is_wrong_stops_training_and_is_named(tmp_path, content, said):
    with pytest.raises(UserError, match=said):
        open_annotations(str(made(tmp_path, content)), "train")
