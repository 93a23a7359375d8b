"""Classification losses, summed over the images of a micro-batch: cross-entropy and focal loss.

Targets are fractions of the classes, so mixed images need no special case. The losses are computed in
float32, whatever the precision of the network.
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
    """A classification loss function.

    Attributes:
        options: the recipe's loss options. For a mixed image, the focal loss uses the mean probability of the
            classes, weighted by their fractions.
        class_weights: weight of each class, length C; None means 1 for all classes.
    """

    options: Options = field(default_factory=loss_kinds.CrossEntropyLoss)
    class_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> LossSum:
        """Compute the loss of one micro-batch.

        Args:
            logits: the outputs of the network, (B, C).
            targets: fraction of each class, (B, C), where each row sums to 1.

        Returns:
            The sum over the images and the count, both scalars. The count is the number of images or, with
            class weights, the total weight of the targets, so that the mean over a batch equals that of
            torch's ``CrossEntropyLoss``. ``parts["top1"]`` is the fraction of correctly classified images
            times the count. The correct class of a mixed image is the class with the largest fraction.
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
    """Return the loss function of a recipe, for data with ``counts`` training images per class.

    Raises:
        UserError: the class weights do not fit the data.
    """
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
            f"{'has' if len(empty) == 1 else 'have'} no training images ({shown}); add some, or set "
            "loss.class_weights to a list of weights"
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
    """Copy numbers to a device, and cache the result, because the host waits for each transfer."""
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.float32, device=device)
