"""What the report shows beyond the scores, against pycocotools, scikit-learn, supervision and VOC's rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix as by_sklearn
from sklearn.metrics import precision_recall_curve

from rankless.metrics import box_matching
from rankless.metrics.box_matching import IGNORED, RIGHT, confusion, image_boxes, match
from rankless.metrics.coco import Truth
from rankless.metrics.curves import RECALLS, threshold_curve
from rankless.metrics.details import SIDES, classification_details, confusion_entry, detection_details
from rankless.structures import Detections
from support.reference_for_coco import CLASSES, by_pycocotools, random_images

SEEDS = st.integers(0, 2**32 - 1)


def prepared(truths: list[Truth], found: list[Detections]) -> list[box_matching.ImageBoxes]:
    return [image_boxes(truth, one) for truth, one in zip(truths, found, strict=True)]


@settings(settings.get_profile("files"))
@given(SEEDS, st.booleans())
def test_precision_recall_curves_are_pycocotools(seed, crowds):
    truths, found = random_images(seed, crowds=crowds)
    details, matches = detection_details(prepared(truths, found), CLASSES)
    evaluation = by_pycocotools(truths, found, CLASSES)
    expected = evaluation.eval["precision"][0, :, :, 0, 2]  # (101, K)
    for label in range(CLASSES):
        if not details["truths"][label]:
            assert (expected[:, label] == -1).all()
            continue
        assert details["pr"][label] == pytest.approx(expected[:, label].tolist(), abs=1e-5)
    # Detection by detection, too: cocoapi marks what is matched and what is ignored.
    states = {}
    for cell in filter(None, evaluation.evalImgs):
        if cell["aRng"] == [0, 1e10]:
            for score, to, ignored in zip(
                cell["dtScores"], cell["dtMatches"][0], cell["dtIgnore"][0], strict=True
            ):
                states[round(score, 6)] = IGNORED if ignored else RIGHT if to else 0
    ours = dict(zip(matches.score.round(6).tolist(), matches.coco.tolist(), strict=True))
    assert ours == states


def voc_eval(truths: list[Truth], found: list[Detections], label: int) -> list[float]:
    """AP at 11 and at all points as in py-faster-rcnn's ``voc_eval``, without its pixel of margin."""
    recs, npos = [], 0
    for truth in truths:
        mine = truth.labels == label
        difficult = (truth.ignored if truth.ignored is not None else torch.zeros(len(mine)).bool())[mine]
        recs.append(
            {
                "bbox": truth.boxes[mine].double().numpy(),
                "difficult": difficult,
                "det": [False] * int(mine.sum()),
            }
        )
        npos += int((~difficult).sum())
    rows = [
        (score, image, box)
        for image, one in enumerate(found)
        for score, box, its in zip(one.scores.tolist(), one.boxes.double().numpy(), one.labels, strict=True)
        if its == label
    ]
    rows.sort(key=lambda row: -row[0])
    tp, fp = np.zeros(len(rows)), np.zeros(len(rows))
    for d, (_, image, bb) in enumerate(rows):
        rec, ovmax, jmax = recs[image], -np.inf, -1
        bbgt = rec["bbox"]
        if bbgt.size:
            inters = np.maximum(np.minimum(bbgt[:, 2:], bb[2:]) - np.maximum(bbgt[:, :2], bb[:2]), 0).prod(1)
            unions = (bb[2:] - bb[:2]).prod() + (bbgt[:, 2:] - bbgt[:, :2]).prod(1) - inters
            overlaps = inters / unions
            ovmax, jmax = overlaps.max(), int(overlaps.argmax())
        if ovmax >= 0.5:
            if not rec["difficult"][jmax]:
                if not rec["det"][jmax]:
                    tp[d], rec["det"][jmax] = 1.0, True
                else:
                    fp[d] = 1.0
        else:
            fp[d] = 1.0
    fp, tp = np.cumsum(fp), np.cumsum(tp)
    rec_, prec = tp / npos, tp / np.maximum(tp + fp, np.finfo(np.float64).eps)
    eleven = 0.0
    for t in np.arange(0.0, 1.1, 0.1):
        p = 0 if np.sum(rec_ >= t - 1e-12) == 0 else np.max(prec[rec_ >= t - 1e-12])
        eleven += p / 11.0
    mrec, mpre = np.concatenate(([0.0], rec_, [1.0])), np.concatenate(([0.0], prec, [0.0]))
    for i in range(mpre.size - 1, 0, -1):
        mpre[i - 1] = np.maximum(mpre[i - 1], mpre[i])
    i = np.where(mrec[1:] != mrec[:-1])[0]
    return [eleven, float(np.sum((mrec[i + 1] - mrec[i]) * mpre[i + 1]))]


