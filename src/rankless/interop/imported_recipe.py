"""The recipe of imported weights, before the file has been read, and its model."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import nn

from rankless.errors import UserError, nearest, one_of
from rankless.models import zoo
from rankless.models.classifiers.catalog import build_classifier, variant
from rankless.randomness import torch_seed
from rankless.recipe import load
from rankless.recipe.schema import Recipe

PRECISION = "precision=fp32"  # the numbers that were published are those of single precision
# ImageNet's classifiers are scored on the middle of the image; training crops the published part of it.
_CROP = "data.augment.crop=0.08"
_LEAST_CROPPED = 128  # pixels; CIFAR's classifiers see the whole image


def build_any(recipe: Recipe, classes: int) -> nn.Module:
    """Build the recipe's model on the CPU, initialized by the recipe's seed as in training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(recipe.seed, "model"))
        if recipe.task == "classify":
            return build_classifier(recipe.model, classes)
        return zoo.build(recipe.model, classes)


def _task_of(name: str) -> str:
    """Return the task of the model called ``name``; other names than the detectors' are of classifiers."""
    return "detect" if name in zoo.MODELS else "classify"


def recipe_for(model: str | None, overrides: Sequence[str]) -> Recipe:
    """Return the recipe to write: the defaults, the model and the overrides."""
    named = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == "model.name"]
    if model is not None and named:
        raise UserError(f"--model is '{model}' and model.name is '{named[-1]}': give one of the two")
    name = model or (named[-1] if named else None)
    if name is None and any(word.startswith("model.cfg=") for word in overrides):
        return load.default([PRECISION, *overrides])
    if name is None:
        raise UserError(
            "of which model are the weights? give --model NAME, such as yolov4-tiny, resnet50 or "
            "timm/convnext_tiny (rankless models lists them), model.cfg=FILE, or --cfg FILE for Darknet's"
        )
    stem = name.removesuffix(".cfg")
    if (name.startswith("yolo") or stem != name) and name not in zoo.MODELS:
        near = nearest(name, zoo.MODELS)
        raise UserError(
            f"'--model' is '{name}': no such model; expected {one_of(zoo.MODELS)}{near}; for another network "
            f"of Darknet's give its cfg: --cfg {stem}.cfg"
        )
    task = [] if any(word.startswith("task=") for word in overrides) else [f"task={_task_of(name)}"]
    options = [*task, f"model.name={json.dumps(name)}", PRECISION]
    recipe = load.default([*options, *overrides])
    if recipe.task == "classify" and variant(recipe.model).side >= _LEAST_CROPPED:
        recipe = load.default([*options, _CROP, *overrides])
    return recipe
