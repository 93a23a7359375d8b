"""The recipe: everything that affects the trained weights, and nothing else.

Where a run happens (devices, hosts, the run directory) is set on the command line. A recipe is frozen, and
written into the run directory and into every weights file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from rankless.recipe.data import Augment, Data
from rankless.recipe.fields import (
    DETECT_ONLY,
    Clash,
    ClassPairs,
    Count,
    Duration,
    Fraction,
    LinkName,
    Minutes,
    Name,
    Period,
    Precision,
    ProperFraction,
    Seed,
    clash,
    clashes,
    config,
)
from rankless.recipe.kinds import losses_of, resolved_loss
from rankless.recipe.loss_kinds import AnchorFreeLoss, AnyLoss, AutoLoss, Loss
from rankless.recipe.model_kinds import AnchorFreeModel, AnyModel, Model, YoloModel
from rankless.recipe.optimization import Optim, Schedule

__all__ = ["Augment", "Data", "Loss", "Model", "Optim", "Schedule"]

BUILT_IN_TASKS = ("detect", "classify")


@dataclass(frozen=True, config=config)
class Batch:
    """The images of one step, processed in micro-batches.

    Attributes:
        images: the global batch, whatever the number of devices.
        micro: images in one micro-batch; divides ``images``.
    """

    images: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    micro: Annotated[int, Field(ge=1, le=1 << 20)] = 8

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches per step, the largest useful number of ranks."""
        return self.images // self.micro

    @model_validator(mode="after")
    def _micro_divides_images(self) -> Self:
        if self.images % self.micro:
            divisors = [d for d in range(1, min(self.images, 1 << 16) + 1) if self.images % d == 0]
            below = max(d for d in divisors if d < self.micro)
            above = min((d for d in divisors if d > self.micro), default=None)
            nearest = f"{below} and {above}" if above else f"{below}"
            raise clash(
                f"'batch.micro' is {self.micro}, which does not divide batch.images ({self.images}); "
                f"nearest that do: {nearest}",
                "micro",
                "images",
            )
        return self


@dataclass(frozen=True, config=config)
class Ema:
    """An exponential moving average of the weights; it is what is evaluated and what predicts.

    Attributes:
        decay: weight of the old average per step, ``min(decay, (1 + step) / (10 + step))``; 0 disables it.
    """

    decay: ProperFraction = 0.0


@dataclass(frozen=True, config=config)
class Evaluate:
    """Evaluation during the run and after it.

    Attributes:
        every: the time between evaluations: steps, or as in ``5 epochs`` or ``10%`` (of the run); the last
            step is always evaluated. 0: only then.
        best: the score of the best checkpoint: ``loss`` (on the evaluation images), AP, AP50 … of a detector,
            top1, nll … of a classifier; ``auto`` is AP, top1, or what a custom task names. Of ``loss`` and
            ``nll`` the lowest is the best.
        batch: images that are evaluated at a time; ``auto`` is ``batch.micro``.
        confidence: detections with a lower score are discarded.
        nms: how NMS compares two boxes: ``iou``, or ``diou``, IoU minus (d²/c²) ** 0.6, Darknet's
            ``greedynms``.
        iou: NMS removes a detection that overlaps a better one of the same class by more than this.
        class_agnostic: NMS compares boxes of all classes.
        multi_label: a box may have several classes, as is usual on COCO; otherwise only the best one.
        detections: largest number of detections per image.
        rectangular: batch images of similar aspect ratio, with an input no larger than they need.
        tta: test-time augmentation: also predict on the mirrored image (``flip``), and in three sizes as well
            (``full``).
        classes_map: pairs of a class of the evaluation data and the model's class that it is, where their
            names do not say it (``--classes-map``).
    """

    every: Duration = "1 epoch"
    best: Name = "auto"
    batch: Literal["auto"] | Annotated[int, Field(ge=1, le=1 << 20)] = "auto"
    confidence: Annotated[Fraction, DETECT_ONLY] = 0.001
    nms: Annotated[Literal["iou", "diou"], DETECT_ONLY] = "iou"
    iou: Annotated[Fraction, DETECT_ONLY] = 0.6
    class_agnostic: Annotated[bool, DETECT_ONLY] = False
    multi_label: Annotated[bool, DETECT_ONLY] = True
    detections: Annotated[Annotated[int, Field(ge=1, le=100_000)], DETECT_ONLY] = 100
    rectangular: Annotated[bool, DETECT_ONLY] = False
    tta: Literal["none", "flip", "full"] = "none"
    classes_map: ClassPairs = ()


