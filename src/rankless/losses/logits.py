"""Losses of single logits, element by element: how far σ(logit) is from what it should be.

All are computed from the logit, so that nothing is lost where σ is nearly 0 or 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# The quality focal loss takes |σ - y| for at least this: a power below 1 of 0 has no finite gradient.
_LEAST_GAP = 1e-6


def cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Binary cross-entropy: (...), (...) in 0..1 -> (...)."""
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


def focal(logits: Tensor, present: Tensor, gamma: float, alpha: float | None = None) -> Tensor:
    """The focal loss -α (1 - p)^γ log p, p the probability of the right answer (Lin et al., 2017).

    Args:
        logits: (...).
        present: whether the right answer is yes, (...) bool.
        gamma: how much less an easy answer counts; 0 is the cross-entropy.
        alpha: weight where it is yes; where it is no, 1 - α. None weighs both 1.
    """
    right = torch.where(present, logits, -logits)
    easy = F.logsigmoid(-right)  # log(1 - p)
    return _weighed(-F.logsigmoid(right) * (gamma * easy).exp(), present, alpha)


def quality_focal(
    logits: Tensor, quality: Tensor, present: Tensor, gamma: float, alpha: float | None = None
) -> Tensor:
    """The quality focal loss |y - σ|^γ · cross-entropy(σ, y) (Li et al., 2020, Generalized Focal Loss).

    Args:
        logits: (...).
        quality: y, (...) in 0..1.
        present: where ``alpha`` weighs as for yes, (...) bool.
        gamma: how much less a near answer counts; the paper's β.
        alpha: as in :func:`focal`.
    """
    gap = (logits.sigmoid() - quality).abs().clamp(min=_LEAST_GAP)
    return _weighed(gap.pow(gamma) * cross_entropy(logits, quality), present, alpha)


def _weighed(loss: Tensor, present: Tensor, alpha: float | None) -> Tensor:
    return loss if alpha is None else torch.where(present, alpha * loss, (1 - alpha) * loss)
