"""Configuration files of detectors from transformers: ``config.json`` and ``preprocessor_config.json``.

The files are read as plain data, without importing transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankless.errors import UserError, check_all, nearest, one_of
from rankless.files import hub, reading
from rankless.recipe.model_kinds import IMAGENET_MEAN, IMAGENET_STD

KINDS: Mapping[str, str] = {
    "rt_detr": "RTDetr",
    "rt_detr_v2": "RTDetrV2",
    "d_fine": "DFine",
    "detr": "Detr",
    "conditional_detr": "ConditionalDetr",
    "deformable_detr": "DeformableDetr",
}
"""Maps each ``model_type`` to the prefix of its class names."""

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_MOST_CLASSES = 100_000
# Keys that do not describe the network: classes, where it was saved, and code that would run.
_LEFT_OUT = (
    *("id2label", "label2id", "num_labels", "architectures", "auto_map", "_name_or_path"),
    *("use_pretrained_backbone", "dtype", "torch_dtype", "transformers_version"),
)
_BACKBONE = ("backbone", "backbone_kwargs", "use_timm_backbone")
# Keys of a backbone that name weights to load, or code that would run.
_FETCHING = ("pretrained", "checkpoint_path", "use_pretrained_backbone", "auto_map")


def normalizes(kind: str) -> bool:
    """Check whether detectors of a ``model_type`` were published with ImageNet's normalization."""
    return kind in ("detr", "conditional_detr", "deformable_detr")


def folder_of(text: str) -> Path | None:
    """Return the folder that ``text`` refers to if transformers wrote it; otherwise, return None.

    ``text`` is a path or ``hf://OWNER/NAME``, whose files are downloaded unless they are cached.
    """
    if text.startswith(hub.PREFIX):
        address = hub.parse(text)
        if address.file:
            return None
        folder = hub.fetch(address)
    else:
        folder = Path(text)
    if not text or not reading.is_file(folder / CONFIG) or reading.is_file(folder / "recipe.yaml"):
        return None
    return folder


def read_config(given: str, where: str = "model.config") -> dict[str, Any]:
    """Return the keys of a detector's configuration that describe its network; refuse unsupported kinds.

    ``given`` is the file, its folder, or its text. Messages name the option ``where``.
    """
    if given.lstrip().startswith("{"):
        name, tree = where, _parsed(given, where)
    else:
        path = Path(given)
        path = path / CONFIG if reading.is_folder(path) else path
        name, tree = f"{where}: {path}", _object(path, where)
    kind = str(tree.get("model_type"))
    if kind not in KINDS:
        raise UserError(
            f"{name}: model_type is '{kind}'; expected a detector: {one_of(KINDS)}{nearest(kind, KINDS)}"
        )
    architectures = [] if tree.get("architectures") is None else tree["architectures"]
    if not isinstance(architectures, list):
        raise UserError(f"{name}: architectures is {json.dumps(architectures)}; expected a list of names")
    wanted = f"{KINDS[kind]}ForObjectDetection"
    problems = [
        f"{name}: its architecture is {other}; expected {wanted}, which predicts boxes only"
        for other in architectures
        if other != wanted
    ]
    if "quantization_config" in tree:
        problems.append(f"{name}: its weights are quantized; expected the original weights")
    inner = tree.get("backbone_config")
    for part in (tree, inner if isinstance(inner, dict) else {}):
        if {":", "/"} & set(str(part.get("backbone") or "")):
            problems.append(
                f"{name}: its backbone is {part['backbone']}, from another repository; expected the name of "
                "a timm model"
            )
    if problems:
        raise UserError(problems)
    return _without_fetching({key: value for key, value in tree.items() if key not in _LEFT_OUT})


