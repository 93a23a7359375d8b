"""Compare the time of a prediction with OpenCV's dnn, from files to boxes.

    python benchmarks/prediction.py DATA [--rounds N]

Networks, weights and images are the same. DATA and the requirements are those of ``parity.py``; official cfg
files get seeded weights. Rankless runs ``rankless.load(…).predict(files)``, in fp32 and in the CPU's default
precision, OpenCV ``cv2.imread`` and ``cv2.dnn.DetectionModel``. All take turns in one process of one thread
and are compared by CPU time, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rankless
from parity import seeded, viewed
from rankless.hardware.heap import hold_freed_memory
from rankless.hardware.precision import resolve
from rankless.interop.importing import import_weights
from rankless.models.darknet.cfg import read_cfg

NETWORKS = ("yolo-fastest-1.1", "yolov4-tiny", "yolov3")
CONFIDENCE, IOU = 0.25, 0.45


def theirs(cfg: Path, file: Path) -> Callable[[list[str]], Any]:
    """Return OpenCV's detector of a Darknet network."""
    import cv2

    height, width = read_cfg(str(cfg)).network.size
    model = cv2.dnn.DetectionModel(cv2.dnn.readNetFromDarknet(str(cfg), str(file)))
    model.setInputParams(size=(width, height), scale=1 / 255, swapRB=True)
    return lambda images: [model.detect(cv2.imread(image), CONFIDENCE, IOU) for image in images]


def ours(weights: Path, precision: str) -> Callable[[list[str]], Any]:
    """Return the predictor of Rankless, one image after another, as by default on a CPU."""
    settings = [f"precision={precision}", f"evaluate.iou={IOU}"]
    return rankless.load(weights, settings, confidence=CONFIDENCE, device="cpu").predict


def measured(contenders: dict[str, Callable[[list[str]], Any]], images: list[str], rounds: int) -> None:
    """Print the time of each one's fastest turn, and its speed relative to the last."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, predict in contenders.items():
            began = time.process_time()
            predict(images)
            if number:  # the first only warms up
                seconds[name].append((time.process_time() - began) / len(images))
    (*_, last) = seconds.values()
    for name, each in seconds.items():
        best, median = min(last) / min(each), np.median(np.array(last) / np.array(each))
        print(
            f"  {name:14} {min(each) * 1000:7.1f} ms an image; {best:.2f} times as fast, median {median:.2f}"
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    try:
        import cv2
    except ImportError as error:
        print(f"{error}: pip install 'opencv-python-headless<5'", file=sys.stderr)
        return 2
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    hold_freed_memory()  # as `rankless predict` does
    usual = resolve("auto", torch.device("cpu"))
    images = sorted((options.data / "images").glob("*.jpg"))
    for name in NETWORKS:
        trained = options.data / "weights" / f"{name}.weights"
        cfg = trained.with_suffix(".cfg") if trained.exists() else options.data / "cfg" / f"{name}.cfg"
        with tempfile.TemporaryDirectory() as folder:
            file = trained
            if not trained.exists():
                views = [viewed(image, read_cfg(str(cfg))).blob for image in images]
                file = seeded(cfg, np.concatenate(views), Path(folder))
            weights = Path(folder) / "imported.safetensors"
            import_weights(file, weights, cfg=cfg, names=None)
            kinds = dict.fromkeys((usual, "fp32"))
            contenders = {f"Rankless, {kind}": ours(weights, kind) for kind in kinds}
            contenders[f"OpenCV {cv2.__version__}"] = theirs(cfg, file)
            size = " × ".join(map(str, read_cfg(str(cfg)).network.size))
            print(f"{name}, {size}, {len(images)} images")
            measured(contenders, list(map(os.fspath, images)), options.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
