"""CSV: columns under many names, boxes by hand, and an outcome for everything that can be wrong."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.open_split import examine
from rankless.data.formats import csv_table
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError

HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"


def put(root: Path, *text: str, file: str = "train.csv", folder: str = "") -> Path:
    for name in ("a.jpg", "b.jpg", "c d.jpg"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20)).save(root / folder / name)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("\n".join(text), encoding="utf-8")
    return root / file


def opened(root: Path, split: str = "train") -> Annotations:
    return examine(str(root), split, "csv")


def fault(root: Path, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        opened(root, split)
    return str(caught.value)


def names(found: Annotations) -> list[str]:
    return [Path(path).name for path in found.paths()]


def test_rows_are_boxes(tmp_path):
    put(
        tmp_path,
        HEADER + ",difficult,crowd,area",
        "b.jpg,40,20,dog,1,2,11,12,0,0,",
        "c d.jpg,40,20,,,,,,,,",
        "a.jpg,40,20,cat,0.5,0,40,20,1,0,",
        '"b.jpg",40,20,"big, black cat",3,3,5.25,5,0,1,3.5',
    )
    assert csv_table.recognize(tmp_path) == "'train.csv' has columns for images and classes"
    found = opened(tmp_path)
    assert names(found) == ["b.jpg", "c d.jpg", "a.jpg"]
    assert found.class_names == ("big, black cat", "cat", "dog")
    assert found.offsets.tolist() == [0, 2, 2, 3]
    assert found.boxes.tolist() == [[1, 2, 11, 12], [3, 3, 5.25, 5], [0.5, 0, 40, 20]]
    assert found.labels.tolist() == [2, 0, 1]
    assert found.flags.tolist() == [0, CROWD, DIFFICULT]
    assert found.areas[1] == 3.5
    assert np.isnan(found.areas[[0, 2]]).all()
    assert found.findings.counts == {"difficult": 1, "crowd": 1}


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("image,xmin,ymin,xmax,ymax,label", "a.jpg,4,5,14,15,cat"),
        ("image_id;x1;y1;x2;y2;category", "a.jpg;4;5;14;15;cat"),
        ("Path\tLeft\tTop\tRight\tBottom\tName", "a.jpg\t4\t5\t14\t15\tcat"),
        ("file_name, X Min, Y Min, X Max, Y Max, Class Name", "a.jpg, 4, 5, 14, 15, cat"),
        ("filename,x,y,w,h,class", "a.jpg,4,5,10,10,cat"),
        ("filename,left,top,width,height,class", "a.jpg,4,5,10,10,cat"),
        ("image,bbox_x,bbox_y,bbox_w,bbox_h,width,height,class", "a.jpg,4,5,10,10,40,20,cat"),
        ("image,x_center,y_center,width,height,class", "a.jpg,9,10,10,10,cat"),
        ("ImageID,Source,LabelName,XMin,XMax,YMin,YMax,IsGroupOf", "a,x,cat,0.1,0.35,0.25,0.75,0"),
        ("filename,xmin,ymin,xmax,ymax,class", "a.jpg,0.1,0.25,0.35,0.75,cat"),
        ("filename,xmin_norm,ymin_norm,xmax_norm,ymax_norm,class", "a.jpg,0.1,0.25,0.35,0.75,cat"),
        ("filename,x_px,y_px,w_px,h_px,class", "a.jpg,4,5,10,10,cat"),
        ("filename,xmin,ymin,xmax,ymax,class,barrel,id_norm", "a.jpg,4,5,14,15,cat,1,1"),
        ("filename;xmin;ymin;xmax;ymax;class", '"a.jpg";"4";"5";"14";"15";"cat"'),
        ("\ufefffilename,xmin,ymin,xmax,ymax,class\r", "a.jpg,4,5,14,15,cat\r"),
        ("a.jpg,4,5,14,15,cat", "b.jpg,,,,,"),
        ("/data/a.jpg,4,5,14,15,cat", "/data/b.jpg,,,,,"),
    ],
)
def test_columns_by_many_names(tmp_path, header, row):
    put(tmp_path, header, row)
    assert csv_table.recognize(tmp_path)
    found = opened(tmp_path)
    assert found.path(0) == str(tmp_path / "a.jpg")
    assert found.boxes.tolist() == [[4, 5, 14, 15]]
    assert found.class_names == ("cat",)
    assert found.findings.counts == {}
    assert len(found) == (2 if "4" in header else 1)


@pytest.mark.parametrize(
    ("file", "folder", "split"),
    [
        ("train.csv", "train", "train"),
        ("train_labels.csv", "images", "train"),
        ("val-annotations-bbox.csv", "val", "val"),
        ("oidv6-train-annotations-bbox.csv", "train", "train"),
        ("valid/_annotations.csv", "valid", "val"),
        ("boxes.csv", "images", "boxes"),
        ("_annotations.csv", "", "train"),
    ],
)
def test_layouts(tmp_path, file, folder, split):
    put(tmp_path, HEADER, "a.jpg,40,20,cat,1,2,3,4", file=file, folder=folder)
    put(tmp_path, "epoch,loss", "1,2", file="results.csv", folder=folder)
    assert csv_table.recognize(tmp_path)
    assert len(csv_table.splits(tmp_path)) == 1
    assert len(opened(tmp_path, split).boxes) == 1
    assert len(opened(tmp_path / file)) == 1


def test_splits_number_their_classes_alike(tmp_path):
    put(tmp_path, HEADER, "a.jpg,40,20,owl,1,2,3,4")
    put(tmp_path, HEADER, "b.jpg,40,20,ant,1,2,3,4", "a.jpg,40,20,unused,,,,", file="val.csv")
    assert opened(tmp_path).class_names == opened(tmp_path, "val").class_names == ("ant", "owl")
    (tmp_path / "classes.csv").write_text("zebra,0\nowl,1\n")
    assert opened(tmp_path).class_names == ("zebra", "owl")
    assert opened(tmp_path).labels.tolist() == [1]
    assert opened(tmp_path, "val").findings.counts == {"unnamed class": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat,2\nowl,0\n", ("owl", "cat")),
        ("class,id\ncat,0\nowl,1\n", ("cat", "owl")),
        ("0,cat\n1,owl\n", ("cat", "owl")),
        ("owl\ncat\n", ("owl", "cat")),
        ("owl,0\ncat,0,\nowl,3", "'owl' appears more than once"),
        ("owl,0\ncat,x\n", "'cat,x'; expected a class name and a number"),
        ("", "no class names"),
        ("\udce9t\udce9,0\n", "not valid UTF-8"),
    ],
)
def test_class_lists(tmp_path, text, expected):
    put(tmp_path, HEADER, "a.jpg,40,20,owl,1,2,3,4", "b.jpg,40,20,cat,1,2,3,4")
    (tmp_path / "classes.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    if isinstance(expected, str):
        assert expected in fault(tmp_path)
    else:
        assert opened(tmp_path).class_names == expected


def test_numbers_as_names_are_sorted_by_value(tmp_path):
    put(tmp_path, HEADER, *(f"a.jpg,40,20,{label},1,{label},30,20" for label in (10, 2, 0)))
    assert opened(tmp_path).class_names == ("0", "2", "10")


@pytest.mark.parametrize(
    ("row", "counts"),
    [
        ("a.jpg,40,20,cat,1,2,x,4", {"not a number": 1}),
        ("a.jpg,40,20,cat,1,2,,4", {"not a number": 1}),
        ("a.jpg,40,20,cat,1,2,nan,4", {"not finite": 1}),
        ("a.jpg,40,20,,1,2,3,4", {"unnamed class": 1}),
        ("a.jpg,40,20", {"not understood": 1}),
        (",40,20,cat,1,2,3,4", {"not understood": 1}),
        ("gone.jpg,40,20,cat,1,2,3,4", {"no image": 1}),
        (",,,,,,,", {}),
        ("   ", {}),
    ],
)
def test_dirty_rows(tmp_path, row, counts):
    put(tmp_path, HEADER, "b.jpg,40,20,cat,1,2,9,9", row)
    found = opened(tmp_path)
    assert found.findings.counts == counts
    assert len(found.boxes) == 1
    if counts:
        assert found.findings.first[next(iter(counts))][0].where == f"{tmp_path / 'train.csv'}:3"


def test_pixels_where_shares_are_reported(tmp_path):
    put(tmp_path, "ImageID,LabelName,XMin,XMax,YMin,YMax", "a,cat,1,30,2,12", "b,cat,0,0.5,0,0.5")
    assert opened(tmp_path).findings.counts == {"not normalized": 1}


def test_a_file_without_what_is_needed(tmp_path):
    put(tmp_path, "a,b,c", "1,2,3")
    assert csv_table.recognize(tmp_path) == ""
    assert "no CSV file with images and classes; expected a first row with a column" in fault(tmp_path)
    put(tmp_path, HEADER)
    assert "no class names found in any split" in fault(tmp_path)
    put(tmp_path, HEADER, "gone.jpg,40,20,cat,1,2,3,4")
    assert "such as 'gone.jpg'" in fault(tmp_path)
    put(tmp_path, HEADER, "a.jpg,40,20,cat,1,2,3,4")
    assert "no split 'val'; expected 'train'; choose" in fault(tmp_path, "val")


def test_classes_that_are_no_utf8(tmp_path):
    file = put(tmp_path, HEADER, "a.jpg,40,20,cat,1,2,3,4", "a.jpg,40,20,CAF,2,2,9,9")
    file.write_bytes(file.read_bytes().replace(b"CAF", b"caf\xe9"))
    found = opened(tmp_path)
    assert found.class_names == ("cat",)
    assert found.findings.counts == {"unnamed class": 1}


# One class for each image.


@pytest.mark.parametrize("header", ["filename,label", "image;class", "Path\tCategory", "a.jpg,dog"])
def test_classes_of_images(tmp_path, header):
    sign = next(sign for sign in ",;\t" if sign in header)
    rows = [f"a.jpg{sign}dog", f"c d.jpg{sign}cat", f"b.jpg{sign}dog"]
    put(tmp_path, *([] if "dog" in header else [header]), *rows)
    assert csv_table.recognize(tmp_path)
    found = opened(tmp_path)
    assert not found.has_boxes
    assert names(found) == ["a.jpg", "c d.jpg", "b.jpg"]
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == [1, 0, 1]
    assert found.findings.counts == {}


def test_dirty_classes_of_images(tmp_path):
    put(tmp_path, "filename,label", "a.jpg,dog", "b.jpg,cat", "a.jpg,dog")
    assert opened(tmp_path).findings.counts == {"listed twice": 1}
    put(tmp_path, "filename,label", "a.jpg,dog", "b.jpg,cat", "a.jpg,cat", "gone.jpg,cat", "c d.jpg,")
    found = opened(tmp_path)
    assert found.findings.counts == {"not understood": 1, "no image": 1, "unnamed class": 1}
    assert "a second class 'cat'" in found.findings.first["not understood"][0].problem


def test_a_table_beside_folders_of_classes_is_not_taken_for_the_data(tmp_path):
    put(tmp_path, "filename,label", "a.jpg,dog", file="metadata.csv")
    put(tmp_path, "name,age", "a.jpg,3", file="people.csv")
    assert csv_table.recognize(tmp_path) == ""
    assert csv_table.recognize(tmp_path / "metadata.csv")
    assert csv_table.recognize(tmp_path / "a.jpg") == ""


_CELLS = "a.jpg b.jpg cat 1 2 -3 0.5 nan 1e999 ; é x1"
_CELL = st.sampled_from([*_CELLS.split(), "", '"', "\n", "\r", "\x00", "9" * 30])


@settings(settings.get_profile("files"))
@given(
    header=st.sampled_from(
        [HEADER, HEADER + ",difficult,area", "filename,label", "a.jpg,1,2,3,4,cat", "", "image;x;y;w;h;name"]
    ),
    content=st.binary(max_size=80)
    | st.lists(st.lists(_CELL, max_size=9).map(",".join), max_size=5).map(
        lambda rows: "\n".join(rows).encode()
    ),
)
def test_any_file(tmp_path_factory, header, content):
    root = tmp_path_factory.getbasetemp() / "any_csv"
    put(root).write_bytes(header.encode() + b"\n" + content)
    csv_table.recognize(root)
    with contextlib.suppress(UserError):
        found = opened(root / "train.csv")
        assert all(0 <= label < len(found.class_names) for label in found.labels)


def test_sizes_that_no_image_has_are_counted(tmp_path):
    rows = ("a.jpg,0,0,cat,1,2,11,12", "b.jpg,?,1e999,cat,1,2,11,12", "c d.jpg,,,cat,1,2,11,12")
    put(tmp_path, HEADER, *rows)
    found = opened(tmp_path).findings
    assert found.counts == {"no stated size": 2}
    assert str(found.first["no stated size"][1]) == f"{tmp_path}/train.csv: {tmp_path}/b.jpg is 40 × 20"
