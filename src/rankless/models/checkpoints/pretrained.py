"""Starting from weights that were trained before (``model.pretrained``).

Every tensor must fit, but for those of a head that was made for another number of classes: they keep the
fresh values that they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models.checkpoints.weights import load_into, load_tensors
from rankless.models.classifiers.adapters import timm_weights
from rankless.runs.directory import weights_of

TIMM = "timm"
"""The value that asks for the weights that timm has published for the classifier."""

_SHOWN = 8


def start_from(model: nn.Module, pretrained: str, class_names: Sequence[str] = ()) -> list[str]:
    """Put trained weights into a fresh model.

    Args:
        model: the bare model. Its attribute ``head_names``, where it has one, holds the names of the modules
            (or parameters) whose shapes depend on the number of classes: ``("fc", "levels.0.predict")``.
        pretrained: ``model.pretrained``: a weights file, a run (its best weights), any safetensors file with
            the model's keys; ``timm`` for what timm has published for this classifier; empty does nothing.
        class_names: what the model is to tell apart; compared with those in the file, if it holds any.

    Returns:
        Sentences for a person: where the weights came from, and what of them was not taken.

    Raises:
        UserError: there is no such file, or its tensors do not fit; the model is unchanged then.
    """
    if not pretrained:
        return []
    found, known, place = _of_timm(model) if pretrained == TIMM else _of_a_file(pretrained)
    state, initialized = _without_other_heads(model, found, len(known), len(class_names))
    load_into(model, state, f"model.pretrained: {place}")
    told = [f"starting from the weights in {place}"]
    if initialized:
        classes = f" for {len(known)} classes" if known else ""
        told.append(
            f"the heads{classes} are initialized again for {len(class_names)}: {_listed(initialized)}"
            if class_names
            else f"the heads are initialized again: {_listed(initialized)}"
        )
    elif known and len(known) == len(class_names) and tuple(known) != tuple(class_names):
        told.append(
            f"the heads are taken as they are, but the classes had other names: {_listed(known)} in the "
            f"file, {_listed(class_names)} in the data"
        )
    return told


def _of_a_file(pretrained: str) -> tuple[dict[str, Tensor], tuple[str, ...], str]:
    """Tensors, the class names of their head, and where they lie."""
    try:
        path = weights_of(Path(pretrained))
        return *load_tensors(path), str(path)
    except UserError as error:
        raise UserError(f"model.pretrained is '{pretrained}': {fault}" for fault in error.problems) from None


def _of_timm(model: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...], str]:
    """As :func:`_of_a_file`; timm's names of the classes are not known."""
    variant: Any = getattr(model, "variant", None)
    if variant is None:
        raise UserError(
            "model.pretrained is 'timm', but the model is none of timm's: give a weights file, such as one "
            "that rankless import wrote"
        )
    name = variant.name.removeprefix("timm/")
    return timm_weights(name), (), f"timm's {name}"


def _without_other_heads(
    model: nn.Module, found: dict[str, Tensor], known: int, wanted: int
) -> tuple[dict[str, Tensor], list[str]]:
    """The file's tensors with the model's own for a head of other classes, and the names of those."""
    if known and known == wanted:  # a head that does not fit is then another head, not one of other classes
        return found, []
    own = model.state_dict()
    heads = tuple(f"{name.rstrip('.')}." for name in getattr(model, "head_names", ()))
    initialized = [
        name
        for name, value in own.items()
        if name in found and value.shape != found[name].shape and f"{name}.".startswith(heads)
    ]
    return {**found, **{name: own[name] for name in initialized}}, initialized


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
