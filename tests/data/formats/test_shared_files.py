"""No format lets two listed entries share an image file silently, and every format finds encoded names."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.index.annotations import Annotations
from rankless.errors import UserError

Entry = tuple[str, int]  # the listed name of an image, and the left edge of its only box


def below_train(name: str) -> str:
    return name if name.startswith("/") else f"train/{name}"


def coco(root: Path, entries: list[Entry]) -> None:
    images = [{"id": at, "file_name": name} for at, (name, _) in enumerate(entries)]
    boxes = [
        {"id": at, "image_id": at, "category_id": 1, "bbox": [x, 2, 5, 5]}
        for at, (_, x) in enumerate(entries)
    ]
    whole = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]}
    (root / "train/_annotations.coco.json").write_text(json.dumps(whole))


def csv(root: Path, entries: list[Entry]) -> None:
    rows = "".join(f"{name},{x},2,{x + 5},7,x\n" for name, x in entries)
    (root / "train/_annotations.csv").write_text(f"filename,xmin,ymin,xmax,ymax,class\n{rows}")


def lines(root: Path, entries: list[Entry]) -> None:
    (root / "train.txt").write_text("".join(f"{name} {x},2,{x + 5},7,0\n" for name, x in entries))
    (root / "classes.txt").write_text("x\n")


def hugging_face(root: Path, entries: list[Entry]) -> None:
    rows = [
        {"file_name": name, "objects": {"bbox": [[x, 2, 2, 5]], "category": ["x"]}} for name, x in entries
    ]
    (root / "train/metadata.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def fiftyone(root: Path, entries: list[Entry]) -> None:
    samples = [
        {"filepath": below_train(name), "ground_truth": {"_cls": "Detections", "detections": [{}]}}
        for name, _ in entries
    ]
    for sample, (_, x) in zip(samples, entries, strict=True):
        sample["ground_truth"]["detections"] = [  # type: ignore[index]
            {"_cls": "Detection", "label": "x", "bounding_box": [x / 40, 0.1, 0.125, 0.25]}
        ]
    (root / "samples.json").write_text(json.dumps({"samples": samples}))
    (root / "metadata.json").write_text("{}")


def darknet(root: Path, entries: list[Entry]) -> None:
    (root / "list.txt").write_text("".join(f"{below_train(name)}\n" for name, _ in entries))
    (root / "data.yaml").write_text("train: list.txt\nnames: [x]\n")
    for file in (root / "train").glob("*.png"):
        file.with_suffix(".txt").write_text("0 .5 .5 .1 .1\n")


def voc(root: Path, entries: list[Entry]) -> None:
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    (root / "train").rename(root / "JPEGImages")
    stems = [Path(name).stem for name, _ in entries]
    (root / "ImageSets/Main/train.txt").write_text("".join(f"{stem}\n" for stem in stems))
    for stem, (_, x) in zip(stems, entries, strict=True):
        box = f"<xmin>{x + 1}</xmin><ymin>3</ymin><xmax>{x + 5}</xmax><ymax>7</ymax>"
        text = f"<annotation><object><name>x</name><bndbox>{box}</bndbox></object></annotation>"
        (root / f"Annotations/{stem}.xml").write_text(text)


def put(root: Path, write: Callable[[Path, list[Entry]], None], files: list[str], *entries: Entry) -> None:
    (root / "train").mkdir()
    for name in files:
        Image.new("RGB", (40, 20)).save(root / "train" / name)
    write(root, list(entries))


def found(root: Path) -> Annotations:
    return examine(str(root), "train")


LISTED = [coco, csv, lines, hugging_face, fiftyone]


@pytest.mark.parametrize("write", [*LISTED, darknet])
@pytest.mark.parametrize(
    ("first", "second", "file"),
    [("/cam1/train/1.png", "/cam2/train/1.png", "1.png"), ("IMG_1.png", "img_1.png", "img_1.png")],
)
def test_two_names_of_one_file_stop_the_training(
    tmp_path: Path, write: Callable[[Path, list[Entry]], None], first: str, second: str, file: str
) -> None:
    put(tmp_path, write, [file, "2.png"], (first, 1), ("2.png", 3), (second, 9))
    names = f"{second}' and '.*{first}' .*both refer to .*train/{file}"
    with pytest.raises(UserError, match=names):
        open_annotations(str(tmp_path), "train")
    data = found(tmp_path)
    assert data.findings.counts["shared file"] == 1
    if write is not darknet:  # the label file of the image is its own in any case
        assert [Path(path).name for path in data.paths()] == ["2.png"]  # whose boxes are right?
        assert data.boxes[:, 0].tolist() == [3]


@pytest.mark.parametrize("write", [coco, hugging_face, fiftyone])
def test_entries_of_one_name(tmp_path: Path, write: Callable[[Path, list[Entry]], None]) -> None:
    put(tmp_path, write, ["1.png", "2.png"], ("1.png", 1), ("1.png", 9), ("2.png", 3), ("2.png", 3))
    data = found(tmp_path)
    assert data.findings.counts == {"shared file": 1, "listed twice": 1}
    assert [Path(path).name for path in data.paths()] == ["2.png"] and len(data.boxes) == 1


@pytest.mark.parametrize("write", [coco, lines])
def test_nothing_left_is_an_error_at_once(tmp_path: Path, write: Callable[[Path, list[Entry]], None]) -> None:
    put(tmp_path, write, ["1.png"], ("a/1.png", 1), ("b/1.png", 9))
    with pytest.raises(UserError, match=r"shared file: 'b/1\.png' and 'a/1\.png'"):
        found(tmp_path)


def test_lines_that_repeat_a_name_are_joined_with_a_note(tmp_path: Path) -> None:
    put(tmp_path, lines, ["1.png"], ("1.png", 1), ("1.png", 9))
    data = found(tmp_path)
    assert data.offsets.tolist() == [0, 2] and "1 line repeats the image of an earlier line" in data.about[-1]


@pytest.mark.parametrize("write", [*LISTED, darknet, voc])
@pytest.mark.parametrize("encoded_on_disk", [False, True])
def test_url_encoded_names_find_their_files(
    tmp_path: Path, write: Callable[[Path, list[Entry]], None], encoded_on_disk: bool
) -> None:
    plain = ["my photo.png", "décran 50%.png"]
    nfd = [unicodedata.normalize("NFD", name) for name in plain]
    encoded = [quote(name) for name in plain]
    files, given = (encoded, nfd) if encoded_on_disk else (nfd, encoded)
    put(tmp_path, write, files, *zip(given, (1, 9), strict=True))
    data = found(tmp_path)
    assert [Path(path).name for path in data.paths()] == files and data.findings.counts == {}
    assert len(data.boxes) == 2
    if write is not darknet:
        assert data.boxes[:, 0].tolist() == [1, 9]
    assert any(files[0] in note for note in data.about)  # a note names the first


def test_two_names_of_one_file_with_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for number in (1, 2, 3):
        Image.new("RGB", (40, 20)).save(tmp_path / f"train/{number}.png")
    rows = [
        "/a/train/1.png,cat",
        "/b/train/1.png,dog",
        "2.png,dog",
        "/a/train/3.png,cat",
        "/b/train/3.png,cat",
    ]
    (tmp_path / "train/_annotations.csv").write_text("\n".join(["filename,label", *rows]))
    data = found(tmp_path)
    names = [(Path(path).name, label) for path, label in zip(data.paths(), data.labels.tolist(), strict=True)]
    assert names == [("2.png", 1), ("3.png", 0)]
    assert data.findings.counts == {"shared file": 1, "listed twice": 1}
