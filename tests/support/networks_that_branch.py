"""Networks whose tensors and weights are used in several places; their gradients are added in some order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import rankless

CHANNELS, SIDE = 6, 5


def convolution(kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2, bias=False)


class Branches(nn.Module):
    """RepVGG's block (Ding et al. 2021): three branches with a norm each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = convolution(1), convolution()
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        branches = (x, self.one(x), self.three(x))
        return sum(norm(y) for norm, y in zip(self.norms, branches, strict=True)).relu()


class Tied(nn.Module):
    """A layer before and after the last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = convolution(), nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.norm(self.layer(x)).relu())
        return out


class Squeezed(nn.Module):
    """A squeeze-and-excitation block (Hu et al. 2018) in a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = convolution(), nn.BatchNorm2d(CHANNELS)
        self.squeeze, self.drop = convolution(1), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        y = y * self.squeeze(y.mean((2, 3), keepdim=True)).sigmoid()
        return (x + self.drop(y) + y.square()).tanh()


class SharedHead(nn.Module):
    """One head, with its norm, on three levels, one of which not every micro-batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.norm, self.last = convolution(), nn.BatchNorm2d(CHANNELS), convolution(1)

    def forward(self, x: Tensor) -> Tensor:
        levels = (x, nn.functional.avg_pool2d(x, 2), x * 2 + 1)
        small, middle, large = (
            self.norm(self.head(level)).tanh().mean((2, 3), keepdim=True) for level in levels
        )
        out: Tensor = self.last(small) + middle * x
        return out + large if x.detach().mean() > 0 else out


class Sums(nn.Module):
    """Residual sums of five branches, some with norms; all are added at the end, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolution(kernel) for kernel in (1, 3, 1, 3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(2))
        self.norms[1].track_running_stats = False

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for _ in range(2):
            a, b, c, d = (layer(x) for layer in self.layers)
            x = x + self.norms[0](a) + b.sigmoid() + self.norms[1](c) * d + d.tanh()
            seen.append(x)
        return torch.stack([y.tanh() for y in seen]).sum(0)


NETWORKS = (Branches, Squeezed, SharedHead, Sums, Tied)  # the last one has a layer behind all norms


def network(*blocks: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *(block() for block in blocks)).train()


def images(step: int, micro_batch: int, count: int = 2) -> Tensor:
    rng = rankless.generator(7, "images", step, micro_batch)
    return torch.from_numpy(rng.normal(size=(count, 3, SIDE, SIDE))).float()


class Data:
    def __len__(self) -> int:
        return 24

    def item(self, index: int, epoch: int) -> Tensor:
        return images(epoch, index, 1)[0]


class Task:
    class_names, score_name = (), "score"
    blocks: tuple[type[nn.Module], ...] = NETWORKS

    def __init__(self, recipe: rankless.Recipe) -> None:
        pass

    def model(self) -> nn.Module:
        return network(*self.blocks)

    def training_data(self) -> Data:
        return Data()

    evaluation_data = training_data

    def collate(self, items: Any) -> Tensor:
        return torch.stack(items)

    def loss(self, model: nn.Module, batch: Tensor) -> rankless.LossSum:
        return rankless.LossSum((model(batch).float() - 0.3).square().sum(), len(batch))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return model(batch).mean((1, 2, 3)).float().tolist()

    def score(self, predictions: list[float]) -> dict[str, float]:
        return {"score": -sum(map(abs, predictions))}
