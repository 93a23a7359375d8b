"""Load exported files as trained models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from rankless.errors import UserError
from rankless.models.exported.metadata import read
from rankless.models.exported.sessions import SESSIONS
from rankless.models.weights_files.weights import Weights
from rankless.task_kinds import kind_of

_CODE = {".torchscript": "TorchScript", ".pt2": "torch.export"}


@dataclass(frozen=True)
class Exported(Weights):
    """An exported file that is used like a weights file. Its ``state`` is empty.

    Attributes:
        nms: confidence threshold of the built-in NMS; None without NMS.
        computes: the file's precision, ``fp32`` or ``fp16``.
    """

    path: Path = Path()
    nms: float | None = None
    computes: str = "fp32"

    def model(self) -> nn.Module:
        """Return a module that runs the file."""
        session, classes = SESSIONS[self.path.suffix](self.path), len(self.class_names)
        kind, source = kind_of(self.recipe.task), str(self.path)
        made: nn.Module = kind.run_export(session, source, classes, nms=self.nms is not None)
        return made


def is_exported(path: Path) -> bool:
    """Check whether a file is an export, and raise an error if its format contains code."""
    if path.suffix in _CODE:
        raise UserError(
            f"{path}: is a {_CODE[path.suffix]} program, and Rankless never runs code from files; use the "
            "weights file or run it was exported from, or an ONNX or OpenVINO export"
        )
    return path.suffix in SESSIONS


def load(path: Path) -> Exported:
    """Open an ``.onnx`` file, or the ``.xml`` file of an OpenVINO model."""
    session = SESSIONS[path.suffix](path)
    facts = read(session.texts, str(path))
    recipe = facts.recipe
    return Exported({}, recipe, facts.class_names, path=path, nms=facts.nms, computes=recipe.precision)
