"""Compare the speed of making training images with decoding alone and with torchvision, in one thread.

    python benchmarks/input.py [FOLDER] [--turns 15]

Each reads JPEGs of FOLDER, with ten boxes each, and makes uint8 batches of 16 × 3 × 416 × 416: letterboxed,
scaled by up to a half, moved by up to a tenth of a side, recolored (hue 0.015, saturation 0.7, value 0.4) and
half of them mirrored. All take turns of one batch; the seconds are CPU time, which other work on the machine
changes least.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples, collate
from rankless.data.images.image_cache import open_images
from rankless.data.images.image_file import Shown, header
from rankless.data.index.annotations import Annotations, flat_paths
from rankless.recipe.schema import Augment
from turns import timed

SIDE, BATCH, BOXES = 416, 16, 10
HUE, SATURATION, VALUE, SCALE, TRANSLATE = 0.015, 0.7, 0.4, 0.5, 0.1
Step = Callable[[list[int]], object]


def draw(folder: Path, count: int) -> None:
    """Write photo-like JPEGs of 640 × 480: noise of every scale, coarse more than fine, about 60 kB each."""
    chance = np.random.default_rng(0)
    for number in range(count):
        total = np.full((480, 640, 3), 127.0)
        for level in range(1, 8):
            cells = chance.normal(0, 64 / level, (3 * 2**level, 4 * 2**level, 3)).clip(-127, 127) + 128
            layer = Image.fromarray(cells.astype(np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
            total += (np.asarray(layer, np.float64) - 128) / level
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04}.jpg", quality=90)


def boxes_of(number: int, height: int, width: int) -> NDArray[np.float32]:
    """Return ten boxes xyxy in pixels, (10, 4), of image ``number``."""
    chance = np.random.default_rng(number)
    corner = chance.uniform(0, 0.7, (BOXES, 2))
    shares = np.concatenate((corner, corner + chance.uniform(0.05, 0.3, (BOXES, 2))), 1)
    return (shares * [width, height, width, height]).astype(np.float32)


def decoding(files: list[str], mosaic: bool) -> Step:
    """Only read and decode the files, four for a mosaic: the lower bound."""

    def step(numbers: list[int]) -> None:
        for number, other in itertools.product(numbers, range(4 if mosaic else 1)):
            simplejpeg.decode_jpeg(Path(files[(number + 37 * other) % len(files)]).read_bytes())

    return step


def rankless(
    files: list[str],
    mosaic: bool,
    cache: Literal["none", "ram"] = "none",
    partners: Literal["data", "batch"] = "data",
) -> Step:
    """Rankless, as its loader processes work, with micro-batches of 16 images."""
    names, ends = flat_paths(files)
    count = len(files) * BOXES
    sizes = [header(file).size for file in files]
    known = Annotations(
        class_names=("thing",),
        format="benchmark",
        path_bytes=names,
        path_ends=ends,
        byte_ranges=np.zeros((0, 2), np.int64),
        sizes=np.array(sizes, np.int32),
        offsets=np.arange(len(files) + 1) * BOXES,
        boxes=np.concatenate([boxes_of(number, *each) for number, each in enumerate(sizes)]),
        labels=np.zeros(count, np.int32),
        flags=np.zeros(count, np.uint8),
        areas=np.full(count, np.nan, np.float32),
    )
    images, _ = open_images(known, Shown((SIDE, SIDE)), cache)
    options = Augment(
        flip=0.5,
        scale=SCALE,
        translate=TRANSLATE,
        hue=HUE,
        saturation=SATURATION,
        value=VALUE,
        mosaic=float(mosaic),
        partners=partners,
    )
    examples = DetectionExamples(BoxedImages(known, images), (SIDE, SIDE), 0, options)
    epoch = itertools.count()
    if cache != "none":
        for number in range(len(files)):
            images.read(number)
    return lambda numbers: collate(examples.items([(next(epoch), number) for number in numbers], 0))


def torchvision(files: list[str], mosaic: bool) -> Step:
    """Torchvision's transforms v2 with tv_tensors, images decoded by its own decoder."""
    move = v2.RandomAffine(0, (TRANSLATE, TRANSLATE), (1 - SCALE, 1 + SCALE), fill=114)
    color = v2.ColorJitter(VALUE, 0, SATURATION, HUE)
    ways = [move, color, v2.RandomHorizontalFlip(), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()]
    after = v2.Compose(ways)

    def boxed(boxes: Any, size: tuple[int, int]) -> Any:
        return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)

    def read(number: int) -> tuple[Any, Any]:
        image = decode_image(read_file(files[number]), ImageReadMode.RGB)
        size = image.shape[-2], image.shape[-1]
        scale = min(SIDE / side for side in size)
        new = [round(side * scale) for side in size]
        boxes = v2.functional.resize(boxed(boxes_of(number, *size), size), new)
        return v2.functional.resize(tv_tensors.Image(image), new, antialias=True), boxes

    def plain(number: int) -> tuple[Any, Any]:
        image, boxes = read(number)
        (height, width), free = image.shape[-2:], [SIDE - side for side in image.shape[-2:]]
        margins = [free[1] // 2, free[0] // 2, SIDE - width - free[1] // 2, SIDE - height - free[0] // 2]
        return v2.functional.pad(image, margins, fill=114), v2.functional.pad(boxes, margins)

    def four(number: int) -> tuple[Any, Any]:
        canvas, found = torch.full((3, 2 * SIDE, 2 * SIDE), 114, dtype=torch.uint8), []
        for place in range(4):
            image, boxes = read((number + 37 * place) % len(files))
            height, width = image.shape[-2:]
            left, top = (SIDE if place % 2 else SIDE - width), (SIDE if place // 2 else SIDE - height)
            canvas[:, top : top + height, left : left + width] = image
            found.append(torch.as_tensor(boxes) + torch.tensor([left, top, left, top]))
        corner = [*torch.randint(SIDE // 4, 3 * SIDE // 4, (2,)).tolist(), SIDE, SIDE]
        boxes = v2.functional.crop(boxed(torch.cat(found), (2 * SIDE, 2 * SIDE)), *corner)
        return v2.functional.crop(tv_tensors.Image(canvas), *corner), boxes

    def step(numbers: list[int]) -> torch.Tensor:
        made = []
        for number in numbers:
            image, boxes = (four if mosaic else plain)(number)
            made.append(after({"image": image, "boxes": boxes, "labels": torch.zeros(len(boxes))})["image"])
        return torch.stack(made)

    return step


def measure(files: list[str], mosaic: bool, turns: int, batch: int) -> None:
    """Print images per second, and how many times as fast Rankless is."""
    steps = {
        "decoding alone": decoding(files, mosaic),
        "Rankless": rankless(files, mosaic),
        "Rankless, partners: batch": rankless(files, mosaic, partners="batch"),
        "Rankless, data.cache: ram": rankless(files, mosaic, "ram"),
        "torchvision, transforms v2": torchvision(files, mosaic),
    }
    turn = itertools.cycle(range(len(files)))
    works = [lambda step=step: step([next(turn) for _ in range(batch)]) for step in steps.values()]
    found = dict(zip(steps, timed(works, turns), strict=True))
    seconds = {name: [one.cpu / batch for one in each] for name, each in found.items()}
    title = "mosaics" if mosaic else "plain images"
    print(f"{title:28}{'best/s':>8}{'median/s':>10}   Rankless is … times as fast: best, median of pairs")
    for name, each in seconds.items():
        mine = seconds["Rankless"]
        paired = statistics.median(b / a for a, b in zip(mine, each, strict=True))
        speeds = f"{1 / min(each):8.0f}{1 / statistics.median(each):10.0f}"
        print(f"{name:28}{speeds}{min(each) / min(mine):12.2f}{paired:7.2f}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="JPEGs; made if not given")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="few images, to see that the script works")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of torchvision's transforms
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        if not options.folder:
            draw(Path(made), 4 if options.tiny else 256)
        files = sorted(map(str, (options.folder or Path(made)).resolve().glob("*.jpg")))
        for mosaic in (False, True):
            measure(files, mosaic, *((1, 2) if options.tiny else (options.turns, BATCH)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
