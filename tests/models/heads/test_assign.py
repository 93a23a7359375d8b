"""Who answers for a truth: cases worked out by hand."""

from __future__ import annotations

import torch

from rankless.models.detectors.darknet import MODELS
from rankless.models.heads.truths import Truths
from rankless.models.heads.yolo.assign import assign, class_targets, slot_values
from rankless.models.heads.yolo.codec import YoloHead

COARSE, FINE = MODELS["yolov4-tiny"].network().heads()
CELLS = {32: (13, 13), 16: (26, 26)}


def truths_of(*boxes, labels=None):
    labels = labels or [0] * len(boxes)
    return Truths.of(
        torch.tensor([boxes], dtype=torch.float32).view(1, -1, 4),
        torch.tensor([labels], dtype=torch.int64),
        torch.ones(1, len(boxes), dtype=torch.bool),
        torch.float32,
    )


def around(cx, cy, w, h):
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def taken(head, truths, anchor_iou=None):
    """(image, anchor, row, column) of the taken slots."""
    return assign(truths, head, CELLS[head.stride], anchor_iou).positive.nonzero().tolist()


def test_the_anchor_of_like_shape_answers_in_the_cell_of_the_center():
    truths = truths_of(around(200, 100, 130, 170))  # anchor 4, the second of the coarse head
    assert taken(COARSE, truths) == [[0, 1, 3, 6]]
    assert taken(FINE, truths) == []


def test_yolov4_tinys_shared_anchor_answers_in_both_heads_and_its_smallest_in_none():
    shared, tiny = truths_of(around(200, 100, 80, 80)), truths_of(around(200, 100, 9, 12))
    assert taken(COARSE, shared) == [[0, 0, 3, 6]]
    assert taken(FINE, shared) == [[0, 2, 6, 12]]
    assert taken(COARSE, tiny) == taken(FINE, tiny) == []
    # With a threshold the next anchor takes what the best one would have: 9·12 of 23·27 is an IoU of 0.17.
    assert taken(FINE, tiny, 0.15) == [[0, 0, 6, 12]]
    assert taken(FINE, tiny, 0.2) == []


def test_yolov3_tiny_owns_every_anchor_once():
    sizes = [(10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319)]
    for number, (w, h) in enumerate(sizes):
        truths = truths_of(around(208, 208, w, h))
        owners = [
            (head.stride, a)
            for head in MODELS["yolov3-tiny"].network().heads()
            for _, a, _, _ in taken(head, truths)
        ]
        assert owners == [(32, number - 3) if number > 2 else (16, number)]


def test_of_equal_anchors_the_first_is_best():
    head = YoloHead(((8.0, 8.0), (16.0, 16.0), (16.0, 16.0)), mask=(0, 1, 2), stride=32)
    assert taken(head, truths_of(around(10, 10, 16, 16))) == [[0, 1, 0, 0]]


def test_a_center_on_the_far_border_stays_in_the_grid():
    truths = truths_of(around(416, 416, 37, 58), around(416, 0, 37, 58))
    assert taken(FINE, truths) == [[0, 1, 0, 25], [0, 1, 25, 25]]


def test_the_last_of_truths_in_one_slot_counts_and_classes_add_up():
    same, other = around(200, 100, 37, 58), around(24, 24, 37, 58)
    truths = truths_of(same, other, same, labels=[4, 1, 2])
    matches = assign(truths, FINE, CELLS[16])
    assert matches.hit[0, :, 1].tolist() == [True, True, True]
    assert matches.last[0, :, 1].tolist() == [False, True, True]
    assert not matches.hit[0, :, 0].any() and not matches.hit[0, :, 2].any()
    wanted = class_targets(truths, matches, 5)[0, :, 1]  # (T, C)
    assert [row.nonzero().flatten().tolist() for row in wanted] == [[2, 4], [1], [2, 4]]


def test_a_slots_value_is_the_highest_of_its_truths():
    same, other = around(200, 100, 37, 58), around(24, 24, 37, 58)
    matches = assign(truths_of(same, other, same), FINE, CELLS[16])
    values = torch.tensor([[[9.0, 0.7, 9.0], [9.0, 0.2, 9.0], [9.0, 0.5, 9.0]]])  # of misses: 9
    found = slot_values(values, matches)
    assert found.shape == (1, 3, 26, 26)
    assert found.nonzero().tolist() == [[0, 1, 1, 1], [0, 1, 6, 12]]
    assert found[0, 1, 1, 1] == values[0, 1, 1] and found[0, 1, 6, 12] == values[0, 0, 1]
    assert slot_values(values[:, :0], assign(truths_of(), FINE, CELLS[16])).count_nonzero() == 0


def test_images_do_not_mix():
    box = around(200, 100, 37, 58)
    truths = Truths.of(
        torch.tensor([[box, box], [box, box]]),
        torch.tensor([[1, 3], [2, 0]]),
        torch.tensor([[True, False], [True, True]]),
        torch.float32,
    )
    matches = assign(truths, FINE, CELLS[16])
    assert matches.positive.nonzero().tolist() == [[0, 1, 6, 12], [1, 1, 6, 12]]
    assert matches.last[:, :, 1].tolist() == [[True, False], [False, True]]
    wanted = class_targets(truths, matches, 4)[:, :, 1]
    assert wanted[0, 0].tolist() == [False, True, False, False]
    assert wanted[1, 1].tolist() == [True, False, True, False]


def test_padding_takes_no_slot():
    # Zeros look like the smallest box in the first cell, which YOLOv3-tiny's finer head would take.
    truths = Truths.of(
        torch.zeros(1, 3, 4),
        torch.zeros(1, 3, dtype=torch.int64),
        torch.zeros(1, 3, dtype=torch.bool),
        torch.float32,
    )
    for head in MODELS["yolov3-tiny"].network().heads():
        matches = assign(truths, head, CELLS[head.stride], 0.0)
        assert not matches.hit.any() and not matches.positive.any()
