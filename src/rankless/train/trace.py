"""Digests of every tensor after every step: what shows where two runs part."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from rankless.train.state import TrainingState
from rankless.types import Scores


class Trace:
    """An observer that writes one line a step: ``{"step": …, "tensors": {name: digest}}``.

    Args:
        path: the file; overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def __call__(self, step: int, state: TrainingState, scores: Scores | None) -> None:
        tensors = {name: _digest(value) for name, value in state.tensors().items()}
        entry = {"step": step, "tensors": tensors, "scores": scores}
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(plain.numpy().tobytes(), digest_size=12).hexdigest()
