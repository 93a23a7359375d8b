"""Find detectors by name. A new family needs a module that builds it and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from rankless.errors import UserError, nearest, one_of
from rankless.models.classifiers.catalog import CLASSIFIERS, TIMM
from rankless.models.detectors import darknet, torchvision, transformers
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
    """Return the detector that a recipe asks for.

    Args:
        model: the recipe's ``model``; its ``anchors`` must be resolved (``default`` or pairs) before it is
            built.
        loss: the recipe's ``loss``; by default the published loss.
    """
    loss = model_kinds.loss_of(model, loss)
    if isinstance(model, model_kinds.YoloModel) and model.cfg:
        return darknet.spec(model, loss)
    if model.name == transformers.CUSTOM:
        return transformers.spec(model, loss)
    check_name(model.name)
    return next(validate for models, validate in _FAMILIES if model.name in models)(model, loss)


def build(model: model_kinds.ModelKeys, classes: int, loss: loss_kinds.LossKeys | None = None) -> nn.Module:
    """Return a freshly initialized :class:`~rankless.models.detectors.protocol.Detector` on the CPU.

    Its weights are drawn from torch's global generator.

    Args:
        model, loss: see :func:`spec`.
        classes: number of classes.
    """
    if classes < 1:
        raise UserError(
            f"the data has {classes} classes, but a detector needs at least one; name the classes"
        )
    return spec(model, loss).build(classes)


def check_name(name: str) -> None:
    """Raise an error if there is no detector called ``name``."""
    if name in MODELS or name == transformers.CUSTOM:
        return
    if name in CLASSIFIERS or name.startswith(TIMM):
        raise UserError(
            f"'model.name' is '{name}', which is a classifier; expected a detector, such as "
            "yolov4-tiny; give one, or set task to 'classify'"
        )
    raise UserError(
        f"'model.name' is '{name}': no such model; expected {one_of(MODELS)}{nearest(name, MODELS)}"
    )
