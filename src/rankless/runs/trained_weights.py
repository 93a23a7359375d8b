"""Weights as they were trained: for what an exported file, which predicts as well, cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rankless.errors import UserError
from rankless.printing import warn
from rankless.runs.directory import weights_of

_EXPORTS = {
    ".onnx": "an ONNX file",
    ".xml": "an OpenVINO file",
    ".torchscript": "a TorchScript file",
    ".pt2": "a file of torch.export",
}


def trained_weights_of(target: Path, warn: Callable[[str], None] = warn) -> Path:
    """Return what :func:`rankless.runs.directory.weights_of` does, if it is no exported file.

    Raises:
        UserError: there are no weights, or it is an exported file.
    """
    path = weights_of(target, warn)
    if what := _EXPORTS.get(path.suffix.lower()):
        raise UserError(
            f"{path}: is {what}, which computes what a model predicts but holds no weights to train on or to "
            "compare; expected a run or a weights file (.safetensors): give the one it was exported from"
        )
    return path
