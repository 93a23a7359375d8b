"""Check that a task conforms to :class:`rankless.tasks.protocol.Task`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rankless.errors import UserError, counted
from rankless.printing import finite
from rankless.structures import LossSum, Scores
from rankless.user_modules import refuse_lacking
from rankless.world.graph import leaves
from rankless.world.objects import SENDABLE, UnsendableError, check

_METHODS = {
    "model": "model(self) returns a torch.nn.Module",
    "training_data": "training_data(self) returns data with __len__ and item(index, epoch)",
    "evaluation_data": "evaluation_data(self) returns data with __len__ and item(index, epoch)",
    "collate": "collate(self, items) returns a batch made from a list of items",
    "loss": "loss(self, model, batch) returns a rankless.LossSum",
    "predict": "predict(self, model, batch) returns a list with one prediction per image",
    "score": "score(self, predictions) returns a dict of scores",
}


def check_members(task: Any, name: str) -> None:
    """Check that a task class has all required methods."""
    refuse_lacking(task, f"task is '{name}'", _METHODS)


def check_attributes(task: Any) -> None:
    """Check the class names and the score name of a task."""
    problems = []
    names = getattr(task, "class_names", None)
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or not all(isinstance(n, str) for n in names)
    ):
        problems.append(
            f"{_named(task)} has class_names {names!r}; expected a tuple of names, or an empty tuple"
        )
    score = getattr(task, "score_name", None)
    if not isinstance(score, str):
        problems.append(
            f"{_named(task)} has score_name {score!r}; expected the name of a score that score() returns"
        )
    if problems:
        raise UserError(problems)


def check_data(task: Any, method: str, data: Any) -> None:
    """Check that a data set is not empty and has a method ``item``."""
    missing = [name for name in ("__len__", "item") if not callable(getattr(data, name, None))]
    if missing:
        raise UserError(
            f"{method}() of {_named(task)} returned {type(data).__name__}, which lacks "
            f"{' and '.join(missing)}; expected {_result_of(method)}"
        )
    if len(data) < 1:
        raise UserError(f"{method}() of {_named(task)} has no images; expected at least one")


def check_order(task: Any, order: Any, images: int) -> None:
    """Check that the result of ``evaluation_order()`` contains every image once."""
    fits = isinstance(order, np.ndarray) and order.shape == (images,) and order.dtype == np.int64
    if not fits or not np.array_equal(np.sort(order), np.arange(images)):
        is_array = isinstance(order, np.ndarray)
        what = f"an array of {order.dtype} with shape {order.shape}" if is_array else type(order).__name__
        raise UserError(
            f"{_named(task)}: evaluation_order() of its evaluation data returned {what}; expected None, or "
            f"an int64 array that contains each number from 0 to {images - 1} once"
        )


def check_model(task: Any, model: Any) -> None:
    """Check that the model is a module with trainable parameters."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model() of {_named(task)} returned {type(model).__name__}; expected {_result_of('model')}"
        )
    problems = []
    for name, parameter in model.named_parameters():
        who = f"model() of {_named(task)} returned {type(model).__name__}, whose parameter '{name}'"
        if is_lazy(parameter):
            problems.append(
                f"{who} is lazy and has no shape yet; call the model once in model() with an input of the "
                "right shape, or use layers with fixed sizes, such as nn.Linear(in_features, out_features)"
            )
        elif any(
            step == 0 and size > 1 for size, step in zip(parameter.shape, parameter.stride(), strict=True)
        ):
            problems.append(f"{who} has several elements at one place in memory; copy it with .clone()")
    if problems:
        raise UserError(problems)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(
            f"model() of {_named(task)} returned {type(model).__name__} without trainable parameters; "
            "expected at least one parameter that requires a gradient"
        )


def check_batch(task: Any, batch: Any) -> None:
    """Check that a batch can be moved to a device."""
    if not callable(getattr(batch, "to", None)):
        raise UserError(
            f"collate() of {_named(task)} returned {type(batch).__name__}, which has no method to(device); "
            "expected a tensor, or an object with this method"
        )


