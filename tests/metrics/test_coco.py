"""The COCO metric against pycocotools, against values by hand, and against published data if at hand."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.cocoeval import COCOeval
from torchvision.ops import box_iou

from rankless.metrics import coco_matching
from rankless.metrics.box_matching import confusion, image_boxes, match
from rankless.metrics.coco import Truth, coco_scores
from rankless.structures import IGNORED_LABEL, Detections
from support.reference_for_coco import by_pycocotools, random_images

NAMES = ("cup", "dog", "kite")
# In the order of pycocotools' stats.
TWELVE = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def found(index: int, rows: list[tuple[float, ...]]) -> Detections:
    """Detections from rows of x1, y1, x2, y2, score, label."""
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    return Detections(index, table[:, :4], table[:, 4], table[:, 5].long())


def truth(rows: list[tuple[float, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Truths from rows of x1, y1, x2, y2, label."""
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    return table[:, :4], table[:, 4].long()


def numbers(evaluation: COCOeval, classes: int) -> dict[str, float]:
    """The twelve numbers and each class's AP and AP50 by the reference implementation."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.summarize()
    scores = dict(zip(TWELVE, evaluation.stats, strict=True))
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    for c in range(classes):
        for key, part in (("AP", precision[:, :, c]), ("AP50", precision[0, :, c])):
            scores[f"{c}/{key}"] = part.mean()  # a class is all −1 or has none
    return scores


@given(st.integers(0, 2**32 - 1))
def test_equals_pycocotools(seed):
    truths, detections = random_images(seed, levels=10)
    if not any(len(one.labels) for one in truths):
        return  # see the tests of nothing below
    assert_equal(detections, truths)


def assert_equal(detections, truths) -> None:
    """Every number of ours is pycocotools'."""
    scores = coco_scores(detections, truths, NAMES)
    flat = {key: value for key, value in scores.items() if key != "per_class"}
    flat |= {f"{NAMES.index(n)}/{k}": v for n, part in scores["per_class"].items() for k, v in part.items()}
    expected = numbers(by_pycocotools(truths, detections, len(NAMES)), len(NAMES))
    assert flat.keys() == expected.keys()
    for key, value in expected.items():
        assert (-1 if flat[key] is None else flat[key]) == pytest.approx(value, abs=1e-9), key


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 1 << 18]))
def test_crowds_areas_equal_overlaps_and_parts_equal_pycocotools(seed, pairs):
    rng = np.random.default_rng(seed)
    detections, truths = [], []
    for index in range(3):
        corner, side = rng.integers(0, 4, (8, 2)) * 8, rng.integers(2, 6, (8, 2)) * 8
        boxes, labels = torch.tensor(np.concatenate([corner, corner + side], 1)), rng.integers(0, 2, 8)
        crowd, areas = torch.tensor(rng.random(8) < 0.2), torch.tensor(rng.choice([1024.0, 900, 9216.5], 8))
        truths.append(Truth(boxes.float(), torch.tensor(labels), crowd, areas))
        corner, side = rng.integers(0, 4, (30, 2)) * 8, rng.integers(2, 6, (30, 2)) * 8
        scores, labels = rng.integers(1, 9, (30, 1)) / 8, rng.integers(0, 3, (30, 1))
        detections.append(found(index, np.concatenate([corner, corner + side, scores, labels], 1)))
    with mock.patch.object(coco_matching, "_PAIRS", pairs):
        assert_equal(detections, truths)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_a_region_to_ignore_is_a_crowd_of_every_class(seed):
    truths, detections = random_images(seed, crowds=True)
    rng = np.random.default_rng(seed)
    spread, mixed = [], []
    for one in truths:
        region = torch.tensor(np.concatenate([rng.uniform(0, 150, 2), rng.uniform(150, 400, 2)])).float()
        for made, labels in ((spread, list(range(len(NAMES)))), (mixed, [IGNORED_LABEL])):
            made.append(
                Truth(
                    torch.cat((one.boxes, region.repeat(len(labels), 1))),
                    torch.cat((one.labels, torch.tensor(labels))),
                    torch.cat((one.crowd, torch.ones(len(labels), dtype=torch.bool))),
                )
            )
    scores = coco_scores(detections, mixed, NAMES)
    assert scores == coco_scores(detections, spread, NAMES)
    drawn = [[image_boxes(*pair) for pair in zip(made, detections, strict=True)] for made in (mixed, spread)]
    for ours, expected in zip(*(vars(match(images)).values() for images in drawn), strict=True):
        assert np.array_equal(ours, expected)
    matrices = [confusion(images, 0.3, len(NAMES)) for images in drawn]
    assert np.array_equal(*matrices)


