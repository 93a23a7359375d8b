"""The commands' work on real data: blood cells in Pascal VOC, signs in class folders."""

import os
from pathlib import Path

import pytest

from rankless.curation.checking import check
from rankless.curation.converting import convert
from rankless.curation.splitting import split

REAL = os.environ.get("RANKLESS_REAL_DATA")
pytestmark = pytest.mark.skipif(REAL is None, reason="RANKLESS_REAL_DATA names no folder of real data")


@pytest.fixture(autouse=True)
def small():
    """The real formats alone."""


def test_blood_cells_convert_to_every_format_and_have_nothing_wrong(tmp_path):
    root = str(Path(REAL or "") / "det_bccd")
    found = check(root)
    assert found.ok
    assert {name: len(each) for name, each in found.data.splits.items()} == {
        "train": 205,
        "val": 87,
        "test": 72,
    }
    for to in ("coco", "darknet", "csv", "lines", "webdataset"):
        assert convert(root, to, tmp_path / to).differences == []
        assert convert(str(tmp_path / to), "voc", tmp_path / f"{to}-voc").differences == []


def test_signs_split_evenly(tmp_path):
    done = split(str(Path(REAL or "") / "cls_signs"), tmp_path / "out", val=0.2, stratify=True)
    counts = done.counts()
    for train, val in zip(counts["train"], counts["val"], strict=True):
        assert abs(val - 0.2 * (train + val)) < 1
    assert check(str(tmp_path / "out")).ok
