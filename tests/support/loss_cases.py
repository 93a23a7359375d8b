"""Truths for the tests of losses, drawn and hard ones, and what their literal references share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rankless.structures import DetectionBatch

Truth = tuple[list[float], int]
"""A box, xyxy in pixels, and its class."""
CASES = ("random", "hard", "crowded", "one-empty", "empty", "ignored")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def overlap(a: list[float], b: list[float]) -> float:
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union > 0 else 0.0


def regions_of(batch: DetectionBatch, image: int) -> list[list[float]]:
    return [] if batch.ignored is None else batch.ignored[image].tolist()


def inside(a: list[float], b: list[float]) -> float:
    """The part of ``a`` that lies in ``b``."""
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, w) * max(0.0, h) / ((a[2] - a[0]) * (a[3] - a[1]))


@dataclass
class Truths:
    """Batches for an input of ``height`` × ``width``.

    Attributes:
        largest: width and height of the largest drawn box.
        many: truths of a crowded image.
        hard: truths where something goes wrong easily.
    """

    height: int
    width: int
    classes: int
    largest: tuple[int, int]
    many: int
    hard: Sequence[Truth]

    def drawn(self, rng: random.Random, count: int) -> list[Truth]:
        """Some boxes of more than 2 pixels."""
        truths = []
        for _ in range(count):
            x1, y1 = rng.uniform(0, self.width - 4), rng.uniform(0, self.height - 4)
            x2 = rng.uniform(x1 + 2, min(x1 + self.largest[0], self.width))
            y2 = rng.uniform(y1 + 2, min(y1 + self.largest[1], self.height))
            # float32 is what batches carry; the reference then sees the very same numbers
            truths.append((torch.tensor([x1, y1, x2, y2]).double().tolist(), rng.randrange(self.classes)))
        return truths

    def batch(self, lists: Sequence[Sequence[Truth]], padding: int = 0) -> DetectionBatch:
        longest = max(len(truths) for truths in lists) + padding
        boxes = torch.zeros(len(lists), longest, 4, dtype=torch.float64)
        labels = torch.zeros(len(lists), longest, dtype=torch.int64)
        valid = torch.zeros(len(lists), longest, dtype=torch.bool)
        for b, truths in enumerate(lists):
            for t, (box, label) in enumerate(truths):
                boxes[b, t], labels[b, t], valid[b, t] = torch.tensor(box), label, True
        images = torch.zeros(len(lists), 3, self.height, self.width, dtype=torch.uint8)
        return DetectionBatch(images, boxes, labels, valid, list(range(len(lists))), [])

    def case(self, name: str) -> DetectionBatch:
        rng = random.Random(name)
        lists = {
            "random": [self.drawn(rng, 4), self.drawn(rng, 2)],
            "hard": [self.hard, self.drawn(rng, 3)],
            "crowded": [self.drawn(rng, self.many), []],
            "one-empty": [[], self.drawn(rng, 3)],
            "empty": [[], []],
            "ignored": [self.hard, self.drawn(rng, 2)],
        }
        batch = self.batch(lists[name])
        if name == "ignored":
            edges = (0.0, 0.0, self.width / 2, self.height - 3.0), (5.0, 3.0, self.width - 9.0, self.height)
            batch.ignored = torch.tensor([[edges[0], (0.0,) * 4], edges], dtype=torch.float64)
        return batch


def assert_gradients(
    raw: list[Tensor], total: Callable[[list[Tensor]], float], steep: int, more: int
) -> None:
    """Compare gradients with finite differences, where they are largest and elsewhere."""
    rng, step = random.Random(1), 1e-5
    values = [one.detach().clone() for one in raw]
    for one, value in zip(raw, values, strict=True):
        assert one.grad is not None
        gradient, flat = one.grad.flatten(), value.view(-1)
        largest = gradient.abs().topk(steep).indices.tolist()
        for index in {*largest, *rng.sample(range(len(flat)), more)}:
            middle = flat[index].item()
            sides = []
            for side in (step, -step):
                flat[index] = middle + side
                sides.append(total(values))
            flat[index] = middle
            difference = (sides[0] - sides[1]) / (2 * step)
            assert gradient[index].item() == pytest.approx(difference, rel=1e-5, abs=1e-5)
