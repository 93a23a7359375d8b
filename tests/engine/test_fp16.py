"""fp16 and its loss scale: an overflow anywhere skips the step everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine import loop
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.recipe.schema import Batch, Ema, Optim, Recipe
from rankless.structures import LossSum
from rankless.world.process_group import World

LEAVES, STEPS, OVERFLOWS, WHERE = 6, 6, 2, 4
RECIPE = Recipe(
    batch=Batch(images=12, micro=2), optim=Optim(lr=0.05, clip=10.0), precision="fp16", ema=Ema(decay=0.5)
)


class Small:
    """A task as far as the state asks for it."""

    class_names: tuple[str, ...] = ()

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 2)
        )

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        # The last image's first pixel is a factor on the loss: 1e30 is far too large for fp16.
        factor = batch[-1, 0, 0, 0]
        inside = batch.clamp(max=5)
        total = (model(inside).float().square().sum() * factor / 1000).reshape(())
        return LossSum(total, torch.tensor(float(len(batch))))


def images(step: int, leaf: int) -> Tensor:
    torch.manual_seed(100 * step + leaf)
    batch = torch.randn(2, 3, 6, 6)
    batch[-1, 0, 0, 0] = 1e30 if (step, leaf) == (OVERFLOWS, WHERE) else 1.0
    return batch


def digest(tensors: Sequence[Tensor]) -> str:
    return hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def steps(world: World) -> list[dict[str, Any]]:
    """What each step left on this rank."""
    state = TrainingState(Small(), RECIPE, world, 12)  # type: ignore[arg-type]
    state.training_mode()
    found = []
    for step in range(STEPS):
        state.begin(step)
        own = (images(step, leaf) for leaf in world.own_micro_batches(LEAVES))
        totals = state.accumulator.run(step, own, state.scaler.scale, Flags())
        skipped = loop.update(state, step, totals).skipped
        buffers = {n: b for n, b in state.model.named_buffers() if not n.endswith("tracked")}
        found.append(
            {
                "skipped": skipped,
                "scale": state.scaler.get_scale(),
                "weights": digest([p.detach() for p in state.model.parameters()]),
                "statistics": digest(list(buffers.values())),
                "everything": digest(list(state.tensors().values())),
                "finite": all(torch.isfinite(t).all().item() for t in state.tensors().values()),
            }
        )
    return found


@pytest.mark.processes
def test_an_overflow_in_one_micro_batch_skips_the_step_everywhere(ranks: Any) -> None:
    worlds = {size: ranks(size, steps) for size in (1, 2, 3)}
    lines = worlds[1][0]
    assert [line["skipped"] for line in lines] == [step == OVERFLOWS for step in range(STEPS)]
    before, at, after = lines[OVERFLOWS - 1 : OVERFLOWS + 2]
    assert at["scale"] == before["scale"] / 2 == after["scale"]
    assert (at["weights"], at["statistics"]) == (before["weights"], before["statistics"])
    assert after["weights"] != at["weights"] and after["statistics"] != at["statistics"]
    assert all(line["finite"] for line in lines)
    for answers in worlds.values():
        assert all(answer == lines for answer in answers)
