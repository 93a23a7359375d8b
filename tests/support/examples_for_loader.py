"""Examples that the loader tests send to real processes; a module of its own, so that it pickles by name."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors

from rankless.data.datasets.annotated import DetectionImages
from rankless.data.images.image_file import UnreadableImage
from rankless.structures import Sample


class Made(DetectionImages):
    """Images that a function makes of their numbers."""

    class_names = ("x", "y")

    def __init__(self, make: Callable[[int], Sample], count: int = 20) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def source(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Sample:
        return self.make(index)


def noise(index: int) -> Sample:
    if index == 13:
        raise UnreadableImage("thirteen.jpg", "cut short")
    rng = torch.Generator().manual_seed(index)
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=rng)
    return Sample(image, torch.tensor([5.0, 5, 30, 30]).repeat(index % 4, 1), torch.zeros(index % 4).long())


class Strict:
    items = ("data", "and no method")

    def __len__(self) -> int:
        return 20

    def item(self, index: int, epoch: int) -> int:
        noise(index)
        return index


class WholeLines:
    def __len__(self) -> int:
        return 20

    def item(self, index: int, epoch: int) -> str:
        raise NotImplementedError("only whole lines are drawn")

    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[str]:
        return [f"{step}: {index} of {len(line)} in {epoch}" for epoch, index in line[step == 7 :]]


class Facts:
    def __len__(self) -> int:
        return 1

    def item(self, index: int, epoch: int) -> tuple[int, ...]:
        if index == 2:
            raise ZeroDivisionError("an error in the user's code")
        if index == 1:
            time.sleep(3600)
        ignored = all(signal.getsignal(s) == signal.SIG_IGN for s in (signal.SIGINT, signal.SIGTERM))
        return os.getpid(), torch.get_num_threads(), int(ignored), index


@dataclass
class Layouts:
    """What a batch may contain: views of one storage, memory of NumPy, a subclass, and a lock."""

    views: tuple[Tensor, Tensor]
    boxes: tv_tensors.BoundingBoxes
    arrays: dict[str, np.ndarray]
    drawn: list[Any]
    settings: list[Any]


class Rows:
    def __len__(self) -> int:
        return 9

    def item(self, index: int, epoch: int) -> np.ndarray:
        return np.arange(index, index + 7, dtype=np.float32)


def layouts(items: Sequence[np.ndarray]) -> Layouts:
    memory = np.empty(4 * 7 * len(items) + 4, np.uint8)[4:].view(np.float32)  # never at a multiple of 64
    rows = memory.reshape(len(items), 7)
    rows[:] = items
    whole = torch.from_numpy(rows)
    return Layouts(
        views=(whole[:, 1:], whole[:, 0]),
        boxes=tv_tensors.BoundingBoxes(whole[:, 1:5], format="XYXY", canvas_size=(8, 8)),  # type: ignore[call-overload]
        arrays={"rows": rows[:, 1:], "columns": np.asfortranarray(rows)},
        drawn=[random.random(), float(np.random.random()), float(torch.rand(()))],  # noqa: NPY002
        settings=[
            str(torch.tensor(0.5).dtype),
            torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
            torch.are_deterministic_algorithms_enabled(),
            float(torch.tensor([1e-310], dtype=torch.float64) * 1),
            np.geterr()["over"],
        ],
    )


class Threads:
    def __len__(self) -> int:
        return 1

    def item(self, index: int, epoch: int) -> int:
        return torch.get_num_threads()


class WholeThreads(Threads):
    def items(self, line: Sequence[tuple[int, int]], step: int) -> list[int]:
        return [torch.get_num_threads() for _ in line]


def with_threads(items: Sequence[int]) -> list[int]:
    return [*items, torch.get_num_threads()]
