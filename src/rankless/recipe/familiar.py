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

_PLAN = "--devices N, or --hosts a,b; nothing else has to be set"

OPTIONS: Mapping[str, str] = {
    "a": "the recipe, as in rankless train resnet18, or model.name",
    "arch": "the recipe, as in rankless train resnet18, or model.name",
    "b": "batch.images",
    "cfg": "model.cfg",
    "classes_path": "data.classes",
    "data": "data.root",
    "data_dir": "data.root",
    "data_path": "data.root",
    "dist_backend": _PLAN,
    "dist_url": _PLAN,
    "epochs": "epochs",
    "j": "workers",
    "lr": "optim.lr",
    "momentum": "optim.momentum",
    "nproc_per_node": _PLAN,
    "opt_level": "precision: O0 is fp32, O1 is fp16 or bf16",
    "output_dir": _RUN,
    "pretrained": "model.pretrained",
    "save_dir": _RUN,
    "seed": "seed",
    "wd": "optim.weight_decay",
    "weight_decay": "optim.weight_decay",
    "workers": "workers",
    "world_size": _PLAN,
}
"""Further names, of the command lines of training scripts, to what is written here."""

_WHOLE = "weights and optimizer stay in float32; bf16 and fp16 compute in half precision (Apex's O1)"

VALUES: Mapping[tuple[str, str], str] = {
    ("precision", word): _WHOLE for word in ("O1", "O2", "O3", "bf16-pure", "fp16-pure")
}
"""A key and a value from elsewhere to what has to be known about it."""
