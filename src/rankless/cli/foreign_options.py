"""The Rankless equivalents of other programs' commands and options, one sentence each.

docs/migrating.md translates whole command lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rankless.cli.options import is_override
from rankless.errors import UserError, printable
from rankless.recipe.familiar import BATCH_KEY, ELSEWHERE, RUN, SECTIONS, answer

_EVALUATE = "the command rankless evaluate RUN"
_PLAN = "--devices N or --hosts a,b; nothing else is needed"
_RECIPE = "a recipe, as in rankless train resnet18, or model.name"

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("a", "arch", "model"), _RECIPE),
    "adam": "optim.name=adam",
    **dict.fromkeys(("b", "batch"), BATCH_KEY),
    "backend": "not needed: NCCL is used between CUDA devices, and gloo otherwise",
    **dict.fromkeys(("cfg", "model_def"), "model.cfg"),
    "classes_path": "data.classes",
    "close_mosaic": "data.augment.close_mosaic='{} epochs'",
    **dict.fromkeys(("data", "data_config", "data_dir", "data_path"), "data.root"),
    **dict.fromkeys(("evaluate", "test_only"), _EVALUATE),
    "epochs": "epochs",
    **dict.fromkeys(("j", "n_cpu", "workers"), "workers"),
    "lr": "optim.lr",
    "lr_scheduler": "schedule.name",
    "momentum": "optim.momentum",
    "multiscale_training": "data.multi_scale=0.5",
    "no_val": "data.val=none, which skips evaluations and, if the data has no splits, trains on all images",
    **dict.fromkeys(("dist_backend", "dist_url", "n", "n_gpu", "np", "nproc", "nproc_per_node"), _PLAN),
    **dict.fromkeys(("num_gpus", "ranks", "world_size"), _PLAN),
    **dict.fromkeys(("output_dir", "save_dir"), RUN),
    **dict.fromkeys(("pretrained", "pretrained_weights"), "model.pretrained"),
    "r": "--resume --run RUN",
    "seed": "seed",
    "start_epoch": (
        "--resume --run RUN, which continues at the saved step; training from model.pretrained always starts "
        "at epoch 0"
    ),
    **dict.fromkeys(("wd", "weight_decay"), "optim.weight_decay"),
}
"""Rankless equivalents of options of training scripts, in addition to ``familiar.ELSEWHERE``."""

_SIZE = dict.fromkeys(("imgsz", "img", "img_size"), "model.image_size={}")

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "predict": {
        **_SIZE,
        **dict.fromkeys(("conf", "conf_thres", "thresh"), "--confidence {}"),
        **dict.fromkeys(("iou", "iou_thres"), "--iou {}"),
        "augment": "--tta full",
        "batch": "--batch {}",
        "classes": "--classes {}",
        "device": "--device cpu or --device cuda:0",
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
        "device": "--devices 0, (the comma makes it a list; --devices 2 uses two devices)",
        "half": "precision=fp16",
        "max_det": "evaluate.detections={}",
        "split": "--split {}",
        "workers": "workers={}",
    },
    "export": {
        **_SIZE,
        "batch": "--batch {}",
        "conf": "--confidence {}",
        "device": "not needed: exports are computed on the CPU",
        "format": "--format {}",
        "half": "--half",
        "iou": "evaluate.iou={}",
        "nms": "--nms",
    },
}
"""Rankless equivalents of other programs' options, for each Rankless command."""

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("model", "weights"), "the first argument (a run or a weights file)"),
    "source": "the arguments after the first",
}
"""Other programs' options whose values are positional arguments in Rankless."""


MODES: Mapping[str, str] = {
    **dict.fromkeys(("val", "validate", "eval", "test"), "use rankless evaluate RUN"),
    **dict.fromkeys(
        ("yolo", "darknet", "detect", "detector", "classify"),
        "use train, evaluate, predict or export, as docs/migrating.md shows",
    ),
}
"""What to use instead of other programs' commands."""
# Keys of recipes without a section.
_KEYS = ("task", "epochs", "seed", "precision", "reduce", "workers", "threads", "cpu_isa", "batch_norm")
_NO = ("false", "0", "no", "off", "none")


def override(name: str, value: str) -> str:
    """Return the ``key=value`` for another trainer's option, or an empty string if there is none."""
    if name in SECTIONS and name not in OPTIONS:
        return f"{name}.{SECTIONS[name]}={value}"
    meant = (OPTIONS.get(name) or ELSEWHERE.get(name, "")).partition(", which")[0]
    if re.fullmatch(r"[a-z_.]+=.+", meant):
        return meant.replace("{}", value)
    key = re.match(r"[a-z_.]+(?=, |$)", meant)
    return f"{key[0]}={value}" if key else ""


def refuse_foreign(arguments: Sequence[str]) -> None:
    """Raise a UserError for another program's arguments, as in ``predict model=my.pt conf=0.3``."""
    command = next(iter(arguments), "")
    if command not in COMMANDS:
        return
    known = {**ELSEWHERE, **WORDS, **COMMANDS[command]}
    problems = []
    for before, word in pairwise(arguments):
        key, _, value = word.partition("=")
        if before == "--classes-map" or not is_override(word) or key in _KEYS or key not in known:
            continue
        is_switch = "{}" not in known[key] and not known[key].startswith("not needed")
        meant = answer(known[key], value.strip("[]"))
        meant = "remove it" if is_switch and value.lower() in _NO else meant
        problems.append(f"'{printable(word)}': unknown argument; {printable(meant, 500)}")
    if problems:
        raise UserError(problems)
