"""The score that chooses the best weights: ``evaluate.best``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankless.errors import nearest, one_of
from rankless.recipe.schema import Recipe


def unknown_best(best: str, names: Sequence[str]) -> Iterator[str]:
    """Yield an error if ``best``, the value of ``evaluate.best``, is neither a score nor the loss."""
    known = ["auto", *names, "loss"]
    if best not in known:
        hint = nearest(best, known)
        if best.lower().startswith("map") and "AP50" in known:
            hint = "; mAP at an IoU of 0.5 (Pascal VOC, Darknet) is AP50, COCO's mean over 0.50 to 0.95 is AP"
        yield f"evaluate.best is '{best}': expected {one_of(known)}{hint}"


def best_score(recipe: Recipe) -> str:
    """Return the name of the score that chooses the best weights; ``score`` means a custom task's score."""
    usual = {"detect": "AP", "classify": "top1"}.get(recipe.task, "score")
    return usual if recipe.evaluate.best == "auto" else recipe.evaluate.best
