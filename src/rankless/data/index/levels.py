"""Find 16-bit images whose values fill only a few of the 256 levels that remain after decoding."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np

from rankless.data.images import image_file
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.data.index.findings import Finding
from rankless.errors import UserError
from rankless.files.remote import is_remote

_SAMPLE = 32  # number of images that are opened; only those with 16 bits are decoded
_FEW = 64  # maximum number of levels that are few: those of 14 bits, as from thermal cameras


def report_few_levels(annotations: Annotations) -> None:
    """Add findings if at least half of the 16-bit images in a sample fill few levels.

    The sample is evenly spaced. Opening 32 images takes a few milliseconds, and decoding those with 16 bits
    less than a second. The result is cached with the annotations.
    """
    if not len(annotations) or is_remote(annotations.path(0)):  # no downloads only for this
        return
    found, seen = [], 0
    for index in np.unique(np.linspace(0, len(annotations) - 1, _SAMPLE).round().astype(int)).tolist():
        with suppress(UserError):  # an unreadable image is reported elsewhere
            path = annotations.path(index)
            inside = len(annotations.byte_ranges)
            levels = image_file.levels(io.BytesIO(content(annotations, index)) if inside else path)
            seen += levels is not None
            if levels is not None and levels.used <= _FEW:
                values = f"values from {levels.low:,} to {levels.high:,}"
                problem = f"{values} become {levels.used} of 256 levels; {image_file.GIVE_RANGE}"
                found.append(Finding(path, problem))
    if 2 * len(found) >= seen:
        annotations.findings.add_many("few levels", len(found), found)
