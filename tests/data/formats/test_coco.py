"""COCO JSON: every layout, numbers against pycocotools, and an outcome for everything that can be wrong."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import examine
from rankless.data.formats import coco
from rankless.data.formats.outlines import of_segmentation
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import UserError
from rankless.metrics.coco import Truth, coco_scores
from rankless.structures import Detections

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]


def sample(path: Path, size: tuple[int, int] = (40, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def box(number: int = 1, image: Any = 1, category: Any = 3, bbox: Any = (2, 3, 10, 5), **more: Any) -> dict:
    bbox = list(bbox) if isinstance(bbox, tuple) else bbox
    return {"id": number, "image_id": image, "category_id": category, "bbox": bbox, **more}


def put(
    root: Path,
    *boxes: Any,
    images: list | None = None,
    categories: Any = CATEGORIES,
    file: str = "annotations/instances_train.json",
    samples: str = "images/train",
) -> Path:
    """Two images of 40 × 20 pixels, ``a.jpg`` (id 1) and ``b.jpg`` (id 2), and their annotations."""
    for name in "ab":
        sample(root / samples / f"{name}.jpg")
    listed = [
        {"id": number, "file_name": f"{name}.jpg", "width": 40, "height": 20}
        for number, name in ((1, "a"), (2, "b"))
    ]
    whole = {
        "images": listed if images is None else images,
        "annotations": list(boxes),
        "categories": categories,
    }
    made = root / file
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(json.dumps(whole), encoding="utf-8")
    return made


def opened(root: Path, split: str = "train") -> Annotations:
    return examine(str(root), split, "coco")


def reported(root: Path, split: str = "train") -> dict[str, int]:
    return opened(root, split).findings.counts


def problem(root: Path, split: str = "train") -> str:
    with pytest.raises(UserError) as caught:
        opened(root, split)
    return str(caught.value)


def test_boxes_become_corners_and_ids_positions(tmp_path):
    put(
        tmp_path,
        box(1, 2, 7, (2, 3, 10, 5), area=30.5, iscrowd=0),
        box(2, 1, 3, (0.5, 0.25, 39.5, 19.75), area=39.5 * 19.75),
        box(3, 2, 3, (1, 1, 4, 4), iscrowd=1, area=3),
        box(4, 2, 3, (5, 5, 4, 4), ignore=1),
    )
    found = opened(tmp_path)
    assert found.class_names == ("cat", "dog")  # ids 3 and 7
    assert [Path(path).name for path in found.paths()] == ["a.jpg", "b.jpg"]
    assert found.offsets.tolist() == [0, 1, 4]
    assert found.boxes.tolist() == [[0.5, 0.25, 40, 20], [2, 3, 12, 8], [1, 1, 5, 5], [5, 5, 9, 9]]
    assert found.labels.tolist() == [0, 1, 0, 0]
    assert found.flags.tolist() == [0, 0, CROWD, DIFFICULT]
    assert np.isnan(found.areas[[0, 3]]).all()  # what says no more than the box is not kept
    assert found.areas[1:3].tolist() == [30.5, 3]
    assert found.sizes.tolist() == [[20, 40], [20, 40]]
    assert found.findings.counts == {"crowd": 1, "difficult": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "samples", "split"),
    [
        ("annotations/instances_train2017.json", "train2017", "train"),
        ("annotations/instances_train2017.json", "images/train2017", "train2017"),
        ("annotations/instances_train.json", "train", "train"),
        ("annotations/train.json", "images", "train"),
        ("annotations/valid.json", "images/valid", "val"),
        ("train.json", "images/train", "train"),
        ("valid/_annotations.coco.json", "valid", "val"),
        ("_annotations.coco.json", ".", "train"),
    ],
)
def test_layouts(tmp_path, file, samples, split):
    put(tmp_path, box(), file=file, samples=samples)
    assert coco.recognize(tmp_path) == f"it has '{file}'"
    found = opened(tmp_path, split)
    assert len(found) == 2
    assert len(found.boxes) == 1
    assert found.findings.counts == {}
    written = tmp_path / file
    if written.parent.name == "annotations":
        assert len(opened(written.parent, split)) == 2
    assert len(opened(written)) == 2  # the file itself, and it is the only split
    assert coco.recognize(written)


def test_a_year_is_part_of_the_name_where_it_must_be(tmp_path):
    for year in (2014, 2017):
        put(tmp_path, box(), file=f"annotations/instances_train{year}.json", samples=f"train{year}")
    put(tmp_path, box(), file="annotations/instances_val2017.json", samples="val2017")
    (tmp_path / "annotations" / "captions_val2017.json").write_text("{}")
    assert coco.splits(tmp_path) == ["val", "train2014", "train2017"]
    assert "no split 'train'; expected one of 'val', 'train2014', 'train2017'" in problem(tmp_path)
    assert opened(tmp_path, "train2014").path(0) == str(tmp_path / "train2014" / "a.jpg")


def test_splits_number_their_classes_alike(tmp_path):
    put(tmp_path, box(category=5), categories=[{"id": 5, "name": "owl"}])
    put(tmp_path, box(), file="annotations/instances_val.json", samples="images/val")
    assert opened(tmp_path).class_names == opened(tmp_path, "val").class_names == ("cat", "owl", "dog")
    assert opened(tmp_path).labels.tolist() == [1]
    put(tmp_path, box(category=3), categories=[{"id": 3, "name": "owl"}])
    assert "category 3 is called" in problem(tmp_path, "val")


def test_a_category_that_only_groups_the_others_is_no_class(tmp_path):
    group = [
        {"id": 0, "name": "pets", "supercategory": "none"},
        {"id": 1, "name": "cat", "supercategory": "pets"},
        {"id": 2, "name": "dog", "supercategory": "pets"},
    ]
    put(tmp_path, box(category=2), categories=group)
    found = opened(tmp_path)
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == [1]
    assert any("category 0 ('pets') is ignored" in note for note in found.notes)
    put(
        tmp_path,
        box(category=0),
        categories=group,
        file="annotations/instances_val.json",
        samples="images/val",
    )
    assert opened(tmp_path).class_names == ("pets", "cat", "dog")  # another split has a box of it


@pytest.mark.parametrize(
    ("entry", "counts"),
    [
        (box(image=99), {"unknown image": 1}),
        (box(image=None), {"unknown image": 1}),
        (box(image=[1]), {"unknown image": 1}),
        (box(category=99), {"unnamed class": 1}),
        (box(category=None), {"unnamed class": 1}),
        (box(category={}), {"unnamed class": 1}),
        (box(bbox=(1, 2, float("nan"), 4)), {"not finite": 1}),
        (box(bbox=(1, 2, 10**30, 4)), {"over the edge": 1}),
        (box(bbox=(1, 2, 10**400, 4)), {"not a number": 1}),
        (box(bbox=("1", "2", "3", "4")), {"not a number": 1}),
        (box(bbox=(1, 2, None, 4)), {"not a number": 1}),
        (box(bbox="1234"), {"not a number": 1}),
        (box(bbox=(1, 2, 3)), {"not understood": 1}),
        (box(bbox=(1, 2, 3, 4, 5)), {"not understood": 1}),
        (box(bbox=None), {"not understood": 1}),
        (box(bbox=()), {"not understood": 1}),
        (box(iscrowd="yes"), {"not understood": 1, "crowd": 1}),
        (box(iscrowd=2), {"not understood": 1, "crowd": 1}),
        (box(iscrowd="1"), {"crowd": 1}),
        (box(iscrowd="0"), {}),
        (box(area="big"), {}),
        (box(area=float("nan")), {}),
        (box(image="1", category="3"), {}),
        (box(image=1.0, category=3.0), {}),
        (7, {"not understood": 1}),
        ("box", {"not understood": 1}),
        (None, {"not understood": 1}),
    ],
)
def test_dirty_annotations(tmp_path, entry, counts):
    put(tmp_path, box(50, bbox=(1, 1, 2, 2)), entry)
    found = opened(tmp_path)
    assert found.findings.counts == counts
    dropped = {"over the edge", "crowd"}.isdisjoint(counts) and bool(counts)
    assert len(found.boxes) == (1 if dropped else 2)
    for _, _, first in found.findings:
        assert first[0].where.startswith(str(tmp_path / "annotations" / "instances_train.json"))


def test_numbers_beyond_all_range_cost_their_box_alone(tmp_path):
    file = put(tmp_path, box(1, bbox=(1, 1, 2, 2)), box(2, bbox=(1, 2, 123, 4)))
    file.write_text(file.read_text().replace("123", "1e999"))
    assert reported(tmp_path) == {"not finite": 1}


def test_a_place_names_the_annotation(tmp_path):
    put(tmp_path, box(123456, category=4), box(77, bbox=(1, 1, 0, 0)))
    first = opened(tmp_path).findings.first
    assert first["unnamed class"][0].where.endswith("instances_train.json: annotation 123456")
    assert first["no size"][0].where.endswith("instances_train.json: annotation 77")


def test_the_same_thing_twice(tmp_path):
    images = [
        {"id": 1, "file_name": "a.jpg"},
        {"id": 1, "file_name": "a.jpg"},
        {"id": 5, "file_name": "a.jpg"},
        {"id": 2, "file_name": "b.jpg"},
    ]
    put(tmp_path, box(1, 1), box(1, 5), box(3, 2), images=images)
    found = opened(tmp_path)
    assert found.findings.counts == {"listed twice": 2, "repeated id": 1}
    assert found.offsets.tolist() == [0, 1, 2]
    put(tmp_path, box(1, 1), box(2, 2), images=[*images, {"id": 2, "file_name": "a.jpg"}])
    assert reported(tmp_path)["not understood"] == 1  # which image 2 is, nobody knows


def test_an_id_given_to_two_images_leaves_the_others_in_place(tmp_path):
    for name in "cd":
        sample(tmp_path / "images" / "train" / f"{name}.jpg")
    names = ((1, "a"), (1, "b"), (2, "c"), (3, "d"))
    put(tmp_path, box(1, 2), box(2, 3), images=[{"id": n, "file_name": f"{name}.jpg"} for n, name in names])
    found = opened(tmp_path)
    assert [Path(path).stem for path in found.paths()] == ["a", "c", "d"]
    assert found.offsets.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("image", "counts"),
    [
        ({"id": 9}, {"not understood": 1}),
        ({"file_name": "a.jpg"}, {"not understood": 1}),
        ({"id": 9, "file_name": 3}, {"not understood": 1}),
        ({"id": 9, "file_name": "gone.jpg"}, {"no image": 1}),
        ({"id": 9, "file_name": ""}, {"no image": 1}),
        ({"id": 9, "file_name": "bad\x00.jpg"}, {"no image": 1}),
        ({"id": 9, "file_name": "\ud800.jpg"}, {"no image": 1}),
        ([], {"not understood": 1}),
        ({"id": 9, "file_name": "damaged.jpg"}, {"unreadable image": 1}),
    ],
)
def test_dirty_images(tmp_path, image, counts):
    put(
        tmp_path,
        box(1, 1),
        box(2, 9) if counts == {"no image": 1} else box(2, 1, 7),
        images=[image, {"id": 1, "file_name": "a.jpg"}],
    )
    (tmp_path / "images" / "train" / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    assert reported(tmp_path) == counts


def test_not_one_image_is_there(tmp_path):
    put(tmp_path, images=[{"id": 1, "file_name": "x/gone.jpg"}])
    assert "such as 'x/gone.jpg', was found; looked in" in problem(tmp_path)
    put(tmp_path, images=[])
    assert "no images are listed" in problem(tmp_path)
    put(tmp_path, images=[{"id": 1, "filename": "a.jpg"}])
    assert "no valid entry in 'images'; the first problem: id 1, file_name None;" in problem(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "contains a list, so it may be a results file"),
        (b'[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]', "contains a list"),
        (b"{}", "'categories' is missing"),
        (b'{"images": [', "cannot be read as JSON"),
        (b"", "cannot be read as JSON"),
        (b"3", "contains 3"),
        (
            b'{"images": {}, "annotations": 3, "categories": [{"id": 1, "name": "a"}]}',
            "'images' is an object; expected a list",
        ),
        (b'{"images": [], "categories": [{"id": 1, "name": "a"}]}', "no 'annotations'"),
        (b'{"annotations": [], "categories": [{"id": 1, "name": "a"}]}', "no 'images'"),
        (b'{"categories": [{"id": 1}, {"name": "a"}, 3]}', "category 2: not an object"),
        (b'{"categories": [{"id": 1, "name": "\\ud800"}]}', "not valid Unicode"),
        (b"\xff\xfe{\x00}\x00", "cannot be read as JSON"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b'{"images": [1e99999999' + b"9" * 5000 + b"]}", "'categories' is missing"),
        (
            b'{"images": 3' + b"9" * 5000 + b', "categories": [{"id": 1, "name": "a"}]}',
            "cannot be read as JSON",
        ),
    ],
)
def test_a_file_that_is_something_else(tmp_path, content, said):
    put(tmp_path).write_bytes(content)
    assert said in problem(tmp_path)


def test_a_byte_order_mark_is_no_error(tmp_path):
    file = put(tmp_path, box())
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(opened(tmp_path).boxes) == 1


def test_what_it_depends_on(tmp_path):
    put(tmp_path, box(), file="annotations/instances_val.json")
    file = put(tmp_path, box())
    depends = coco.read(tmp_path, "train").depends
    known = [tmp_path, tmp_path / "annotations", tmp_path / "images" / "train", file]
    assert {str(each) for each in [*known, file.with_name("instances_val.json")]} <= set(depends)
    assert len(depends) == len(set(depends)) < 30


# The box of a segmentation.


def test_a_box_from_an_outline_is_reported(tmp_path):
    outline = [[4, 2, 9.5, 3, 6, 8.25], [20, 10, 22, 10, 22, 12]]
    mask = {"size": [20, 40], "counts": [3 * 20 + 4, 5, 15, 5, 711]}  # columns 3 and 4, rows 4 to 8
    put(
        tmp_path,
        box(bbox=None, segmentation=outline),
        box(2, bbox=(), segmentation="?"),
        box(3, bbox=(0, 0, 0.0, 0), segmentation=mask),
        box(4, bbox=(0, 0, 0, 0), segmentation=[]),
    )
    found = opened(tmp_path)
    assert found.boxes.tolist() == [[4, 2, 22, 12], [3, 4, 5, 9]]
    assert found.findings.counts == {"outline": 2, "not understood": 1, "no size": 1}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_the_box_of_a_mask_is_pycocotools(height, width, seed, share):
    shape = np.random.default_rng(seed).random((height, width)) < share**4
    text = mask.encode(np.asfortranarray(shape.astype(np.uint8)))
    x, y, w, h = mask.toBbox(text)
    flat = shape.flatten(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff([0, *changes, len(flat)]).tolist()
    counts = [0, *runs] if flat[0] else runs
    expected = (x, y, x + w, y + h) if shape.any() else None
    assert of_segmentation({"size": [height, width], "counts": text["counts"].decode()}) == expected
    assert of_segmentation({"size": [height, width], "counts": counts}) == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["counts", "size", "id", "bbox"]), inner)
    ),
    max_leaves=12,
)


@given(_JSON | st.fixed_dictionaries({"size": st.tuples(_JSON, _JSON) | st.just([4, 4]), "counts": _JSON}))
def test_any_segmentation_has_a_box_or_none(value):
    found = of_segmentation(value)
    assert found is None or len(found) == 4


# Any file: errors are reported, nothing else is raised.

_KEYS = "id image_id category_id file_name bbox name supercategory area iscrowd width"
_ENTRY = st.dictionaries(
    st.sampled_from(_KEYS.split()),
    _JSON
    | st.integers(1, 3)
    | st.sampled_from(["a.jpg", "b.jpg"])
    | st.lists(st.floats(-5, 60), min_size=4, max_size=4),
)
_WHOLE = st.dictionaries(
    st.sampled_from(["images", "annotations", "categories"]), _JSON | st.lists(_ENTRY | _JSON, max_size=4)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    put(root, box())
    return root


@settings(settings.get_profile("files"))
@given(whole=_WHOLE, boxes=st.lists(_ENTRY, max_size=4))
def test_any_annotations_of_good_images(folder, whole, boxes):
    images = [
        {"id": 1, "file_name": "a.jpg"},
        *(whole.get("images") or [] if isinstance(whole.get("images"), list) else []),
    ]
    good = {"images": images, "annotations": [box(), *boxes], "categories": CATEGORIES}
    _only_findings(folder, json.dumps(good).encode())


@settings(settings.get_profile("files"))
@given(data=st.data())
def test_any_damage(folder, data):
    good = json.dumps(
        {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [box()], "categories": CATEGORIES}
    ).encode()
    start = data.draw(st.integers(0, len(good)))
    length = data.draw(st.integers(0, 12))
    _only_findings(folder, good[:start] + data.draw(st.binary(max_size=12)) + good[start + length :])


def _only_findings(folder: Path, content: bytes) -> None:
    (folder / "annotations" / "instances_train.json").write_bytes(content)
    with contextlib.suppress(UserError):
        found = opened(folder)
        assert np.isfinite(found.boxes).all()


# Against pycocotools.


def by_pycocotools(file: Path, results: list[dict]) -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_scores_through_a_file_with_crowds_and_areas_are_pycocotools(tmp_path, seed):
    rng = np.random.default_rng(seed)
    side, boxes, results, kept = 640, [], [], []
    for image in range(1, 13):
        sample(tmp_path / "images" / "train" / f"{image}.png", (side, side))
        rows = []
        for _ in range(rng.integers(0, 9)):
            x, y = rng.uniform(0, 400, 2)
            w, h = np.exp(rng.uniform(np.log(8), np.log(230), 2))
            category, crowd = int(rng.choice([3, 7, 20])), int(rng.random() < 0.2)
            area = float(w * h * rng.uniform(0.2, 1))  # that of the outline
            boxes.append(box(len(boxes) + 1, image, category, (x, y, w, h), area=area, iscrowd=crowd))
            for _ in range(rng.integers(0, 4)):
                dx, dy, dw, dh = rng.normal(0, 0.07, 4) * [w, h, w, h]
                shown = category if rng.random() < 0.85 else 7
                rows.append(
                    (x + dx, y + dy, x + dx + max(w + dw, 1), y + dy + max(h + dh, 1), rng.random(), shown)
                )
        # As float32, which both then see.
        table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
        table = table[table[:, 4].argsort(descending=True)]
        kept.append(table)
        results += [
            {"image_id": image, "category_id": int(c), "bbox": [x1, y1, x2 - x1, y2 - y1], "score": s}
            for x1, y1, x2, y2, s, c in table.tolist()
        ]
    categories = [{"id": number, "name": f"c{number}"} for number in (3, 7, 20)]
    images = [{"id": n, "file_name": f"{n}.png", "width": side, "height": side} for n in range(1, 13)]
    file = put(tmp_path, *boxes, images=images, categories=categories)
    source = BoxedImages(opened(tmp_path))
    position = {3: 0, 7: 1, 20: 2}
    truths, found = [], []
    for index, table in enumerate(kept):
        known = source.ground_truth(index)
        truth, labels, flags, areas = known.boxes, known.labels, known.flags, known.areas
        truths.append(Truth(truth, labels, (flags & CROWD) > 0, areas, (flags & DIFFICULT) > 0))
        shown = torch.tensor([position[int(c)] for c in table[:, 5]], dtype=torch.int64)
        found.append(Detections(index, table[:, :4], table[:, 4], shown))
    scores = coco_scores(found, truths, source.class_names)
    assert sum(entry["iscrowd"] for entry in boxes) > 2
    expected = by_pycocotools(file, results)
    assert [scores[name] for name in NUMBERS] == pytest.approx(expected, abs=1e-6)
    (tmp_path / "out").mkdir()
    assert coco.write(tmp_path / "out", {"train": source.annotations}, ImageFiles()) == []
    renumbered = [{**each, "category_id": position[each["category_id"]] + 1} for each in results]
    written = by_pycocotools(tmp_path / "out/annotations/instances_train.json", renumbered)
    assert written == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("sides", "found"),
    [
        ({"width": 0, "height": 0}, {"no stated size": 1}),
        ({"width": "40", "height": 20}, {"no stated size": 1}),
        ({"width": 40, "height": -20}, {"no stated size": 1}),
        ({"width": 40, "height": 21}, {"other size": 1}),
        ({"width": None, "height": None}, {}),
        ({}, {}),
    ],
)
def test_sizes_that_no_image_has_are_counted(tmp_path, sides, found):
    put(tmp_path, box(), images=[{"id": 1, "file_name": "a.jpg", **sides}])
    assert reported(tmp_path) == found
