"""The recipe: everything that decides a number, and nothing else.

Where and how a run happens (devices, hosts, the run directory) is the command line's; what decides the
weights is here. A recipe is frozen, written into the run directory and into every weights file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from rankless.recipe.fields import (
    Clash,
    Count,
    CountOrZero,
    Factor,
    Fraction,
    Images,
    Milestones,
    Minutes,
    Name,
    NotNegative,
    Positive,
    Precision,
    ProperFraction,
    Seed,
    clash,
    clashes,
    config,
)
from rankless.recipe.kinds import (
    AnchorFreeLoss,
    AnchorFreeModel,
    AnyLoss,
    AnyModel,
    AutoLoss,
    Loss,
    Model,
    YoloModel,
    losses_of,
    resolved_loss,
)
from rankless.recipe.presets import Preset, expanded

__all__ = ["Loss", "Model"]

# What a key's JSON Schema says where one of the built-in tasks alone reads it.
_DETECT: Any = Field(json_schema_extra={"x-task": "detect"})
_CLASSIFY: Any = Field(json_schema_extra={"x-task": "classify"})
BUILT_IN_TASKS = ("detect", "classify")


@dataclass(frozen=True, config=config)
class Augment:
    """How training images are varied; a preset's name, or keys. Zero switches a part off.

    Attributes:
        preset: values for the keys that are not given; ``light`` is the defaults. Recorded are the values.
        flip: chance of a mirror image.
        flip_vertical: chance of one upside down.
        hue: largest turn of the hue, as a share of the full circle.
        saturation, value: largest factor on saturation and value is ``1 + x``, smallest ``1 / (1 + x)``.
        scale: largest zoom is ``1 + x``, smallest ``1 / (1 + x)``.
        translate: largest shift, as a share of the input's side.
        rotate, shear: largest turn and slant, in degrees.
        perspective: largest shift of the input's corners, as a share of its side.
        mosaic: chance that four images share one input (detection).
        close_mosaic: the last so many epochs are without mosaic, mixup, cutmix and copy-paste.
        partners: where mosaic, mixup and copy-paste find the other images: in the whole ``data``, or in the
            same micro-``batch``, of which each image is then decoded once (detection).
        copy_paste: chance that objects of another image are pasted into this one (detection).
        crop: smallest share of the area that a random crop keeps; 1 crops nothing. In detection a crop cuts
            no box.
        blur: chance of a Gaussian blur.
        noise: chance of Gaussian noise.
        jpeg: chance of the traces of strong JPEG compression.
        policy: a series of random operations (classification).
        erase: chance that a rectangle is erased (classification).
        mixup: α of the Beta distribution by which two images are blended; 0 switches it off.
        cutmix: the same, of one that is pasted into the other (classification).
        mixup_chance: share of the images that mixup and cutmix touch.
    """

    preset: InitVar[Preset] = "light"
    flip: Fraction = 0.5
    flip_vertical: Fraction = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.015
    saturation: Factor = 0.5
    value: Factor = 0.3
    scale: Factor = 0.3
    translate: ProperFraction = 0.1
    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0
    shear: Annotated[float, Field(ge=0, lt=90)] = 0.0
    perspective: Annotated[float, Field(ge=0, lt=0.25)] = 0.0
    mosaic: Annotated[Fraction, _DETECT] = 0.0
    close_mosaic: CountOrZero = 0
    partners: Annotated[Literal["data", "batch"], _DETECT] = "data"
    copy_paste: Annotated[Fraction, _DETECT] = 0.0
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    blur: Fraction = 0.0
    noise: Fraction = 0.0
    jpeg: Fraction = 0.0
    policy: Annotated[Literal["none", "randaugment", "trivialaugment"], _CLASSIFY] = "none"
    erase: Annotated[Fraction, _CLASSIFY] = 0.0
    mixup: NotNegative = 0.0
    cutmix: Annotated[NotNegative, _CLASSIFY] = 0.0
    mixup_chance: Fraction = 1.0

    @model_validator(mode="before")
    @classmethod
    def _preset_is_its_values(cls, given: Any) -> Any:
        return expanded(given)

    def __post_init__(self, preset: Preset) -> None:
        """Nothing is left to do: the preset has become values."""


@dataclass(frozen=True, config=config)
class Data:
    """The images.

    Attributes:
        root: ``digits`` (built in), a folder, or a file such as a ``data.yaml``.
        format: of the data; ``auto`` recognizes it.
        train, val: names of the splits trained and scored on.
        fit: how an image comes onto the input: ``letterbox`` keeps its aspect, ``stretch`` fills the input,
            as Darknet does unless told otherwise.
        detail: an image is halved while it is decoded, once or several times, as long as it stays so many
            times as large as the input shows it; 0 never halves.
        multi_scale: every few steps the input's size is drawn again, from ``1 / (1 + x)`` to ``1 + x`` times
            ``model.image_size`` (detection).
        multi_scale_every: so many steps.
        cache: where decoded images are kept: nowhere, in memory, or on the disk. No number depends on it.
        max_bad: more than this share of unreadable images ends a run.
        train_images, val_images: how many scenes the built-in data has; other data brings its own number.
        augment: how training images are varied.
    """

    root: Name = "digits"
    format: Literal["auto", "webdataset", "coco", "voc", "darknet", "csv", "lines", "image-folder"] = "auto"
    train: Name = "train"
    val: Name = "val"
    fit: Annotated[Literal["letterbox", "stretch"], _DETECT] = "letterbox"
    detail: NotNegative = 2.0
    multi_scale: Annotated[Annotated[float, Field(ge=0, le=15)], _DETECT] = 0.0
    multi_scale_every: Annotated[Count, _DETECT] = 10
    cache: Literal["none", "ram", "disk"] = "none"
    max_bad: Fraction = 0.01
    train_images: Annotated[Images, _DETECT] = 4096
    val_images: Annotated[Images, _DETECT] = 256
    augment: Augment = field(default_factory=Augment)


@dataclass(frozen=True, config=config)
class Batch:
    """One step's images: ``images`` of them, worked through ``micro`` at a time.

    Attributes:
        images: the global batch, whatever the number of devices.
        micro: images in one micro-batch; divides ``images``.
    """

    images: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    micro: Annotated[int, Field(ge=1, le=1 << 20)] = 8

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step: the largest number of ranks that can share it."""
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
class Optim:
    """The optimizer.

    Attributes:
        name: ``sgd`` (with momentum) or ``adamw``.
        lr: the highest learning rate; the schedule is a factor on it.
        momentum: SGD's momentum.
        nesterov: SGD looks ahead.
        betas: AdamW's averaging factors.
        weight_decay: on weights of convolutions and linear layers only, never on biases and norms.
        clip: largest global norm of the gradient; 0 switches it off.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.01
    momentum: ProperFraction = 0.9
    nesterov: bool = False
    betas: Annotated[tuple[ProperFraction, ProperFraction], Field(strict=False)] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    clip: NotNegative = 0.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.name != "sgd":
            raise clash(
                f"'optim.nesterov' is true, which optim.name '{self.name}' does not know: "
                "leave it out, or use 'sgd'",
                "nesterov",
                "name",
            )
        if self.nesterov and self.momentum == 0:
            raise clash(
                "'optim.nesterov' is true, which needs momentum, and optim.momentum is 0: "
                "give a momentum such as 0.9, or leave nesterov out",
                "nesterov",
                "momentum",
            )
        return self


@dataclass(frozen=True, config=config)
class Schedule:
    """The learning rate as a function of the step.

    Attributes:
        name: ``cosine`` down to ``final``, ``step`` (times ``gamma`` at each milestone) or ``constant``.
        warmup: steps over which the rate rises from nothing.
        warmup_power: the rise is ``((step + 1) / warmup) ** warmup_power``; Darknet uses 4.
        final: cosine's last rate, as a share of ``optim.lr``.
        milestones: steps at which ``step`` lowers the rate, rising.
        gamma: the factor at each milestone.
    """

    name: Literal["cosine", "step", "constant"] = "cosine"
    warmup: CountOrZero = 0
    warmup_power: Positive = 1.0
    final: Fraction = 0.01
    milestones: Milestones = ()
    gamma: Positive = 0.1

    @model_validator(mode="after")
    def _steps_are_named(self) -> Self:
        if self.name == "step" and not self.milestones:
            raise clash(
                "'schedule.name' is 'step', which needs schedule.milestones: give the steps at which "
                "the rate falls, as in [4000, 4500]",
                "name",
                "milestones",
            )
        return self


@dataclass(frozen=True, config=config)
class Ema:
    """An exponential moving average of the weights; it is what is evaluated and what predicts.

    Attributes:
        decay: share kept each step; 0 switches it off. Ramps up as ``min(decay, (1 + step) / (10 + step))``.
    """

    decay: ProperFraction = 0.0


@dataclass(frozen=True, config=config)
class Evaluate:
    """Scoring during the run and after it.

    Attributes:
        every: epochs between evaluations; the last step is always evaluated. 0: only then.
        confidence: detections scored lower are left out.
        nms: by what NMS compares two boxes: ``iou``, or ``diou``, IoU less (d²/c²) ** 0.6, Darknet's
            ``greedynms``.
        iou: NMS removes a detection that overlaps a better one of its class by more.
        class_agnostic: … of any class.
        multi_label: one box may carry several classes, as COCO's practice is; else its best.
        detections: at most so many per image.
        rectangular: images of like aspect form a batch, whose input is no larger than they need.
        tta: test-time augmentation: each image is also seen mirrored (``flip``), and in three sizes too
            (``full``).
    """

    every: CountOrZero = 1
    confidence: Annotated[Fraction, _DETECT] = 0.001
    nms: Annotated[Literal["iou", "diou"], _DETECT] = "iou"
    iou: Annotated[Fraction, _DETECT] = 0.6
    class_agnostic: Annotated[bool, _DETECT] = False
    multi_label: Annotated[bool, _DETECT] = True
    detections: Annotated[Annotated[int, Field(ge=1, le=100_000)], _DETECT] = 100
    rectangular: Annotated[bool, _DETECT] = False
    tta: Literal["none", "flip", "full"] = "none"


@dataclass(frozen=True, config=config)
class Checkpoint:
    """When the state is saved.

    Attributes:
        every: steps between checkpoints, or minutes as in ``10 min``; the last step is always saved.
        keep: how many of the newest stay; the best stays too.
    """

    every: Count | Minutes = "10 min"
    keep: Count = 2


@dataclass(frozen=True, config=config)
class Recipe:
    """A whole recipe; see the classes of its parts.

    Attributes:
        task: ``detect``, ``classify``, or for a task of your own ``package.module:Class`` or
            ``file.py:Class``.
        model: the network; which keys there are follows from ``model.name``.
        loss: which keys there are follows from ``loss.name``.
        epochs: passes over the training images.
        seed: keys all chance.
        precision: of the forward pass; ``auto`` is bf16 where the device computes it natively, else fp32
            (fp16 on older GPUs). ``fp32`` is IEEE single precision everywhere; ``tf32`` lets GPUs round the
            factors of matrix products and convolutions to 10 bits, and is fp32 on a CPU.
        cpu_isa: the CPU's instruction set: the best it has, or ``avx2`` on all x86 CPUs alike, which does
            not compute bf16.
        batch_norm: statistics of the ``micro``-batch, of the whole global batch (``sync``), or ``frozen``.
        reduce: ``exact`` adds along the fixed tree; ``fast`` leaves the order to the backend.
        find_unused_parameters: where the loss of a micro-batch does not depend on a parameter, its gradient
            is zero; otherwise that is an error.
        workers: loader processes of each rank; 0 loads in the rank itself.
        threads: threads of one operation on the CPU; it changes the bits of a convolution.
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
    workers: Annotated[int, Field(ge=0, le=256)] = 0
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
        if found := [*self._of_model_and_loss(), *self._without_effect()]:
            raise clashes(found)
        return self

    def _of_model_and_loss(self) -> Iterator[Clash]:
        size, loss, model = self.model.image_size, self.loss, self.model
        sides = () if size == "auto" else (size,) if isinstance(size, int) else size
        if self.task == "detect" and any(side % 32 for side in sides):
            near = " and ".join(str(max(32, round(side / 32) * 32)) for side in sides)
            written = list(size) if isinstance(size, tuple) else size
            yield (
                f"'model.image_size' is {written}: a detector needs multiples of 32, such as {near}",
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
        """Keys that the task does not read and whose values are not the defaults."""
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
                f"'data.augment.close_mosaic' is {augment.close_mosaic}, but mixup and cutmix are both off: "
                "leave it out",
                ("data.augment.close_mosaic", "data.augment.mixup", "data.augment.cutmix"),
            )
        if self.task == "classify" and self.evaluate.tta == "full":
            yield (
                "'evaluate.tta' is 'full', which needs an input of any size, and many classifiers take only "
                "one: expected none or flip",
                ("evaluate.tta",),
            )
