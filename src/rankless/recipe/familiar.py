"""Names that other trainers give to what a recipe holds, for messages alone."""

from __future__ import annotations

from collections.abc import Mapping

_DEVICES = "--devices N on the command line: where a run happens is no part of a recipe"
_RUN = "--run runs/NAME on the command line"
_CLASSES = "nothing: the classes are those of the data, or those of data.classes"

ELSEWHERE: Mapping[str, str] = {
    "accumulate": "batch.images for a step, batch.micro for a forward pass",
    "gradient_accumulations": "batch.images for a step, batch.micro for a forward pass",
    "amp": "precision",
    "half": "precision",
    "batch_size": "batch.images",
    "bs": "batch.images",
    "burn_in": "schedule.warmup",
    "conf": "evaluate.confidence",
    "conf_thres": "evaluate.confidence",
    "cos_lr": "schedule.name=cosine",
    "degrees": "data.augment.rotate",
    "device": _DEVICES,
    "devices": _DEVICES,
    "gpu": _DEVICES,
    "gpu_ids": _DEVICES,
    "gpus": _DEVICES,
    "exist_ok": _RUN,
    "project": _RUN,
    "fliplr": "data.augment.flip",
    "flipud": "data.augment.flip_vertical",
    "hsv_h": "data.augment.hue",
    "hsv_s": "data.augment.saturation",
    "hsv_v": "data.augment.value",
    "img_size": "model.image_size",
    "imgsz": "model.image_size",
    "input_size": "model.image_size",
    "iou_thres": "evaluate.iou",
    "label_smoothing": "loss.smoothing",
    "learning_rate": "optim.lr",
    "lr0": "optim.lr",
    "lrf": "schedule.final",
    "max_epochs": "epochs",
    "nc": _CLASSES,
    "names": "data.classes",
    "num_classes": _CLASSES,
    "num_workers": "workers",
    "optimizer": "optim.name",
    "patience": "nothing: no run ends early, and the best weights of a run are kept",
    "rect": "evaluate.rectangular",
    "resume": "--resume --run RUN on the command line",
    "save_period": "checkpoint.every",
    "sync_bn": "batch_norm=sync",
    "val_interval": "evaluate.every",
    "warmup_epochs": "schedule.warmup='3 epochs'",
    "weights": "model.pretrained",
}
"""The other name to what is written here in its place."""

SECTIONS: Mapping[str, str] = {
    "batch": "images",
    "data": "root",
    "ema": "decay",
    "loss": "name",
    "model": "name",
    "optim": "name",
    "schedule": "name",
}
"""Section to the key that is meant by one value in its place, as in ``batch=8``."""
