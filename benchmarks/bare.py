"""The yardstick: a training loop in plain PyTorch for one device.

It has the same model, loss, precision, memory layout, optimizer and averaged weights as Rankless, but none of
its machinery: the batch norms keep their own running statistics, and there is no journal. If the recipe's
micro-batch is the whole batch, a step is one forward and one backward pass; if it is smaller, autograd
accumulates.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from rankless.engine.schedule import StepSchedule
from rankless.recipe.schema import Recipe
from rankless.structures import DetectionBatch
from rankless.tasks.protocol import Task

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    task: Task,
    recipe: Recipe,
    device: torch.device,
    batches: Iterator[DetectionBatch],
    observe: Callable[[int, Any, None], None],
    *,
    compiled: bool = False,
) -> None:
    """Train until ``observe``, which is called after every step, raises."""
    torch.manual_seed(recipe.seed)
    model = task.model().to(device).to(memory_format=torch.channels_last).train()
    average = copy.deepcopy(model).eval().requires_grad_(False) if recipe.ema.decay else None
    if compiled:
        model.compile()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": recipe.optim.weight_decay}, {"params": others}],
        lr=recipe.optim.lr,
        momentum=recipe.optim.momentum,
        nesterov=recipe.optim.nesterov,
        foreach=True,
    )
    warmup = StepSchedule(recipe, len(task.training_data())).warmup
    for step in itertools.count(1):
        warm = min(1.0, step / max(warmup, 1))
        for group in optimizer.param_groups:
            group["lr"] = recipe.optim.lr * warm
        total = torch.zeros((), device=device)
        for _ in range(recipe.batch.micro_batches):
            batch = next(batches).to(device)
            with autocast(recipe, device):
                loss = task.loss(model, batch).sum / recipe.batch.images
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if average is not None:
            follow(average, model, recipe.ema.decay)
        float(total)  # what a loop shows its user
        observe(step, model, None)


def autocast(recipe: Recipe, device: torch.device) -> Any:
    """Return autocast for the recipe's precision."""
    return (
        nullcontext() if recipe.precision == "fp32" else torch.autocast(device.type, DTYPES[recipe.precision])
    )


@torch.no_grad()
def follow(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    """Update an exponential moving average of weights and running statistics."""
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(average.state_dict().values(), model.state_dict().values(), strict=True)
        if mine.is_floating_point()
    ]
    torch._foreach_lerp_([mine for mine, _ in pairs], [theirs for _, theirs in pairs], 1 - decay)


class Drawn(Dataset[Any]):
    """The training images as a data set, read one by one."""

    def __init__(self, task: Task) -> None:
        self.data = task.training_data()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data.item(index, 0)


def drawn(task: Task, recipe: Recipe, device: torch.device) -> Iterator[DetectionBatch]:
    """Yield micro-batches without end from a plain loader in this process."""
    loader = DataLoader(
        Drawn(task),
        batch_size=recipe.batch.micro,
        shuffle=True,
        drop_last=True,
        collate_fn=task.collate,
        pin_memory=device.type == "cuda",
    )
    while True:
        yield from loader
