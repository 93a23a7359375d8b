"""The contenders of ``input.py``: one process that makes batches of training images with one library.

    python input_contenders.py NAME FOLDER [mosaic]

It says ``ready``, or ``missing: …`` and ends; then, for every number n on a line of its input, it makes n
batches and answers with a line. Every contender reads JPEGs of ``FOLDER`` in turn, with ten boxes each, and
makes uint8 batches of 16 × 3 × 416 × 416: letterboxed, scaled by up to a half, moved by up to a tenth of a
side, recolored (hue 0.015, saturation 0.7, value 0.4) and half of them mirrored. Only its own library is
imported, so that it can run under another Python.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE, BATCH, BOXES = 416, 16, 10
HUE, SATURATION, VALUE, SCALE, TRANSLATE = 0.015, 0.7, 0.4, 0.5, 0.1
Step = Callable[[list[int]], Any]


def boxes_of(number: int, height: int = 480, width: int = 640) -> np.ndarray:
    """Return ten boxes xyxy in pixels, (10, 4), of image ``number``."""
    chance = np.random.default_rng(number)
    corner = chance.uniform(0, 0.7, (BOXES, 2))
    sides = chance.uniform(0.05, 0.3, (BOXES, 2))
    shares = np.concatenate((corner, corner + sides), 1)
    return (shares * [width, height, width, height]).astype(np.float32)


def decode_alone(files: list[str], mosaic: bool) -> Step:
    """Only read and decode the files, four for a mosaic: the lower bound."""
    import simplejpeg

    def step(numbers: list[int]) -> None:
        for number in numbers:
            for other in range(4 if mosaic else 1):
                simplejpeg.decode_jpeg(Path(files[(number + 37 * other) % len(files)]).read_bytes())

    return step


def rankless(files: list[str], mosaic: bool, kind: str = "none", partners: str = "data") -> Step:
    """Rankless, as its loader processes work, with micro-batches of 16 images."""
    from rankless.data.datasets.annotated import BoxedImages
    from rankless.data.datasets.detection import DetectionExamples, collate
    from rankless.data.images.image_cache import open_images
    from rankless.data.images.image_file import Shown, header
    from rankless.data.index.annotations import Annotations, flat_paths
    from rankless.recipe.schema import Augment

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
    images, _ = open_images(known, Shown((SIDE, SIDE)), kind)  # type: ignore[arg-type]
    options = Augment(
        flip=0.5,
        scale=SCALE,
        translate=TRANSLATE,
        hue=HUE,
        saturation=SATURATION,
        value=VALUE,
        mosaic=float(mosaic),
        partners=partners,  # type: ignore[arg-type]
    )
    examples = DetectionExamples(BoxedImages(known, images), (SIDE, SIDE), 0, options)
    epoch = itertools.count()
    if kind != "none":
        for number in range(len(files)):
            images.read(number)
    return lambda numbers: collate(examples.items([(next(epoch), number) for number in numbers], 0))


def torchvision(files: list[str], mosaic: bool) -> Step:
    """Torchvision's transforms v2 with tv_tensors, images decoded by its own decoder."""
    import warnings

    import torch
    from torchvision import tv_tensors
    from torchvision.io import ImageReadMode, decode_image, read_file
    from torchvision.transforms import v2

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    move = v2.RandomAffine(0, (TRANSLATE, TRANSLATE), (1 - SCALE, 1 + SCALE), fill=114)
    color = v2.ColorJitter(VALUE, 0, SATURATION, HUE)
    after = v2.Compose(
        [move, color, v2.RandomHorizontalFlip(), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()]
    )

    def read(number: int) -> tuple[Any, Any]:
        image = decode_image(read_file(files[number]), ImageReadMode.RGB)
        size = tuple(image.shape[-2:])
        boxes = tv_tensors.BoundingBoxes(boxes_of(number, *size), format="XYXY", canvas_size=size)
        scale = min(SIDE / side for side in size)
        new = [round(side * scale) for side in size]
        return v2.functional.resize(tv_tensors.Image(image), new, antialias=True), v2.functional.resize(
            boxes, new
        )

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
        offset = torch.randint(SIDE // 4, 3 * SIDE // 4, (2,)).tolist()
        boxes = tv_tensors.BoundingBoxes(torch.cat(found), format="XYXY", canvas_size=(2 * SIDE, 2 * SIDE))
        corner = [*offset, SIDE, SIDE]
        return v2.functional.crop(tv_tensors.Image(canvas), *corner), v2.functional.crop(boxes, *corner)

    def step(numbers: list[int]) -> Any:
        made = []
        for number in numbers:
            image, boxes = (four if mosaic else plain)(number)
            made.append(after({"image": image, "boxes": boxes, "labels": torch.zeros(len(boxes))})["image"])
        return torch.stack(made)

    return step


def albumentations(files: list[str], mosaic: bool) -> Step:
    """Albumentations, images decoded by OpenCV."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as lib
    import cv2

    cv2.setNumThreads(1)
    ways = [
        lib.LongestMaxSize(SIDE),
        lib.PadIfNeeded(SIDE, SIDE, fill=114),
        lib.Affine(scale=(1 - SCALE, 1 + SCALE), translate_percent=(-TRANSLATE, TRANSLATE), fill=114, p=1),
        lib.HueSaturationValue(int(HUE * 180), int(SATURATION * 255), int(VALUE * 255), p=1),
        lib.HorizontalFlip(p=0.5),
    ]
    if mosaic:
        four = lib.Mosaic(
            target_size=(SIDE, SIDE), cell_shape=(SIDE, SIDE), fit_mode="contain", fill=114, p=1
        )
        ways = [four, *ways[2:]]
    work = lib.Compose(ways, bbox_params=lib.BboxParams("pascal_voc", label_fields=["labels"], clip=True))

    def read(number: int) -> dict[str, Any]:
        image = cv2.cvtColor(cv2.imread(files[number % len(files)]), cv2.COLOR_BGR2RGB)
        boxes = boxes_of(number % len(files), *image.shape[:2])
        return {"image": image, "bboxes": boxes, "labels": np.zeros(BOXES)}

    def others(number: int) -> list[dict[str, Any]]:
        found = [read(number + 37 * place) for place in (1, 2, 3)]
        return [{**each, "bbox_labels": {"labels": each.pop("labels")}} for each in found]

    def step(numbers: list[int]) -> Any:
        made = []
        for number in numbers:
            more = {"mosaic_metadata": others(number)} if mosaic else {}
            made.append(work(**read(number), **more)["image"].transpose(2, 0, 1))
        return np.ascontiguousarray(np.stack(made))

    return step


def ultralytics(files: list[str], mosaic: bool) -> Step:
    """Ultralytics' own data set. A mosaic has one new image and three of the last ones read."""
    os.environ["YOLO_OFFLINE"] = "1"
    import cv2
    from ultralytics.cfg import get_cfg
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.utils import LOGGER

    LOGGER.setLevel("ERROR")
    cv2.setNumThreads(1)
    home = Path(tempfile.mkdtemp(prefix="input-"))
    for kind in ("images", "labels"):
        (home / kind).mkdir()
    for number, file in enumerate(files):
        (home / "images" / f"{number:05}.jpg").symlink_to(file)
        box = boxes_of(number, 1, 1)
        rows = np.concatenate(
            (np.zeros((BOXES, 1)), (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]), 1
        )
        np.savetxt(home / "labels" / f"{number:05}.txt", rows)
    values = {"hsv_h": HUE, "hsv_s": SATURATION, "hsv_v": VALUE, "scale": SCALE, "translate": TRANSLATE}
    options = get_cfg(overrides={**values, "mosaic": float(mosaic), "imgsz": SIDE})
    data = YOLODataset(
        img_path=str(home / "images"),
        imgsz=SIDE,
        augment=True,
        hyp=options,
        batch_size=BATCH,
        data={"names": {0: "thing"}, "channels": 3},
    )
    return lambda numbers: data.collate_fn([data[number] for number in numbers])


WAYS: dict[str, Callable[[list[str], bool], Step]] = {
    "decode": decode_alone,
    "rankless": rankless,
    "rankless-batch": lambda files, mosaic: rankless(files, mosaic, "none", "batch"),
    "rankless-ram": lambda files, mosaic: rankless(files, mosaic, "ram"),
    "torchvision": torchvision,
    "albumentations": albumentations,
    "ultralytics": ultralytics,
}


def main(name: str, folder: str, mosaic: bool) -> None:
    """Take turns until the input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # libraries chat
    files = sorted(str(path) for path in Path(folder).resolve().iterdir() if path.suffix == ".jpg")
    try:
        step = WAYS[name](files, mosaic)
    except ImportError as error:
        print(f"missing: {error}", file=out, flush=True)
        return
    turn: Iterator[int] = itertools.cycle(range(len(files)))
    step([next(turn) for _ in range(2 * BATCH)])  # to warm up
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            step([next(turn) for _ in range(BATCH)])
        print("done", file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "mosaic" in sys.argv[3:])
