"""The trainers of ``same_budget.py``: a training from nothing by one program, and its boxes of other images.

    python same_budget_trainers.py JOB      # JOB: JSON of the fields of Job

Only the program's own library is imported, so that it can run under another Python. All that is not set here
is the program's default.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

BATCH = 8  # as `rankless new` writes; with their own 16 the others score less after so few steps
SHORT: dict[str, Any] = {
    "model.width": 0.5,
    "optim.lr": 0.012,
    "ema.decay": 0.93,  # an average of 14 steps, 7 % of the run
    "data.augment.close_mosaic": "10 epochs",  # as Ultralytics does by default
}
"""Changes to what `rankless new` writes, which has seven times as many steps."""
CONFIDENCE = 0.001  # the least score of a box, as in all three programs' own evaluations
Box = list[float]  # left, top, right and bottom in pixels of the image, score, class


class Job(NamedTuple):
    """A training: the folder of the data, an empty folder, and what the programs share."""

    trainer: str
    data: str
    work: str
    split: str  # whose boxes are wanted
    classes: int
    side: int
    epochs: int
    seed: int
    mirrored: bool  # whether a mirrored image shows the same classes
    changes: dict[str, Any]  # to the settings, for trials

    @property
    def images(self) -> list[str]:
        """The images whose boxes are wanted."""
        return sorted(map(str, Path(self.data, self.split, "images").iterdir()))


class Stopwatch:
    """CPU seconds of this process and its children, and seconds, until the last call."""

    def __init__(self) -> None:
        self.began = self.now()
        self.cpu = self.wall = 0.0

    @staticmethod
    def now() -> tuple[float, float]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()

    def __call__(self, *_: Any) -> None:
        self.cpu, self.wall = (now - then for now, then in zip(self.now(), self.began, strict=True))


def rows(xyxy: Any, scores: Any, labels: Any) -> list[Box]:
    """Return arrays or tensors of an image as one list."""
    return [
        [*(round(side, 3) for side in box), round(score, 6), int(label)]
        for box, score, label in zip(xyxy.tolist(), scores.tolist(), labels.tolist(), strict=True)
    ]


def rankless(job: Job, done: Stopwatch) -> Iterable[list[Box]]:
    """What ``rankless new`` writes for the data and a single core, adapted to so few steps."""
    from dataclasses import replace

    import rankless as library
    from rankless.curation import new_recipe
    from rankless.curation.facts import facts_of

    facts = replace(facts_of(f"{job.data}/data.yaml", Path(job.work, "divided")), cores=1, gpus=0)
    recipe = Path(job.work, "recipe.yaml")
    recipe.write_text(new_recipe.text(facts, recipe.name))
    changes = {
        "model.image_size": job.side, "epochs": job.epochs, "seed": job.seed, "workers": 0,
        "data.val": "none", "evaluate.every": 0, **SHORT, **job.changes,
    }  # fmt: skip
    loaded = library.load_recipe(str(recipe), [f"{key}={value}" for key, value in changes.items()])
    if library.train(loaded, Path(job.work, "run"), devices=1, inline=True):
        raise RuntimeError("the training failed")
    done()
    model = library.load(Path(job.work, "run", "last.safetensors"), confidence=CONFIDENCE)
    return (rows(one.xyxy, one.scores, one.classes) for one in model.predict(job.images))


def ultralytics(job: Job, done: Stopwatch) -> Iterable[list[Box]]:
    """YOLO26n (page "Train"); it scores the last weights after the training, which is not counted."""
    os.environ.update(YOLO_OFFLINE="1", YOLO_CONFIG_DIR=job.work)
    from ultralytics import YOLO

    settings = {"batch": BATCH, "nbs": BATCH, **({} if job.mirrored else {"fliplr": 0.0}), **job.changes}
    model = YOLO("yolo26n.yaml")
    model.add_callback("on_train_epoch_end", done)
    model.train(
        data=f"{job.data}/data.yaml", imgsz=job.side, epochs=job.epochs, seed=job.seed, device="cpu",
        val=False, plots=False, project=job.work, name="run", **settings,
    )  # fmt: skip
    trained = YOLO(f"{job.work}/run/weights/last.pt")
    found = trained.predict(job.images, imgsz=job.side, conf=CONFIDENCE, device="cpu", verbose=False)
    return (rows(one.boxes.xyxy, one.boxes.conf, one.boxes.cls) for one in found)


def libreyolo(job: Job, done: Stopwatch) -> Iterable[list[Box]]:
    """YOLOX-n, and NMS with the IoU of its own evaluation."""
    import torch
    from libreyolo import LibreYOLOX

    def model(weights: str | None) -> Any:
        return LibreYOLOX(weights, size="n", nb_classes=job.classes, device="cpu")

    settings = {"batch": BATCH, **({} if job.mirrored else {"flip_prob": 0.0}), **job.changes}
    torch.manual_seed(job.seed)  # its own seed comes after the first weights
    model(None).train(
        data=f"{job.data}/data.yaml", imgsz=job.side, epochs=job.epochs, seed=job.seed, device="cpu",
        workers=0, eval_interval=0, project=job.work, name="run", exist_ok=True, **settings,
    )  # fmt: skip
    done()
    (last,) = Path(job.work).glob("run*/weights/last.pt")
    trained = model(str(last))
    found = (trained(path, imgsz=job.side, conf=CONFIDENCE, iou=0.6) for path in job.images)
    return (rows(one.boxes.xyxy, one.boxes.conf, one.boxes.cls) for one in found)


TRAINERS: dict[str, Callable[[Job, Stopwatch], Iterable[list[Box]]]] = {
    one.__name__: one for one in (rankless, ultralytics, libreyolo)
}


def main(text: str) -> None:
    """Train, predict, and print version, seconds and boxes as JSON."""
    job = Job(**json.loads(text))
    out = os.dup(1)
    os.dup2(2, 1)  # libraries chat
    done = Stopwatch()
    boxes = list(TRAINERS[job.trainer](job, done))
    found = {
        "version": importlib.metadata.version(job.trainer),
        "torch": importlib.metadata.version("torch"),
        "cpu": round(done.cpu, 1),
        "wall": round(done.wall, 1),
        "boxes": boxes,
    }
    with os.fdopen(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