@settings(settings.get_profile("files"))
@given(SEEDS)
def test_voc_average_precision_is_the_devkits(seed):
    truths, found = random_images(seed, crowds=False)
    rng = np.random.default_rng(seed)
    truths = [t._replace(ignored=torch.tensor(rng.random(len(t.labels)) < 0.2)) for t in truths]
    details, _ = detection_details(prepared(truths, found), CLASSES)
    for label in range(CLASSES):
        if details["truths"][label]:
            expected = voc_eval(truths, found, label)
            assert details["pascal"]["per_class"][label] == pytest.approx(expected, abs=1e-9)


@given(SEEDS)
def test_threshold_curve_is_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    scores, right = rng.random(count).round(2), rng.random(count) < 0.6  # some scores are equal
    right[0] = True
    missed = int(rng.integers(0, 9))
    curve = threshold_curve(scores, right, int(right.sum()) + missed)
    precision, recall, thresholds = precision_recall_curve(right, scores)
    recall = recall * right.sum() / (right.sum() + missed)  # scikit-learn knows nothing of what was not found
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    at = int(f1[:-1].argmax())
    assert curve.at_best[2] == pytest.approx(f1[at])
    best = int(np.flatnonzero(thresholds == curve.best)[0])
    assert curve.at_best == pytest.approx((precision[best], recall[best], f1[at]))
    for number, threshold in enumerate(np.linspace(0, 1, 101)):
        place = np.searchsorted(thresholds, threshold)
        if place < len(thresholds):
            assert (curve.precision[number], curve.recall[number]) == pytest.approx(
                (precision[place], recall[place])
            )
        else:
            assert np.isnan(curve.precision[number])


@settings(settings.get_profile("files"))
@given(SEEDS, st.sampled_from([0.0, 0.3, 0.7]))
def test_confusion_is_supervisions(seed, threshold):
    supervision = pytest.importorskip("supervision")
    truths, found = random_images(seed, crowds=False)
    expected = np.zeros((CLASSES + 1, CLASSES + 1), int)
    for truth, one in zip(truths, found, strict=True):
        expected += supervision.ConfusionMatrix.evaluate_detection_batch(
            np.column_stack([one.boxes, one.labels, one.scores]).astype(np.float64),
            np.column_stack([truth.boxes, truth.labels]).astype(np.float64),
            CLASSES, threshold, 0.5,
        )  # fmt: skip
    assert confusion(prepared(truths, found), threshold, CLASSES).tolist() == expected.tolist()


def test_confusion_is_scikit_learns_where_it_is_clear_who_is_who():
    rng = np.random.default_rng(3)
    truth, answers = rng.integers(0, CLASSES + 1, 80), rng.integers(0, CLASSES + 1, 80)  # CLASSES: background
    spots = torch.tensor(
        [[20.0 * x, 20.0 * y, 20.0 * x + 9, 20.0 * y + 9] for x in range(8) for y in range(10)]
    )
    there, seen = torch.tensor(truth) < CLASSES, torch.tensor(answers) < CLASSES
    image = image_boxes(
        Truth(spots[there], torch.tensor(truth)[there]),
        Detections(0, spots[seen], torch.full((int(seen.sum()),), 0.5), torch.tensor(answers)[seen]),
    )
    expected = by_sklearn(truth, answers, labels=range(CLASSES + 1))
    expected[CLASSES, CLASSES] = 0  # nothing, seen as nothing, is nothing to count
    assert confusion([image], 0.5, CLASSES).tolist() == expected.tolist()


