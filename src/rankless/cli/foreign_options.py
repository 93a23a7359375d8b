"""Options of other programs' command lines, and their Rankless equivalents."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankless.recipe.familiar import BATCH_KEY, ELSEWHERE, RUN, SECTIONS

_EVALUATE = "another command: rankless evaluate RUN"
_PLAN = "--devices N, or --hosts a,b; nothing else has to be set"

OPTIONS: Mapping[str, str] = {
    "a": "the recipe, as in rankless train resnet18, or model.name",
    "arch": "the recipe, as in rankless train resnet18, or model.name",
    "adam": "optim.name=adam",
    "b": BATCH_KEY,
    "backend": "not needed: NCCL between CUDA devices, gloo between others",
    "cfg": "model.cfg",
    "classes_path": "data.classes",
    "data": "data.root",
    "data_config": "data.root",
    "dsconv": "model.densenet.separable=true",
    "eval_interval": "evaluate.every",
    "evaluate": _EVALUATE,
    "evaluation_interval": "evaluate.every",
    "model": "the recipe, as in rankless train resnet18, or model.name",
    "test_only": _EVALUATE,
    "data_dir": "data.root",
    "data_path": "data.root",
    "dist_backend": _PLAN,
    "dist_url": _PLAN,
    "epochs": "epochs",
    "j": "workers",
    "lr": "optim.lr",
    "lr_scheduler": "schedule.name",
    "model_def": "model.cfg",
    "momentum": "optim.momentum",
    "multiscale_training": "data.multi_scale=0.5",
    "n_cpu": "workers",
    "no_val": "data.val=none: no evaluations, and every image of undivided data is trained on",
    **dict.fromkeys(("n", "n_gpu", "np", "nproc", "nproc_per_node", "num_gpus", "ranks"), _PLAN),
    "output_dir": RUN,
    "pretrained": "model.pretrained",
    "pretrained_weights": "model.pretrained",
    "r": "--resume --run RUN",
    "save_dir": RUN,
    "seed": "seed",
    "start_epoch": (
        "--resume --run RUN, which continues at its step; weights of another program (model.pretrained) "
        "start at epoch 0"
    ),
    "wd": "optim.weight_decay",
    "weight_decay": "optim.weight_decay",
    "workers": "workers",
    "world_size": _PLAN,
}
"""Options of training scripts, mapped to their Rankless equivalents; they extend ``familiar.ELSEWHERE``."""

_SIZE = dict.fromkeys(("imgsz", "img", "img_size"), "model.image_size={}")

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "predict": {
        **_SIZE,
        **dict.fromkeys(("conf", "conf_thres", "thresh"), "--confidence {}"),
        **dict.fromkeys(("iou", "iou_thres"), "--iou {}"),
        "augment": "--tta full",
        "batch": "--batch {}",
        "classes": "--classes {}",
        "half": "precision=fp16",
        "max_det": "--max {}",
        "save_crop": "--save annotated,crops",
        "save_txt": "--save annotated,yolo",
    },
    "evaluate": {
        **_SIZE,
        **dict.fromkeys(("conf", "conf_thres"), "evaluate.confidence={}"),
        **dict.fromkeys(("iou", "iou_thres"), "evaluate.iou={}"),
        **dict.fromkeys(("batch", "batch_size"), "batch.micro={}"),
        "augment": "evaluate.tta=full",
        "data": "data.root={}",
        "half": "precision=fp16",
        "max_det": "evaluate.detections={}",
        "split": "--split {}",
        "workers": "workers={}",
    },
    "export": {
        **_SIZE,
        "batch": "--batch {}",
        "conf": "--confidence {}",
        "format": "--format {}",
        "half": "--half",
        "iou": "evaluate.iou={}",
        "nms": "--nms",
    },
}
"""Rankless command to other programs' options for it, with the Rankless equivalent of each."""

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("model", "weights"), "the first word, a run or a weights file"),
    "source": "the words after the first",
}
"""Other programs' options that are positional arguments in those commands."""


def key_of(name: str) -> str:
    """Return the recipe key for another trainer's option; an empty string if there is none."""
    if name in SECTIONS and name not in OPTIONS:
        return f"{name}.{SECTIONS[name]}"
    key = (OPTIONS.get(name) or ELSEWHERE.get(name, "")).partition(", ")[0]
    return key if re.fullmatch(r"[a-z_.]+", key) else ""