@dataclass(frozen=True, config=config)
class Checkpoint:
    """When the state is saved.

    Attributes:
        every: the time between checkpoints: steps, or as in ``10 min``, ``1 epoch`` or ``10%`` (of the run);
            the last step is always saved.
        keep: number of newest checkpoints to retain; the best is retained too.
        name: of a link in the run directory to the weights of each checkpoint that ends an epoch, as in
            ``ep{epoch:03d}-loss{loss:.3f}-val{val_loss:.3f}``; also ``step`` and ``lr``. Empty: no link.
    """

    every: Minutes | Period = "10 min"
    keep: Count = 2
    name: LinkName = ""


@dataclass(frozen=True, config=config)
class Recipe:
    """A complete recipe; see the classes of its sections.

    Attributes:
        task: ``detect``, ``classify``, or for a custom task ``package.module:Class`` or
            ``file.py:Class``.
        model: the network; the available keys follow from ``model.name``.
        loss: the loss; the available keys follow from ``loss.name``.
        epochs: passes over the training images.
        seed: seeds all random numbers.
        precision: of the forward pass; ``auto`` is bf16 where the device computes it natively, else fp32
            (fp16 on older GPUs). ``fp32`` is IEEE single precision everywhere; ``tf32`` lets GPUs round the
            factors of matrix products and convolutions to 10 bits, and is fp32 on a CPU.
        cpu_isa: instruction set of the CPU: the best available, or ``avx2``, which gives the same bits on all
            x86 CPUs but does not compute bf16.
        batch_norm: statistics of the ``micro``-batch, of the whole global batch (``sync``), or ``frozen``.
        reduce: ``exact`` adds along the fixed tree; ``fast`` leaves the order of the sum to the backend.
        find_unused_parameters: where the loss of a micro-batch does not depend on a parameter, its gradient
            is zero; otherwise that is an error.
        workers: loader processes per rank; 0 loads in the rank's process, ``auto`` starts as many as there
            are cores for beside the ranks. It changes no number.
        threads: CPU threads per operation; changes the bits of a convolution.
    """

    task: Name = "detect"
    model: AnyModel = field(default_factory=YoloModel)
    data: Data = field(default_factory=Data)
    batch: Batch = field(default_factory=Batch)
    epochs: Count = 100
    seed: Seed = 0
    loss: AnyLoss = field(default_factory=AutoLoss)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    precision: Precision = "auto"
    cpu_isa: Literal["native", "avx2"] = "native"
    batch_norm: Literal["micro", "sync", "frozen"] = "micro"
    reduce: Literal["exact", "fast"] = "exact"
    find_unused_parameters: bool = False
    ema: Ema = field(default_factory=Ema)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)] = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1

    @model_validator(mode="before")
    @classmethod
    def _loss_follows_the_model(cls, given: Any) -> Any:
        if isinstance(given, ArgsKwargs):
            keys = given.kwargs or {}
            model, loss = keys.get("model", YoloModel()), keys.get("loss", AutoLoss())
            if isinstance(model, Model) and isinstance(loss, Loss):
                return ArgsKwargs(given.args, {**keys, "loss": resolved_loss(loss, model)})
        elif isinstance(given, dict) and isinstance(loss := given.get("loss", {}), dict):
            name = loss.get("name", "auto")
            name = losses_of(given.get("model", {}))[0] if name == "auto" else name
            return {**given, "loss": {**loss, "name": name}}
        return given

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        if problems := [*self._of_model_and_loss(), *self._without_effect()]:
            raise clashes(problems)
        return self

    def _of_model_and_loss(self) -> Iterator[Clash]:
        size, loss, model = self.model.image_size, self.loss, self.model
        sides = () if size == "auto" else (size,) if isinstance(size, int) else size
        if self.task == "detect" and any(side % 32 for side in sides):
            nearest = " and ".join(str(max(32, round(side / 32) * 32)) for side in sides)
            written = list(size) if isinstance(size, tuple) else size
            yield (
                f"'model.image_size' is {written}: a detector needs multiples of 32, such as {nearest}",
                ("model.image_size",),
            )
        if loss.name not in (known := losses_of(model)):
            yield (
                f"'loss.name' is '{loss.name}': expected one of auto, {', '.join(known)} for the model "
                f"'{model.name}'",
                ("loss.name",),
            )
        without_bins = isinstance(model, AnchorFreeModel) and not model.dfl
        if without_bins and isinstance(loss, AnchorFreeLoss) and loss.dfl != AnchorFreeLoss.dfl:
            yield (
                f"'loss.dfl' is {loss.dfl}, but model.dfl is 0, so the distances have no distributions: "
                "leave loss.dfl out, or set model.dfl to a number of bins such as 16",
                ("loss.dfl", "model.dfl"),
            )

    def _without_effect(self) -> Iterator[Clash]:
        """Find keys that the task does not read and whose values are not the defaults."""
        augment = self.data.augment
        sections: Mapping[str, Any] = {"data": self.data, "data.augment": augment, "evaluate": self.evaluate}
        other = {"detect": "classify", "classify": "detect"}.get(self.task, "")
        for path, section in sections.items():
            for name, info in section.__pydantic_fields__.items():
                value, extra = getattr(section, name, info.default), info.json_schema_extra or {}
                if extra.get("x-task") == other and value != info.default:
                    written = str(value).lower() if isinstance(value, bool) else repr(value)
                    yield (
                        f"'{path}.{name}' is {written}, which has an effect only with task '{other}': "
                        "leave it out",
                        (f"{path}.{name}", "task"),
                    )
        if self.task == "classify" and augment.close_mosaic and not (augment.mixup or augment.cutmix):
            yield (
                f"'data.augment.close_mosaic' is {augment.close_mosaic!r}, but mixup and cutmix are both off"
                ": leave it out",
                ("data.augment.close_mosaic", "data.augment.mixup", "data.augment.cutmix"),
            )
        if self.data.folder != Data.folder and not self.data.root.startswith("torchvision/"):
            yield (
                f"'data.folder' is {self.data.folder!r}, which has an effect only with "
                "data.root=torchvision/NAME: leave it out, or give the folder as data.root",
                ("data.folder", "data.root"),
            )
        if self.task == "classify" and self.evaluate.tta == "full":
            yield (
                "'evaluate.tta' is 'full', which needs an input of any size, and many classifiers take only "
                "one: expected none or flip",
                ("evaluate.tta",),
            )


_init = Recipe.__init__


@functools.wraps(_init)
def _of_mappings_too(self: Recipe, *values: Any, **keys: Any) -> None:
    """Take mappings for sections, and report mistakes as sentences."""
    keys |= {one.name: value for one, value in zip(fields(self), values, strict=False)}
    if not any(isinstance(value, Mapping) for value in keys.values()):
        with suppress(ValidationError):
            _init(self, **keys)
            return
    from rankless.recipe.from_python import built  # which is made of this page

    vars(self).update(vars(built(keys)))


Recipe.__init__ = _of_mappings_too  # type: ignore[method-assign]
