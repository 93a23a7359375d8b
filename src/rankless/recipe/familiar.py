"""Other trainers' names for recipe keys and values, used only in messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rankless.errors import printable, shell_word

PYTORCH = (".pt", ".pth")
"""File extensions that PyTorch uses."""
RUN = "--run runs/NAME on the command line"
BATCH = "the number of images per step on all devices together (the number per GPU times the number of GPUs)"
BATCH_KEY = f"batch.images, {BATCH}"
DEVICES = "all devices are used; --devices N or --hosts a,b on the command line selects others"

# Words of other trainers, separated by spaces, and what to use instead. ``{}`` stands for their value.
_BY_WORDS: Mapping[str, str] = {
    "accumulate subdivisions accumulate_grad_batches accumulation_steps grad_accum gradient_accumulation "
    "gradient_accumulation_steps gradient_accumulations": (
        "batch.images for a step on all devices together, and batch.micro for a forward pass"
    ),
    "amp half mixed_precision": "precision",
    "fp16": "precision=fp16",
    "bf16": "precision=bf16",
    "batch_size bs": BATCH_KEY,
    "burn_in": "schedule.warmup",
    "conf conf_thres": "evaluate.confidence",
    "cos_lr": "schedule.name=cosine",
    "ddp distributed multiprocessing_distributed": f"not needed; {DEVICES}",
    "delay_allreduce": "reduce; exact and fast both send gradients while others are computed",
    "degrees": "data.augment.rotate",
    "device devices gpu gpu_ids gpus": "--devices N on the command line; a recipe does not specify devices",
    "dsconv": "model.densenet.separable.dilation=2 model.densenet.separable.norm_between=true",
    "eval_interval eval_period evaluation_interval val_interval": "evaluate.every='{} epochs'",
    "exist_ok project": RUN,
    "fliplr": "data.augment.flip",
    "flipud": "data.augment.flip_vertical",
    "hsv_h": "data.augment.hue",
    "hsv_s": "data.augment.saturation",
    "hsv_v": "data.augment.value",
    "img_size imgsz input_size": "model.image_size",
    "iou_thres": "evaluate.iou",
    "keep_batchnorm_fp32": "not needed: weights, batch norms and optimizer stay in float32",
    "label_smoothing": "loss.smoothing",
    "learning_rate lr0": "optim.lr",
    "local_rank world_size": "not needed: the launcher, or --devices N, sets it",
    "loss_scale": "not needed: fp16 scales the loss automatically, and bf16 needs no scaling",
    "lrf": "schedule.final",
    "max_epochs": "epochs",
    "nc num_classes": "not needed: the classes come from the data or from data.classes",
    "names": "data.classes",
    "num_workers": "workers",
    "opt_level": "precision; O0 is fp32, O1 is fp16 or bf16",
    "optimizer": "optim.name",
    "patience early_stopping early_stop": "not needed: runs do not stop early, and the best weights are kept",
    "rect": "evaluate.rectangular",
    "resume": "--resume --run RUN on the command line",
    "checkpoint_interval save_interval save_period": "checkpoint.every='{} epochs'",
    "sync_bn": "batch_norm=sync",
    "warmup_epochs": "schedule.warmup='{} epochs'",
    "weights": "model.pretrained",
}
ELSEWHERE: Mapping[str, str] = {word: meant for words, meant in _BY_WORDS.items() for word in words.split()}
"""Maps other trainers' names to their Rankless equivalents."""

SECTIONS: Mapping[str, str] = {
    "batch": "images",
    "data": "root",
    "ema": "decay",
    "loss": "name",
    "model": "name",
    "optim": "name",
    "schedule": "name",
}
"""Maps each section to the key that users mean by a plain value, as in ``batch=8``."""

_FILES: Mapping[str, str] = {
    ".cfg": "model.cfg",
    **dict.fromkeys((".safetensors", ".weights", *PYTORCH), "model.pretrained"),
}


