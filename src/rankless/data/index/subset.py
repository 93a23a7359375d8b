"""Some of a split's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankless.data.index.annotations import Annotations, flat_paths
from rankless.data.index.findings import Findings


def subset(annotations: Annotations, chosen: Sequence[int] | NDArray[np.int64]) -> Annotations:
    """Return the images ``chosen``, indices (K,), in that order with their boxes; in memory, no findings."""
    indices = np.asarray(chosen, np.int64).reshape(-1)
    counts = annotations.offsets[indices + 1] - annotations.offsets[indices]
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    rows = np.repeat(annotations.offsets[indices] - offsets[:-1], counts) + np.arange(offsets[-1])
    paths = annotations.paths()
    path_bytes, path_ends = flat_paths([paths[index] for index in indices.tolist()])
    return replace(
        annotations,
        path_bytes=path_bytes,
        path_ends=path_ends,
        byte_ranges=annotations.byte_ranges[indices if len(annotations.byte_ranges) else slice(0)],
        sizes=annotations.sizes[indices],
        offsets=offsets,
        boxes=annotations.boxes[rows] if annotations.has_boxes else annotations.boxes,
        **{name: getattr(annotations, name)[rows] for name in ("labels", "flags", "areas")},
        findings=Findings(),
        folder=None,
    )
