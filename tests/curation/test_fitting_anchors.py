"""Anchors of data whose best anchors are known."""

import pytest

from rankless.curation.fitting_anchors import fitted_anchors
from rankless.errors import UserError
from rankless.recipe import load
from support.small_data import detection, write_image


@pytest.fixture
def root(tmp_path):
    """Boxes of three sizes alone, on images half as large as the input."""
    boxes = [[1, 1, 11, 21, 0], [5, 5, 45, 25, 1], [0, 0, 60, 70, 2]]
    made = detection(tmp_path / "d", {"train": [boxes] * 4, "val": [[]]})
    for number in range(4):
        write_image(made / f"images/train-00{number}.png", number, (104, 104))
    return str(made)


def test_three_sizes_give_three_anchors(root):
    found = fitted_anchors(root, model="yolov4-tiny", count=3, size=(208, 208))
    assert found.anchors == ((20, 40), (80, 40), (120, 140))
    assert found.average_iou == 1
    assert found.boxes == 12
    assert found.recipe_line == "model.anchors=[[20,40],[80,40],[120,140]]"
    assert load.default(["model.name=yolov4-tiny", found.recipe_line]).model.anchors == found.anchors
    # Darknet's yolov4-tiny.cfg; the IoU of each size with its best one, by hand:
    # 20 × 40 with 23 × 27: 540 / (800 + 621 - 540); 80 × 40 with 81 × 82: 3200 / 6642;
    # 120 × 140 with 135 × 169: 16800 / 22815.
    assert found.default.anchors == ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))
    assert found.default.average_iou == pytest.approx((540 / 881 + 3200 / 6642 + 16800 / 22815) / 3)
    default_size = fitted_anchors(root, model="yolov4-tiny", count=3)
    assert default_size.anchors == ((40, 80), (160, 80), (240, 280))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "yolov4-tiny-anchor-free"}, "--model yolov4-tiny-anchor-free: this model has no anchors"),
        ({"model": "yolov9"}, ".model.name. is 'yolov9': no such model"),
        ({"count": 4}, "only 3 distinct sizes for 4 anchors"),
        ({"split": "val"}, "the split 'val' has no boxes"),
    ],
)
def test_mistakes(root, options, sentence):
    with pytest.raises(UserError, match=sentence):
        fitted_anchors(root, **options)
