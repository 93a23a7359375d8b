"""Find the Rankless equivalents of other programs' command lines and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from rankless.cli.options import is_override
from rankless.errors import UserError, printable
from rankless.recipe.familiar import BATCH_KEY, ELSEWHERE, RUN, SECTIONS, imported
from rankless.task_kinds import BUILT_IN, DEFAULT, kind_of

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
"""Rankless equivalents of other programs' options, for each Rankless command."""

WORDS: Mapping[str, str] = {
    **dict.fromkeys(("model", "weights"), "the first argument (a run or a weights file)"),
    "source": "the arguments after the first",
}
"""Other programs' options whose values are positional arguments in Rankless."""


def override(name: str, value: str) -> str:
    """Return the ``key=value`` for another trainer's option, or an empty string if there is none."""
    if name in SECTIONS and name not in OPTIONS:
        return f"{name}.{SECTIONS[name]}={value}"
    meant = (OPTIONS.get(name) or ELSEWHERE.get(name, "")).partition(", which")[0]
    if re.fullmatch(r"[a-z_.]+=.+", meant):
        return "" if value.lower() in _NO else meant.replace("{}", value)
    key = re.match(r"[a-z_.]+(?=, |$)", meant)
    return f"{key[0]}={value}" if key else ""


_MODES = {
    **dict.fromkeys(("val", "validate", "eval", "test"), "evaluate"),
    **{mode: mode for mode in ("train", "predict", "export")},
}
"""Maps other programs' modes to Rankless commands."""
# Keys of recipes without a section.
_KEYS = ("task", "epochs", "seed", "precision", "reduce", "workers", "threads", "cpu_isa", "batch_norm")
_NO = ("false", "0", "no", "off", "none")


def line_of_yolo(tokens: Sequence[str]) -> str:
    """Translate a ``yolo`` or Darknet command, such as ``detect train data=my.yaml``.

    Return an empty string for any other command.
    """
    if line := _line_of_darknet(tokens[list(tokens[:1]) == ["darknet"] :]):
        return line
    given = [one.removeprefix("task=").removeprefix("mode=") for one in tokens]
    words = [one for one in given if "=" not in one and one != "yolo"]
    task = words.pop(0) if words and words[0] in BUILT_IN else ""
    mode = _MODES.get(words.pop(0) if words else "", "")
    if not mode or len(words) > (mode != "train"):
        return ""
    values = dict(one.split("=", 1) for one in given if "=" in one)
    if mode != "train":
        return _line_of(mode, words, values)
    model, device = values.pop("model", ""), values.pop("device", "")
    values = values if "data.root" in values else {"data": values.pop("data", "FOLDER"), **values}
    recipe, more, left = kind_of(task or DEFAULT).recipe, [], []
    for name, value in values.items():
        ours = f"{name}={value}" if "." in name else override(name, value)
        if ours and _is_valid(recipe, ours):
            more.append(ours)
        else:
            left.append(f"{name}={value}")
    line = " ".join(["rankless train", recipe, *more, *_devices(device)])
    ours, note = imported(model)
    note = f"{note}, then add model.pretrained={ours}; " if note else ""
    return printable(f"{note}run: {line}{_without(left)}", 500)


def _is_valid(recipe: str, override: str) -> bool:
    from rankless.recipe.load import load

    try:
        load(recipe, shlex.split(override))
    except (UserError, ValueError):  # ValueError: an open quote
        return False
    return True


def _without(left: Sequence[str]) -> str:
    return f"; not translated: {', '.join(left)}" if left else ""


def _line_of_darknet(words: Sequence[str]) -> str:
    mode = "test" if list(words[:1]) == ["detect"] else "".join(words[1:2])
    files = list(takewhile(lambda word: not word.startswith("-"), words[1:]))
    cfg = next((word for word in files if word.endswith(".cfg")), "")
    modes = ("train", "test", "demo", "map", "valid")
    if not cfg or words[0] not in ("detector", "detect") or mode not in modes:
        return ""
    weights = next((word for word in files if word.endswith(".weights") or ".conv." in word), "my.weights")
    data = next((word for word in files if word.endswith(".data")), "FOLDER")
    if mode == "train":
        return printable(f"run: rankless train model.cfg={cfg} data.root={data}", 500)
    ours = f"{Path(weights).stem}.safetensors"
    first = f"rankless import {weights} --cfg {cfg} --names NAMES --out {ours}"
    last = files[-1] if files[-1] not in (cfg, weights, data) else "IMAGES"
    then = f"predict {ours} {last}" if mode in ("test", "demo") else f"evaluate {ours} data.root={data}"
    return printable(f"import the weights with: {first}, then run: rankless {then}", 500)


