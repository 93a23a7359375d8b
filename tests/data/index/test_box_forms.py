"""The form of boxes, told from the numbers of a whole set; the boxes are written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.data.datasets.open_split import open_annotations
from rankless.data.index.box_forms import settle
from rankless.data.index.raw import Raw, RawBuilder
from rankless.errors import UserError

# x, y, width, height of boxes in an image of 100 × 60 pixels, near all edges
SIZED = np.array([[0, 0, 20, 30], [70, 10, 30, 40], [5, 50, 60, 10], [60, 40, 20, 15]], float)
CORNERS = np.concatenate((SIZED[:, :2], SIZED[:, :2] + SIZED[:, 2:]), 1)
CENTERED = np.concatenate((SIZED[:, :2] + SIZED[:, 2:] / 2, SIZED[:, 2:]), 1)
WRITTEN = {"xyxy": CORNERS, "xywh": SIZED, "cxcywh": CENTERED}


def raw(numbers, form: str, **rest) -> Raw:
    made = RawBuilder()
    made.add_image("a.png", "a.xml", size=(60, 100))
    first, second = np.asarray(numbers, float)[:, :2], np.asarray(numbers, float)[:, 2:]
    low = first - second / 2 if form == "cxcywh" else first
    for box in np.concatenate((low, second if form == "xyxy" else low + second), 1).tolist():
        made.add_box(0, box, 0, 1)
    return made.raw(names=["cat"], form=form, **rest)


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("form", WRITTEN)
def test_numbers_in_another_form_are_reported_and_a_given_form_is_read(form: str, written: str) -> None:
    made = raw(WRITTEN[written], form)
    settle(made, "voc")
    assert ("other form" in made.findings.counts) == (form != written)
    if form != written:
        (finding,) = made.findings.first["other form"]
        assert finding.where == "a.xml" and f"data.format=voc:{written}" in finding.problem
    settle(made, "voc", written)
    assert np.allclose(made.boxes, CORNERS)


@pytest.mark.parametrize(
    ("numbers", "form", "found"),
    [
        # One faulty box of many does not change the form, nor does a box without a size.
        (np.concatenate((np.tile(CORNERS, (3, 1)), [[30, 20, 10, 10]])), "xyxy", None),
        ([[1, 1, 9, 9]] * 9 + [[9, 9, 5, 5]], "xyxy", None),
        ([[1, 1, 9, 9], [5, 5, 5, 9]], "xyxy", None),
        (np.concatenate((np.tile(CORNERS, (3, 1)), [[30, 20, 10, 10]])), "unsure", CORNERS[0]),
        (np.concatenate((np.tile(SIZED, (3, 1)), [[90, 50, 50, 10]])), "unsure", CORNERS[0]),
        ([[10, 10, 20, 30]], "unsure", "may be x, y, width, height or x1, y1, x2, y2"),
        (CENTERED, "unsure", "or center x, center y, width, height; set data.format=csv:"),
    ],
)
def test_the_form_is_that_of_most_boxes_or_must_be_given(numbers, form: str, found) -> None:
    made = raw(numbers, "xywh", unsure=True) if form == "unsure" else raw(numbers, form)
    settle(made, "csv")
    if isinstance(found, str):
        assert found in made.findings.first["other form"][0].problem
        return
    assert not made.findings.counts
    assert made.boxes is not None and made.boxes[0].tolist() == list(numbers[0] if found is None else found)


def _files(format: str) -> dict[str, str]:
    """Return files of a format whose boxes have the wrong form: corners instead of sizes, or the reverse."""
    if format == "voc":
        boxes = (zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True) for box in SIZED.astype(int) + 1)
        sides = ("".join(f"<{side}>{value}</{side}>" for side, value in box) for box in boxes)
        things = "".join(f"<object><name>cat</name><bndbox>{each}</bndbox></object>" for each in sides)
        return {"a.xml": f"<annotation>{things}</annotation>"}
    if format == "coco":
        boxes = [{"id": n, "image_id": 1, "category_id": 1, "bbox": [*box]} for n, box in enumerate(CORNERS)]
        images = [{"id": 1, "file_name": "a.png"}]
        whole = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
        return {"_annotations.coco.json": json.dumps(whole)}
    if format == "darknet":
        rows = (f"0 {' '.join(map(str, box))}\n" for box in (CORNERS / [100, 60, 100, 60]).tolist())
        return {"a.txt": "".join(rows), "classes.txt": "cat\n"}
    rows = [",".join(map(str, box)) for box in SIZED.tolist()]
    if format == "csv":
        head = "filename,xmin,ymin,xmax,ymax,class\n"
        return {"train.csv": head + "".join(f"a.png,{row},cat\n" for row in rows)}
    return {"train.txt": f"a.png {' '.join(f'{row},0' for row in rows)}\n", "classes.txt": "cat\n"}


@pytest.mark.parametrize("format", ["voc", "coco", "csv", "lines", "darknet"])
def test_files_in_the_wrong_form_stop_training(format: str, tmp_path: Path) -> None:
    Image.new("L", (100, 60)).save(tmp_path / "a.png")
    for name, text in _files(format).items():
        (tmp_path / name).write_text(text)
    form = "xywh" if format in ("voc", "csv", "lines") else "xyxy"
    with pytest.raises(UserError, match=f"other form: as .*data.format={format}:{form}"):
        open_annotations(str(tmp_path), "train", format)
    boxes = open_annotations(str(tmp_path), "train", f"{format}:{form}").boxes
    assert np.allclose(boxes, CORNERS, atol=1.01 if format == "voc" else 1e-4)
