"""What one training step costs the host of a GPU, counted on a pretended one.

The numbers are budgets, which a change may lower but not raise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from support.pretended_gpu import PretendedGpu
from support.thorough import THOROUGH

pytestmark = pytest.mark.processes

FOUR = "digits batch.images=12 batch.micro=3"  # four micro-batches
SMALL_DATA = "data.root=digits data.train_images=64 data.multi_scale=0"


class Budget(NamedTuple):
    """What training may cost at most: launches per micro-batch, host waits and pageable copies per step."""

    launches: int
    waits: int = 1
    pageable: int = 1


QUICK = {
    FOUR: Budget(1090),
    f"{FOUR} precision=fp16": Budget(1048),
    f"{FOUR} batch_norm=sync": Budget(1877),
    f"{FOUR} check.recompute=1": Budget(1678, 4, 4),
    "digits-classify": Budget(346),
    f"yolov4-tiny {SMALL_DATA} batch.images=32 batch.micro=16": Budget(1434, pageable=13),
}
# Without detected boxes, the losses of the last ones take short cuts, and training waits more often.
LONG = {
    f"{FOUR} optim.name=muon": Budget(1251),
    f"{FOUR} model.checkpointing=true": Budget(1374),
    f"yolov3-tiny {SMALL_DATA} batch.images=16 batch.micro=8": Budget(729, pageable=13),
    f"yolov3 {SMALL_DATA} batch.images=8 batch.micro=4": Budget(1930, pageable=19),
    f"yolov4 {SMALL_DATA} batch.images=8 batch.micro=4": Budget(3341, pageable=19),
    "blood-cells data.root=digits data.train_images=64 batch.images=8 batch.micro=4": Budget(1463),
    "digits-classify model.name=timm/vit_tiny_patch16_224": Budget(674),
    "digits-classify model.name=densenet121 batch.images=32 batch.micro=16": Budget(1783),
    "digits-classify model.name=resnet50 batch.images=32 batch.micro=16": Budget(824),
    "rtdetr data.root=digits data.train_images=64 batch.images=4 batch.micro=2": Budget(4627, 27, 15),
    "digits model.name=torchvision/fasterrcnn_resnet50_fpn_v2 batch.images=2 batch.micro=1": Budget(
        1508, 43, 23
    ),
    "digits model.name=torchvision/fcos_resnet50_fpn batch.images=2 batch.micro=1": Budget(2386, 37, 11),
    "digits model.name=torchvision/retinanet_resnet50_fpn_v2 batch.images=2 batch.micro=1": Budget(
        2094, 35, 13
    ),
    "digits model.name=torchvision/ssdlite320_mobilenet_v3_large batch.images=8 batch.micro=4": Budget(
        1582, 41, 17
    ),
}
BUDGETS = {**QUICK, **LONG} if THOROUGH else QUICK


@pytest.fixture(scope="module")
def costs(pretended_gpu: PretendedGpu, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The costs of all recipes, which one process counts."""
    folder: Path = tmp_path_factory.mktemp("costs")
    found = pretended_gpu.answers("step_costs.py", [words.split() for words in BUDGETS], folder)
    return dict(zip(BUDGETS, found, strict=True))


@pytest.fixture(params=BUDGETS)
def recipe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_step_waits_for_the_device_no_more_often(recipe: str, costs: dict[str, Any]):
    assert sum(costs[recipe]["waits"].values()) <= BUDGETS[recipe].waits, costs[recipe]["waits"]


def test_a_step_copies_little_from_pageable_memory(recipe: str, costs: dict[str, Any]):
    assert sum(costs[recipe]["pageable"].values()) <= BUDGETS[recipe].pageable, costs[recipe]["pageable"]


@pytest.mark.skipif(not torch.__version__.startswith("2.14"), reason="counted with PyTorch 2.14")
def test_a_micro_batch_launches_no_more_kernels(recipe: str, costs: dict[str, Any]):
    assert costs[recipe]["launches"] <= BUDGETS[recipe].launches


def test_images_come_from_page_locked_memory(recipe: str, costs: dict[str, Any]):
    assert not [place for place in costs[recipe]["pageable"] if place.startswith("structures.py")]


def test_no_kernel_is_compiled_at_run_time(recipe: str, costs: dict[str, Any]):
    assert costs[recipe]["compiled"] == {}
