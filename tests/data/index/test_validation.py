"""The first of equal boxes is found as by comparing each with all before it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.index import validation as page
from rankless.data.index.raw import Raw
from rankless.data.index.validation import validate

VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e-300, 7.0])
ROWS = st.tuples(st.integers(0, 2), st.integers(0, 1), VALUES, VALUES, VALUES, VALUES)


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=40))
def test_first_of_equals(rows: list) -> None:
    among = np.array([chosen for _, chosen in rows], bool)
    seen: list[tuple] = []
    expected = []
    for row, chosen in rows:
        expected.append(chosen and row not in seen)
        seen += [row] if chosen else []
    boxes = np.array([row[2:] for row, _ in rows], np.float64).reshape(-1, 4)
    raw = whole(boxes, [row[0] for row, _ in rows], [row[1] for row, _ in rows])
    assert page._first_of_equals(raw, boxes, among).tolist() == expected


def test_repeated_boxes_are_dropped() -> None:
    boxes = np.array([[1.0, 1, 5, 5], [1, 1, 5, 5], [1, 1, 5, 6], [1, 1, 5, 5]])
    made = validate(whole(boxes, [0, 0, 0, 1], [0, 0, 0, 0]), "voc")
    assert made.findings.counts["repeated"] == 1
    assert made.boxes.tolist() == [[1, 1, 5, 5], [1, 1, 5, 6], [1, 1, 5, 5]]


def whole(boxes: np.ndarray, image: list[int], labels: list[int]) -> Raw:
    count = len(boxes)
    return Raw(
        paths=["a", "b", "c"],
        sizes=np.full((3, 2), 10, np.int32),
        stated=np.zeros((3, 2), np.int32),
        annotated_in=["a.txt", "b.txt", "c.txt"],
        image=np.array(image, np.int64),
        boxes=boxes,
        labels=np.array(labels, np.int64),
        flags=np.zeros(count, np.uint8),
        areas=np.full(count, np.nan, np.float32),
        lines=np.arange(count),
        names=["x", "y"],
    )
