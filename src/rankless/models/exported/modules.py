"""Modules that run exported files, for prediction and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.exported.sessions import Session


class ExportedModel(nn.Module):
    """A module that runs an exported file."""

    def __init__(self, session: Session, source: str, classes: int, *, nms: bool = False) -> None:
        super().__init__()
        self.session, self.source, self.classes, self.nms = session, source, classes, nms

    def outputs(self, images: Tensor) -> list[list[Tensor]]:
        """Run the file on images (B, 3, H, W) batch by batch, and return the outputs of each batch."""
        most, _, height, width = self.session.shape
        given = tuple(images.shape[-2:])
        wanted = (height or given[0], width or given[1])
        if given != wanted:
            raise UserError(
                f"{self.source}: expected images of {wanted[1]} × {wanted[0]} pixels, got {given[1]} × "
                f"{given[0]}; remove keys that change the size (model.image_size, evaluate.rectangular, "
                "evaluate.tta=full), or export the model again with --any-size"
            )
        array = images.detach().float().cpu().contiguous().numpy()
        return [
            [torch.from_numpy(one).to(images.device) for one in part]
            for part in map(self._part, self._parts(array, most or len(array)))
        ]

    def _part(self, images: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        try:
            return self.session(images)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{self.source}: cannot be run ({reason}); export the model again") from error

    def _parts(self, images: np.ndarray[Any, Any], most: int) -> list[np.ndarray[Any, Any]]:
        """Split images into batches of size ``most``, and fill the last one with copies of the last image."""
        missing = -len(images) % most
        whole = np.concatenate([images, np.repeat(images[-1:], missing, 0)]) if missing else images
        return [whole[first : first + most] for first in range(0, len(whole), most)]


class ExportedDetector(ExportedModel):
    """A :class:`~rankless.models.detectors.protocol.Detector` without a loss."""

    head_names: tuple[str, ...] = ()

    def head_layout(self, name: str) -> tuple[int, int]:
        raise NotImplementedError(name)

    def backbone(self) -> Sequence[nn.Module]:
        return []

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute boxes (B, P, 4), xyxy in input pixels, and scores (B, P, C) of images (B, 3, H, W)."""
        parts, count = self.outputs(images), len(images)
        if not self.nms:
            boxes, scores = (torch.cat(one)[:count] for one in zip(*parts, strict=True))
            return boxes, scores
        each = self.session.shape[0] or count
        shifts = torch.zeros(len(parts), 7, device=images.device)
        shifts[:, 0] = torch.arange(len(parts)) * each
        rows = torch.cat([part[0] + shift for part, shift in zip(parts, shifts, strict=True)])
        return self._padded(rows[rows[:, 0] < count], count)

    def decode(self, raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``raw`` unchanged, because the file has already decoded it."""
        return raw

    def _padded(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Convert detections (N, 7) to boxes and scores per image, padded with scores of 0."""
        numbers = rows[:, 0].long()
        found = numbers.bincount(minlength=count)
        most = max(int(found.max()), 1)
        place = torch.arange(len(rows), device=rows.device) - (found.cumsum(0) - found)[numbers]
        boxes = rows.new_zeros(count, most, 4)
        scores = rows.new_zeros(count, most, self.classes)
        boxes[numbers, place] = rows[:, 1:5]
        scores[numbers, place, rows[:, 6].long()] = rows[:, 5]
        return boxes, scores


class ExportedClassifier(ExportedModel):
    """An exported classifier, which normalizes images itself."""

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logarithms of the probabilities (B, C) of images (B, 3, H, W) in 0..1."""
        probabilities = torch.cat([part[0] for part in self.outputs(images)])[: len(images)]
        return probabilities.clamp(min=torch.finfo(torch.float32).tiny).log()