def _without_fetching(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose backbone can be built without a request to the Hub.

    Unless the backbone is DETR's default, transformers looks for a repository with its name on the Hub.
    """
    parts = {
        key: {inner: one for inner, one in tree[key].items() if inner not in _FETCHING}
        for key in ("backbone_config", "backbone_kwargs")
        if isinstance(tree.get(key), dict)
    }
    tree = {**tree, **parts}
    if normalizes(str(tree["model_type"])):
        is_looked_for = tree.get("backbone_kwargs") or not tree.get("use_timm_backbone", True)
    else:
        is_looked_for = tree.get("backbone")
    if tree.get("backbone_config") is not None or not is_looked_for:
        return tree
    rest = {key: value for key, value in tree.items() if key not in _BACKBONE}
    name = tree.get("backbone") or "resnet50"
    backbone = {**(parts.get("backbone_kwargs") or {}), "model_type": "timm_backbone", "backbone": name}
    return {**rest, "backbone_config": backbone}


def class_names(folder: Path, where: str) -> tuple[str, ...]:
    """Return the class names in the configuration of a transformers folder."""
    tree = _object(folder / CONFIG, where)
    labels = tree.get("id2label")
    if labels is None:  # transformers omits the names if they are LABEL_0 and LABEL_1
        count = tree.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= _MOST_CLASSES:
            raise UserError(
                f"{where}: {folder / CONFIG}: num_labels is {json.dumps(count)}; expected a whole number "
                f"from 1 to {_MOST_CLASSES:,}"
            )
        return tuple(f"LABEL_{label}" for label in range(count))
    by_number = {str(key): str(name) for key, name in labels.items()} if isinstance(labels, dict) else {}
    names = tuple(by_number.get(str(label), "") for label in range(len(by_number)))
    if not names or not all(names):
        raise UserError(
            f"{where}: {folder / CONFIG}: id2label does not name each of the classes 0, 1, 2 …; expected "
            '{"0": "cat", "1": "dog", …}'
        )
    return names


def recipe_keys(folder: Path, where: str) -> dict[str, dict[str, Any]]:
    """Return the recipe keys that describe a transformers folder's network and its preprocessing."""
    config, (size, normalize, fit) = check_all(
        lambda: read_config(str(folder), where), lambda: _preprocessing(folder, where)
    )
    model = {
        "name": "hf/config",
        "image_size": size,
        "config": json.dumps(config, separators=(",", ":")),
        "normalize": normalize,
    }
    return {"model": model, "data": {"fit": fit}, "evaluate": {"iou": 1.0}}


def _preprocessing(folder: Path, where: str) -> tuple[list[Any], str, str]:
    """Return the values of ``model.image_size``, ``model.normalize`` and ``data.fit``."""
    path = folder / PREPROCESSOR
    kind = _object(folder / CONFIG, where).get("model_type")
    said = _object(path, where) if path.is_file() else {}
    normalized = said.get("do_normalize", normalizes(str(kind)))
    problems = []
    mean, std = list(IMAGENET_MEAN), list(IMAGENET_STD)
    if normalized and (said.get("image_mean", mean), said.get("image_std", std)) != (mean, std):
        problems.append(
            f"normalizes by image_mean {said.get('image_mean')} and image_std {said.get('image_std')}; "
            f"expected those of ImageNet ({mean} and {std}), or do_normalize false"
        )
    scale = said.get("rescale_factor", 1 / 255)
    is_number = isinstance(scale, int | float)
    if not said.get("do_rescale", True) or not is_number or not abs(scale * 255 - 1) <= 1e-6:
        problems.append(f"rescale_factor is {json.dumps(scale)}; expected 1/255 with do_rescale true")
    if said.get("resample", 2) != 2 or not said.get("do_resize", True):
        problems.append("does not resize bilinearly; expected do_resize true and resample 2")
    default = {"shortest_edge": 800} if normalizes(str(kind)) else {"height": 640, "width": 640}
    size = said.get("size", default)
    sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    if isinstance(size, dict) and "shortest_edge" in size:
        sides = (size["shortest_edge"],) * 2
    if not all(isinstance(side, int) and side > 0 and side % 32 == 0 for side in sides):
        problems.append(f"size is {json.dumps(size)}; expected sides that are multiples of 32")
    if problems:
        raise UserError([f"{where}: {path}: {problem}" for problem in problems])
    fit = "letterbox" if isinstance(size, dict) and "shortest_edge" in size else "stretch"
    return list(sides), "imagenet" if normalized else "none", fit


def _object(path: Path, where: str = "model.config") -> dict[str, Any]:
    try:
        text = reading.read_text(path, reading.NAMES)
    except UnicodeDecodeError:
        raise UserError(f"{where}: {path}: is not UTF-8 text; expected JSON") from None
    except OSError as error:
        raise UserError(
            f"{where}: {path}: cannot be read: {error.strerror or error}; expected the {CONFIG} of a "
            "transformers detector"
        ) from None
    return _parsed(text, f"{where}: {path}")


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: is not JSON: {error}; expected the {CONFIG} of a detector") from None
    if not isinstance(tree, dict):
        raise UserError(f"{name}: is not a JSON object; expected the {CONFIG} of a transformers detector")
    return tree
