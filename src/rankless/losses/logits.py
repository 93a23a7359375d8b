"""Elementwise losses that compare σ(logit) with a target.

They are computed from the logit, so they do not lose precision if σ is nearly 0 or 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Lower bound of |σ - y| in the quality focal loss, because the gradient of a power below 1 is infinite at 0.
_LEAST_GAP = 1e-6


def cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Compute the elementwise binary cross-entropy with targets in 0..1."""
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


def focal(logits: Tensor, present: Tensor, gamma: float, alpha: float | None = None) -> Tensor:
    """Compute the focal loss -α (1 - p)^γ log p for the probability p of the true class (Lin et al., 2017).

    ``alpha`` is the weight of positives, and 1 - α the weight of negatives. If None, both are 1.
    """
    right = torch.where(present, logits, -logits)
    easy = F.logsigmoid(-right)  # log(1 - p)
    return _weighed(-F.logsigmoid(right) * (gamma * easy).exp(), present, alpha)


def quality_focal(
    logits: Tensor, quality: Tensor, present: Tensor, gamma: float, alpha: float | None = None
) -> Tensor:
    """Compute the quality focal loss |y - σ|^γ · cross-entropy(σ, y) for targets y (Li et al., 2020).

    γ is called β in the paper. For ``alpha``, see :func:`focal`.
    """
    gap = (logits.sigmoid() - quality).abs().clamp(min=_LEAST_GAP)
    return _weighed(gap.pow(gamma) * cross_entropy(logits, quality), present, alpha)


def _weighed(loss: Tensor, present: Tensor, alpha: float | None) -> Tensor:
    return loss if alpha is None else torch.where(present, alpha * loss, (1 - alpha) * loss)
