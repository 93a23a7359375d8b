"""Compares imported Darknet networks with OpenCV's dnn: raw outputs, boxes after both kinds of NMS, and AP.

    python benchmarks/parity.py DATA [--network NAME]

DATA holds ``cfg/*.cfg`` (official files, which get seeded weights; those without a YOLO layer are passed
over), ``weights/NAME.cfg``, NAME.weights and NAME.names (trained networks), and ``images/*.jpg``. It needs
``opencv-python-headless`` below 5, which reads Darknet's files, and ``pycocotools``. Rankless imports the
file and predicts through its library, like a user. The other side is OpenCV's resize, forward pass and
decoding, Darknet's letterbox if the cfg asks for it, and the greedy NMS below.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rankless.errors import UserError
from rankless.inference.predict import predict
from rankless.interop.importing import import_weights
from rankless.models import zoo
from rankless.models.darknet.cfg import Cfg, read_cfg
from rankless.models.darknet.network import Network
from rankless.models.weights_files import weights
from rankless.models.weights_files.darknet_weights import read_weights, write_weights
from rankless.recipe.schema import Model

CONFIDENCE, IOU, BETA = 0.1, 0.45, 0.6
MOST = 100  # boxes an image
LEAST = 2  # pixels of a side of the boxes that count: the file of predictions rounds to 0.01
SIDE = 224  # of a seeded network's input, or the next multiple of its largest stride
Kind = Literal["iou", "diou"]


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        name, weights: which, and ``trained`` or ``seeded``.
        raw: largest difference of the heads' outputs, in units of their largest value.
        boxes: by kind of NMS: how many boxes of theirs there are, how many of them are among ours (the class,
            0.01 in score and a pixel in each side), and how many ours are; without the thinnest.
        ap: pycocotools' AP of ours, where theirs are the truth.
    """

    name: str
    weights: str
    raw: float
    boxes: dict[Kind, tuple[int, int, int]]
    ap: float

    def __str__(self) -> str:
        cells = " | ".join(f"{same} of {all_} ({mine})" for all_, same, mine in self.boxes.values())
        return f"| {self.name} | {self.weights} | {self.raw:.1e} | {cells} | {self.ap:.3f} |"


def seeded(cfg: Path, images: NDArray[np.float32], folder: Path) -> Path:
    """Write weights whose outputs vary: random ones, the norms with the statistics of images (N, 3, H, W)."""
    torch.manual_seed(7)
    network = read_cfg(str(cfg)).network
    classes = network.classes
    model = zoo.build(Model(cfg=str(cfg)), classes)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.momentum = 1.0  # the statistics of the one batch
            nn.init.uniform_(one.weight, 0.7, 1.3)
            nn.init.normal_(one.bias, std=0.3)
        elif isinstance(one, nn.Conv2d) and one.bias is not None and one.out_channels % (5 + classes) == 0:
            nn.init.normal_(one.weight, std=2.5 / one.in_channels**0.5)
            one.bias.data = one.bias.data.view(-1, 5 + classes)
            one.bias.data[:, 4:] -= 2.0
            one.bias.data = one.bias.data.flatten()
    with torch.no_grad():
        model.train()(torch.from_numpy(images))
    file = folder / f"{cfg.stem}.weights"
    write_weights(file, network, model.state_dict())
    return file


@dataclass(frozen=True)
class View:
    """One image on a network's input.

    Attributes:
        blob: what OpenCV's network takes, (1, 3, H, W).
        size: of the image, (w, h).
        shift, scale: input = image * scale + shift, in x and y.
    """

    blob: NDArray[np.float32]
    size: tuple[int, int]
    shift: NDArray[np.float64]
    scale: NDArray[np.float64]


