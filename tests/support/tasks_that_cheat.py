"""Tasks whose numbers depend on the rank, as a user might write them by mistake; for ``rankless verify``."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch import nn

from rankless.structures import DetectionBatch, Detections, LossSum
from rankless.tasks.detect import Detect


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


class Honest(Detect):
    """Detection under another name."""


class LossByRank(Detect):
    """The loss divided on the rank, as if ranks were equal."""

    def loss(self, model: nn.Module, batch: DetectionBatch) -> LossSum:
        loss = super().loss(model, batch)
        return LossSum(loss.sum / (1 + rank()), loss.count, loss.parts)


class ScoreByRank(Detect):
    """A rank that predicts otherwise."""

    def predict(self, model: nn.Module, batch: DetectionBatch) -> list[Detections]:
        found = super().predict(model, batch)
        return [dataclasses.replace(one, index=one.index + rank()) for one in found]


class BufferByRank(Detect):
    """A buffer that each rank keeps for itself."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("images_seen", torch.zeros(()))
        return model

    def loss(self, model: Any, batch: DetectionBatch) -> LossSum:
        model.images_seen += len(batch.indices) + rank()
        return super().loss(model, batch)
