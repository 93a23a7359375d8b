"""Everything of a run that changes from step to step, and the way of it into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.weights import load_into
from rankless.randomness import torch_seed
from rankless.recipe import Recipe
from rankless.tasks.protocol import Task
from rankless.training.averaging import Average
from rankless.training.checkpoint import Snapshot
from rankless.training.optimisation import divide_and_clip, optimiser, restore_state, state_tensors
from rankless.training.passes import Totals, make_passes
from rankless.training.statistics import RunningStatistics, batch_norms
from rankless.world.join import World


class TrainingState:
    """Model, average, optimiser and loss scale, made in the one order that works.

    That is: model, device, norms, optimiser, data-parallel wrapper.

    Args:
        task: builds the model.
        recipe: with its precision resolved.
        world: where the ranks meet and this one computes.
        pictures: how many there are to train on; a checkpoint of another number is refused.

    Attributes:
        model: the bare model; its names are those in the weights files.
        average: the averaged model, or None.
        best: the step and score of the best evaluation so far.
    """

    def __init__(self, task: Task, recipe: Recipe, world: World, pictures: int) -> None:
        self.recipe, self.pictures = recipe, pictures
        torch.manual_seed(torch_seed(recipe.seed, "model"))
        model = task.model()  # on the CPU, so that every kind of device starts from the same weights
        self.model: nn.Module = model.to(world.device).to(memory_format=torch.channels_last)
        self.frozen = batch_norms(self.model) if recipe.batch_norm == "frozen" else []
        for norm in self.frozen:
            norm.requires_grad_(False)
        self.statistics = RunningStatistics([] if self.frozen else batch_norms(self.model), world.device)
        self.average = Average(self.model, recipe.ema.decay) if recipe.ema.decay else None
        self.optimiser = optimiser(self.model, recipe.optim)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "fp16")
        self.passes = make_passes(task, self.model, self.statistics, recipe, world)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.best: dict[str, Any] | None = None

    @property
    def scored(self) -> nn.Module:
        """The model that is evaluated: the average, if there is one."""
        return self.average.model if self.average else self.model

    def training_mode(self) -> None:
        """Dropout on; batch norms learn their statistics unless they are frozen."""
        self.model.train()
        for norm in self.frozen:
            norm.eval()

    def update(self, step: int, totals: Totals) -> tuple[Tensor | None, bool]:
        """From summed gradients to new weights: unscale, divide, clip, step, statistics, average.

        Returns:
            The gradient's norm, if it was measured, and whether the step was skipped (fp16 overflow).
        """
        self.scaler.unscale_(self.optimiser)
        norm = divide_and_clip(self.trained, totals.count, self.recipe.optim.clip)
        self.scaler.step(self.optimiser)
        scale = self.scaler.get_scale()
        self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        self.optimiser.zero_grad(set_to_none=True)
        self.statistics.end(None if skipped else totals.statistics, self.recipe.batch.micro_batches)
        if self.average:
            self.average.update(self.model, step)
        return norm, skipped

    def snapshot(self, step: int) -> Snapshot:
        """All of it after ``step`` steps."""
        return Snapshot(
            step,
            self.model.state_dict(),
            self.average.model.state_dict() if self.average else None,
            state_tensors(self.optimiser, self.model),
            {"best": self.best, "scaler": self.scaler.state_dict(), "pictures": self.pictures},
        )

    def restore(self, snapshot: Snapshot, source: str) -> None:
        """Go on from a checkpoint, whatever the number of ranks that wrote it.

        Raises:
            UserError: it is of another model, or of other data.
        """
        found = snapshot.state.get("pictures")
        if found != self.pictures:
            raise UserError(
                f"{source} was trained on {found} pictures, but the data now has {self.pictures}: the steps "
                "would mean other pictures. Restore the data, or start anew in another run directory"
            )
        load_into(self.model, snapshot.model, source)
        if self.average:
            load_into(self.average.model, snapshot.average or {}, f"{source} (ema)")
        restore_state(self.optimiser, self.model, dict(snapshot.training))
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(dict(snapshot.state["scaler"]))
        self.best = snapshot.state["best"]

    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor that decides the next step, by name."""
        averaged = self.average.model.state_dict() if self.average else {}
        return {
            **{f"model/{name}": value for name, value in self.model.state_dict().items()},
            **{f"ema/{name}": value for name, value in averaged.items()},
            **state_tensors(self.optimiser, self.model),
        }
