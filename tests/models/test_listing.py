"""The list of models."""

from __future__ import annotations

import pytest

from rankless.models.listing import listed
from rankless.models.zoo import MODELS


@pytest.mark.slow
def test_every_model_is_listed_once_with_its_published_size() -> None:
    rows = {row.name: row for row in listed()}
    assert set(MODELS) <= set(rows)
    tiny = rows["yolov3-tiny"]
    assert (tiny.task, tiny.classes, tiny.size, tiny.parameters) == ("detect", 80, (416, 416), 8_852_366)
    assert round(tiny.gflops, 2) == 5.56
    two_stages = rows["torchvision/fasterrcnn_resnet50_fpn_v2"]
    assert (two_stages.task, two_stages.classes, two_stages.parameters) == ("detect", 90, 43_712_278)
    assert all(row.parameters > 0 and row.gflops > 0 and row.source for row in rows.values())
