"""A process that trains a recipe with a plain PyTorch loop, as a reference for ``rankless benchmark``.

The loop uses the same model, loss, memory layout, optimizer and weight averaging as Rankless. It keeps the
images of a step in memory, allows nondeterministic kernels and writes no journal. The process reads the
resolved recipe (JSON) and a number of threads, followed by requests of the form ``[images, precision,
steps]``. Each step trains the full batch, ``images`` at a time. A precision such as ``pure-bf16`` also
converts the weights and the optimizer state, like Apex's O3.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from rankless.hardware.instruction_set import fix
from rankless.launch.planning.measurement_worker import memory_taken, serve_requests

if TYPE_CHECKING:
    import torch

    from rankless.recipe.schema import Recipe


def main() -> int:
    return serve_requests("bare loop", _train)


def _train(question: Callable[[], Any], answer: Callable[[Any], None]) -> None:
    recipe, threads = question()
    fix(json.loads(recipe).get("cpu_isa", "native"))
    from rankless.hardware.compute_device import compute_device
    from rankless.hardware.computing import computes_like
    from rankless.recipe.load import from_json

    fast = replace(from_json(recipe), threads=threads, reduce="fast")  # allows any kernel
    loop = BareLoop(fast, compute_device())
    answer({})
    while True:
        images, precision, steps = question()
        with computes_like(replace(fast, precision=precision.removeprefix(PURE))):
            seconds = [loop.step(images, precision) for _ in range(steps)]
        answer({"seconds": seconds, "memory": memory_taken(loop.device)})


PURE = "pure-"
"""Prefix of a precision that does not use float32 at all."""


class BareLoop:
    """A plain PyTorch training loop without Rankless's engine."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        import torch

        from rankless.engine.ema import Ema
        from rankless.engine.optim import optimizer
        from rankless.engine.running_statistics import batch_norms
        from rankless.models.activation_checkpointing import checkpoint_activations
        from rankless.models.layers import channels_last
        from rankless.tasks import open_task

        self.recipe, self.device = recipe, device
        self.task: Any = open_task(recipe)
        torch.manual_seed(recipe.seed)
        self.model = channels_last(self.task.model().to(device)).train()
        if recipe.batch_norm == "frozen":
            for norm in batch_norms(self.model):
                norm.eval().requires_grad_(False)
        self.average = Ema(self.model, recipe.ema.decay) if recipe.ema.decay else None
        if recipe.model.checkpointing:
            checkpoint_activations(self.model)
        self.optimizer = optimizer(self.model, recipe.optim)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.batches: dict[int, list[Any]] = {}
        self.done = 0
        self.dtype = torch.float32
        self.model.register_forward_pre_hook(self._cast)

    def _cast(self, _: Any, inputs: Any) -> Any:
        return (inputs[0].to(self.dtype), *inputs[1:]) if hasattr(inputs[0], "dtype") else inputs

    def _convert(self, dtype: torch.dtype) -> None:
        if dtype == self.dtype:
            return
        self.dtype = dtype
        for model in (self.model, self.average.model if self.average else self.model):
            model.to(dtype)
        for kept in self.optimizer.state.values():
            kept.update(
                {name: one.to(dtype) for name, one in kept.items() if name != "step" and one is not None}
            )

    def step(self, images: int, precision: str) -> float:
        """Train one step on the full batch, ``images`` at a time, and return its duration in seconds."""
        import torch

        from rankless.hardware.computing import forward_pass
        from rankless.hardware.convolutions import SoundConvolutions
        from rankless.hardware.precision import dtype_of

        pure = precision.removeprefix(PURE) if precision.startswith(PURE) else ""
        self._convert(dtype_of(pure))
        on_cpu = self.device.type == "cpu"
        scaler = torch.amp.GradScaler(self.device.type, enabled=False) if pure else self.scaler
        batches = self._ready(images)
        began = time.perf_counter()
        total = torch.zeros((), device=self.device)
        for batch in batches:
            passing = forward_pass(precision, self.device, training=True)
            with SoundConvolutions() if on_cpu and pure else passing:
                loss = self.task.loss(self.model, batch.to(self.device))
                mean = loss.sum / self.recipe.batch.images
            scaler.scale(mean).backward()
            total += mean.detach()
        if self.recipe.optim.clip:
            scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update(self.done)
        float(total)  # a loop prints its loss; reading it waits for the device
        self.done += 1
        return time.perf_counter() - began

    def _ready(self, images: int) -> list[Any]:
        if images not in self.batches:
            from rankless.data.loader import MicroBatches
            from rankless.engine.schedule import StepSchedule
            from rankless.recipe.schema import Batch

            data, count = self.task.training_data(), self.recipe.batch.images // images
            recipe = replace(self.recipe, batch=Batch(images=self.recipe.batch.images, micro=images))
            lines = islice(StepSchedule(recipe, len(data)).lines(0, range(count)), count)
            pinned = self.device.type == "cuda"
            batches = MicroBatches(data, self.task.collate, lines, workers=0, pin_memory=pinned)
            self.batches[images] = list(batches)
        return self.batches[images]


if __name__ == "__main__":
    raise SystemExit(main())
