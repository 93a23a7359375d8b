"""The losses of classifiers, summed over the images of a micro-batch: cross-entropy and focal loss.

Targets are shares of the classes, so that mixed images need no case of their own. All is computed in
float32, whatever the precision of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.errors import UserError
from rankless.recipe import schema
from rankless.structures import LossSum

# Settings of the recipe's loss that mean something to a classifier; 'gamma' with focal alone.
_OWN = frozenset({"name", "gamma", "smoothing", "class_weights"})


@dataclass(frozen=True)
class ClassificationLoss:
    """Which loss, and its numbers.

    Attributes:
        name: ``cross-entropy``, or ``focal``: each image's cross-entropy times (1 - p)^γ, p being the
            probability of what is right (Lin et al., "Focal Loss for Dense Object Detection", 2017, over a
            softmax); of a mixed image the mean probability of its classes, weighted by their shares.
        gamma: γ.
        smoothing: ε of the label smoothing, y (1 - ε) + ε / C (Szegedy et al., 2016).
        class_weights: factor of each class, length C; None is 1 for all.
    """

    name: Literal["cross-entropy", "focal"] = "cross-entropy"
    gamma: float = 2.0
    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> LossSum:
        """The loss of one micro-batch.

        Args:
            logits: (B, C).
            targets: share of each class, each row sums to 1, (B, C).

        Returns:
            The sum over the images, and what to divide it by: their number, or with class weights the sum
            of the weights of what is right, so that the mean over a batch is that of torch's
            ``CrossEntropyLoss``.
        """
        logits = logits.float()
        weights = None if self.class_weights is None else _on(logits.device, self.class_weights)
        losses = F.cross_entropy(
            logits, targets, weight=weights, label_smoothing=self.smoothing, reduction="none"
        )  # (B,)
        if self.name == "focal":
            # What the wrong classes sum to: 1 - p itself would round to 0 when p is nearly 1.
            wrong = (logits.softmax(1) * (1 - targets)).sum(1)
            # Below γ = 1 the slope at 0 is infinite.
            losses = losses * wrong.clamp(min=torch.finfo(wrong.dtype).tiny) ** self.gamma
        if weights is None:
            count = losses.new_full((), len(losses))
        else:
            count = (targets * weights).sum()
        return LossSum(losses.sum(), count)


def from_recipe(loss: schema.Loss, counts: Sequence[int]) -> ClassificationLoss:
    """The recipe's loss; ``auto`` is cross-entropy without smoothing.

    Args:
        loss: the recipe's part.
        counts: training images of each class, length C.

    Raises:
        UserError: settings that only detectors have, and weights that do not fit the classes: all of them.
    """
    focal = loss.name == "focal"
    faults = [*_strange(loss, focal), *_misfits(loss.class_weights, counts)]
    if faults:
        raise UserError(faults)
    weights: tuple[float, ...] | None = None
    if loss.class_weights == "balanced":
        weights = tuple(sum(counts) / (len(counts) * count) for count in counts)
    elif loss.class_weights != "none":
        weights = tuple(loss.class_weights)
    return ClassificationLoss(
        name="focal" if focal else "cross-entropy",
        gamma=loss.gamma,
        smoothing=0.0 if loss.smoothing == "auto" else loss.smoothing,
        class_weights=weights,
    )


def _strange(loss: schema.Loss, focal: bool) -> list[str]:
    """A sentence for each setting that a classifier's loss does not know."""
    faults = []
    if loss.name not in ("auto", "cross-entropy", "focal"):
        faults.append(
            f"loss.name is '{loss.name}', a loss of detectors: expected auto, cross-entropy or focal "
            "for a classifier."
        )
    default = schema.Loss()
    own = _OWN if focal else _OWN - {"gamma"}
    for name in (field.name for field in fields(loss)):
        value = getattr(loss, name)
        if name in own or value == getattr(default, name):
            continue
        if name == "gamma":
            faults.append(f"loss.gamma is {value}, which only the focal loss has: set loss.name to focal.")
        elif name == "alpha":
            faults.append(f"loss.alpha is {value}, which only detectors have: give loss.class_weights.")
        else:
            faults.append(f"loss.{name} is {value}, which only detectors have: leave it out.")
    return faults


def _misfits(weights: str | Sequence[float], counts: Sequence[int]) -> list[str]:
    if weights == "none":
        return []
    if weights == "balanced":
        empty = [label for label, count in enumerate(counts) if not count]
        told = ", ".join(map(str, empty[:8])) + (", …" if len(empty) > 8 else "")
        sentence = (
            f"loss.class_weights is 'balanced', but {len(empty)} classes have no training images ({told}): "
            "add some, or give a list of weights."
        )
        return [sentence] if empty else []
    faults = []
    if len(weights) != len(counts):
        faults.append(
            f"loss.class_weights has {len(weights)} numbers: expected {len(counts)}, one for each class."
        )
    if not any(weights):
        faults.append("loss.class_weights are all 0: expected one above 0 at least.")
    return faults


@lru_cache(maxsize=8)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """The numbers on the device, brought there once: each transfer would make the host wait."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.float32, device=device)
