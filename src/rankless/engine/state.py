"""The state of a run. It changes in every step and is saved in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankless.engine.accumulate import Accumulator, make_accumulator
from rankless.engine.checkpoint import Snapshot
from rankless.engine.divergence import (
    SMALLEST_SCALE,
    DivergedError,
    not_finite,
    not_used,
    weights_not_finite,
)
from rankless.engine.ema import Ema
from rankless.engine.forward_state import ForwardState
from rankless.engine.freezing import Backbone
from rankless.engine.optim import divide_and_clip, optimizer, restore_state, state_tensors
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.schedule import StepSchedule
from rankless.engine.soundness import non_finite, synchronize, weight_difference
from rankless.engine.totals import Compared, Flags, Numbers, Totals
from rankless.engine.unreadable import UnreadableImages
from rankless.errors import UserError
from rankless.models.activation_checkpointing import checkpoint_activations
from rankless.models.layers import channels_last
from rankless.models.weights_files.pretrained import start_from
from rankless.models.weights_files.weights import digest, load_into
from rankless.randomness import GENERATORS, torch_seed
from rankless.recipe.schema import Recipe
from rankless.tasks.checks import check_model
from rankless.tasks.protocol import Task
from rankless.world.process_group import World


class TrainingState:
    """The model, its EMA, the optimizer and the loss scale.

    They are created in the order model, device, frozen parts, norms, optimizer, accumulator. The
    last three are created again when the backbone is released. ``images`` is the number of training images,
    which must be the same as in the checkpoint.

    Attributes:
        model: the model without wrappers. Its tensors have the same names as in the weights files.
        warnings: messages for the user, shown before the first step.
        best: step and score of the best evaluation so far, or None.
        unscored: whether the evaluation after the last step failed or stopped on request.
        data: a digest of the training data, or None if the data has none.
    """

    accumulator: Accumulator

    def __init__(self, task: Task, recipe: Recipe, world: World, images: int) -> None:
        self.recipe, self.images = recipe, images
        with GENERATORS:
            torch.manual_seed(torch_seed(recipe.seed, "model"))
            model = task.model()  # on the CPU, so that all kinds of devices start from the same weights
        check_model(task, model)
        _refuse_complex(model, recipe, world.device)
        self.warnings = synchronize(model, world)
        self.task, self.world = task, world
        self.model: nn.Module = channels_last(model.to(world.device))
        self.frozen = batch_norms(self.model) if recipe.batch_norm == "frozen" else []
        for norm in self.frozen:
            norm.requires_grad_(False)
        self.released_at = StepSchedule(recipe, images).released_at
        self.backbone = Backbone(self.model) if recipe.model.freeze else None
        self._watch_forward_passes()
        self.ema = Ema(self.model, recipe.ema.decay) if recipe.ema.decay else None
        if recipe.model.checkpointing:
            checkpoint_activations(self.model)
        self.optimizer = self._new_optimizer()
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=recipe.precision == "fp16")
        self._wrap()
        self.best: dict[str, Any] | None = None
        self.unscored = False
        self.unreadable = UnreadableImages(images, recipe.data.max_bad)
        self.data: str | None = None

    def _wrap(self) -> None:
        self.training_mode()
        self.accumulator = make_accumulator(self.task, self.model, self.statistics, self.recipe, self.world)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]

    def _new_optimizer(self) -> torch.optim.Optimizer:
        portable = self.recipe.cpu_isa != "native" and self.world.device.type == "cpu"
        # Not float16, because squares of small gradients would be rounded to zero.
        dtype = torch.bfloat16 if self.recipe.precision == "bf16" else torch.float32
        return optimizer(self.model, self.recipe.optim, portable=portable, world=self.world, dtype=dtype)

    def _learning_norms(self) -> list[_BatchNorm]:
        frozen = {id(norm) for norm in self._frozen_norms()}
        return [norm for norm in batch_norms(self.model) if id(norm) not in frozen]

    def _watch_forward_passes(self, known: Sequence[str] = ()) -> None:
        norms = self._learning_norms()
        self.others = ForwardState(self.model, norms, self.world, self.recipe.batch.micro_batches)
        self.others.expect(known)
        self.statistics = RunningStatistics(norms, self.world.device, self.others)

    def _frozen_norms(self) -> list[_BatchNorm]:
        return [*self.frozen, *(self.backbone.norms if self.backbone else [])]

    @property
    def scored(self) -> nn.Module:
        """The model to evaluate: the averaged model if there is one, otherwise ``model``."""
        return self.ema.model if self.ema else self.model

    def training_mode(self) -> None:
        """Set the model to training mode, but keep frozen batch norms in evaluation mode."""
        self.model.train()
        for norm in self._frozen_norms():
            norm.eval()

    def begin(self, step: int) -> bool:
        """Start the step with index ``step``, and return whether the backbone was released."""
        releases = self.backbone is not None and step >= self.released_at
        if releases:
            self._release()
        self.statistics.begin()
        return releases

    def _release(self) -> None:
        """Start training the backbone, with a new optimizer state for its parameters."""
        if self.backbone is None:
            return
        self.backbone.release()
        self.backbone = None
        self.statistics.give_back()
        self._watch_forward_passes(self.others.changing)
        before, self.optimizer = self.optimizer, self._new_optimizer()
        restore_state(self.optimizer, self.model, state_tensors(before, self.model))
        self._wrap()

    def compute(
        self, step: int, batches: Iterator[Any], flags: Flags, compared: Compared | None = None
    ) -> Totals:
        """Draw this rank's micro-batches of ``step``, run their passes, and sum the results of all ranks.

        See :meth:`rankless.engine.accumulate.Accumulator.run`. The sums of gradients are in the parameters.
        """
        return self.accumulator.run(step, batches, self.scaler.scale, flags, compared)

    def clip(self, step: int, totals: Totals) -> Numbers:
        """Convert the summed gradients of ``step`` to their clipped mean, and return the step's numbers."""
        self.scaler.unscale_(self.optimizer)
        numbers = totals.read(divide_and_clip(self.trained, totals.count, self.recipe.optim.clip))
        if not math.isfinite(numbers.gradient_norm) or not math.isfinite(numbers.loss):
            self._not_finite(step, numbers, totals)
        return numbers

    def step(self, numbers: Numbers) -> bool:
        """Apply the gradients, and return whether they were skipped because of an fp16 overflow."""
        # Others have raised an error in clip. GradScaler.step would read the overflow from the device again.
        skipped = not math.isfinite(numbers.gradient_norm)
        if not skipped:
            self.optimizer.step()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return skipped

    def _not_finite(self, step: int, numbers: Numbers, totals: Totals) -> None:
        """Undo the step and raise an error, unless fp16's loss scale caused the overflow."""
        named = [name for name, p in self.model.named_parameters() if p.requires_grad]
        gathered = self.world.all_gather([[leaf, sorted(which)] for leaf, which in totals.unused.items()])
        unused = sorted(one for rank in gathered for one in rank)
        bad = non_finite({name: p.grad for name, p in zip(named, self.trained, strict=True)})
        scale = self.scaler.get_scale()
        if self.scaler.is_enabled() and bad and not unused and scale > SMALLEST_SCALE:
            return
        self.optimizer.zero_grad(set_to_none=True)
        self.statistics.undo()
        if unused:
            error = not_used(step + 1, [(leaf, [named[n] for n in which]) for leaf, which in unused])
        else:
            error = not_finite(step + 1, numbers, bad, self.recipe, scale)
        raise DivergedError(error, is_whole=not non_finite(self.weights()), repeats=not unused)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights and running statistics by name, including the averaged ones."""
        averaged = self.ema.model.state_dict() if self.ema else {}
        return {**self.model.state_dict(), **{f"{name} (ema)": value for name, value in averaged.items()}}

    def check(self, step: int) -> None:
        """Check that the weights after ``step`` steps are finite and the same on every rank."""
        weights = self.weights()
        error = weight_difference(f"after step {step}", weights, self.world)
        if error := error or self.others.unnoticed_change(step):
            raise DivergedError(error, is_whole=False, repeats=False)
        if bad := non_finite(weights):
            raise DivergedError(weights_not_finite(step, bad, self.recipe), is_whole=False, repeats=True)

    def start_from_pretrained(self) -> list[str]:
        """Load the weights that ``model.pretrained`` names, and return messages about them."""
        pretrained = self.recipe.model.pretrained
        messages = start_from(self.model, pretrained, self.task.class_names, self.recipe.model)
        if not messages:
            return []
        if self.ema:
            load_into(self.ema.model, self.model.state_dict(), pretrained)
        digests = self.world.all_gather(digest(self.model.state_dict()))
        if others := [rank for rank, other in enumerate(digests) if other != digests[0]]:
            one = f"rank {others[0]} has"
            have = one if len(others) == 1 else f"ranks {', '.join(map(str, others))} have"
            raise UserError(
                f"model.pretrained is '{pretrained}', but {have} a different file than rank 0; copy the same "
                "file to every machine"
            )
        return messages

    def snapshot(self, step: int) -> Snapshot:
        """Return the complete state after ``step`` steps, without copying its tensors."""
        return Snapshot(
            step,
            self.model.state_dict(),
            self.ema.model.state_dict() if self.ema else None,
            state_tensors(self.optimizer, self.model),
            {
                "best": self.best,
                "scaler": self.scaler.state_dict(),
                "images": self.images,
                "data": self.data,
                "unscored": self.unscored,
                "unreadable": self.unreadable.as_json(),
                **({"changed by forward": changing} if (changing := self.others.changing) else {}),
            },
        )

    def restore(self, snapshot: Snapshot, source: str) -> None:
        """Restore the state from a checkpoint of a run with any number of ranks."""
        images = snapshot.state.get("images")
        if images != self.images:
            raise UserError(
                f"{source} was trained on {images} images, but the data now has {self.images}, so steps "
                "would use different images; restore the data, or start again in another run directory"
            )
        if snapshot.step >= self.released_at:
            self._release()
        load_into(self.model, snapshot.model, source)
        if self.ema:
            if snapshot.ema is None:
                raise UserError(
                    f"{source}: the averaged weights (ema.safetensors) are missing, but ema.decay is "
                    f"{self.recipe.ema.decay:g}; use another copy of the checkpoint, or remove it to "
                    "continue from the previous one"
                )
            load_into(self.ema.model, snapshot.ema, f"{source} (ema)")
        restore_state(self.optimizer, self.model, dict(snapshot.training), source)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(dict(snapshot.state["scaler"]))
        self.others.expect(snapshot.state.get("changed by forward", []))
        self.best = snapshot.state["best"]
        self.unscored = bool(snapshot.state.get("unscored"))
        self.unreadable.restore(snapshot.state.get("unreadable", {}))
        before = snapshot.state.get("data")
        if None not in (before, self.data) and before != self.data:
            self.warnings.append(
                "the data set has changed since this run started (boxes, classes or image sizes), so the "
                "final weights will differ from those of an uninterrupted run"
            )

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all tensors that determine the next step, by name."""
        averaged = self.ema.model.state_dict() if self.ema else {}
        return {
            **{f"model/{name}": value for name, value in self.model.state_dict().items()},
            **{f"ema/{name}": value for name, value in averaged.items()},
            **state_tensors(self.optimizer, self.model),
        }


def _refuse_complex(model: nn.Module, recipe: Recipe, device: torch.device) -> None:
    """Refuse complex parameters if PyTorch's loss scaling or fused optimizers would have to update them."""
    name = next((n for n, p in model.named_parameters() if p.requires_grad and p.is_complex()), None)
    problems = []
    if name and recipe.precision == "fp16":
        problems.append(
            f"precision is fp16, but the parameter '{name}' is complex, and PyTorch cannot scale its "
            "gradient; use precision=bf16 or fp32"
        )
    if name and recipe.optim.name != "sgd" and recipe.cpu_isa != "native" and device.type == "cpu":
        problems.append(
            f"cpu_isa is {recipe.cpu_isa}, but the parameter '{name}' is complex, and PyTorch's fused "
            f"{recipe.optim.name} cannot update it; use optim.name=sgd or cpu_isa=native"
        )
    if problems:
        raise UserError(problems)