def refuse_foreign(arguments: Sequence[str], faults: Callable[[Sequence[str]], Sequence[str]]) -> None:
    """Raise a UserError for another program's arguments, as in ``predict model=my.pt conf=0.3``.

    ``faults`` is a function that returns error messages about a command's options.
    """
    command, *words = arguments or ("",)
    if command not in COMMANDS:
        return
    given = [word for before, word in pairwise(arguments) if is_override(word) and before != "--classes-map"]
    given = [word for word in given if "." not in (key := word.partition("=")[0]) and key not in _KEYS]
    theirs = dict(word.split("=", 1) for word in given)
    if not theirs.keys() & {*WORDS, *ELSEWHERE, *COMMANDS[command]}:
        return
    rest = [_our_option(command, word) for word in words if word not in given]
    options = [word for word in words if word.startswith("--") or (is_override(word) and word not in given)]
    there = {_meaning(command, word): word for word in options}
    said = []
    for key in [key for key in theirs if _meaning(command, key) in there]:
        other = there[_meaning(command, key)].partition("=")[0]
        said.append(
            f"'{printable(f'{key}={theirs.pop(key)}')}': means the same as {other}; remove one of them"
        )
    if wrong := ", ".join(f"'{printable(f'{key}={value}')}'" for key, value in theirs.items()):
        said.insert(0, f"{wrong}: unknown {'argument' if len(theirs) == 1 else 'arguments'}")
    if faults([command, "TARGET", *rest]):  # the suggested command would have the same faults
        known = {**WORDS, **COMMANDS[command]}
        ours = (f"for {key}, use {known[key].format(value)}" for key, value in theirs.items() if key in known)
        others = faults([command, "TARGET", *(word for word in words if word not in given)])
        raise UserError(["; ".join((*said, *ours)), *others])
    raise UserError(f"{'; '.join(said)}; {_line_of(command, rest, theirs)}")


def _meaning(command: str, word: str) -> str:
    """Return the Rankless option (without dashes) or the recipe key that an argument stands for."""
    name = word.partition("=")[0].lstrip("-").replace("-", "_")
    return re.split("[= ]", COMMANDS[command].get(name, name))[0].lstrip("-")


def _our_option(command: str, word: str) -> str:
    """Translate another program's option such as ``--conf``. Other words are returned unchanged."""
    name, equals, value = word.partition("=")
    known = COMMANDS[command].get(name.lstrip("-").replace("-", "_"), "")
    ours = name.startswith("--") and known.startswith("--")
    return f"{known.removesuffix(' {}')}{equals}{value}" if ours else word


def _line_of(command: str, words: Sequence[str], values: Mapping[str, str]) -> str:
    """Return advice to run the Rankless equivalent of another program's command."""
    values, known = dict(values), COMMANDS[command]
    firsts = list(takewhile(lambda word: not word.startswith("-"), words))
    model = [values.pop(name) for name in ("model", "weights") if name in values]
    target, *sources = [*model, *firsts, "runs/NAME"][: max(len(model) + len(firsts), 1)]
    if command == "predict":
        source = values.pop("source", "" if sources else "IMAGES")
        sources += [f"webcam:{source}" if source.isdecimal() else source] if source else []
    target, note = imported("runs/NAME" if target.endswith(".yaml") else target)
    device, more, left = values.pop("device", ""), [], []
    for name, value in values.items():
        if "." in name:
            more.append(f"{name}={value}")
        elif name in known and ("{}" in known[name] or value.lower() not in _NO):
            more.append(known[name].format(value.strip("[]").replace(" ", "")))
        else:
            left.append(f"{name}={value}")
    if command == "export" and "--format" not in " ".join([*more, *words]):
        more.append("--format onnx")
    more += _devices(device, command)
    line = " ".join(["rankless", command, target, *sources, *words[len(firsts) :], *more])
    note = f"{note}, then " if note else ""
    return printable(f"{note}run: {line}{_without(left)}", 500)


def _devices(device: str, command: str = "train") -> list[str]:
    """Translate another program's ``device``, such as ``cpu`` or ``0,1``, to options."""
    if command == "predict" and device:
        names = (f"cuda:{one}" if one.isdecimal() else one for one in device.split(","))
        return [f"--device {','.join(names)}"]
    if command == "export":
        return []
    if device in ("cpu", "cuda"):
        return [f"--device {device}"]
    return [f"--devices {device}{'' if ',' in device else ','}"] if device[:1].isdecimal() else []
