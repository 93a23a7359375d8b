"""One budget, three heads: the recipe ``blood-cells`` with each small detector, trained from scratch.

    python benchmarks/same_budget.py path/to/BCCD [--epochs 40] [--devices 2]

Each is trained on the training pictures and scored on the test pictures, which no choice was made by.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

from table import table

import rankless

# What each model needs of its own; all else is the recipe's.
HEADS = {
    "yolov3-tiny": ["model.name=yolov3-tiny", "loss.box=auto", "loss.anchor_iou=auto"],
    "yolov4-tiny": ["model.name=yolov4-tiny"],
    "yolov4-tiny-free": ["model.name=yolov4-tiny-free", "loss.box=auto", "loss.anchor_iou=auto"],
}
