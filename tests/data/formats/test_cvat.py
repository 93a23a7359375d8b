"""CVAT for images 1.1, in the layout of CVAT's documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError
from support.label_tools import converted, objects, put, write

META = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><id>4</id><name>pets</name><size>3</size><mode>annotation</mode>
<subset></subset><labels><label><name>dog</name><color>#c06060</color><type>any</type><attributes></attributes>
</label><label><name>cat</name><type>rectangle</type></label><label><name>lot</name><type>tag</type></label>
<label><name>person</name><type>skeleton</type></label>
<label><name>head</name><type>points</type><parent>person</parent></label></labels></task></meta>
"""
IMAGE = """<image id="0" name="a.jpg" width="64" height="48">
<box label="cat" source="manual" occluded="0" xtl="2.00" ytl="3.00" xbr="22.00" ybr="13.00" z_order="0">
<attribute name="color">red</attribute></box>
<box label="cat" occluded="0" xtl="30" ytl="5" xbr="40" ybr="35" rotation="90.00" z_order="0"></box>
<polygon label="dog" occluded="0" points="30.00,5.00;40.50,8.00;36.00,35.00" z_order="0"></polygon>
<ellipse label="dog" occluded="0" cx="20.00" cy="30.00" rx="6.00" ry="4.50" z_order="0"></ellipse>
<ellipse label="dog" occluded="0" cx="40" cy="24" rx="10" ry="5" rotation="90" z_order="0"></ellipse>
<mask label="dog" occluded="0" rle="1, 2, 3" left="10" top="20" width="3" height="2" z_order="0"></mask>
<polyline label="dog" occluded="0" points="1.00,1.00;2.00,2.00" z_order="0"></polyline>
<points label="dog" occluded="0" points="1.00,1.00" z_order="0"></points>
<cuboid label="dog" occluded="0" xtl1="1" ytl1="1" z_order="0"></cuboid>
<skeleton label="person" z_order="0"><points label="head" outside="0" points="1.00,2.00"></points>
</skeleton><tag label="lot" source="manual"></tag></image>
"""
TRUTH = [
    ("cat", (2, 3, 22, 13)), ("cat", (20, 15, 50, 25)), ("dog", (30, 5, 40.5, 35)),
    ("dog", (14, 25.5, 26, 34.5)), ("dog", (35, 14, 45, 34)), ("dog", (10, 20, 13, 22)),
]  # fmt: skip


def made(root: Path, images: str, meta: str = META) -> Path:
    for name in "ab":
        put(root / "images" / f"{name}.jpg", name)
    write(root / "annotations.xml", f"{meta}{images}</annotations>")
    return root


def test_shapes_become_boxes(tmp_path):
    root = made(tmp_path / "pets", f'{IMAGE}<image id="1" name="b.jpg" width="64" height="48"></image>')
    annotations = examine(str(root), "train")
    assert annotations.class_names == ("dog", "cat")  # as declared, without labels of points and tags
    found = objects(annotations)
    assert found["b.jpg"] == []
    for (name, box), (label, expected) in zip(found["a.jpg"], TRUTH, strict=True):
        assert name == label and box == pytest.approx(expected, abs=1e-5)
    assert annotations.findings.counts == {"outline": 4, "turned": 1, "not a box": 5, "empty": 1}
    assert converted(root) == found


def test_subsets_are_splits_and_other_sizes_are_reported(tmp_path):
    box = '<box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"></box></image>'
    images = f'<image id="0" name="a" subset="Train" width="48" height="64">{box}'
    images += f'<image id="1" name="b.jpg" subset="Validation" width="64" height="48">{box}'
    root = made(tmp_path, images + '<image id="2" name="gone.jpg" subset="Train"></image>')
    train = examine(str(root), "train")
    assert objects(train) == {"a.jpg": [("cat", (1, 1, 9, 9))]}
    assert train.findings.counts == {"other size": 1, "no image": 1}
    val = examine(str(root), "val")
    assert objects(val) == {"b.jpg": [("cat", (1, 1, 9, 9))]} and not val.findings.counts
    with pytest.raises(UserError, match="no split 'test'; expected one of 'Train', 'Validation'"):
        examine(str(root), "test")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ('<box label="cat" xtl="1_0" ytl="1" xbr="9" ybr="9"/>', "image 0: not a number: <box> 1"),
        ('<box label="cat" xtl="1"/>', "not a number: <box> 1"),
        ('<box xtl="1" ytl="1" xbr="9" ybr="9"/>', "unnamed class: <box> 1: None; expected the name"),
        ('<polygon label="cat" points="1,1;x"/>', "not a number: <polygon> 1"),
        ('<star label="cat"/>', "not understood: <star>; expected one of box, polygon"),
        ('</image><image id="8">', "image 8: not understood: <image> has no 'name'"),
        ('</image><track id="0" label="cat"></track><image>', "tracks of a video .*'CVAT for images 1.1'"),
        ("<image", r"annotations.xml: not XML: "),
    ],
)
def test_what_is_wrong_stops_training_and_is_named(tmp_path, shape, said):
    put(tmp_path / "images" / "c.jpg", "c")
    first = '<image id="7" name="c.jpg"><box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"/></image>'
    with pytest.raises(UserError, match=said):
        root = made(tmp_path, f'{first}<image id="0" name="a.jpg">{shape}</image>')
        open_annotations(str(root), "train")


def test_images_that_are_annotated_without_their_exif_rotation_are_reported(tmp_path):
    root = made(
        tmp_path, '<image id="0" name="a.jpg" width="64" height="48"></image>' + IMAGE.replace("a.", "b.")
    )
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    Image.new("RGB", (64, 48)).save(root / "images" / "a.jpg", exif=exif)
    assert examine(str(root), "train").findings.counts["sideways"] == 1


def test_entities_are_refused(tmp_path):
    meta = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotations>'
    with pytest.raises(UserError, match="found a document type"):
        examine(str(made(tmp_path, IMAGE, meta)), "train", "cvat")


def test_boxes_beside_images_are_not_pascal_voc(tmp_path):
    made(tmp_path, IMAGE)
    put(tmp_path / "a.jpg", "a")
    assert examine(str(tmp_path), "train").format == "cvat"
