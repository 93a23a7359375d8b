"""The recipe: everything that affects the trained weights, and nothing else.

Where a run happens (devices, hosts, the run directory) is set on the command line. A recipe is frozen, and
written into the run directory and into every weights file.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.checking import Handler, checked
from rankless.recipe.data import Augment, Data
from rankless.recipe.fields import (
    BUILT_IN_TASKS,
    DETECT_ONLY,
    FREE,
    PREDICTING,
    TRAINING,
    BatchImages,
    Bool,
    ClassPairs,
    Count,
    Duration,
    Fraction,
    Int,
    LinkName,
    Minutes,
    Name,
    Period,
    Precision,
    ProperFraction,
    Seed,
    clash,
    config,
)
from rankless.recipe.loss_kinds import AnchorFreeLoss, AnyLoss, AutoLoss, Loss, LossKeys
from rankless.recipe.model_kinds import AnyModel, Model, ModelKeys, YoloModel
from rankless.recipe.optimization import Optim, Schedule

__all__ = ["BUILT_IN_TASKS", "Augment", "Data", "Loss", "Model", "Optim", "Schedule"]


@dataclass(frozen=True, config=config)
class Batch:
    """The images of one step, processed in micro-batches."""

    images: Annotated[BatchImages, TRAINING] = 64
    """The global batch, whatever the number of devices."""
    micro: Annotated[BatchImages, Field(validate_default=True)] = 8
    """Images in one micro-batch; divides ``images``."""

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches per step, the largest useful number of ranks."""
        return self.images // self.micro

    @field_validator("micro")
    @classmethod
    def _micro_divides_images(cls, micro: int, info: ValidationInfo) -> int:
        if (images := info.data.get("images", 0)) % micro:
            divisors = [d for d in range(1, min(images, 1 << 16) + 1) if images % d == 0]
            below = max(d for d in divisors if d < micro)
            above = min((d for d in divisors if d > micro), default=None)
            nearest = f"{below} and {above}" if above else f"{below}"
            raise clash(
                f"'batch.micro' is {micro}, which does not divide batch.images ({images}); "
                f"nearest that do: {nearest}",
                "batch.micro",
                "batch.images",
            )
        return micro


@dataclass(frozen=True, config=config)
class Ema:
    """An exponential moving average of the weights; it is what is evaluated and what predicts."""

    decay: ProperFraction = 0.0
    """Weight of the old average per step, ``min(decay, (1 + step) / (10 + step))``; 0 disables it."""


@dataclass(frozen=True, config=config)
class Evaluate:
    """Evaluation during the run and after it."""

    every: Annotated[Duration, FREE, TRAINING] = "1 epoch"
    """The time between evaluations: steps, or as in ``5 epochs`` or ``10%`` (of the run); the last step is
    always evaluated. 0: only then."""
    best: Annotated[Name, TRAINING] = "auto"
    """The score of the best checkpoint: ``loss`` (on the evaluation images), AP, AP50 … of a detector, top1,
    nll … of a classifier; ``auto`` is AP, top1, or what a custom task names. Of ``loss`` and ``nll`` the
    lowest is the best."""
    batch: Literal["auto"] | BatchImages = "auto"
    """Images that are evaluated at a time; ``auto`` is ``batch.micro``."""
    confidence: Annotated[Fraction, DETECT_ONLY] = 0.001
    """Detections with a lower score are discarded."""
    nms: Annotated[Literal["iou", "diou"], DETECT_ONLY, PREDICTING] = "iou"
    """How NMS compares two boxes: ``iou``, or ``diou``, IoU minus (d²/c²) ** 0.6, Darknet's ``greedynms``."""
    iou: Annotated[Fraction, DETECT_ONLY, PREDICTING] = 0.6
    """NMS removes a detection that overlaps a better one of the same class by more than this."""
    class_agnostic: Annotated[Bool, DETECT_ONLY, PREDICTING] = False
    """NMS compares boxes of all classes."""
    multi_label: Annotated[Bool, DETECT_ONLY] = True
    """A box may have several classes, as is usual on COCO; otherwise only the best one."""
    detections: Annotated[Int, Field(ge=1, le=100_000), DETECT_ONLY, PREDICTING] = 100
    """Largest number of detections per image."""
    rectangular: Annotated[Bool, DETECT_ONLY] = False
    """Batch images of similar aspect ratio, with an input no larger than they need."""
    tta: Annotated[Literal["none", "flip", "full"], PREDICTING] = "none"
    """Test-time augmentation: also predict on the mirrored image (``flip``), and in three sizes as well
    (``full``)."""
    classes_map: ClassPairs = ()
    """Pairs of a class of the evaluation data and the model's class that it is, where their names do not say
    it (``--classes-map``)."""


@dataclass(frozen=True, config=config)
class Checkpoint:
    """When the state is saved."""

    every: Annotated[Minutes | Period, FREE] = "10 min"
    """The time between checkpoints: steps, or as in ``10 min``, ``1 epoch`` or ``10%`` (of the run); the last
    step is always saved."""
    keep: Annotated[Count, FREE] = 2
    """Number of newest checkpoints to retain; the best is retained too."""
    name: LinkName = ""
    """Of a link in the run directory to the weights of each checkpoint that ends an epoch, as in
    ``ep{epoch:03d}-loss{loss:.3f}-val{val_loss:.3f}``; also ``step`` and ``lr``. Empty: no link."""


