"""Which losses a model can be trained with, and messages about keys that belong to another kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rankless.recipe.fields import clash, get
from rankless.recipe.loss_kinds import LOSSES, AutoLoss, Loss
from rankless.recipe.model_kinds import MODELS, Model, model_kind

KINDS: Mapping[str, Mapping[str, type[Model] | type[Loss]]] = {"model": MODELS, "loss": LOSSES}
"""Section to its kinds by tag."""


def losses_of(model: Any) -> tuple[str, ...]:
    """List the losses that a model can be trained with, the one it was published with first."""
    kind = model_kind(model)
    if kind == "yolo":
        if get(model, "cfg", ""):
            return ("cfg", "yolov3", "yolov4")
        older = str(get(model, "name", Model.name)).startswith("yolov3")
        return ("yolov3", "yolov4") if older else ("yolov4", "yolov3")
    if kind == "custom":
        return ("auto", *(name for name in LOSSES if name != "auto"))
    return {"anchor-free": ("anchor-free",), "torchvision": ("published",)}.get(
        kind, ("cross-entropy", "focal")
    )


def resolved_loss(loss: Loss, model: Model) -> Loss:
    """Turn a loss without a name into the one that the model was published with.

    Raises:
        PydanticCustomError: a key that the model's loss does not have.
    """
    kind = losses_of(model)[0]
    if not isinstance(loss, AutoLoss) or kind == "auto":
        return loss
    given = {key: value for key, value in vars(loss).items() if value != "auto"}
    for key in given.keys() - _keys(LOSSES[kind]):
        raise clash(foreign("loss", key, kind, ""), f"loss.{key}")
    return LOSSES[kind](name=kind, **given)


def foreign(section: str, key: str, kind: str, model: str) -> str:
    """Write the message about a key that only other kinds have.

    Args:
        section: ``model`` or ``loss``.
        key: inside the section.
        kind: the tag of the recipe's model or loss.
        model: the model's name.
    """
    outer = key.partition(".")[0]
    having = [tag for tag, one in KINDS[section].items() if outer in _keys(one)]
    having = [tag for tag in having if tag not in ("custom", "auto")]
    if section == "loss":
        who = f"only {_listed(having, 'and')} {'has' if len(having) == 1 else 'have'} it"
        return f"key 'loss.{key}': {who}; this model's loss is {kind}"
    who = f"only {_listed([MODELS[tag].label for tag in having], 'or')} has it"
    return f"key 'model.{key}': {who}; '{model}' is {MODELS[kind].label}"


def _keys(kind: type) -> frozenset[str]:
    return frozenset(one.name for one in fields(kind))


def _listed(words: list[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(words[:-1]), words[-1])))
