"""Tar shards: what webdataset's own writer makes is read, labels and names too; every error is reported."""

from __future__ import annotations

import contextlib
import io
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages, ClassifiedImages
from rankless.data.datasets.classification import open_images
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats import webdataset as page
from rankless.data.formats.webdataset import LabelError, class_of, rows_of
from rankless.data.images.image_file import UnreadableImage
from rankless.data.index.annotations import Annotations
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.recipe.schema import Data


def sample(level: int = 0, format: str = "PNG", size: tuple[int, int] = (6, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (level, 0, 0)).save(buffer, format=format)
    return buffer.getvalue()


def shard(path: Path, members: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            body = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def pairs(labels: list[str], ending: str = "cls", first: int = 0) -> dict[str, bytes | str]:
    made: dict[str, bytes | str] = {}
    for number, label in enumerate(labels, first):
        made |= {f"{number:03}.png": sample(number), f"{number:03}.{ending}": label}
    return made


def read(root: Path, split: str = "train") -> Annotations:
    return validate(page.read(root, split), "webdataset")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files to the collector
def test_what_webdataset_writes_is_read(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 8, 12, 3), dtype=np.uint8)
    with webdataset.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=4, verbose=0) as writer:
        for number, image in enumerate(images):
            writer.write({"__key__": f"sub/{number:04}", "png": image, "cls": number % 3})
    found = open_images(Data(root=str(tmp_path)), "train")
    assert isinstance(found, ClassifiedImages) and found.class_names == ("0", "1", "2")
    assert [found.label(index) for index in range(9)] == [number % 3 for number in range(9)]
    for index, image in enumerate(images):
        assert np.array_equal(found.read(index).permute(1, 2, 0).numpy(), image)
    assert found.source(5) == f"{tmp_path}/train-000001.tar//sub/0005.png"
    assert found.annotations.sizes.tolist() == [[8, 12]] * 9


def test_boxes_as_json_and_as_darknets_lines(tmp_path):
    label = {"boxes": [[1, 1, 3.5, 4]], "labels": [1], "flags": [1], "areas": [3.25]}
    shard(tmp_path / "json/train-0.tar", pairs([json.dumps(label), '{"boxes": [], "labels": []}'], "json"))
    (tmp_path / "json/classes.txt").write_text("cat\ndog\n")
    found = open_annotations(str(tmp_path / "json"), "train")
    assert found.class_names == ("cat", "dog") and found.offsets.tolist() == [0, 1, 1]
    assert found.boxes.tolist() == [[1, 1, 3.5, 4]] and found.labels.tolist() == [1]
    assert found.flags.tolist() == [1] and found.areas.tolist() == [3.25]
    assert BoxedImages(found).read(1).image[0].eq(1).all()
    shard(tmp_path / "txt/train-0.tar", pairs(["1 0.5 0.5 0.5 0.5\n0 0.25 0.25 0.5 0.5", ""], "txt"))
    found = open_annotations(str(tmp_path / "txt"), "train")
    assert found.class_names == ("0", "1")  # by their numbers
    assert found.boxes.tolist() == [[1.5, 1, 4.5, 3], [0, 0, 3, 2]] and found.labels.tolist() == [1, 0]


def test_shards_by_name_and_members_in_order(tmp_path):
    shard(tmp_path / "train/b.tar", pairs(["0"], first=1))
    shard(tmp_path / "train/a.tar", {"9.png": sample(9), "9.cls": "1", "2.png": sample(2), "2.cls": "0"})
    found = open_images(Data(root=str(tmp_path)), "train")
    assert [int(found.read(index).max()) for index in range(3)] == [9, 2, 1]
    assert read(tmp_path).paths()[2] == f"{tmp_path}/train/b.tar//001.png"