def viewed(image: Path, cfg: Cfg) -> View:
    """Resize by OpenCV: stretched, or to whole pixels amid gray, as ``letterbox_image`` of Darknet does."""
    import cv2

    pixels = cv2.imread(str(image))
    (h, w), (height, width) = pixels.shape[:2], cfg.network.size
    inner = (width, height)
    if cfg.letterbox:
        inner = (width, h * width // w) if width / w < height / h else (w * height // h, height)
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas = np.full((height, width, 3), 128, np.uint8)
    canvas[top : top + inner[1], left : left + inner[0]] = cv2.resize(pixels, inner)
    blob = cv2.dnn.blobFromImage(canvas, 1 / 255, swapRB=True)
    return View(blob, (w, h), np.array([left, top], float), np.array([inner[0] / w, inner[1] / h]))


def compared(cfg: Path, file: Path | None, names: Path | None, images: list[Path], folder: Path) -> Row:
    """Compare one network on all images; without weights, with seeded ones.

    Raises:
        cv2.error, UserError: one of the two does not read it.
    """
    import cv2

    read = read_cfg(str(cfg))
    network = read.network
    views = [viewed(image, read) for image in images]
    file = file or seeded(cfg, np.concatenate([view.blob for view in views]), folder)
    ours = folder / f"{cfg.stem}.safetensors"
    import_weights(file, ours, cfg=cfg, names=names)
    net = cv2.dnn.readNetFromDarknet(*_for_opencv(cfg, file, network, folder))
    decoded = [_decoded(net, network, view) for view in views]
    boxes: dict[Kind, tuple[int, int, int]] = {}
    found: dict[Kind, tuple[list[Any], list[Any]]] = {}
    for kind in get_args(Kind):
        options = [f"evaluate.nms={kind}", f"evaluate.iou={IOU}", f"evaluate.detections={MOST}"]
        report = predict(
            ours,
            list(map(str, images)),
            out=folder / f"{cfg.stem}-{kind}",
            confidence=CONFIDENCE,
            device="cpu",
            overrides=options,
        )
        mine = [
            [
                (*row["box"], row["score"], row["label"])
                for row in one.detections
                if min(np.subtract(row["box"][2:], row["box"][:2])) >= LEAST
            ]
            for one in report.images
        ]
        theirs = [_boxes(rows, view, network, kind) for rows, view in zip(decoded, views, strict=True)]
        boxes[kind], found[kind] = _agreeing(mine, theirs), (mine, theirs)
    raw, ap = _raw(net, ours, network, views[0]), _ap(*found["iou"], [view.size for view in views])
    return Row(cfg.stem, "trained" if names else "seeded", raw, boxes, ap)


def _decoded(net: Any, network: Network, view: View) -> NDArray[np.float32]:
    """Return what OpenCV's [yolo] layers say: center, sides, objectness and classes, (N, 5 + C)."""
    net.setInput(view.blob)
    parts = net.forward([f"yolo_{number + 1}" for number in network.predictors()])
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])


def _for_opencv(cfg: Path, file: Path, network: Network, folder: Path) -> tuple[str, str]:
    """Write the cfg and the weights as OpenCV needs them to compute what Darknet does.

    Its [yolo] layers leave out scores below ``thresh``, 0.2 by default; its batch norms add 1e-6 to the
    variance, not 1e-5.
    """
    text = folder / f"{cfg.stem}-opencv.cfg"
    text.write_text(cfg.read_text().replace("[yolo]", "[yolo]\nthresh=0.0001"))
    read = read_weights(file, network)
    state = {
        name: tensor + 9e-6 if name.endswith("running_var") else tensor for name, tensor in read.state.items()
    }
    out = folder / f"{file.stem}-opencv.weights"
    write_weights(out, network, state)
    return str(text), str(out)


