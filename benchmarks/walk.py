"""Count the frames and files that one image passes between ``DetectionExamples.items`` and the decoder.

Run ``python benchmarks/walk.py``: a row for each setting, and the frames of the longest walk.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

from rankless.data.datasets.detection import DetectionExamples, open_images
from rankless.recipe.schema import Augment

Walk = list[tuple[str, str]]


def data_set(folder: Path) -> Path:
    """Write eight JPEGs with one box each, as Darknet lists them."""
    for part in ("images/train", "labels/train"):
        (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(8):
        pixels = rng.integers(0, 255, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"images/train/{number}.jpg")
        (folder / f"labels/train/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (folder / "data.yaml").write_text("train: images/train\nnames: [thing]\n")
    return folder / "data.yaml"


def walk(examples: DetectionExamples) -> Walk:
    """Return (file, function) from ``items`` to the decoder's caller, the longest of a micro-batch."""
    found: Walk = []

    def profile(frame: FrameType, event: str, callee: Any) -> None:
        nonlocal found
        if frame.f_code.co_name != "_jpeg" or event != "call":
            return
        frames: Walk = []
        back: FrameType | None = frame
        while back is not None and back.f_code.co_name != "walk":
            frames.append((os.path.relpath(back.f_code.co_filename, "src/rankless"), back.f_code.co_name))
            back = back.f_back
        found = max(found, frames[::-1], key=len)

    sys.setprofile(profile)
    try:
        examples.items([(0, 1), (0, 2)], 0)
    finally:
        sys.setprofile(None)
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RANKLESS_CACHE"] = f"{scratch}/cache"
        root = str(data_set(Path(scratch) / "data"))
        mosaic = Augment(mosaic=1.0, partners="batch")
        longest: Walk = []
        for name, augment, options in (
            ("scored", None, {}),
            ("augmented", Augment(), {}),
            ("mosaic", replace(mosaic, partners="data"), {}),
            ("mosaic of the micro-batch", mosaic, {}),
            ("the same, stretched, cached", mosaic, {"fit": "stretch", "cache": "disk"}),
        ):
            source = open_images(root, "train", images=8, seed=0, size=(64, 64))
            options = {"fit": "letterbox", **options}
            frames = walk(DetectionExamples(source, (64, 64), 0, augment, 9, **options))
            print(f"{name:30} {len(frames):3} frames in {len({file for file, _ in frames})} files")
            longest = max(longest, frames, key=len)
        print(*(f"  {file}: {function}" for file, function in longest), sep="\n")


if __name__ == "__main__":
    main()