def test_class_names_that_are_not_given(tmp_path):
    def box(name: str) -> str:
        return json.dumps([{"bbox": [0, 0, 2, 2], "category_id": name}])

    shard(tmp_path / "a/train-0.tar", pairs([box("owl"), box("cat")], "json"))
    shard(tmp_path / "a/train-1.tar", pairs([box("emu")], "json"))
    shard(tmp_path / "a/val-0.tar", pairs([box("dog"), box("owl")], "json"))
    train, val = (read(tmp_path / "a", split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ("cat", "dog", "emu", "owl")
    assert train.labels.tolist() == [3, 0, 2] and val.labels.tolist() == [1, 3]
    shard(tmp_path / "b/train-0.tar", pairs(["red", "blue", "red"]))
    shard(tmp_path / "b/val-0.tar", pairs(["red"]))
    names = open_images(Data(root=str(tmp_path / "b")), "train").class_names
    assert (
        names == ("blue", "red") and open_images(Data(root=str(tmp_path / "b")), "val", names).label(0) == 1
    )
    shard(tmp_path / "c/train-0.tar", pairs(["10", "2", "0"]))
    found = read(tmp_path / "c")
    assert found.class_names == tuple(map(str, range(11))) and found.labels.tolist() == [10, 2, 0]


def test_class_names_mean_numbers_and_names(tmp_path):
    shard(tmp_path / "train-0.tar", {"classes.txt": "no\nyes\n", **pairs(["1", "no", "yes"])})
    assert read(tmp_path).class_names == ("no", "yes") and read(tmp_path).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("members", "kind", "left"),
    [
        (pairs(["0", "1", "2"]), "class out of range", 2),
        (pairs(["0", "-1"]), "class out of range", 1),
        (pairs(["0", "owl"]), "unnamed class", 1),
        (pairs(["0", "1\n1"]), "not understood", 1),
        ({**pairs(["0"]), "b.png": sample()}, "no class", 1),
        ({**pairs(["0"]), "b.cls": "0"}, "label without image", 1),
        ({**pairs(["0"]), "b.txt": "0"}, "left out", 1),
        ({**pairs(["0"]), "b.png": b"no image", "b.cls": "1"}, "unreadable image", 2),
        ({**pairs(['{"boxes": [], "labels": []}'], "json"), "b.png": sample()}, "no label file", 2),
        (pairs(['{"boxes": [], "labels": []}', "{}"], "json"), "not understood", 1),
        (pairs(['{"boxes": [[0, 0, 1, 1]], "labels": [7]}'], "json"), "class out of range", 1),
        (pairs(["0 100 100 20 20"], "txt"), "not normalized", 1),
    ],
)
def test_findings(tmp_path, members, kind, left):
    shard(tmp_path / "train-0.tar", members)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    found = read(tmp_path)
    assert {name: count for name, count, _ in found.findings if name not in ("empty",)} == {kind: 1}
    assert len(found) == left == len(found.byte_ranges) == len(found.sizes)
    place = found.findings.first[kind][0].where
    assert place.startswith(f"{tmp_path}/train-0.tar//")


@pytest.mark.parametrize(
    ("files", "split", "words"),
    [
        (["train-0.tar"], "val", "no shards of the split 'val'; expected 'train'"),
        (["notes.txt"], "train", "no shards of the split 'train'; expected 'train-000000.tar' and so on"),
        (
            ["train-0.tar", "train/0.tar"],
            "train",
            "exists twice, as a folder of shards and as shards with this name",
        ),
        (["train-00000.tar.gz"], "train", r"1 shard is compressed \('train-00000.tar.gz'\)"),
    ],
)
def test_errors_of_the_layout(tmp_path, files, split, words):
    for name in files:
        shard(tmp_path / name, pairs(["0", "1"]))
    with pytest.raises(UserError, match=words):
        open_annotations(str(tmp_path), split, "webdataset")


def test_shards_without_labels_or_images(tmp_path):
    shard(tmp_path / "train-0.tar", {"a.png": sample(), "b.cls": "1"})
    with pytest.raises(
        UserError, match="no image has a label; expected consecutive members with the same base name"
    ):
        read(tmp_path)
    shard(tmp_path / "train-0.tar", pairs(["x\ny"]))
    with pytest.raises(UserError, match=r"(?s)000.cls: 'x.*the split 'train' has no images"):
        read(tmp_path)


def test_detection_shards_are_no_classes(tmp_path):
    shard(tmp_path / "train-0.tar", pairs(['{"boxes": [], "labels": []}'], "json"))
    with pytest.raises(UserError, match=r"read as tar shards.* with boxes; .*train a detector"):
        open_images(Data(root=str(tmp_path)), "train")


def test_a_change_of_a_shard_is_a_change(tmp_path):
    shard(tmp_path / "train/0.tar", pairs(["0"]))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    depends = {Path(path).relative_to(tmp_path).as_posix() for path in page.read(tmp_path, "train").depends}
    assert depends == {".", "train", "train/0.tar", "classes.txt"}
    (tmp_path / "classes.txt").unlink()
    for split in ("train", "val"):  # boxes are numbered by the names of all splits
        shard(tmp_path / split / "0.tar", pairs(['{"boxes": [[0, 0, 1, 1]], "labels": ["a"]}'], "json"))
    depends = {Path(path).relative_to(tmp_path).as_posix() for path in page.read(tmp_path, "train").depends}
    assert depends == {".", "train", "train/0.tar", "val", "val/0.tar"}


def test_a_shard_that_shrinks_or_goes_is_an_unreadable_image(tmp_path):
    path = shard(tmp_path / "train-0.tar", pairs(["0", "1"]))
    found = open_images(Data(root=str(tmp_path)), "train")
    path.write_bytes(path.read_bytes()[:1600])
    found.read(0)
    with pytest.raises(UnreadableImage, match=r"train-0.tar//001.png.*the shard ends after"):
        found.read(1)
    path.unlink()
    with pytest.raises(UnreadableImage, match="No such file"):
        found.read(0)


_MEMBERS = {**pairs(["0", "1"]), **pairs(["[]", '{"boxes": [[0, 0, 2, 2]], "labels": [0]}'], "json", 2)}


@settings(settings.get_profile("files"))
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=8), st.integers(0, 12000))
def test_any_damage_is_a_user_error_or_a_finding(tmp_path_factory, changes, cut):
    root = tmp_path_factory.mktemp("damaged")
    content = bytearray(shard(root / "train-0.tar", _MEMBERS).read_bytes())
    for place, value in changes:
        content[place] = value
    (root / "train-0.tar").write_bytes(content[: cut or None])
    with contextlib.suppress(UserError):
        found = examine(str(root), "train", "webdataset")
        assert len(found.byte_ranges) == len(found)
        source = BoxedImages(found) if found.has_boxes else ClassifiedImages(found, None, "data")
        for index in range(len(found)):
            with contextlib.suppress(UnreadableImage):
                source.read(index)