def test_detections_of_crowds_and_difficult_objects_are_in_no_count():
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 50, 150, 150], [200, 200, 220, 220]])
    flags = {"crowd": torch.tensor([False, True, False]), "ignored": torch.tensor([False, False, True])}
    found = torch.tensor([[0.0, 0, 10, 10], [60, 60, 70, 70], [60, 60, 70, 75], [200, 200, 220, 220]])
    image = image_boxes(
        Truth(boxes, torch.zeros(3, dtype=torch.int64), **flags),
        Detections(0, found, torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.zeros(4, dtype=torch.int64)),
    )
    details, matches = detection_details([image], 1)
    assert matches.coco.tolist() == [RIGHT, IGNORED, IGNORED, IGNORED]
    assert details["truths"] == [1]
    assert details["confusion"] == [[1, 0], [0, 0]]
    assert details["thresholds"]["at_best"] == [1, 1, 1]


def test_sizes_count_every_object_once():
    truths, found = random_images(11, crowds=False)
    details, matches = detection_details(prepared(truths, found), CLASSES)
    sizes, best = details["sizes"], details["thresholds"]["best"]
    sides = np.concatenate([(t.boxes[:, 2:] - t.boxes[:, :2]).prod(1).sqrt().numpy() for t in truths])
    assert sizes["truths"] == np.histogram(sides, [*SIDES, np.inf])[0].tolist()
    assert sum(sizes["found"]) == round(details["thresholds"]["at_best"][1] * sum(sizes["truths"]))
    kept = (matches.coco == RIGHT) & (matches.score >= best)
    assert sum(sizes["found"]) == kept.sum() <= sum(sizes["found_at_any"])


def test_nothing_to_find_and_nothing_found():
    nothing = Detections(0, torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    empty = Truth(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    details, _ = detection_details([image_boxes(empty, nothing)], 2)
    assert details == {"images": 1, "iou": 0.5, "truths": [0, 0]}
    one = Truth(torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([1]))
    details, _ = detection_details([image_boxes(one, nothing)], 2)
    assert details["thresholds"]["at_best"] == [0, 0, 0]
    assert details["pascal"]["AP"] == 0
    assert details["confusion"] == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert len(match([]).score) == 0


def test_at_most_a_hundred_detections_of_a_class_count():
    count = 150
    boxes = torch.tensor([[float(n), 0, n + 5, 5] for n in range(count)])
    labels = torch.tensor([0] * 120 + [1] * 30)
    one = Detections(0, boxes, torch.linspace(1, 0, count), labels)
    image = image_boxes(Truth(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), one)
    assert np.bincount(image.found).tolist() == [100, 30]
    assert (np.diff(image.scores) < 0).all()


def test_many_classes_keep_their_most_frequent_confusions():
    matrix = np.zeros((151, 151), np.int64)
    matrix[3, 3], matrix[7, 9], matrix[9, 150], matrix[2, 1] = 900, 5, 8, 1
    assert confusion_entry(matrix) == {"confused": [[9, 150, 8], [7, 9, 5], [2, 1, 1]]}


def test_classification_details_are_scikit_learns():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 4, 400)
    logits = rng.normal(0, 1, (400, 5))
    logits[np.arange(400), truth] += 1.5
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    details = classification_details(probabilities, truth)
    assert details["pr"][4] is None  # never occurs
    for label in range(4):
        precision, recall, _ = precision_recall_curve(truth == label, probabilities[:, label])
        envelope = [precision[recall >= at - 1e-12].max() for at in RECALLS]
        assert details["pr"][label] == pytest.approx(envelope, abs=1e-5)
    right = probabilities.argmax(1) == truth
    kept = probabilities.max(1) >= details["thresholds"]["best"]
    assert details["thresholds"]["at_best"][:2] == pytest.approx(
        [right[kept].mean(), right[kept].sum() / 400]
    )
    bins = details["calibration"]
    assert sum(bins["count"]) == 400
    spread = [
        abs(a - c) * n
        for a, c, n in zip(bins["accuracy"], bins["confidence"], bins["count"], strict=True)
        if n
    ]
    assert bins["error"] == pytest.approx(sum(spread) / 400, abs=1e-4)
