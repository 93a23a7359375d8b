"""Named sets of values for ``data.augment``: what a preset stands for, key by key.

A recipe names one as ``data.augment: heavy`` or as ``data.augment: {preset: heavy, flip: 0}``. What is
recorded is the values, so a preset may change from version to version and no recorded recipe changes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic_core import ArgsKwargs

Preset = Literal["none", "light", "yolov3", "yolov4", "heavy"]

# Of yolov3.cfg: hue .1, saturation and exposure 1.5 (the largest factors, so one less here), and jitter .3.
# Jitter moves each edge by up to .3 of the side, in or out: at most 1.6 times as much is seen, shifted by at
# most .3. It also changes the aspect, which no key here does.
_YOLOV3 = {"hue": 0.1, "saturation": 0.5, "value": 0.5, "scale": 0.6, "translate": 0.3}

PRESETS: Mapping[str, Mapping[str, float]] = {
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
        "close_mosaic": 10,
        "copy_paste": 0.3,
        "blur": 0.05,
        "noise": 0.05,
        "jpeg": 0.05,
        "mixup": 8.0,
        "mixup_chance": 0.15,
    },
}
"""Preset to the keys in which it differs from the defaults."""


def expanded(given: Any) -> Any:
    """What was given for ``data.augment``, with the preset's values where nothing was said.

    Args:
        given: a mapping of keys, or Python's arguments; anything else is returned as it is, and so is what
            names no preset or one that does not exist, which its type refuses.
    """
    if isinstance(given, ArgsKwargs):
        return ArgsKwargs(given.args, expanded(given.kwargs or {}))
    name = given.get("preset") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in PRESETS:
        return given
    return {**PRESETS[name], **given}
