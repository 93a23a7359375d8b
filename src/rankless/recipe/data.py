"""The section ``data``: the images and how they are augmented, with the presets of ``data.augment``.

A recipe names a preset as ``data.augment: heavy`` or as ``data.augment: {preset: heavy, flip: 0}``. Only the
values are recorded, so a preset may change between versions without changing any recorded recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, field
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from rankless.recipe.fields import (
    CLASSIFY_ONLY,
    DETECT_ONLY,
    FREE,
    PREDICTING,
    TRAINING,
    ClassNames,
    Count,
    Duration,
    Factor,
    Float,
    Fraction,
    Images,
    Int,
    Name,
    NamesFile,
    NotNegative,
    ProperFraction,
    Reads,
    clash,
    config,
)

IN_RECIPE = " (in a recipe: data.train, data.val)"
"""Where splits are named, in messages; whoever took one from an option leaves it out."""

Preset = Literal["none", "light", "yolov3", "yolov4", "heavy"]

# Of yolov3.cfg: hue .1, saturation and exposure 1.5 (the largest factors, so one less here), and jitter .3.
# Jitter moves each edge by up to .3 of the side, in or out: at most 1.6 times as much is seen, shifted by at
# most .3. It also changes the aspect, which no key here does.
_YOLOV3 = {"hue": 0.1, "saturation": 0.5, "value": 0.5, "scale": 0.6, "translate": 0.3}

PRESETS: Mapping[str, Mapping[str, float | str]] = {
    "none": dict.fromkeys(("flip", "hue", "saturation", "value", "scale", "translate"), 0.0),
    "light": {},  # the defaults
    "yolov3": _YOLOV3,
    "yolov4": {**_YOLOV3, "mosaic": 1.0},  # of yolov4.cfg
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
"""Preset to the keys in which it differs from the defaults."""


@dataclass(frozen=True, config=config)
class Augment:
    """Augmentation of the training images: a preset's name, or keys. Zero switches a part off."""

    preset: InitVar[Preset] = "light"
    """Values for the keys that are not given; ``light`` is the defaults. A recorded recipe holds the
    values."""
    flip: Fraction = 0.5
    """Probability of a horizontal flip."""
    flip_vertical: Fraction = 0.0
    """Probability of a vertical flip."""
    hue: Annotated[Float, Field(ge=0, le=0.5)] = 0.015
    """Largest rotation of the hue, as a fraction of the full circle."""
    saturation: Factor = 0.5
    """The largest factor on the saturation is ``1 + x``, the smallest ``1 / (1 + x)``."""
    value: Factor = 0.3
    """The largest factor on the value (the brightness) is ``1 + x``, the smallest ``1 / (1 + x)``."""
    scale: Factor = 0.3
    """The largest zoom is ``1 + x``, the smallest ``1 / (1 + x)``."""
    translate: ProperFraction = 0.1
    """Largest shift, as a fraction of the input's side."""
    rotate: Annotated[Float, Field(ge=0, le=180)] = 0.0
    """Largest rotation, in degrees."""
    shear: Annotated[Float, Field(ge=0, lt=90)] = 0.0
    """Largest shear, in degrees."""
    perspective: Annotated[Float, Field(ge=0, lt=0.25)] = 0.0
    """Largest shift of the input's corners, as a fraction of its side."""
    mosaic: Annotated[Fraction, DETECT_ONLY] = 0.0
    """Probability that four images are combined into one input (detection)."""
    mosaic_min_area: Annotated[Fraction, DETECT_ONLY] = 0.1
    """A mosaic drops a box of which less than this fraction of its area is left to see (detection)."""
    close_mosaic: Duration = 0
    """How long the end of the run is without mosaic, mixup, cutmix and copy-paste: steps, or as in ``10
    epochs`` or ``10%`` (of the run)."""
    partners: Annotated[Literal["data", "batch"], DETECT_ONLY] = "data"
    """Where mosaic, mixup and copy-paste take the other images from: the whole ``data``, or the same
    micro-``batch``, so that each image is decoded only once (detection)."""
    copy_paste: Annotated[Fraction, DETECT_ONLY] = 0.0
    """Probability that objects of another image are pasted into this one (detection)."""
    crop: Annotated[Float, Field(gt=0, le=1), Reads(("classify",), ("classify",))] = 1.0
    """Smallest fraction of the area that a random crop leaves; 1 disables cropping. In detection a crop never
    cuts a box."""
    blur: Fraction = 0.0
    """Probability of a Gaussian blur."""
    noise: Fraction = 0.0
    """Probability of Gaussian noise."""
    jpeg: Fraction = 0.0
    """Probability of strong JPEG compression."""
    policy: Annotated[Literal["none", "randaugment", "trivialaugment"], CLASSIFY_ONLY] = "none"
    """A sequence of random operations (classification)."""
    erase: Annotated[Fraction, CLASSIFY_ONLY] = 0.0
    """Probability that a rectangle is erased (classification)."""
    mixup: NotNegative = 0.0
    """α of the Beta distribution from which the weight of a blend of two images is drawn; 0 disables
    mixup."""
    cutmix: Annotated[NotNegative, CLASSIFY_ONLY] = 0.0
    """The same for pasting a part of one image into the other (classification)."""
    mixup_probability: Fraction = 1.0
    """Fraction of the images to which mixup and cutmix apply."""

    @model_validator(mode="before")
    @classmethod
    def _expand_the_preset(cls, given: Any) -> Any:
        """Add the preset's values for the keys that are not given; its type refuses an unknown preset."""
        keys: Any = given.kwargs if isinstance(given, ArgsKwargs) else given
        name = keys.get("preset") if isinstance(keys, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return given
        keys = {**PRESETS[name], **keys}
        return ArgsKwargs(given.args, keys) if isinstance(given, ArgsKwargs) else keys

    def __post_init__(self, preset: Preset) -> None:
        """Accept the preset, which the validator has expanded."""


Format = Literal[
    "auto", "webdataset", "coco", "voc", "darknet", "csv", "lines", "cifar", "oxford-pets", "image-folder"
]


@dataclass(frozen=True, config=config)
class Data:
    """The images."""

    root: Name = "digits"
    """``digits`` (built in), a folder, a file such as a ``data.yaml``, ``torchvision/NAME``, or the address
    of tar shards, ``https://…`` or ``s3://…``."""
    folder: Name = "data"
    """Where the files of ``torchvision/NAME`` are, as torchvision's ``root``."""
    format: Format = "auto"
    """Of the data; ``auto`` detects it."""
    train: Name = "train"
    """Name of the split to train on, or its annotation file, relative to ``root``."""
    val: Name = "val"
    """Name or file of the split to evaluate on; ``none`` trains without evaluations, on every image where the
    data has no splits, and the last weights are the run's."""
    classes: NamesFile | ClassNames = "auto"
    """``auto`` is all classes of the data; a list, or a file of names, selects some of them and orders them.
    Where the data has only numbers, it names the classes 0, 1, …."""
    fit: Annotated[Literal["letterbox", "stretch"], DETECT_ONLY, PREDICTING] = "letterbox"
    """How an image is resized to the input: ``letterbox`` preserves its aspect ratio, ``stretch`` fills the
    input, which is Darknet's default."""
    resample: Annotated[Literal["antialias", "darknet"], DETECT_ONLY, PREDICTING] = "antialias"
    """How an image becomes smaller: ``antialias`` averages all its pixels; ``darknet`` reads the four around
    each point, as OpenCV and Darknet do, and decodes every pixel whatever ``detail`` is."""
    pad: Annotated[Int, Field(ge=0, le=255), DETECT_ONLY, PREDICTING] = 114
    """Gray value of the margin around an image; Darknet's letterbox has 128."""
    detail: Annotated[NotNegative, PREDICTING] = 2.0
    """Decode at 1/2, 1/4 or 1/8 size while the result is at least this many times the displayed size; 0
    disables."""
    multi_scale: Annotated[Float, Field(ge=0, le=15), DETECT_ONLY, TRAINING] = 0.0
    """Draw a new input size every few steps, from ``1 / (1 + x)`` to ``1 + x`` times ``model.image_size``
    (detection)."""
    multi_scale_every: Annotated[Count, DETECT_ONLY, TRAINING] = 10
    """Steps between two draws."""
    cache: Annotated[Literal["none", "ram", "disk"], FREE] = "none"
    """Where decoded images are cached: not at all, in memory, or on disk. It changes no result."""
    max_bad: Annotated[Fraction, FREE] = 0.01
    """A larger fraction of unreadable images ends a run."""
    train_images: Annotated[Images, DETECT_ONLY, TRAINING] = 4096
    """Number of training images of the built-in data; other data has a fixed number."""
    val_images: Annotated[Images, DETECT_ONLY] = 256
    """Number of evaluation images of the built-in data; other data has a fixed number."""
    augment: Annotated[Augment, TRAINING] = field(default_factory=Augment)
    """Augmentation of the training images."""

    @field_validator("folder")
    @classmethod
    def _folder_has_an_effect(cls, folder: str, info: ValidationInfo) -> str:
        if folder != cls.folder and not info.data.get("root", "torchvision/").startswith("torchvision/"):
            raise clash(
                f"'data.folder' is {folder!r}, which has an effect only with "
                "data.root=torchvision/NAME: leave it out, or give the folder as data.root",
                "data.folder",
                "data.root",
            )
        return folder
