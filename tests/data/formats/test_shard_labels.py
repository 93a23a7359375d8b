"""Labels in shards: classes, JSON and Darknet's lines, and what is not understood."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.formats.webdataset import LabelError, class_of, rows_of


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
