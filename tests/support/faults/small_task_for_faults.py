"""A task that is small enough to be killed often: stripes in two directions, told apart by a tiny network.

Environment variables let it misbehave:

FAULT_SLEEP     seconds a micro-batch takes longer
FAULT_HANG      a file; without it rank 1 makes it in its ninth pass, which never ends then, as where a driver
                does not answer
FAULT_ABORT     the pass of a process in which it aborts
FAULT_IMAGE   an image that cannot be read
FAULT_BUG       where its own code fails, by image, or by pass or evaluation of a process: ``item 7``,
                ``loss 9``, ``score 2``
FAULT_PREDICT   seconds a batch of an evaluation takes longer
FAULT_SCORED    what rank 1 does in every prediction: ``memory`` asks for a petabyte, ``unpool`` takes an
                operation without a deterministic kernel
FAULT_MEMORY    bytes that every pass of a process asks for, from the fifteenth one on
FAULT_RANK      the only rank that FAULT_NAN, FAULT_UNUSED and FAULT_FLIP are for
FAULT_FLIP      what loses a bit, and the pass of a process in which it does, in the first start of the ranks:
                ``image 3``, ``gradient 3``, ``weight 3``; in that and all later ones with ``on`` behind it
FAULT_NAN       the pass of a process whose loss is finite and whose gradients are not
FAULT_UNUSED    the pass of a process that leaves a layer out
FAULT_SAVE      seconds a checkpoint takes longer, for the model and for its average each
FAULT_GATE      a folder: each prediction leaves a file there and waits for one that is called ``open``
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Scores

IMAGES = 40
SIDE = 12


@dataclass
class Stripes:
    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Stripes:
        return Stripes(self.images.to(device), self.labels.to(device))


class Images:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def item(self, index: int, epoch: int) -> tuple[Tensor, int]:
        if index == int(os.environ.get("FAULT_IMAGE", "-1")):
            raise UserError(f"stripes {index}: cannot be read; take the image out")
        if os.environ.get("FAULT_BUG") == f"item {index}":
            raise KeyError(f"image {index}")
        rng = torch.Generator().manual_seed(1000 * epoch + index)
        image = torch.randn(1, SIDE, SIDE, generator=rng)
        label = index % 2
        image += torch.arange(SIDE).remainder(2).view((1, SIDE) if label else (SIDE, 1))
        return image, label


def slow(flush: Callable[[int], None], seconds: float) -> Callable[[int], None]:
    """``os.fsync`` of a disk that takes so long for a model."""

    def slowly(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name in ("model.safetensors", "ema.safetensors"):
            time.sleep(seconds)
        flush(file)

    return slowly


if seconds := float(os.environ.get("FAULT_SAVE", "0")):
    os.fsync = slow(os.fsync, seconds)


def own_rank() -> str:
    """The number of the rank that calls this, a process or a thread."""
    name = threading.current_thread().name
    return os.environ.get("RANK") or (name.removeprefix("rank ") if name.startswith("rank ") else "0")


def flipped(values: Tensor) -> Tensor:
    changed = values.detach().clone()
    changed.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 18)
    return changed


def divided(batch: Any, by: int) -> LossSum:
    return LossSum(batch.images.sum(), torch.tensor(len(batch.labels) / by))


class Small:
    class_names = ("across", "along")
    score_name = "right"

    def __init__(self, recipe: Recipe) -> None:
        self.passes = self.evaluations = 0
        self.hook: Any = None

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.BatchNorm2d(6),
            nn.LeakyReLU(),
            nn.Dropout2d(0.1),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        )

    def training_data(self) -> Images:
        return Images(IMAGES)

    def evaluation_data(self) -> Images:
        return Images(10)

    def collate(self, items: Sequence[tuple[Tensor, int]]) -> Stripes:
        images, labels = zip(*items, strict=True)
        return Stripes(torch.stack(images), torch.tensor(labels))

    def loss(self, model: Any, batch: Any) -> LossSum:
        self.passes += 1
        if self.passes == int(os.environ.get("FAULT_ABORT", "-1")):
            os.abort()
        if os.environ.get("FAULT_BUG") == f"loss {self.passes}":
            return divided(batch, 0)
        time.sleep(float(os.environ.get("FAULT_SLEEP", "0")))
        if self.passes == 9 and own_rank() == "1" and (hung := os.environ.get("FAULT_HANG")):
            while not Path(hung).exists() or Path(hung).read_text() == str(os.getpid()):
                Path(hung).write_text(str(os.getpid()))
                time.sleep(60)
        if self.passes >= 15 and (size := int(os.environ.get("FAULT_MEMORY", "0"))):
            torch.zeros(size, dtype=torch.uint8)
        meant = os.environ.get("FAULT_RANK") in (None, own_rank())
        if meant and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            self.flip(model[-1].weight, batch, *os.environ.get("FAULT_FLIP", "none 0").split())
        if meant and self.passes == int(os.environ.get("FAULT_UNUSED", "-1")):
            loss = model[:-1](batch.images).sum()
            return LossSum(loss, torch.tensor(1.0), {"entropy": loss.detach()})
        loss = F.cross_entropy(model(batch.images), batch.labels, reduction="sum")
        if meant and self.passes == int(os.environ.get("FAULT_NAN", "-1")):
            loss = loss + (loss * 0).sqrt()  # the slope of a root at 0
        return LossSum(loss, torch.tensor(float(len(batch.labels))), {"entropy": loss.detach()})

    def flip(self, weight: Tensor, batch: Stripes, what: str, at: str, on: str = "") -> None:
        if self.hook:
            self.hook.remove()
            self.hook = None
        if self.passes != int(at) and not (on and self.passes > int(at)):
            return
        if what == "image":
            batch.images = flipped(batch.images)
        elif what == "gradient":
            self.hook = weight.register_hook(flipped)
        elif what == "weight":
            weight.data.copy_(flipped(weight))

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        if gate := os.environ.get("FAULT_GATE"):
            (Path(gate) / f"{own_rank()}-{time.monotonic_ns()}").touch()
            while not (Path(gate) / "open").exists():
                time.sleep(0.01)
        time.sleep(float(os.environ.get("FAULT_PREDICT", "0")))
        scored = os.environ.get("FAULT_SCORED") if own_rank() == "1" else None
        if scored == "memory":
            torch.zeros(10**15, dtype=torch.uint8)
        elif scored == "unpool":
            F.max_unpool2d(*F.max_pool2d(batch.images, 2, return_indices=True), 2)
        return [int(row.argmax()) for row in model(batch.images)]

    def score(self, predictions: Sequence[Any]) -> Scores:
        self.evaluations += 1
        if os.environ.get("FAULT_BUG") == f"score {self.evaluations}":
            raise LookupError("the labels are away")
        right = sum(found == index % 2 for index, found in enumerate(predictions))
        return {"right": right / len(predictions)}
