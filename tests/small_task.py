"""A regression on random vectors, as small as a task can be; tests override what they are about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankless.structures import LossSum


class Regression:
    class_names: tuple[str, ...] = ()
    score_name = "score"
    images = 16

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def training_data(self) -> Any:
        return self

    evaluation_data = training_data

    def __len__(self) -> int:
        return self.images

    def item(self, index: int, epoch: int) -> Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(100 * epoch + index))

    def collate(self, items: Any) -> Tensor:
        return torch.stack(list(items))

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum((model(batch) - 1).square().sum(), torch.tensor(float(len(batch))))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return [float(value) for value in model(batch).flatten()]

    def score(self, predictions: Any) -> dict[str, Any]:
        return {"score": -float(sum(map(abs, predictions)))}
