"""Find detectors by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import nn

from rankless.errors import UserError, nearest, one_of
from rankless.models.classifiers.catalog import CLASSIFIERS, TIMM
from rankless.models.detectors import darknet, family, torchvision, transformers
from rankless.models.detectors.protocol import DetectorSpec, Published
from rankless.recipe import loss_kinds, model_kinds

Validate = Callable[[model_kinds.ModelKeys, loss_kinds.LossKeys], DetectorSpec]
_FAMILIES: tuple[tuple[Mapping[str, Published], Validate], ...] = (
    (darknet.MODELS, darknet.spec),
    (torchvision.MODELS, torchvision.spec),
    (transformers.MODELS, transformers.spec),
)

MODELS: dict[str, Published] = {name: one for models, _ in _FAMILIES for name, one in models.items()}


def spec(model: model_kinds.ModelKeys, loss: loss_kinds.LossKeys | None = None) -> DetectorSpec:
    """Return the specification of a recipe's detector.

    Before the detector is built, ``model.anchors`` must be resolved to ``default`` or pairs.
    """
    loss = model_kinds.loss_of(model, loss)
    if isinstance(model, model_kinds.YoloModel) and model.cfg:
        return darknet.spec(model, loss)
    if model.name == transformers.CUSTOM:
        return transformers.spec(model, loss)
    if isinstance(model, model_kinds.FamilyModel):
        return family.spec(model)
    check_name(model.name)
    return next(validate for models, validate in _FAMILIES if model.name in models)(model, loss)


def build(model: model_kinds.ModelKeys, classes: int, loss: loss_kinds.LossKeys | None = None) -> nn.Module:
    """Build a :class:`~rankless.models.detectors.protocol.Detector` on the CPU.

    The weights are initialized with torch's global generator.
    """
    if classes < 1:
        raise UserError(
            f"the data has {classes} classes, but a detector needs at least one; set data.classes"
        )
    return spec(model, loss).build(classes)


def published(model: model_kinds.ModelKeys) -> tuple[int, tuple[int, int]]:
    """Return the number of classes and the (height, width) of the input of a published detector."""
    return MODELS[model.name].classes, spec(model).size


def check_name(name: str) -> None:
    if name in MODELS or name == transformers.CUSTOM or re.search(model_kinds.FamilyModel.pattern, name):
        return
    if name in CLASSIFIERS or name.startswith(TIMM):
        raise UserError(
            f"'model.name' is '{name}', which is a classifier; expected a detector, such as yolov4-tiny; to "
            "train a classifier, set task to 'classify'"
        )
    raise UserError(
        f"'model.name' is '{name}': no such model; expected {one_of(MODELS)}{nearest(name, MODELS)}"
    )