@dataclass(frozen=True, config=config)
class Recipe:
    """A complete recipe; see the classes of its sections."""

    task: Name = "detect"
    """``detect``, ``classify``, or for a custom task ``package.module:Class`` or ``file.py:Class``."""
    model: AnyModel = field(default_factory=YoloModel)
    """The network; the available keys follow from ``model.name``."""
    data: Data = field(default_factory=Data)
    batch: Batch = field(default_factory=Batch)
    epochs: Annotated[Count, FREE, TRAINING] = 100
    """Passes over the training images."""
    seed: Annotated[Seed, TRAINING] = 0
    """Seeds all random numbers."""
    loss: AnyLoss = field(default_factory=AutoLoss)
    """The loss; the available keys follow from ``loss.name``."""
    optim: Annotated[Optim, TRAINING] = field(default_factory=Optim)
    schedule: Annotated[Schedule, TRAINING] = field(default_factory=Schedule)
    precision: Annotated[Precision, PREDICTING] = "auto"
    """Of the forward pass; ``auto`` is bf16 where the device computes it natively, else fp32 (fp16 on older
    GPUs). ``fp32`` is IEEE single precision everywhere; ``tf32`` lets GPUs round the factors of matrix
    products and convolutions to 10 bits, and is fp32 on a CPU."""
    cpu_isa: Annotated[Literal["native", "avx2"], PREDICTING] = "native"
    """Instruction set of the CPU: the best available, or ``avx2``, which gives the same bits on all x86 CPUs
    but does not compute bf16."""
    batch_norm: Annotated[Literal["micro", "sync", "frozen"], TRAINING] = "micro"
    """Statistics of the ``micro``-batch, of the whole global batch (``sync``), or ``frozen``."""
    reduce: Annotated[Literal["exact", "fast"], TRAINING] = "exact"
    """``exact`` adds along the fixed tree; ``fast`` leaves the order of the sum to the backend."""
    find_unused_parameters: Annotated[Bool, FREE, TRAINING] = False
    """Where the loss of a micro-batch does not depend on a parameter, its gradient is zero; otherwise that is
    an error."""
    ema: Annotated[Ema, TRAINING] = field(default_factory=Ema)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Annotated[Checkpoint, TRAINING] = field(default_factory=Checkpoint)
    workers: Annotated[Literal["auto"] | Annotated[Int, Field(ge=0, le=256)], FREE] = "auto"
    """Loader processes per rank; 0 loads in the rank's process, ``auto`` starts as many as there are cores
    for beside the ranks. It changes no number."""
    threads: Annotated[Int, Field(ge=1, le=1024)] = 1
    """CPU threads per operation; changes the bits of a convolution."""

    @model_validator(mode="wrap")
    @classmethod
    def _report_in_sentences(cls, given: Any, handler: Handler, info: ValidationInfo) -> Self:
        made: Self = checked(cls, given, handler, info.context)
        return made

    @field_validator("model")
    @classmethod
    def _size_fits(cls, model: ModelKeys, info: ValidationInfo) -> ModelKeys:
        size = model.image_size
        sides = () if isinstance(size, str) else (size,) if isinstance(size, int) else size
        if info.data.get("task") == "detect" and any(side % 32 for side in sides):
            nearest = " and ".join(str(max(32, round(side / 32) * 32)) for side in sides)
            written = list(size) if isinstance(size, tuple) else size
            raise clash(
                f"'model.image_size' is {written}: a detector needs multiples of 32, such as {nearest}",
                "model.image_size",
            )
        return model

    @field_validator("data")
    @classmethod
    def _something_is_closed(cls, data: Data, info: ValidationInfo) -> Data:
        augment, keys = data.augment, ("close_mosaic", "mixup", "cutmix")
        mixes = augment.mixup or augment.cutmix or info.data.get("task") != "classify"
        if augment.close_mosaic and not mixes:
            raise clash(
                f"'data.augment.close_mosaic' is {augment.close_mosaic!r}, but mixup and cutmix are both off"
                ": leave it out",
                *(f"data.augment.{key}" for key in keys),
            )
        return data

    @field_validator("loss")
    @classmethod
    def _loss_has_distributions(cls, loss: LossKeys, info: ValidationInfo) -> LossKeys:
        without_bins = getattr(info.data.get("model"), "dfl", None) == 0
        if isinstance(loss, AnchorFreeLoss) and without_bins and loss.dfl != AnchorFreeLoss.dfl:
            raise clash(
                f"'loss.dfl' is {loss.dfl}, but model.dfl is 0, so the distances have no distributions: "
                "leave loss.dfl out, or set model.dfl to a number of bins such as 16",
                "loss.dfl",
                "model.dfl",
            )
        return loss

    @field_validator("evaluate")
    @classmethod
    def _sizes_are_possible(cls, evaluate: Evaluate, info: ValidationInfo) -> Evaluate:
        if info.data.get("task") == "classify" and evaluate.tta == "full":
            raise clash(
                "'evaluate.tta' is 'full', which needs an input of any size, and many classifiers take only "
                "one: expected none or flip",
                "evaluate.tta",
            )
        return evaluate
