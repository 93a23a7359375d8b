"""Check ``evaluate.best``, the score that selects the best weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankless.errors import nearest, one_of


def unknown_best(best: str, names: Sequence[str]) -> Iterator[str]:
    """Yield an error message if ``evaluate.best`` is not ``auto``, ``loss`` or one of the given scores."""
    known = ["auto", *names, "loss"]
    if best not in known:
        hint = nearest(best, known)
        if best.lower().startswith("map") and "AP50" in known:
            hint = "; use AP50 for mAP at an IoU of 0.5 (Pascal VOC, Darknet), or AP for COCO's mAP"
        yield f"evaluate.best is '{best}': expected {one_of(known)}{hint}"
