"""Count the frames and files that an image passes from ``DetectionExamples.items`` to the decoder, and those
that a micro-batch passes from the loader to the optimizer's step.

Run ``python benchmarks/walk.py``: a row for each setting, and the frames of an image's longest walk; then
what a step of one micro-batch calls, by room.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

import rankless
from rankless.data.datasets.detection import DetectionExamples, open_images
from rankless.engine.loop import train
from rankless.hardware.computing import computes_like
from rankless.recipe.load import load
from rankless.recipe.schema import Augment, Data
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import join

Walk = list[tuple[str, str]]
PACKAGE = Path(rankless.__file__).parent


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
            frames.append((os.path.relpath(back.f_code.co_filename, PACKAGE), back.f_code.co_name))
            back = back.f_back
        found = max(found, frames[::-1], key=len)

    sys.setprofile(profile)
    try:
        examples.items([(0, 1), (0, 2)], 0)
    finally:
        sys.setprofile(None)
    return found


def micro_batch(root: str, folder: Path) -> tuple[Walk, int]:
    """Return each (file, function) that a step of one micro-batch calls, and the most frames at once."""
    called: dict[tuple[str, str], None] = {}
    depth = deepest = 0

    def profile(frame: FrameType, event: str, callee: Any) -> None:
        nonlocal depth, deepest
        file = os.path.relpath(frame.f_code.co_filename, PACKAGE)
        if file.startswith("..") or not (depth or frame.f_code.co_name == "_train_step"):
            return
        if event == "call":
            depth, called[file, frame.f_code.co_name] = depth + 1, None
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    small = ["batch.images=2", "batch.micro=2", "workers=0", "epochs=1", "model.image_size=64"]
    recipe = load("yolov4-tiny", [f"data.root={root}", "data.val=train", "data.format=auto", *small])
    with computes_like(recipe), join() as world:
        sys.setprofile(profile)
        train(recipe, RunDirectory(folder), world, resume=False)
        sys.setprofile(None)
    return list(called), deepest


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RANKLESS_CACHE"] = f"{scratch}/cache"
        root = str(data_set(Path(scratch) / "data"))
        mosaic = Augment(mosaic=1.0, partners="batch")
        longest: Walk = []
        for name, augment, data in (
            ("scored", None, Data()),
            ("augmented", Augment(), Data()),
            ("mosaic", replace(mosaic, partners="data"), Data()),
            ("mosaic of the micro-batch", mosaic, Data()),
            ("the same, stretched, cached", mosaic, Data(fit="stretch", cache="disk")),
        ):
            source = open_images(Data(root=root), "train", 8)
            frames = walk(DetectionExamples(source, (64, 64), 0, augment, 9, data))
            print(f"{name:30} {len(frames):3} frames in {len({file for file, _ in frames})} files")
            longest = max(longest, frames, key=len)
        print(*(f"  {file}: {function}" for file, function in longest), sep="\n")
        called, deepest = micro_batch(root, Path(scratch) / "run")
        files = Counter(file.split("/")[0] for file in dict(called))
        print(f"micro-batch: {len(called)} functions in {files.total()} files, {deepest} frames at most")
        print(*(f"  {room}: {count} files" for room, count in files.most_common()), sep="\n")


if __name__ == "__main__":
    main()
