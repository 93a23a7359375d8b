"""Write PyTorch's formats: TorchScript and ``torch.export`` programs. Both contain code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankless.interop.export_plan import Plan, quiet

TEXTS = "metadata.json"
"""Name of the embedded metadata file; see :mod:`rankless.models.exported.metadata`."""


class TorchSession:
    """A session for a TorchScript or ``torch.export`` file.

    Loading the file runs its code, so it must have been written by this process.
    """

    def __init__(self, path: Path, plan: Plan, *, script: bool) -> None:
        self.texts: Mapping[str, str] = plan.facts.texts()
        sides = (None, None) if plan.any_size else plan.facts.size
        self.shape: tuple[int | None, ...] = (plan.batch, 3, *sides)
        with quiet():
            if script:
                self._module: Any = torch.jit.load(str(path))
            else:
                self._module = torch.export.load(path).module()

    def __call__(self, images: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Compute the outputs for images (B, 3, H, W) in 0..1."""
        with torch.no_grad():
            computed = self._module(torch.from_numpy(images))
        return [one.numpy() for one in (computed if isinstance(computed, tuple) else (computed,))]


def write_torchscript(plan: Plan, path: Path) -> None:
    """Write a model as a traced TorchScript module."""
    with quiet(), torch.no_grad():
        try:
            traced: Any = torch.jit.trace(plan.with_nms(), (plan.example(),), check_trace=False)
        except Exception as error:  # torch.jit raises errors of many types
            raise plan.unable(error) from error
        torch.jit.save(traced, str(path), _extra_files={TEXTS: json.dumps(plan.facts.texts())})


def write_pt2(plan: Plan, path: Path) -> None:
    """Write a model as a ``torch.export`` program (.pt2)."""
    program = plan.program(plan.with_nms())
    with path.open("wb") as file, quiet():
        torch.export.save(program, file, extra_files={TEXTS: json.dumps(plan.facts.texts())})