def check_loss(task: Any, loss: Any) -> None:
    """Check that a micro-batch's loss is a sum and a count, without waiting for the device."""
    who = f"loss() of {_named(task)}"
    if not isinstance(loss, LossSum):
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            f"{who} returned {shown}; expected rankless.LossSum(sum, count), where sum is the loss summed "
            "over the batch, and count is the number to divide it by, such as the number of images"
        )
    problems = []
    if not _is_scalar(loss.sum):
        problems.append(f"{who}: sum is {_shown(loss.sum)}; expected a scalar tensor, such as losses.sum()")
    elif not loss.sum.requires_grad and torch.is_grad_enabled():
        problems.append(f"{who}: sum has no gradient; expected a tensor computed from the model's outputs")
    if not _is_scalar(loss.count):
        problems.append(
            f"{who}: count is {_shown(loss.count)}; expected a scalar tensor, "
            "such as torch.tensor(float(len(images)))"
        )
    if not isinstance(loss.parts, Mapping):
        problems.append(f"{who}: parts is {_shown(loss.parts)}; expected a dict of scalar tensors by name")
    else:
        problems += [
            f"{who}: parts['{name}'] is {_shown(part)}; expected a scalar tensor"
            for name, part in loss.parts.items()
            if not _is_scalar(part)
        ]
    if problems:
        raise UserError(problems)


def check_leaves(task: Any, model: nn.Module, loss: Tensor) -> None:
    """Check that a loss depends on no parameters outside of the model, which would not be trained."""
    inside = {p for p in model.parameters() if p.requires_grad}
    strangers = {p for p in leaves(loss) if isinstance(p, nn.Parameter)} - inside
    if not strangers:
        return
    named = {p: name for name, value in vars(task).items() for p, name in _parameters(name, value)}
    shown = sorted(f"'{named[p]}'" if p in named else f"of shape {tuple(p.shape)}" for p in strangers)
    raise UserError(
        f"loss() of {_named(task)} depends on parameters outside of the model that it receives "
        f"({', '.join(shown[:5])}), which would be neither trained nor saved; register them in the module "
        "that model() returns and use them through that model, or set their requires_grad to False"
    )


def _parameters(name: str, value: Any) -> list[tuple[Tensor, str]]:
    """Return the parameters in an attribute of a task, with their names."""
    if isinstance(value, nn.Module):
        return [(p, f"{name}.{inner}") for inner, p in value.named_parameters()]
    return [(value, name)] if isinstance(value, nn.Parameter) else []


def check_predictions(task: Any, predictions: Any, images: int) -> None:
    """Check that predictions are a list with one entry per image."""
    if not isinstance(predictions, list) or len(predictions) != images:
        is_list = isinstance(predictions, list)
        found = counted(len(predictions), "prediction") if is_list else type(predictions).__name__
        raise UserError(
            f"predict() of {_named(task)} returned {found} for a batch of {counted(images, 'image')}; "
            "expected a list with one prediction per image"
        )


def check_sendable(task: Any, predictions: list[Any]) -> None:
    """Check that predictions can be sent to the process that scores them."""
    try:
        check(predictions)
    except UnsendableError as error:
        who, what = f"predict() of {_named(task)}", f"{error.description} (prediction{error.position})"
        if what.startswith("a tensor on "):
            raise UserError(f"{who} returned {what}; move predictions to the CPU with .cpu()") from None
        raise UserError(
            f"{who} returned predictions that cannot be sent to another process: {what}; expected {SENDABLE}"
        ) from None


def check_scores(task: Any, scores: Any) -> Scores:
    """Check that scores are a JSON-ready dict with the score that selects the best weights."""
    who, name = f"score() of {_named(task)}", task.score_name
    if not isinstance(scores, dict):
        raise UserError(f"{who} returned {type(scores).__name__}; expected a dict of numbers by name")
    if name not in scores:
        raise UserError(
            f"{who} returned {', '.join(map(str, scores)) or 'an empty dict'}, but score_name is '{name}'; "
            "expected a score with that name"
        )
    if not isinstance(scores[name], float) and scores[name] is not None:
        raise UserError(
            f"{who}: '{name}' is {_shown(scores[name])}; expected a float that is higher for better models"
        )
    try:
        json.dumps(scores)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{who} returned a value that JSON cannot represent ({error}); convert tensors and NumPy "
            "values with float()"
        ) from None
    checked: Scores = finite(scores)
    return checked


def _result_of(method: str) -> str:
    return _METHODS[method].partition(" returns ")[2]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"


def _named(task: Any) -> str:
    return f"the task {type(task).__name__}"
