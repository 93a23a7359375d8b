"""The recipe: everything that decides a number, and nothing else.

Where and how a run happens (devices, hosts, the run directory) is the command line's; what decides the
weights is here. A recipe is frozen, written into the run directory and into every weights file.
"""

from __future__ import annotations

import itertools
from dataclasses import InitVar, field
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from rankless.recipe.presets import Preset, expanded

_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Fraction = Annotated[float, Field(ge=0, le=1)]
# Every number has an end, and what is made of it one too: a digit too many is told before memory is taken.
Positive = Annotated[float, Field(gt=0, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=10**40)]
Images = Annotated[int, Field(ge=1, le=10_000_000)]
Side = Annotated[int, Field(ge=8, le=16_384)]
Size = Annotated[tuple[Side, Side], Field(strict=False)]  # not strict: a list serves as well
Factor = Annotated[float, Field(ge=0, le=1000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, StringConstraints(min_length=1)]
Text = Annotated[str, Field(description="text")]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Minutes = Annotated[
    str,
    StringConstraints(pattern=r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*) ?min$"),
    Field(description="minutes as in '10 min'"),
]


def _clash(sentence: str, *keys: str) -> PydanticCustomError:
    """Values that are each right and do not go together.

    Args:
        sentence: what is wrong, whole.
        keys: the keys of this class that are involved, the one the sentence is about first.
    """
    return PydanticCustomError("clash", "{sentence}", {"sentence": sentence, "keys": keys})


def _rising(milestones: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in itertools.pairwise(milestones)):
        raise PydanticCustomError("rising", "expected steps that rise, each larger than the one before")
    return milestones


Anchors = Annotated[
    tuple[Annotated[tuple[Positive, Positive], Field(strict=False)], ...], Field(strict=False, min_length=1)
]
ClassWeights = Annotated[tuple[NotNegative, ...], Field(strict=False, min_length=1)]
Milestones = Annotated[tuple[Count, ...], Field(strict=False), AfterValidator(_rising)]


@dataclass(frozen=True, config=_config)
class Densenet:
    """What a DenseNet of your own is made of; ``auto`` is as published.

    Attributes:
        growth: channels that each layer adds.
        compression: share of the channels that a transition keeps.
        bottleneck: a 1×1 convolution before each 3×3.
        stem: ``imagenet`` (7×7 with stride 2 and pooling) or ``small`` (3×3, for images of some 32 pixels).
        separable: depthwise-separable 3×3 convolutions.
    """

    growth: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    compression: Annotated[float, Field(gt=0, le=1)] = 0.5
    bottleneck: bool = True
    stem: Literal["auto", "imagenet", "small"] = "auto"
    separable: bool = False


@dataclass(frozen=True, config=_config)
class Model:
    """The network.

    Attributes:
        name: one that ``rankless models`` lists, or ``timm/NAME``.
        cfg: a Darknet cfg file that describes the network in place of ``name``, or its text.
        image_size: the network's input in pixels: one side, or [height, width]; multiples of 32 in a
            detector; ``auto`` is the size the model was published with.
        width: factor on every channel count of a detector's backbone and neck.
        dropout: share dropped: of the channels before each head's last convolution (detectors), of the new
            features (DenseNet), before the last layer (other classifiers).
        activation: replaces the published one everywhere; ``auto`` leaves it.
        anchors: ``default`` (published), ``kmeans`` (from the training boxes), or [[width, height], …] in
            pixels of the input.
        involution: side of the involution kernels before the heads; 0 is none.
        dfl: bins per side of the anchor-free head's distances (distribution focal loss); 0 predicts them
            directly.
        pretrained: weights to start from: a file that Rankless wrote or imported, or ``timm``.
        freeze: epochs during which the backbone stays as it is.
        densenet: options of the DenseNets.
    """

    name: Name = "yolov4-tiny"
    cfg: Text = ""
    image_size: Literal["auto"] | Side | Size = "auto"
    width: Annotated[float, Field(gt=0, le=64)] = 1.0
    dropout: Share = 0.0
    activation: Literal["auto", "leaky", "mish", "swish", "relu", "prelu"] = "auto"
    anchors: Literal["default", "kmeans"] | Anchors = "default"
    involution: Literal[0, 3, 5, 7] = 0
    dfl: Annotated[int, Field(ge=0, le=1024)] = 0
    pretrained: Text = ""
    freeze: CountOrZero = 0
    densenet: Densenet = field(default_factory=Densenet)


@dataclass(frozen=True, config=_config)
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
    translate: Share = 0.1
    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0
    shear: Annotated[float, Field(ge=0, lt=90)] = 0.0
    perspective: Annotated[float, Field(ge=0, lt=0.25)] = 0.0
    mosaic: Fraction = 0.0
    close_mosaic: CountOrZero = 0
    partners: Literal["data", "batch"] = "data"
    copy_paste: Fraction = 0.0
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    blur: Fraction = 0.0
    noise: Fraction = 0.0
    jpeg: Fraction = 0.0
    policy: Literal["none", "randaugment", "trivialaugment"] = "none"
    erase: Fraction = 0.0
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    mixup_chance: Fraction = 1.0

    @model_validator(mode="before")
    @classmethod
    def _preset_is_its_values(cls, given: Any) -> Any:
        return expanded(given)

    def __post_init__(self, preset: Preset) -> None:
        """Nothing is left to do: the preset has become values."""


@dataclass(frozen=True, config=_config)
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
        multi_scale: every few steps the input's size is drawn anew, from ``1 / (1 + x)`` to ``1 + x`` times
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
    fit: Literal["letterbox", "stretch"] = "letterbox"
    detail: NotNegative = 2.0
    multi_scale: Annotated[float, Field(ge=0, le=15)] = 0.0
    multi_scale_every: Count = 10
    cache: Literal["none", "ram", "disk"] = "none"
    max_bad: Fraction = 0.01
    train_images: Images = 4096
    val_images: Images = 256
    augment: Augment = field(default_factory=Augment)


@dataclass(frozen=True, config=_config)
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
            raise _clash(
                f"'batch.micro' is {self.micro}, which does not divide batch.images ({self.images}); "
                f"nearest that do: {nearest}",
                "micro",
                "images",
            )
        return self


@dataclass(frozen=True, config=_config)
class Loss:
    """The loss. ``auto`` is what the model was published with.

    Attributes:
        name: which loss; ``anchor-free``, ``yolov3`` and ``yolov4`` are of detectors, ``cross-entropy`` and
            ``focal`` of classifiers.
        box, objectness, classes: factors on a detector's parts.
        box_loss: how a box is compared with the truth; ``mse`` is YOLOv3's error of center and size.
        objectness_loss: binary cross-entropy, focal loss, or quality focal loss, whose target is the IoU.
        gamma: exponent of the focal losses.
        alpha: the focal losses' weight of what is there; what is not there weighs 1 - alpha. ``none``
            weighs both alike.
        ignore: predictions that overlap any truth by more than this IoU are no negatives (YOLO).
        anchor_iou: YOLOv4: every anchor of a layer whose shape matches by more than this IoU is positive
            too (1: only the best).
        assign: the anchor-free head's choice of positives: ``simota`` or ``task-aligned``.
        dfl: factor on the distribution focal loss.
        smoothing: label smoothing of the classes.
        class_weights: factor of each class (classification), or ``balanced``, in inverse proportion to their
            number of training images.
    """

    name: Literal["auto", "yolov3", "yolov4", "anchor-free", "cross-entropy", "focal"] = "auto"
    box: Literal["auto"] | NotNegative = "auto"
    objectness: Literal["auto"] | NotNegative = "auto"
    classes: Literal["auto"] | NotNegative = "auto"
    box_loss: Literal["auto", "mse", "iou", "giou", "diou", "ciou", "eiou", "siou"] = "auto"
    objectness_loss: Literal["auto", "bce", "focal", "quality-focal"] = "auto"
    gamma: NotNegative = 2.0
    alpha: Literal["none"] | Fraction = "none"
    ignore: Literal["auto"] | Fraction = "auto"
    anchor_iou: Literal["auto"] | Fraction = "auto"
    assign: Literal["auto", "simota", "task-aligned"] = "auto"
    dfl: Literal["auto"] | NotNegative = "auto"
    smoothing: Literal["auto"] | Share = "auto"
    class_weights: Literal["none", "balanced"] | ClassWeights = "none"


@dataclass(frozen=True, config=_config)
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
    momentum: Share = 0.9
    nesterov: bool = False
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    clip: NotNegative = 0.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.name != "sgd":
            raise _clash(
                f"'optim.nesterov' is true, which optim.name '{self.name}' does not know: "
                "leave it out, or use 'sgd'",
                "nesterov",
                "name",
            )
        if self.nesterov and self.momentum == 0:
            raise _clash(
                "'optim.nesterov' is true, which needs momentum, and optim.momentum is 0: "
                "give a momentum such as 0.9, or leave nesterov out",
                "nesterov",
                "momentum",
            )
        return self


@dataclass(frozen=True, config=_config)
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
            raise _clash(
                "'schedule.name' is 'step', which needs schedule.milestones: give the steps at which "
                "the rate falls, as in [4000, 4500]",
                "name",
                "milestones",
            )
        return self


@dataclass(frozen=True, config=_config)
class Ema:
    """An exponential moving average of the weights; it is what is evaluated and what predicts.

    Attributes:
        decay: share kept each step; 0 switches it off. Ramps up as ``min(decay, (1 + step) / (10 + step))``.
    """

    decay: Share = 0.0


@dataclass(frozen=True, config=_config)
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
    confidence: Fraction = 0.001
    nms: Literal["iou", "diou"] = "iou"
    iou: Fraction = 0.6
    class_agnostic: bool = False
    multi_label: bool = True
    detections: Annotated[int, Field(ge=1, le=100_000)] = 100
    rectangular: bool = False
    tta: Literal["none", "flip", "full"] = "none"


@dataclass(frozen=True, config=_config)
class Checkpoint:
    """When the state is saved.

    Attributes:
        every: steps between checkpoints, or minutes as in ``10 min``; the last step is always saved.
        keep: how many of the newest stay; the best stays too.
    """

    every: Count | Minutes = "10 min"
    keep: Count = 2


@dataclass(frozen=True, config=_config)
class Recipe:
    """A whole recipe; see the classes of its parts.

    Attributes:
        task: ``detect``, ``classify``, or for a task of your own ``package.module:Class`` or
            ``file.py:Class``.
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
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    batch: Batch = field(default_factory=Batch)
    epochs: Count = 100
    seed: Seed = 0
    loss: Loss = field(default_factory=Loss)
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

    @model_validator(mode="after")
    def _detectors_halve_five_times(self) -> Self:
        size = self.model.image_size
        sides = () if size == "auto" else (size,) if isinstance(size, int) else size
        if self.task == "detect" and any(side % 32 for side in sides):
            shown = list(size) if isinstance(size, tuple) else size
            raise _clash(
                f"'model.image_size' is {shown}: a detector needs multiples of 32, such as "
                f"{' and '.join(str(max(32, round(side / 32) * 32)) for side in sides)}",
                "model.image_size",
            )
        return self