def _raw(net: Any, ours: Path, network: Network, view: View) -> float:
    """Return the largest difference of the heads' outputs on one and the same input."""
    net.setInput(view.blob)
    theirs = net.forward([f"conv_{number}" for number in network.predictors()])
    loaded = weights.load(ours)
    model = zoo.build(loaded.recipe.model, len(loaded.class_names)).eval()
    weights.load_into(model, loaded.state, str(ours))
    with torch.no_grad():
        mine = model(torch.from_numpy(view.blob))
    pairs = zip((one.numpy() for one in mine), theirs, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def _boxes(rows: NDArray[np.float32], view: View, network: Network, kind: Kind) -> list[tuple[float, ...]]:
    """Return boxes xyxy in pixels, clipped behind NMS, score and class of decoded rows (N, 5 + C)."""
    scores = rows[:, 5:]
    labels, best = scores.argmax(1), scores.max(1)
    chosen = np.flatnonzero(best > CONFIDENCE)
    chosen = chosen[np.argsort(-best[chosen], kind="stable")]
    size = np.array(network.size[::-1])
    center = (rows[chosen, :2] * size - view.shift) / view.scale
    width_height = rows[chosen, 2:4] * size / view.scale
    boxes = np.concatenate((center - width_height / 2, center + width_height / 2), 1).astype(np.float64)
    kept: list[int] = []
    for number in range(len(chosen)):
        rivals = [one for one in kept if labels[chosen[one]] == labels[chosen[number]]]
        if all(_similarity(boxes[one], boxes[number], kind) <= IOU for one in rivals):
            kept.append(number)
    clipped = boxes.clip(0, [*view.size, *view.size]).astype(np.float32)
    sides = (clipped[:, 2:] - clipped[:, :2]).min(1, initial=np.inf)
    seen = [number for number in kept if sides[number] > 0][:MOST]  # none outside the image uses up a place
    return [
        (*clipped[number].tolist(), float(best[chosen[number]]), int(labels[chosen[number]]))
        for number in seen
        if sides[number] >= LEAST
    ]


def _similarity(a: NDArray[np.float64], b: NDArray[np.float64], kind: Kind) -> float:
    """IoU of two boxes; less (d²/c²)^0.6 as in Darknet's ``greedynms``."""
    inside = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inside
    overlap = float(inside / union) if union > 0 else 0.0
    if kind == "iou":
        return overlap
    hull = np.maximum(a[2:], b[2:]) - np.minimum(a[:2], b[:2])
    apart = (a[:2] + a[2:] - b[:2] - b[2:]) / 2
    return overlap - float((apart @ apart / (hull @ hull)) ** BETA)


def _agreeing(mine: list[Any], theirs: list[Any]) -> tuple[int, int, int]:
    """Count theirs, those of them that are among ours, and ours."""
    agreeing = 0
    for ours, wanted in zip(mine, theirs, strict=True):
        left = list(ours)
        for box in wanted:
            near = [
                one
                for one in left
                if one[5] == box[5] and abs(one[4] - box[4]) < 0.01 and np.allclose(one[:4], box[:4], atol=1)
            ]
            if near:
                left.remove(min(near, key=lambda one: abs(one[4] - box[4])))
                agreeing += 1
    return sum(map(len, theirs)), agreeing, sum(map(len, mine))


def _ap(mine: list[Any], theirs: list[Any], sizes: list[tuple[int, int]]) -> float:
    """Return pycocotools' AP of our boxes, where theirs are the truth."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rows(images: list[Any]) -> Iterator[dict[str, Any]]:
        for image, boxes in enumerate(images):
            for x1, y1, x2, y2, score, label in boxes:
                box = [x1, y1, x2 - x1, y2 - y1]
                yield {"image_id": image, "category_id": label, "bbox": box, "score": score,
                       "area": box[2] * box[3], "iscrowd": 0}  # fmt: skip

    truth = [{**row, "id": number} for number, row in enumerate(rows(theirs), 1)]
    if not truth:
        return float("nan")
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": n, "width": w, "height": h} for n, (w, h) in enumerate(sizes)],
            "annotations": truth,
            "categories": [{"id": label} for label in sorted({row["category_id"] for row in truth})],
        }
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(list(rows(mine)) or [{**truth[0], "score": 0.0}]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def networks(data: Path, only: str, folder: Path) -> Iterator[tuple[Path, Path | None, Path | None]]:
    """Yield cfg, weights and names of every network; None where weights are to be seeded."""
    for file in sorted((data / "weights").glob(f"{only}.weights")):
        names = next(iter([*file.parent.glob(f"{file.stem}.names"), *file.parent.glob("coco.names")]))
        yield file.with_suffix(".cfg"), file, names
    for official in sorted((data / "cfg").glob(f"{only}.cfg")):
        text = official.read_text()
        if "yolo]" in text:
            cfg = folder / official.name
            cfg.write_text(_resized(text, SIDE))
            with contextlib.suppress(UserError):  # which the comparison says
                coarsest = max(head.stride for head in read_cfg(str(cfg)).network.heads())
                cfg.write_text(_resized(text, -(-SIDE // coarsest) * coarsest))
            yield cfg, None, None


def _resized(cfg: str, side: int) -> str:
    return re.sub(r"(?m)^(width|height) *=.*", rf"\1={side}", cfg)


def main() -> int:
    """Compare the networks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--network", default="*", help="only this one")
    options = parser.parse_args()
    try:
        import cv2
        import pycocotools  # noqa: F401
    except ImportError as error:
        print(f"{error}: pip install 'opencv-python-headless<5' pycocotools", file=sys.stderr)
        return 2
    if not hasattr(cv2.dnn, "readNetFromDarknet"):
        print(f"OpenCV {cv2.__version__} reads no Darknet files: take one below 5", file=sys.stderr)
        return 2
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    images = sorted((options.data / "images").glob("*.jpg"))
    print(f"OpenCV {cv2.__version__}, {len(images)} images, confidence {CONFIDENCE}, NMS {IOU}\n")
    print("| network | weights | raw | boxes, IoU | boxes, DIoU | AP |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for cfg, file, names in networks(options.data, options.network, Path(folder)):
            try:
                line = str(compared(cfg, file, names, images, Path(folder)))
            except (cv2.error, UserError) as error:
                said = str(error).splitlines()[0].replace(f"{cfg}:", "line ").partition("; ")[0]
                line = f"| {cfg.stem} | | not compared: {said} | | | |"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
