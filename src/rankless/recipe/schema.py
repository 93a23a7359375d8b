"""The recipe: everything that affects the trained weights, and nothing else.

Devices, hosts and the run directory are set on the command line. A recipe is frozen, and is written into the
run directory and into every weights file. It records the values of a ``data.augment`` preset, not its name,
so presets may change between versions without changing recorded recipes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import InitVar, field
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from rankless.recipe.checking import Handler, checked
from rankless.recipe.fields import (
    CLASSIFY_ONLY,
    CLASSIFYING,
    DETECT_ONLY,
    FREE,
    PREDICTING,
    TRAINING,
    BatchImages,
    Bool,
    ClassName,
    ClassNames,
    ClassPairs,
    Count,
    CountOrZero,
    Duration,
    Factor,
    Float,
    Fraction,
    Images,
    Int,
    LinkName,
    Milestones,
    Minutes,
    Name,
    NamesFile,
    NotNegative,
    Only,
    Options,
    Period,
    Positive,
    Precision,
    ProperFraction,
    Seed,
    config,
)
from rankless.recipe.loss_kinds import AnyLoss, AutoLoss, Loss
from rankless.recipe.model_kinds import AnyModel, Model, YoloModel
from rankless.task_kinds import DEFAULT

__all__ = ["Loss", "Model"]

IN_RECIPE = " (in a recipe: data.train, data.val)"
"""Part of the messages about unknown splits; ``rankless.evaluate`` removes it for its option ``split``."""

Preset = Literal["none", "light", "yolov3", "yolov4", "heavy"]

# From yolov3.cfg: hue .1, saturation and exposure 1.5 (the largest factors, so one less here), and jitter .3.
# Jitter moves each edge in or out by up to .3 of the side, so the view grows to at most 1.6 times the side
# and shifts by at most .3. Jitter also changes the aspect ratio, which no key does here.
_YOLOV3 = {"hue": 0.1, "saturation": 0.5, "value": 0.5, "scale": 0.6, "translate": 0.3}

PRESETS: Mapping[str, Mapping[str, float | str]] = {
    "none": dict.fromkeys(("flip", "hue", "saturation", "value", "scale", "translate"), 0.0),
    "light": {},  # the defaults
    "yolov3": _YOLOV3,
    "yolov4": {**_YOLOV3, "mosaic": 1.0},  # from yolov4.cfg
    "heavy": {
        "saturation": 0.7,
        "value": 0.4,
        "scale": 0.5,
        "rotate": 5.0,
        "shear": 2.0,
        "perspective": 0.02,
        "mosaic": 1.0,
        "close_mosaic": "10 epochs",
        "copy_paste": 0.3,
        "blur": 0.05,
        "noise": 0.05,
        "jpeg": 0.05,
        "mixup": 8.0,
        "mixup_probability": 0.15,
    },
}
"""Maps each preset to its values that differ from the defaults."""


@dataclass(frozen=True, config=config)
class Augment:
    """Augmentation of the training images: the name of a preset, or keys. 0 disables an operation."""

    preset: InitVar[Preset] = "light"
    """Preset that sets the omitted keys; ``light`` sets the defaults. A recorded recipe contains the values
    instead of the preset."""
    flip: Fraction = 0.5
    """Probability of a horizontal flip."""
    flip_vertical: Fraction = 0.0
    """Probability of a vertical flip."""
    hue: Annotated[Float, Field(ge=0, le=0.5)] = 0.015
    """Maximum rotation of the hue, as a fraction of the full circle."""
    saturation: Factor = 0.5
    """Range of the random saturation factor, from ``1 / (1 + x)`` to ``1 + x``."""
    value: Factor = 0.3
    """Range of the random brightness factor (HSV's value), from ``1 / (1 + x)`` to ``1 + x``."""
    scale: Factor = 0.3
    """Range of the random zoom factor, from ``1 / (1 + x)`` to ``1 + x``."""
    translate: ProperFraction = 0.1
    """Maximum shift, as a fraction of the input's side."""
    rotate: Annotated[Float, Field(ge=0, le=180)] = 0.0
    """Maximum rotation, in degrees."""
    shear: Annotated[Float, Field(ge=0, lt=90)] = 0.0
    """Maximum shear, in degrees."""
    perspective: Annotated[Float, Field(ge=0, lt=0.25)] = 0.0
    """Maximum shift of the input's corners, as a fraction of its side."""
    mosaic: Annotated[Fraction, DETECT_ONLY] = 0.0
    """Probability that four images are combined into one input (detection)."""
    mosaic_min_area: Annotated[Fraction, DETECT_ONLY] = 0.1
    """Minimum fraction of a box's area that a mosaic must show; other boxes are dropped (detection)."""
    close_mosaic: Duration = 0
    """Stop mosaic, mixup, cutmix and copy-paste this long before the end of the run: a number of steps, or a
    duration such as ``10 epochs`` or ``10%`` (of the run)."""
    partners: Annotated[Literal["data", "batch"], DETECT_ONLY] = "data"
    """Where mosaic, mixup and copy-paste get other images: from all ``data``, or from the same
    micro-``batch``, so that each image is decoded only once (detection)."""
    copy_paste: Annotated[Fraction, DETECT_ONLY] = 0.0
    """Probability that objects from another image are pasted into this one (detection)."""
    crop: Annotated[Float, Field(gt=0, le=1), CLASSIFYING] = 1.0
    """Minimum fraction of the area that a random crop keeps; 1 disables cropping. In detection, a crop never
    cuts a box."""
    blur: Fraction = 0.0
    """Probability of a Gaussian blur."""
    noise: Fraction = 0.0
    """Probability of Gaussian noise."""
    jpeg: Fraction = 0.0
    """Probability of strong JPEG compression."""
    policy: Annotated[Literal["none", "randaugment", "trivialaugment"], CLASSIFY_ONLY] = "none"
    """Augmentation policy (classification)."""
    erase: Annotated[Fraction, CLASSIFY_ONLY] = 0.0
    """Probability that a rectangle is erased (classification)."""
    mixup: NotNegative = 0.0
    """α of the Beta distribution of mixup's weight; 0 disables mixup."""
    cutmix: Annotated[NotNegative, CLASSIFY_ONLY] = 0.0
    """α of the Beta distribution of cutmix's area; 0 disables cutmix (classification)."""
    mixup_probability: Fraction = 1.0
    """Fraction of the images to which mixup and cutmix apply."""

    @model_validator(mode="before")
    @classmethod
    def _expand_the_preset(cls, given: Any) -> Any:
        """Add the preset's values for omitted keys; the type of ``preset`` rejects an unknown name."""
        keys: Any = given.kwargs if isinstance(given, ArgsKwargs) else given
        name = keys.get("preset") if isinstance(keys, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return given
        keys = {**PRESETS[name], **keys}
        return ArgsKwargs(given.args, keys) if isinstance(given, ArgsKwargs) else keys

    def __post_init__(self, preset: Preset) -> None:
        """Ignore the preset, which the validator has already expanded."""


_FORMS = "xyxy|xywh|cxcywh|polygon"
_OWN_FORMAT = r"([^\W\d]\w*(\.\w+)+|.+\.py)"


def is_own_format(name: str) -> bool:
    """Check whether a value of ``data.format`` is a module of the user's own."""
    return bool(re.fullmatch(rf"{_OWN_FORMAT}(:({_FORMS}))?", name))


PixelValue = Annotated[Float, Field(le=1e12, allow_inf_nan=False)]
Format = Annotated[
    Literal[
        "auto", "webdataset", "coco", "cvat", "voc", "darknet", "fiftyone", "hugging-face", "createml",
        "labelme", "label-studio", "via", "csv", "lines", "cifar", "oxford-pets", "image-folder",
    ] | Annotated[
        str,
        Field(
            pattern=rf"^([a-z-]+:({_FORMS})|{_OWN_FORMAT}(:({_FORMS}))?)$",
            description="a format and a form, such as csv:xywh, or your own module.name or file.py",
        ),
    ],
    BeforeValidator(
        lambda name: re.sub("^yolo(?=:|$)", "darknet", name) if isinstance(name, str) else name
    ),
]  # fmt: skip


@dataclass(frozen=True, config=config)
class Data:
    """The data set, and how its images are decoded and resized."""

    root: Name = "digits"
    """``digits`` (built in), a folder, a file such as a ``data.yaml``, ``torchvision/NAME``, or the address
    of tar shards, ``https://…`` or ``s3://…``."""
    folder: Name = "data"
    """Folder with the files of ``torchvision/NAME`` (``root`` in torchvision)."""
    format: Format = "auto"
    """Format of the data. ``auto`` detects it, and ``yolo`` means ``darknet``. A colon and the form of the
    boxes can follow, as in ``hugging-face:xyxy``: ``xyxy`` (corners), ``xywh`` (corner and size), ``cxcywh``
    (center and size) or, for ``darknet``, ``polygon``. A module of your own is ``package.module`` or
    ``file.py``."""
    options: Options = field(default_factory=dict)
    """Options of your own format, which its class ``Options`` defines, as in ``data.options.separator=/``."""
    train: Name = "train"
    """Name of the split to train on, or its annotation file, relative to ``root``."""
    val: Name = "val"
    """Name of the split to evaluate on, or its annotation file. ``none`` skips evaluations, trains on all
    images if the data has no splits, and keeps the last weights."""
    classes: NamesFile | ClassNames = "auto"
    """``auto`` uses all classes of the data; a list, or a file of names, selects and orders them. If the data
    has only numbers, the list names the classes 0, 1, …."""
    ignore_class: Annotated[tuple[ClassName, ...], DETECT_ONLY] = ()
    """Classes whose boxes mark regions to ignore, such as ``[ignored regions]`` in VisDrone. The model does
    not have these classes. A region is neither an object nor background, and detections in it are not
    scored."""
    fit: Annotated[Literal["letterbox", "stretch"], DETECT_ONLY, PREDICTING] = "letterbox"
    """How an image is resized to the input: ``letterbox`` preserves its aspect ratio; ``stretch``, Darknet's
    default, fills the input."""
    resample: Annotated[Literal["antialias", "darknet"], DETECT_ONLY, PREDICTING] = "antialias"
    """How images are downscaled: ``antialias`` averages all pixels; ``darknet`` interpolates between the four
    nearest pixels, as OpenCV and Darknet do, and ignores ``detail``."""
    pad: Annotated[Int, Field(ge=0, le=255), DETECT_ONLY, PREDICTING] = 114
    """Gray value of the margin around an image; Darknet uses 128."""
    detail: Annotated[NotNegative, PREDICTING] = 2.0
    """Decode at 1/2, 1/4 or 1/8 size if the result is at least this many times as large as the image in the
    network's input; 0 always decodes at full size."""
    range: Annotated[Literal["full", "auto"] | tuple[PixelValue, PixelValue], PREDICTING] = "full"
    """Values of gray images with more than 8 bits that become 0 and 255: ``full`` is the range of 16 bits,
    ``auto`` is the lowest and highest value of each image, and [low, high] suits sensors with fewer bits and
    is needed for 32-bit integers and floating-point numbers. Images with 8 bits do not change."""
    multi_scale: Annotated[Float, Field(ge=0, le=15), DETECT_ONLY, TRAINING] = 0.0
    """Range of random input sizes, from ``1 / (1 + x)`` to ``1 + x`` times ``model.image_size`` (detection);
    0 always uses ``model.image_size``."""
    multi_scale_every: Annotated[Count, DETECT_ONLY, TRAINING] = 10
    """Number of steps between changes of the input size (detection)."""
    cache: Annotated[Literal["none", "ram", "disk"], FREE] = "none"
    """Where decoded images are cached: nowhere, in memory, or on disk. Results do not depend on it."""
    max_bad: Annotated[Fraction, FREE] = 0.01
    """Maximum fraction of unreadable images; with more, the run fails."""
    train_images: Annotated[Images, DETECT_ONLY, TRAINING] = 4096
    """Number of training images of the built-in data; other data has a fixed number."""
    val_images: Annotated[Images, DETECT_ONLY] = 256
    """Number of evaluation images of the built-in data; other data has a fixed number."""
    augment: Annotated[Augment, TRAINING] = field(default_factory=Augment)
    """Augmentation of the training images."""


@dataclass(frozen=True, config=config)
class Batch:
    """The images of one step, processed in micro-batches."""

    images: Annotated[BatchImages, TRAINING] = 64
    """Size of the global batch, on any number of devices."""
    micro: BatchImages = 8
    """Number of images per micro-batch; must divide ``images``."""

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per step, which is the largest useful number of ranks."""
        return self.images // self.micro


@dataclass(frozen=True, config=config)
class Ema:
    """An exponential moving average of the weights, used for evaluation and prediction."""

    decay: ProperFraction = 0.0
    """Decay of the average per step, at most ``(1 + step) / (10 + step)``; 0 disables averaging."""


@dataclass(frozen=True, config=config)
class Evaluate:
    """Evaluation of the model during the run and after it."""

    every: Annotated[Duration, FREE, TRAINING] = "1 epoch"
    """Time between evaluations: steps, or a duration such as ``5 epochs`` or ``10%`` (of the run). The
    weights of the last step are always evaluated; with 0, only those."""
    best: Annotated[Name, TRAINING] = "auto"
    """Score that selects the best checkpoint: ``loss`` (on the evaluation images), AP, AP50 … for a detector,
    top1, nll … for a classifier. ``auto`` is AP, top1, or a custom task's own choice. For ``loss`` and
    ``nll``, lower is better."""
    batch: Literal["auto"] | BatchImages = "auto"
    """Batch size of the evaluation; ``auto`` is ``batch.micro``."""
    confidence: Annotated[Fraction, DETECT_ONLY] = 0.001
    """Detections with a lower score are discarded."""
    nms: Annotated[Literal["iou", "diou"], DETECT_ONLY, PREDICTING] = "iou"
    """Overlap measure of NMS: ``iou``, or ``diou``, which is the IoU minus (d²/c²) ** 0.6, as in Darknet's
    ``greedynms``."""
    iou: Annotated[Fraction, DETECT_ONLY, PREDICTING] = 0.6
    """NMS removes a detection if its overlap with a better one of the same class is higher than this."""
    class_agnostic: Annotated[Bool, DETECT_ONLY, PREDICTING] = False
    """Also let NMS remove detections that overlap a better one of another class."""
    multi_label: Annotated[Bool, DETECT_ONLY, PREDICTING] = True
    """Allow several classes per box, as is usual on COCO; otherwise, only the best one is kept.
    ``rankless predict`` always keeps the best one unless its command line sets this key."""
    detections: Annotated[Int, Field(ge=1, le=100_000), DETECT_ONLY, PREDICTING] = 100
    """Maximum number of detections per image."""
    rectangular: Annotated[Bool, DETECT_ONLY] = False
    """Batch images of similar aspect ratio together, and reduce the input to the size that they need."""
    tta: Annotated[Literal["none", "flip", "full"], PREDICTING] = "none"
    """Test-time augmentation: ``flip`` also predicts on the mirrored image; ``full`` predicts on both in
    three sizes."""
    classes_map: ClassPairs = ()
    """Pairs of class names, in the evaluation data and in the model, for classes whose names differ
    (``--classes-map``)."""


@dataclass(frozen=True, config=config)
class Checkpoint:
    """When and how the training state is saved."""

    every: Annotated[Minutes | Period, FREE] = "10 min"
    """Time between checkpoints: steps, or a duration such as ``10 min``, ``1 epoch`` or ``10%`` (of the
    run). The last step is always saved."""
    keep: Annotated[Count, FREE] = 2
    """Number of latest checkpoints to keep, in addition to the best one."""
    name: LinkName = ""
    """Name of a link in the run directory to the weights of each checkpoint that ends an epoch, as in
    ``ep{epoch:03d}-loss{loss:.3f}-val{val_loss:.3f}``; ``step`` and ``lr`` are also available. If it
    is empty, there are no links."""


@dataclass(frozen=True, config=config)
class Check:
    """Detection of silent errors: a device that computes wrong results, or memory that loses bits."""

    recompute: Annotated[CountOrZero, FREE] = 0
    """Number of steps between checks. In a check, each rank recomputes a micro-batch of another rank (a
    single rank recomputes one of its own), and loss and gradients are compared bit for bit. 0 disables the
    checks. They do not change results."""
    exclude: Annotated[Bool, FREE] = False
    """If an error can be traced to a device, continue from the latest checkpoint without this device;
    otherwise, the run fails if the error repeats."""


@dataclass(frozen=True, config=config)
class Optim:
    """The optimizer."""

    name: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    """``sgd`` (with momentum), ``adam``, ``adamw``, or ``muon``, which orthogonalizes the updates of large
    weights and uses AdamW for all other parameters."""
    lr: Positive = 0.01
    """Peak learning rate, which the schedule scales."""
    backbone_factor: Positive = 1.0
    """Multiplier of the backbone's learning rate; 0.1 is usual for a pretrained backbone."""
    momentum: ProperFraction = 0.9
    """Momentum of SGD and Muon."""
    nesterov: Annotated[Bool, Only("optim.name", ("sgd",))] = False
    """Use Nesterov momentum in SGD."""
    betas: tuple[ProperFraction, ProperFraction] = (0.9, 0.999)
    """Coefficients of the running averages of Adam and AdamW."""
    weight_decay: NotNegative = 5e-4
    """Weight decay: ``sgd`` and ``adam`` add it to the gradient (L2); ``adamw`` and ``muon`` subtract it from
    the weights."""
    decay_norms_and_biases: Bool = False
    """Apply weight decay to all parameters; otherwise only to weights of convolutions and linear layers."""
    clip: NotNegative = 0.0
    """Maximum global norm of the gradient; 0 disables clipping."""


def _schedule(*names: str) -> Only:
    return Only("schedule.name", names)


_WITH_WARMUP = _schedule("cosine", "step", "poly", "exponential", "constant")


@dataclass(frozen=True, config=config)
class Schedule:
    """The learning rate as a function of the step."""

    name: Literal["cosine", "step", "poly", "exponential", "one-cycle", "constant"] = "cosine"
    """``cosine`` (down to ``final``), ``step`` (times ``gamma`` at each milestone), ``poly`` (``(1 - done) **
    power``), ``exponential`` (times ``decay`` after each epoch), ``one-cycle`` (up and down once) or
    ``constant``."""
    warmup: Annotated[Literal["auto"] | Duration, _WITH_WARMUP] = "5%"
    """How long the learning rate rises from 0: steps, or a duration such as ``5 epochs`` or ``5%`` (of the
    run). ``auto`` is ``5%``, but limits step n to n / 40 of ``optim.lr``, which lowers the peak of runs
    with fewer than 800 steps. Not for ``one-cycle``."""
    warmup_power: Annotated[Positive, _WITH_WARMUP] = 1.0
    """Exponent of the warm-up, ``((step + 1) / warmup) ** warmup_power``; Darknet uses 4."""
    length: Annotated[Literal["run"] | Period, _schedule("cosine", "poly")] = "run"
    """When ``cosine`` and ``poly`` reach their end: at the end of the ``run``, or after a duration, which may
    be longer than the run, such as ``200 epochs`` for a run of 90. For a ``cosine`` without warm-up, this
    is ``T_max`` + 1 of a PyTorch scheduler that is called once per step."""
    final: Fraction = 0.01
    """Final learning rate of ``cosine``, as a fraction of ``optim.lr``."""
    milestones: Milestones = ()
    """When ``step`` lowers the rate: steps, or durations such as ``30 epochs`` or ``80%`` (of the run), in
    increasing order. If it is empty, ``80%`` and ``90%`` are used."""
    gamma: Positive = 0.1
    """Factor by which ``step`` multiplies the rate at each milestone."""
    power: Annotated[Positive, _schedule("poly")] = 0.9
    """Exponent of ``poly``; 1 is linear, Darknet's classifiers use 4."""
    decay: Annotated[Float, Field(gt=0, le=1), _schedule("exponential")] = 0.95
    """Factor by which ``exponential`` multiplies the rate after each epoch that follows the warm-up."""
    rise: Annotated[Period, _schedule("one-cycle")] = "30%"
    """How long ``one-cycle`` rises to its peak: steps, or a duration such as ``5 epochs`` or ``30%`` (of
    the run)."""
    div_factor: Annotated[Float, Field(ge=1, le=1e9), _schedule("one-cycle")] = 25.0
    """The first rate of ``one-cycle`` is ``optim.lr`` divided by this."""
    final_div_factor: Annotated[Float, Field(ge=1, le=1e9), _schedule("one-cycle")] = 10_000.0
    """The last rate of ``one-cycle`` is its first one divided by this."""
    cycle_momentum: Annotated[Bool, _schedule("one-cycle")] = True
    """Lower the momentum (or the first of ``optim.betas``) from 0.95 to 0.85 until the peak of ``one-cycle``,
    and raise it again afterwards."""


@dataclass(frozen=True, config=config)
class Recipe:
    """A complete recipe; see the classes of its sections."""

    task: Name = DEFAULT
    """``detect``, ``classify``, or for a custom task ``package.module:Class`` or ``file.py:Class``."""
    model: AnyModel = field(default_factory=YoloModel)
    """The network. ``model.name`` determines which keys are available."""
    data: Data = field(default_factory=Data)
    batch: Batch = field(default_factory=Batch)
    epochs: Annotated[Count, FREE, TRAINING] = 100
    """Number of passes over the training images."""
    seed: Annotated[Seed, TRAINING] = 0
    """Seed of all random numbers."""
    loss: AnyLoss = field(default_factory=AutoLoss)
    """The loss. ``loss.name`` determines which keys are available."""
    optim: Annotated[Optim, TRAINING] = field(default_factory=Optim)
    schedule: Annotated[Schedule, TRAINING] = field(default_factory=Schedule)
    precision: Annotated[Precision, PREDICTING] = "auto"
    """Precision of the forward pass. ``auto`` is bf16 if the device supports it natively, else fp32 (fp16 on
    older GPUs). ``fp32`` is IEEE single precision everywhere; ``tf32`` lets GPUs round the factors of matrix
    products and convolutions to 10 bits, and is fp32 on a CPU."""
    cpu_isa: Annotated[Literal["native", "avx2"], PREDICTING] = "native"
    """Instruction set of the CPU: the best available, or ``avx2``, which gives the same bits on all x86 CPUs
    but does not support bf16."""
    batch_norm: Annotated[Literal["micro", "sync", "frozen"], TRAINING] = "micro"
    """Statistics of batch norms: those of the ``micro``-batch, of the global batch (``sync``), or
    ``frozen``."""
    compute: Annotated[Literal["eager", "compiled"], TRAINING] = "eager"
    """How a micro-batch is computed: ``eager`` runs the network's operations one after another; ``compiled``
    turns its forward and backward passes into two programs with ``torch.compile``, which takes about a
    minute at every start. The two round differently."""
    reduce: Annotated[Literal["exact", "fast"], TRAINING] = "exact"
    """``exact`` adds gradients in the order of a fixed tree; ``fast`` leaves the order to the backend."""
    find_unused_parameters: Annotated[Bool, FREE, TRAINING] = False
    """Accept parameters that do not affect the loss of a micro-batch, and set their gradient to zero;
    otherwise, they are an error."""
    ema: Annotated[Ema, TRAINING] = field(default_factory=Ema)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Annotated[Checkpoint, TRAINING] = field(default_factory=Checkpoint)
    check: Annotated[Check, TRAINING] = field(default_factory=Check)
    workers: Annotated[Literal["auto"] | Annotated[Int, Field(ge=0, le=256)], FREE] = "auto"
    """Number of loader processes per rank; 0 loads in the rank's process, ``auto`` uses the cores that the
    ranks leave free. Results do not depend on it."""
    threads: Annotated[Int, Field(ge=1, le=1024)] = 1
    """Number of CPU threads per operation. It affects the exact results of convolutions."""

    @model_validator(mode="wrap")
    @classmethod
    def _report_in_sentences(cls, given: Any, handler: Handler, info: ValidationInfo) -> Self:
        made: Self = checked(cls, given, handler, info.context)
        return made
