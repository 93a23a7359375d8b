"""The first of equal boxes is found as by comparing each with all before it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.index import validation as page
from rankless.data.index.raw import Raw, RawBuilder
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
    made = RawBuilder()
    for name in "abc":
        made.add_image(name, f"{name}.txt", size=(10, 10))
    for number, box, label in zip(image, boxes.tolist(), labels, strict=True):
        made.add_box(number, box, label, 1)
    return made.raw(names=["x", "y"])