@pytest.mark.slow
def test_more_than_a_hundred_of_a_class_in_a_image_equals_pycocotools():
    boxes = [(i, 0, i + 10, 10) for i in range(0, 2000, 10)]
    rng = np.random.default_rng(3)
    detections = [found(0, [(*box, float(rng.random()), 0) for box in boxes])]
    truths = [truth([(*box, 0) for box in boxes])]
    scores = coco_scores(detections, truths, NAMES[:1])
    assert scores["AR100"] == pytest.approx(0.5)  # the best 100 of 200
    assert scores["AP"] == pytest.approx(numbers(by_pycocotools(truths, detections, 1), 1)["AP"], abs=1e-9)


def test_values_by_hand():
    # One cup found exactly, one missed; a stray scores lower than the hit. Precision is 1 up to recall
    # 0.5, and 51 of the 101 recalls (0, 0.01 … 0.50) are reached.
    box = (10.0, 10.0, 110.0, 110.0)
    detections = [found(0, [(*box, 0.9, 0), (300, 300, 400, 400, 0.3, 0)]), found(1, [])]
    truths = [truth([(*box, 0)]), truth([(20, 20, 60, 60, 0)])]
    scores = coco_scores(detections, truths, NAMES)
    assert [scores[name] for name in ("AP", "AP50", "AP75")] == pytest.approx([51 / 101] * 3)
    assert scores["AR1"] == scores["AR10"] == scores["AR100"] == pytest.approx(0.5)
    assert (scores["ARs"], scores["ARm"], scores["ARl"]) == (None, 0.0, pytest.approx(1.0))
    assert scores["APl"] == pytest.approx(1.0)  # 100² pixels
    assert scores["APm"] == 0.0  # 40² pixels, missed
    assert scores["APs"] is None
    assert scores["per_class"]["cup"] == {"AP": scores["AP"], "AP50": scores["AP50"]}
    assert scores["per_class"]["dog"] == {"AP": None, "AP50": None}
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores


def test_an_area_that_is_not_known_is_the_boxes():
    box = (10.0, 10.0, 110.0, 110.0)
    boxes, labels = truth([(*box, 0), (*box, 1)])
    scores = coco_scores([found(0, [])], [Truth(boxes, labels, areas=torch.tensor([math.nan, 900.0]))], NAMES)
    assert (scores["ARs"], scores["ARm"], scores["ARl"]) == (0.0, None, 0.0)  # 900 is small, 100² is large


def test_nothing_found():
    scores = coco_scores([found(0, []), found(1, [])], [truth([(0, 0, 20, 20, 0)]), truth([])], NAMES)
    assert (scores["AP"], scores["AP50"], scores["APs"], scores["AR100"]) == (0.0, 0.0, 0.0, 0.0)
    assert scores["APl"] is None


@pytest.mark.parametrize("rows", [[], [(0, 0, 20, 20, 0.5, 0)]])
@pytest.mark.parametrize("samples", [0, 2])
def test_nothing_to_find(rows, samples):
    scores = coco_scores([found(i, rows) for i in range(samples)], [truth([])] * samples, NAMES)
    per_class = scores.pop("per_class")
    assert set(scores) == set(TWELVE)
    assert set(scores.values()) == {None} and list(per_class) == list(NAMES)


def test_order_of_the_list_decides_not_the_index():
    box = (0.0, 0.0, 50.0, 50.0)
    detections = [found(7, [(*box, 0.5, 0)]), found(3, [])]
    assert coco_scores(detections, [truth([(*box, 0)]), truth([])], NAMES)["AP"] == pytest.approx(1.0)
    assert coco_scores(detections, [truth([]), truth([(*box, 0)])], NAMES)["AP"] == 0.0