def key_of_file(name: str, default: str) -> str:
    """Return the recipe key that accepts a file with this extension, or ``default``."""
    return _FILES.get(Path(name).suffix, default)


def without_key(word: str) -> str:
    """Return a hint for a word without ``=``, which may be the name of a file or a folder."""
    if not Path(word).exists():
        return "expected key=value, as in optim.lr=0.02"
    return f"expected key=value; did you mean {key_of_file(word, 'data.root')}={shell_word(word)}?"


def imported(name: str) -> tuple[str, str]:
    """Return a weights file's name after import, and a note on how to import it ("" if not needed)."""
    if not name.endswith(PYTORCH):
        return name, ""
    ours = f"{Path(name).stem}.safetensors"
    line = f"rankless import {shell_word(name)} --model NAME --out {shell_word(ours)}"
    return ours, f"{name}: PyTorch files must be imported first, with: {line}"


PUBLISHED = (
    "for published weights, use model.pretrained=published or published/NAME (rankless weights list); import "
    "other files first (rankless import FILE --model NAME --out NEW.safetensors)"
)


def is_by_name(pretrained: str) -> bool:
    """Check whether ``model.pretrained`` is empty or refers to published weights, not to a local file."""
    return pretrained in ("", "timm", "published") or pretrained.startswith(("published/", "hf://"))


def line_of_file(name: str, values: Mapping[str, str]) -> str:
    """Return a hint with the command that trains with a cfg or weights file, on the data in ``values``."""
    ours, note = imported(name)
    data = values.get("data.root") or values.get("data") or "FOLDER"
    note = f"{note}, then " if note else ""
    return printable(
        f"{note}run: rankless train {key_of_file(ours, '')}={shell_word(ours)} data.root={shell_word(data)}",
        500,
    )


_OTHER_YOLO = re.compile(
    r"yolo(?:v?(?:[5-9]|1[0-9])|v?[_-]?(?:nas|x|r))[_-]?(?P<size>[a-z]?)(?P<kind>[_-].*)?", re.IGNORECASE
)


def other_yolo(name: str) -> str:
    """Return a hint about the model most similar to an unavailable YOLO such as yolov8n, or ""."""
    match = _OTHER_YOLO.fullmatch(name)
    if not match:
        return ""
    if match["kind"] and match["kind"][1:].lower() == "cls":
        return "Rankless does not have this model; for a classifier: rankless train resnet18 data.root=FOLDER"
    recipe = "yolov4" if match["size"].lower() in tuple("mlxbce") else "yolov4-tiny"
    return (
        "Rankless does not have this model; the most similar ones are yolov4-tiny (6 million parameters) and "
        f"yolov4 (64 million), which read the same data.yaml: rankless train {recipe} data.root=data.yaml"
    )


_WHOLE = "weights and optimizer stay in float32; bf16 and fp16 compute in half precision (Apex's O1)"
_PURE = f"{_WHOLE}; rankless benchmark RECIPE --pure measures the speed of O3"
_PURE_WORDS = ("O3", "bf16-pure", "fp16-pure", "pure-bf16", "pure-fp16")
_SYNC_WORDS = ("SyncBatchNorm", "SyncBN", "sync_bn", "syncbn")

VALUES: Mapping[tuple[str, str], str] = {
    ("precision", "O0"): "use fp32",
    ("precision", "O1"): "use bf16 or fp16",
    ("precision", "O2"): _WHOLE,
    **{("precision", word): _PURE for word in _PURE_WORDS},
    **{("batch_norm", word): "use sync" for word in _SYNC_WORDS},
}
"""Maps a recipe key and another trainer's value for it to an explanation."""


def answer(meant: str, value: str = "N") -> str:
    """Convert a value of :data:`ELSEWHERE` to a hint, with another trainer's ``value``."""
    return meant if meant.startswith("not needed") else f"use {meant.replace('{}', value)}"