@pytest.mark.parametrize(
    ("content", "label"),
    [
        (b"7", "7"),
        (b"007\n", "7"),
        (b"-1", "-1"),
        (b"\xef\xbb\xbf3", "3"),
        ("red öwl\r\n".encode(), "red öwl"),
    ],
)
def test_classes(content, label):
    assert class_of(content) == label


@pytest.mark.parametrize("content", [b"", b" \n", b"1\n2", b"\xff"])
def test_no_classes(content):
    with pytest.raises(LabelError):
        class_of(content)


def test_our_json():
    rows, stated = rows_of(
        b'{"width": 9, "height": 7, "boxes": [[1, 2, 3.5, 4], [0, 0, 1, 1]], "labels": [1, "owl"], '
        b'"flags": [3, 0], "areas": [2.5, null]}',
        "json",
    )
    assert rows[0] == ([1, 2, 3.5, 4], "1", 3, 2.5)
    assert rows[1][:3] == ([0, 0, 1, 1], "owl", 0) and math.isnan(rows[1].area)
    assert stated == (7, 9)
    assert rows_of(b'{"boxes": [], "labels": []}', "json") == ([], (0, 0))


def test_json_like_cocos():
    one = {"bbox": [10, 20, 3, 4], "category_id": 2, "iscrowd": 1, "area": 5}
    for value in ([one], {"annotations": [one], "width": None}):
        assert rows_of(json.dumps(value).encode(), "json") == ([([10, 20, 13, 24], "2", 2, 5)], (0, 0))


def test_darknets_lines():
    rows, stated = rows_of(b"1 0.5 0.5 0.5 0.25\n\n0 0.25 0.25 0.5 0.5\r\n", "txt")
    assert [row[:2] for row in rows] == [([0.25, 0.375, 0.75, 0.625], "1"), ([0, 0, 0.5, 0.5], "0")]
    assert stated == (0, 0)


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("txt", b"a caption of a cat", "line 1: 'a caption of a cat'; expected five columns"),
        ("txt", b"0 1 2 3", "expected five columns"),
        ("json", b"{", "expected JSON"),
        ("json", b"3", "no 'boxes' and no 'annotations'"),
        ("json", b'{"caption": "a cat"}', "no 'boxes' and no 'annotations'"),
        ("json", b'{"boxes": [[1, 2, 3, 4]]}', "are not lists of the same length"),
        ("json", b'{"boxes": 3, "labels": 3}', "are not lists of"),
        ("json", b'{"boxes": [[1, 2, 3, 4]], "labels": [0, 1]}', "of the same length"),
        ("json", b'{"boxes": [[1, 2, 3]], "labels": [0]}', "expected four numbers"),
        ("json", b'{"boxes": [[1, 2, 3, "4"]], "labels": [0]}', "expected four numbers"),
        ("json", b'{"boxes": [[1, 2, 3, 4]], "labels": [1.5]}', "a label is 1.5"),
        ("json", b'{"boxes": [[1, 2, 3, 4]], "labels": [0], "flags": [4]}', "a flag is 4"),
        ("json", b'{"boxes": [[1, 2, 3, 4]], "labels": [0], "areas": ["1"]}', "an area is '1'"),
        ("json", b'{"boxes": [], "labels": [], "width": "9"}', "the height or width is '9'"),
        ("json", b'{"annotations": {"1": 2}}', "'annotations' is not a list"),
        ("json", b'[{"bbox": [1, 2, 3, 4]}]', "a label is None"),
        ("json", b"[7]", "an annotation is not an object; expected 'bbox'"),
        ("json", b"[" * 100_000, "expected JSON"),
        ("json", b'{"boxes": [[1, 2, 3, 1' + b"0" * 400 + b']], "labels": [0]}', "too large"),
    ],
)
def test_what_is_not_understood(kind, content, words):
    with pytest.raises(LabelError, match=words):
        rows_of(content, kind)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["boxes", "labels", "flags", "areas", "annotations", "bbox"]), inner
        )
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_any_json_is_understood_or_refused(value):
    with contextlib.suppress(LabelError):
        rows, _ = rows_of(json.dumps(value).encode(), "json")
        assert all(len(row.box) == 4 and isinstance(row.label, str) for row in rows)


@given(st.binary(max_size=40), st.sampled_from(["json", "txt"]))
def test_any_bytes_are_understood_or_refused(content, kind):
    with contextlib.suppress(LabelError):
        rows_of(content, kind)
