"""What labeling tools and hubs export: every layout is recognized, with its class names and boxes."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from rankless.curation.checking import check
from rankless.curation.splitting import split
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.errors import UserError
from support import label_tools
from support.label_tools import TRUTH, Truth, write

LAYOUTS = {
    "cvat_coco": "COCO JSON",
    "cvat_images": "CVAT XML",
    "cvat_voc": "Pascal VOC",
    "cvat_yolo": "Darknet (YOLO)",
    "cvat_ultralytics": "Darknet (YOLO)",
    "label_studio_coco": "COCO JSON",
    "label_studio_yolo": "Darknet (YOLO)",
    "label_studio_voc": "Pascal VOC",
    "label_studio_json": "Label Studio JSON",
    "label_studio_min": "Label Studio JSON",
    "roboflow_coco": "COCO JSON",
    "roboflow_yolo": "Darknet (YOLO)",
    "roboflow_voc": "Pascal VOC",
    "roboflow_csv": "CSV",
    "roboflow_createml": "CreateML JSON",
    "roboflow_darknet": "Darknet (YOLO)",
    "roboflow_keras": "annotation lines",
    "labelme": "labelme JSON",
    "via": "VIA JSON",
    "fiftyone_coco": "COCO JSON",
    "fiftyone_yolo": "Darknet (YOLO)",
    "fiftyone": "FiftyOne",
    "hugging_face": "Hugging Face",
    "hugging_face_list": "Hugging Face",
    "hugging_face_numbers": "Hugging Face",
    "parquet": "Hugging Face",
    "parquet_old": "Hugging Face",
}
EVERYTHING = {**TRUTH["train"], **TRUTH["valid"]}
ONE_SPLIT = {name for name in LAYOUTS if name.startswith("label_studio")}
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
EVERY = [pytest.param(name, marks=needs_pyarrow if name.startswith("parquet") else ()) for name in LAYOUTS]


def exported(layout: str, root: Path, truth: Truth = TRUTH) -> Path:
    getattr(label_tools, layout)(root / layout, truth)
    return root / layout


def found(annotations: Annotations) -> dict[str, list[tuple[str, tuple[float, ...]]]]:
    made = {}
    for index, path in enumerate(annotations.paths()):
        stem = re.sub(r"^([0-9a-f]{8}|\w+-\d{5}-of-\d{5})-|_jpg\.rf\..*", "", Path(path).stem)
        made[re.sub("[-_]", " ", stem)] = [  # without what the tools make of a name
            (annotations.class_names[label], tuple(round(side, 3) for side in box))
            for box, label, *_ in annotations.objects(index)
        ]
    return made


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY)
def test_class_names_and_boxes(layout: str, tmp_path: Path) -> None:
    root = exported(layout, tmp_path)
    assert sorted(examine(str(root), "train").class_names) == ["cat", "dog"]  # no group, no background
    train = found(examine(str(root), "train"))
    if layout in ONE_SPLIT:
        assert train == EVERYTHING
    else:
        if layout == "roboflow_csv":
            assert "empty" not in train  # its rows are boxes
            train["empty"] = []
        assert train == TRUTH["train"]
        assert found(examine(str(root), "val")) == TRUTH["valid"]
    checked = check(str(root))
    if layout == "roboflow_yolo":
        assert (
            "'test: ../test/images': no such file or folder, so this split is ignored"
            in examine(str(root), "val").about
        )
    assert not [line for findings in checked.findings.values() for line in findings.stopping()]
    assert any(f"read as {LAYOUTS[layout]} because" in line for line in examine(str(root), "train").about)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith("cvat")])
def test_a_task_of_cvat_without_subsets_is_the_training_split(layout: str, tmp_path: Path) -> None:
    root = exported(layout, tmp_path, {"train": TRUTH["train"]})
    assert found(examine(str(root), "train")) == TRUTH["train"]


@pytest.mark.parametrize("layout", ["cvat_coco", "cvat_voc"])
def test_a_turned_box_of_cvat_becomes_its_upright_bounds(layout: str, tmp_path: Path) -> None:
    root = exported(layout, tmp_path, {"train": {"one": [("dog", (30, 5, 40, 35))]}})
    file = root / ("annotations/instances_default.json" if layout == "cvat_coco" else "Annotations/one.xml")
    text = file.read_text()
    turn = "<attributes><attribute><name>rotation</name><value>90.0</value></attribute></attributes></object>"
    write(file, text.replace('"rotation": 0.0', '"rotation": 90.0').replace("</object>", turn))
    annotations = examine(str(root), "train")
    assert found(annotations) == {"one": [("dog", (20, 15, 50, 25))]}
    assert annotations.findings.counts == {"turned": 1}


@pytest.mark.parametrize(
    "name",
    [
        "/data/upload/7/0a1b2c3d-street one.jpg",
        "images/0a1b2c3d__street one.jpg",
        "/data/local-files/?d=photos/street%20one.jpg",
    ],
)
def test_images_of_label_studio_are_found_by_their_first_name(name: str, tmp_path: Path) -> None:
    root = exported("label_studio_coco", tmp_path, {"train": {"street one": [("dog", (2, 3, 22, 13))]}})
    (image,) = (root / "images").iterdir()
    image.rename(root / "images" / "street one.jpg")
    write(root / "result.json", (root / "result.json").read_text().replace(f"images/{image.name}", name))
    annotations = examine(str(root), "train")
    assert found(annotations) == {"street one": [("dog", (2, 3, 22, 13))]}
    assert any("not at its listed path" in note for note in annotations.about)


@needs_pyarrow
@pytest.mark.parametrize(
    ("layout", "file"), [("parquet", "train-00000-of-00003.parquet"), ("parquet_old", "images-")]
)
def test_images_in_parquet_are_the_stored_bytes(layout: str, file: str, tmp_path: Path) -> None:
    annotations = examine(str(exported(layout, tmp_path)), "train")
    assert [content(annotations, at) for at in range(3)] == [
        label_tools.encoded(stem) for stem in TRUTH["train"]
    ]
    inside, name = annotations.path(0).split("//")
    assert Path(inside).name.startswith(file) and name.endswith("street one.jpg")


def rows(root: Path, *lines: dict[str, object], name: str = "metadata.jsonl") -> Path:
    for line in lines:
        label_tools.put(root / str(line["file_name"]), str(line["file_name"]))
    if name.endswith(".csv"):
        write(root / name, "file_name,label\n" + "".join(f"{x['file_name']},{x['label']}\n" for x in lines))
    else:
        write(root / name, "".join(f"{json.dumps(line)}\n" for line in lines))
    return root


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_a_label_of_each_image_is_classification(name: str, tmp_path: Path) -> None:
    labels = {"a.jpg": "dog", "sub/b.jpg": "cat", "c.jpg": "dog"}
    made = [{"file_name": file, "label": label} for file, label in labels.items()]
    annotations = examine(str(rows(tmp_path / "animals", *made, name=name)), "train")
    assert not annotations.has_boxes and annotations.class_names == ("cat", "dog")
    assert [annotations.class_names[label] for label in annotations.labels] == list(labels.values())


@pytest.mark.parametrize(
    ("boxes", "expected", "note"),
    [
        ([[40, 10, 60, 30]], (40, 10, 60, 30), "corners"),  # x, y, width, height would leave the image
        ([[10, 10, 10, 30]], (10, 10, 20, 40), ""),
        ([[0.25, 0.5, 0.25, 0.25]], (16, 24, 32, 36), "normalized"),
    ],
)
def test_the_values_decide_what_a_box_means(boxes, expected, note, tmp_path: Path) -> None:
    made = {"file_name": "a.jpg", "objects": {"bbox": boxes, "category": ["cat"]}}
    annotations = examine(str(rows(tmp_path / "animals", made)), "train")
    assert found(annotations) == {"a": [("cat", expected)]}
    assert ("boxes are" in " ".join(annotations.about)) == bool(note) and note in " ".join(annotations.about)


@pytest.mark.parametrize(("form", "expected"), [("xyxy", (10, 10, 20, 30)), ("xywh", (10, 10, 30, 40))])
def test_boxes_that_fit_two_forms_need_a_key(form: str, expected: tuple[int, ...], tmp_path: Path) -> None:
    made = {"file_name": "a.jpg", "objects": {"bbox": [[10, 10, 20, 30]], "category": ["cat"]}}
    root = str(rows(tmp_path / "animals", made))
    with pytest.raises(
        UserError, match=r"metadata.jsonl: .*may be x, y, width, height or x1.*:xywh"
    ) as caught:
        open_annotations(root, "train")
    assert f"data.format=hugging-face:{form}" in str(caught.value)
    for name in ("auto", "hugging-face"):
        assert found(open_annotations(root, "train", f"{name}:{form}")) == {"a": [("cat", expected)]}
    with pytest.raises(UserError, match="expected one of xyxy, xywh, cxcywh"):
        examine(root, "train", "auto:xwyh")


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({"bbox": [[1, 1, 5, 5]], "category": [0]}, "numbers without names; add a file 'classes.txt'"),
        ({"bbox": [[1, 1, 5, 5]]}, "the boxes have no class; expected 'category' in addition to 'bbox'"),
        ({"names": ["cat"]}, "no boxes and no classes; expected 'objects' with 'bbox'"),
        ({"bbox": [[1, 1, 5, 5]], "category": ["cat", "dog"]}, ":1: not understood: found 1 box, but 2"),
        (
            {"bbox": [[1, 1, 5, 5]] * 2, "category": ["cat", 0]},
            r"a name \('cat'\) and sometimes a number \(0\)",
        ),
        ({"bbox": [[1, 1, 5]], "category": ["cat"]}, ":1: not a number: .*expected four numbers"),
        ({"bbox": [[1, 1, 5, 5]], "category": [None]}, ":1: unnamed class: None; expected a class"),
        (
            {"bbox": "[1, 1, 5, 5]", "category": "cat"},
            r":1: not understood: '\[1, 1, 5, 5\]' in 'objects'; expected a list of boxes, each a list of",
        ),
    ],
)
def test_rows_that_are_wrong_are_named(objects, said: str, tmp_path: Path) -> None:
    root = rows(tmp_path / "animals", {"file_name": "a.jpg", "objects": objects})
    with pytest.raises(UserError, match=said):
        open_annotations(str(root), "train")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metadata.csv", 'file_name,bbox,label\na.jpg,"[1, 1, 5, 5]",cat\n', ":2: .*four numbers"),
        (
            "metadata.csv",
            "file_name,label\na.jpg,cat\na.jpg,dog,small\n",
            ":3: .*found 3 fields; expected 2, as in the first line",
        ),
        (
            "metadata.jsonl",
            '{"file_name": "a.jpg", "objects": "none"}',
            ":2: .*'none' in 'objects'; expected",
        ),
        ("metadata.jsonl", '{"file_name": "a.jpg", "objects": 7}', ":2: .*'7' in 'objects'; expected"),
    ],
)
def test_cells_that_are_no_lists_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    made = {"file_name": "b.jpg", "objects": {"bbox": [[1, 1, 5, 5]], "category": ["cat"]}}
    root = rows(tmp_path / "animals", made)
    label_tools.put(root / "a.jpg", "a")
    first = (root / "metadata.jsonl").read_text() if name.endswith("jsonl") else ""
    (root / "metadata.jsonl").unlink()
    write(root / name, first + text)
    with pytest.raises(UserError, match=f"{name}{said}"):
        open_annotations(str(root), "train")


def test_names_that_are_digits_stay_names(tmp_path: Path) -> None:
    made = {"file_name": "a.jpg", "objects": {"bbox": [[1, 1, 5, 5], [9, 9, 5, 5]], "category": ["10", "9"]}}
    annotations = examine(str(rows(tmp_path / "digits", made)), "train")
    assert annotations.class_names == ("9", "10")
    assert found(annotations) == {"a": [("10", (1, 1, 6, 6)), ("9", (9, 9, 14, 14))]}


def test_numbers_get_the_given_names(tmp_path: Path) -> None:
    made = {"file_name": "a.jpg", "objects": [{"bbox": [1, 1, 5, 5], "category": 1}]}
    root = rows(tmp_path / "animals", made)
    assert found(examine(str(root), "train", classes=["dog", "cat"])) == {"a": [("cat", (1, 1, 6, 6))]}


@needs_pyarrow
def test_parquet_that_is_damaged_or_ambiguous_is_named(tmp_path: Path) -> None:
    root = exported("parquet", tmp_path)
    (root / "small").mkdir()
    (root / "data" / "train-00000-of-00003.parquet").rename(root / "small" / "train.parquet")
    with pytest.raises(UserError, match=r"several folders contain Parquet files .*use one of them"):
        examine(str(root), "train")
    write(root / "small" / "train.parquet", "PAR1 and no more")
    with pytest.raises(UserError, match=r"as Parquet: .*download the file again"):
        examine(str(root / "small"), "train")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            {"points": {"_cls": "Keypoints", "keypoints": []}},
            "the samples have Keypoints; expected a field with",
        ),
        (
            {name: {"_cls": "Detections", "detections": []} for name in "ab"},
            r"several fields with Detections \(a, b\)",
        ),
    ],
)
def test_samples_of_fiftyone_without_one_field_of_boxes_are_named(labels, said: str, tmp_path: Path) -> None:
    label_tools.put(tmp_path / "data" / "a.jpg", "a")
    write(
        tmp_path / "samples.json", json.dumps({"samples": [{"filepath": "data/a.jpg", "tags": [], **labels}]})
    )
    write(tmp_path / "metadata.json", "{}")
    with pytest.raises(UserError, match=said):
        examine(str(tmp_path), "train")


@needs_pyarrow
def test_images_of_parquet_are_divided_alike_wherever_their_copies_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided = []
    for layout in ("parquet", "parquet_old", "parquet_old"):
        monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / f"cache-{len(divided)}"))
        out = tmp_path / f"out-{len(divided)}"
        root = exported(layout, tmp_path / f"data-{len(divided)}")
        split(str(root.rename(root.with_name("animals"))), out, val=0.4)
        assert {file.suffix for file in (out / "images" / "val").iterdir()} == {".jpg"}
        divided.append(sorted(file.name for file in (out / "images" / "val").iterdir()))
        annotations = examine(str(out), "train")
        for stem, boxes in found(annotations).items():
            assert [boxes] == [each for known, each in EVERYTHING.items() if stem.endswith(known)]
    assert divided[1] == divided[2]