def test_classes_of_one_name_are_kept_apart():
    scores = coco_scores([found(0, [])], [truth([(0, 0, 9, 9, 1)])], ("cup", "cup"))
    assert [part["AP"] for part in scores["per_class"].values()] == [None, 0.0]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="differ in length: 1 and 2"):
        coco_scores([found(0, [])], [truth([]), truth([])], NAMES)
    with pytest.raises(ValueError, match="image 0 has label 3"):
        coco_scores([found(0, [(0, 0, 9, 9, 0.5, 3)])], [truth([])], NAMES)


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="RANKLESS_REAL_DATA names no folder")
def test_published_hundred_images_of_coco():
    folder = Path(os.environ["RANKLESS_REAL_DATA"]) / "map_coco100"
    data = json.loads((folder / "instances_val2014_100.json").read_text())
    results = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    expected = json.loads((folder / "expected_pycocotools.json").read_text())
    ids = sorted(category["id"] for category in data["categories"])
    images = sorted(image["id"] for image in data["images"])

    def columns(rows, keys):
        boxes = torch.tensor([row["bbox"] for row in rows], dtype=torch.float64).reshape(-1, 4)
        labels = torch.tensor([ids.index(row["category_id"]) for row in rows], dtype=torch.int64)
        more = [torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in keys]
        return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1), labels, *more

    truths, detections = [], []
    for index, image in enumerate(images):
        rows = [row for row in data["annotations"] if row["image_id"] == image]
        truths.append(Truth(*columns(rows, ("iscrowd", "area"))))
        boxes, labels, scores = columns([row for row in results if row["image_id"] == image], ("score",))
        detections.append(Detections(index, boxes, scores, labels))
    scores = coco_scores(detections, truths, [str(category) for category in ids])
    for key in TWELVE:
        assert scores[key] == pytest.approx(expected["bbox"][key], abs=1e-6), key
    for category, value in expected["AP50_per_category_id"].items():
        assert scores["per_class"][category]["AP50"] == pytest.approx(value, abs=1e-6), category


def ap_with_ignored(detections, truths, label: int, threshold: float) -> float | None:
    """AP of one class, written out: what overlaps an ignored truth enough is struck from the list."""
    hits, total = [], 0
    for d, t in zip(detections, truths, strict=True):
        boxes = t.boxes[(t.labels == label) & ~t.ignored].double()
        left_out = t.boxes[(t.labels == label) & t.ignored].double()
        total += len(boxes)
        free = [True] * len(boxes)
        mine = d.labels == label
        for box, score in sorted(
            zip(d.boxes[mine].double(), d.scores[mine], strict=True), key=lambda p: -p[1]
        ):
            overlaps = box_iou(box[None], boxes)[0].tolist()
            best = max((o, i) for i, o in enumerate([*overlaps, 0.0]) if i == len(boxes) or free[i])
            if best[1] < len(boxes) and best[0] >= threshold:
                free[best[1]] = False
                hits.append((float(score), True))
            elif not (box_iou(box[None], left_out) >= threshold).any():
                hits.append((float(score), False))
    if not total:
        return None
    hit = np.array([right for _, right in sorted(hits, key=lambda pair: -pair[0])], bool)
    recall, precision = hit.cumsum() / total, hit.cumsum() / np.arange(1, len(hit) + 1)
    # Compared as pycocotools does, without tolerance: 29 of 50 do not reach its level of 0.5800000000000001.
    return float(np.mean([max(precision[recall >= r], default=0.0) for r in np.linspace(0, 1, 101)]))


@pytest.mark.slow
@settings(settings.get_profile("files"))
@given(st.integers(0, 2**32 - 1))
def test_ignored_truths_count_neither_way(seed):
    plain_truths, detections = random_images(seed)  # no two scores alike: their order is another test's
    rng = np.random.default_rng(seed)
    truths = [t._replace(ignored=torch.from_numpy(rng.random(len(t.labels)) < 0.4)) for t in plain_truths]
    scores = coco_scores(detections, truths, NAMES)
    for label, name in enumerate(NAMES):
        expected = [ap_with_ignored(detections, truths, label, t) for t in np.arange(0.5, 0.96, 0.05)]
        got = scores["per_class"][name]
        if expected[0] is None:
            assert got["AP50"] is None
        else:
            assert got["AP50"] == pytest.approx(expected[0], abs=1e-9)
            assert got["AP"] == pytest.approx(np.mean(expected), abs=1e-9)
