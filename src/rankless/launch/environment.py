"""What a run computes with: recorded in its run directory at every start."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rankless.files import write_atomically


def record_start(path: Path, ranks: int, device: torch.device) -> None:
    """Write down what this start computes with.

    Args:
        path: the run's ``environment.json``.
        ranks: how many are started.
        device: the kind of device they compute on.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(path, json.dumps(_environment(ranks, device), indent=1) + "\n")


def _environment(ranks: int, device: torch.device) -> dict[str, Any]:
    """What the numbers were computed with; nothing that decides them is only here."""
    numbers = ("rankless", "torch", "torchvision", "numpy", "faster-coco-eval", "scikit-learn")
    names = (*numbers, "pillow", "simplejpeg")  # the decoders
    return {
        "versions": {name: metadata.version(name) for name in names},
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "world_size": ranks,
        "command": sys.argv,
    }
