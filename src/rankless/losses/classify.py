"""Classification losses, summed over the images of a micro-batch: cross-entropy and focal loss.

Targets are class fractions, so mixed images need no special case. The losses are computed in float32,
regardless of the network's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rankless.errors import UserError, counted
from rankless.recipe import loss_kinds
from rankless.structures import LossSum

Options = loss_kinds.CrossEntropyLoss | loss_kinds.FocalLoss


@dataclass(frozen=True)
class ClassificationLoss:
    """A classification loss with one weight per class, or a weight of 1 if ``class_weights`` is None.

    For a mixed image, the focal loss uses the mean probability of its classes, weighted by their fractions.
    """

    options: Options = field(default_factory=loss_kinds.CrossEntropyLoss)
    class_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> LossSum:
        """Compute the loss of one micro-batch from ``logits`` (B, C) and class fractions ``targets`` (B, C).

        The count is the number of images or, with class weights, the total weight of the targets, so that the
        mean over a batch equals that of torch's ``CrossEntropyLoss``. ``parts["top1"]`` is the accuracy times
        the count, where the true class of a mixed image is the class with the largest fraction.
        """
        logits = logits.float()
        weights = None if self.class_weights is None else _on(logits.device, self.class_weights)
        losses = F.cross_entropy(
            logits, targets, weight=weights, label_smoothing=self.options.smoothing, reduction="none"
        )  # (B,)
        if isinstance(self.options, loss_kinds.FocalLoss):
            # Sum over the wrong classes, because 1 - p would round to 0 if p is nearly 1.
            wrong = (logits.softmax(1) * (1 - targets)).sum(1)
            # For γ < 1, the gradient at 0 is infinite.
            losses = losses * wrong.clamp(min=torch.finfo(wrong.dtype).tiny) ** self.options.gamma
        if weights is None:
            count = losses.new_full((), len(losses))
        else:
            count = (targets * weights).sum()
        with torch.no_grad():
            right = (logits.argmax(1) == targets.argmax(1)).float().mean() * count
        return LossSum(losses.sum(), count, {"top1": right})


def from_recipe(
    options: loss_kinds.CrossEntropyLoss | loss_kinds.FocalLoss, counts: Sequence[int]
) -> ClassificationLoss:
    """Return a recipe's loss function for data with ``counts`` training images per class."""
    if problems := _misfits(options.class_weights, counts):
        raise UserError(problems)
    if options.class_weights == "balanced":
        return ClassificationLoss(options, tuple(sum(counts) / (len(counts) * count) for count in counts))
    return ClassificationLoss(options, None if options.class_weights == "none" else options.class_weights)


def _misfits(weights: str | Sequence[float], counts: Sequence[int]) -> list[str]:
    if weights == "none":
        return []
    if weights == "balanced":
        empty = [label for label, count in enumerate(counts) if not count]
        shown = ", ".join(map(str, empty[:8])) + (", …" if len(empty) > 8 else "")
        sentence = (
            f"'loss.class_weights' is 'balanced', but {counted(len(empty), 'class', 'classes')} "
            f"{'has' if len(empty) == 1 else 'have'} no training images ({shown}); add images, or "
            "set loss.class_weights to a list of weights"
        )
        return [sentence] if empty else []
    problems = []
    if len(weights) != len(counts):
        problems.append(
            f"'loss.class_weights' has {len(weights)} numbers; expected {len(counts)}, one for each class"
        )
    if not any(weights):
        problems.append("'loss.class_weights' are all 0; expected at least one positive weight")
    return problems


@lru_cache(maxsize=8)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Copy numbers to a device and cache the result, because every transfer blocks the host."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.float32, device=device)
