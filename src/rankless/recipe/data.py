"""The section ``data``: the images and how they are augmented, with the presets of ``data.augment``.

A recipe names a preset as ``data.augment: heavy`` or as ``data.augment: {preset: heavy, flip: 0}``. Only the
values are recorded, so a preset may change between versions without changing any recorded recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from rankless.recipe.fields import (
    CLASSIFY_ONLY,
    DETECT_ONLY,
    ClassNames,
    Count,
    Duration,
    Factor,
    Fraction,
    Images,
    Name,
    NamesFile,
    NotNegative,
    ProperFraction,
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
    """Augmentation of the training images: a preset's name, or keys. Zero switches a part off.

    Attributes:
        preset: values for the keys that are not given; ``light`` is the defaults. A recorded recipe holds the
            values.
        flip: probability of a horizontal flip.
        flip_vertical: probability of a vertical flip.
        hue: largest rotation of the hue, as a fraction of the full circle.
        saturation: the largest factor on the saturation is ``1 + x``, the smallest ``1 / (1 + x)``.
        value: the largest factor on the value (the brightness) is ``1 + x``, the smallest ``1 / (1 + x)``.
        scale: the largest zoom is ``1 + x``, the smallest ``1 / (1 + x)``.
        translate: largest shift, as a fraction of the input's side.
        rotate: largest rotation, in degrees.
        shear: largest shear, in degrees.
        perspective: largest shift of the input's corners, as a fraction of its side.
        mosaic: probability that four images are combined into one input (detection).
        mosaic_min_area: a mosaic drops a box of which less than this fraction of its area is left to see
            (detection).
        close_mosaic: how long the end of the run is without mosaic, mixup, cutmix and copy-paste: steps, or
            as in ``10 epochs`` or ``10%`` (of the run).
        partners: where mosaic, mixup and copy-paste take the other images from: the whole ``data``, or the
            same micro-``batch``, so that each image is decoded only once (detection).
        copy_paste: probability that objects of another image are pasted into this one (detection).
        crop: smallest fraction of the area that a random crop leaves; 1 disables cropping. In detection a
            crop never cuts a box.
        blur: probability of a Gaussian blur.
        noise: probability of Gaussian noise.
        jpeg: probability of strong JPEG compression.
        policy: a sequence of random operations (classification).
        erase: probability that a rectangle is erased (classification).
        mixup: α of the Beta distribution from which the weight of a blend of two images is drawn; 0 disables
            mixup.
        cutmix: the same for pasting a part of one image into the other (classification).
        mixup_probability: fraction of the images to which mixup and cutmix apply.
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
    mosaic: Annotated[Fraction, DETECT_ONLY] = 0.0
    mosaic_min_area: Annotated[Fraction, DETECT_ONLY] = 0.1
    close_mosaic: Duration = 0
    partners: Annotated[Literal["data", "batch"], DETECT_ONLY] = "data"
    copy_paste: Annotated[Fraction, DETECT_ONLY] = 0.0
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    blur: Fraction = 0.0
    noise: Fraction = 0.0
    jpeg: Fraction = 0.0
    policy: Annotated[Literal["none", "randaugment", "trivialaugment"], CLASSIFY_ONLY] = "none"
    erase: Annotated[Fraction, CLASSIFY_ONLY] = 0.0
    mixup: NotNegative = 0.0
    cutmix: Annotated[NotNegative, CLASSIFY_ONLY] = 0.0
    mixup_probability: Fraction = 1.0

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
    """The images.

    Attributes:
        root: ``digits`` (built in), a folder, a file such as a ``data.yaml``, ``torchvision/NAME``, or the
            address of tar shards, ``https://…`` or ``s3://…``.
        folder: where the files of ``torchvision/NAME`` are, as torchvision's ``root``.
        format: of the data; ``auto`` detects it.
        train: name of the split to train on, or its annotation file, relative to ``root``.
        val: name or file of the split to evaluate on; ``none`` trains without evaluations, on every image
            where the data has no splits, and the last weights are the run's.
        classes: ``auto`` is all classes of the data; a list, or a file of names, selects some of them and
            orders them. Where the data has only numbers, it names the classes 0, 1, ….
        fit: how an image is resized to the input: ``letterbox`` preserves its aspect ratio, ``stretch`` fills
            the input, which is Darknet's default.
        resample: how an image becomes smaller: ``antialias`` averages all its pixels; ``darknet`` reads the
            four around each point, as OpenCV and Darknet do, and decodes every pixel whatever ``detail`` is.
        pad: gray value of the margin around an image; Darknet's letterbox has 128.
        detail: decode at 1/2, 1/4 or 1/8 size while the result is at least this many times the displayed
            size; 0 disables.
        multi_scale: draw a new input size every few steps, from ``1 / (1 + x)`` to ``1 + x`` times
            ``model.image_size`` (detection).
        multi_scale_every: steps between two draws.
        cache: where decoded images are cached: not at all, in memory, or on disk. It changes no result.
        max_bad: a larger fraction of unreadable images ends a run.
        train_images: number of training images of the built-in data; other data has a fixed number.
        val_images: number of evaluation images of the built-in data; other data has a fixed number.
        augment: augmentation of the training images.
    """

    root: Name = "digits"
    folder: Name = "data"
    format: Format = "auto"
    train: Name = "train"
    val: Name = "val"
    classes: NamesFile | ClassNames = "auto"
    fit: Annotated[Literal["letterbox", "stretch"], DETECT_ONLY] = "letterbox"
    resample: Annotated[Literal["antialias", "darknet"], DETECT_ONLY] = "antialias"
    pad: Annotated[Annotated[int, Field(ge=0, le=255)], DETECT_ONLY] = 114
    detail: NotNegative = 2.0
    multi_scale: Annotated[Annotated[float, Field(ge=0, le=15)], DETECT_ONLY] = 0.0
    multi_scale_every: Annotated[Count, DETECT_ONLY] = 10
    cache: Literal["none", "ram", "disk"] = "none"
    max_bad: Fraction = 0.01
    train_images: Annotated[Images, DETECT_ONLY] = 4096
    val_images: Annotated[Images, DETECT_ONLY] = 256
    augment: Augment = field(default_factory=Augment)
