"""The default device of this process."""

from __future__ import annotations

import os

import torch


def compute_device() -> torch.device:
    """Return the GPU if PyTorch finds one and ``RANKLESS_CPU`` is not set; otherwise, return the CPU."""
    is_hidden = bool(os.environ.get("RANKLESS_CPU"))
    return torch.device("cuda" if torch.cuda.is_available() and not is_hidden else "cpu")
