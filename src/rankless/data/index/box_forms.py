"""Read the four numbers of a box in one of several forms, and find the form that the numbers have.

A box may be written as ``xyxy`` (corners), ``xywh`` (corner and size) or ``cxcywh`` (center and size). Some
formats do not say which, and some files contradict their format. In the wrong form, many boxes end before
they begin or extend beyond their image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankless.data.index.findings import Finding
from rankless.data.index.raw import Raw
from rankless.errors import UserError, counted

FORMS = {
    "xyxy": "x1, y1, x2, y2",
    "xywh": "x, y, width, height",
    "cxcywh": "center x, center y, width, height",
}
Boxes = NDArray[np.float64]

_SLACK = {True: 1e-3, False: 1.0}  # how far a box may extend beyond its image: normalized, or in pixels
_MANY = 0.2  # minimum fraction of faulty boxes that makes the format's form implausible
_CLEARLY = 4  # minimum ratio of faulty boxes in another form and in the form that is inferred


def to_corners(numbers: Boxes, form: str) -> Boxes:
    """Convert boxes, (T, 4), from ``form`` to xyxy."""
    first, second = numbers[:, :2], numbers[:, 2:]
    if form == "xyxy":
        return numbers
    low = first - second / 2 if form == "cxcywh" else first
    return np.concatenate((low, low + second), 1)


def from_corners(boxes: Boxes, form: str) -> Boxes:
    """Convert boxes, (T, 4), from xyxy to ``form``."""
    low, size = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    if form == "xyxy":
        return boxes
    return np.concatenate((low + size / 2 if form == "cxcywh" else low, size), 1)


def settle(raw: Raw, format: str, given: str = "") -> None:
    """Set ``raw.boxes`` according to the form ``given`` or, if it is empty, infer or check the form.

    Findings report numbers that contradict the format's form and fit another one, and, if the form can only
    be inferred (``raw.unsure``), numbers that fit several forms.
    """
    if given and (not raw.form or given not in FORMS):
        expected = f"one of {', '.join(FORMS)} after the colon" if raw.form else "no colon"
        raise UserError(f"data.format is '{format}:{given}'; expected {expected}")
    if not raw.form or raw.boxes is None or not len(raw.boxes):
        return
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = from_corners(raw.boxes, raw.form)
        faults = {form: _faults(raw, numbers, form) for form in FORMS}
        if given:
            raw.boxes = raw.boxes if given == raw.form else to_corners(numbers, given)
            raw.about.append(f"boxes are read as {FORMS[given]}, as data.format states")
        elif raw.unsure:
            _infer(raw, format, numbers, faults)
        else:
            _check(raw, format, numbers, faults)


def _infer(raw: Raw, format: str, numbers: Boxes, faults: dict[str, int]) -> None:
    """Choose the form, ``xywh`` or ``xyxy``, that has clearly fewer faulty boxes."""
    best, other = sorted(("xywh", "xyxy"), key=lambda form: faults[form])
    raw.boxes = to_corners(numbers, best)
    possible = [best, *([other] if faults[best] * _CLEARLY > faults[other] or not faults[other] else [])]
    # Boxes away from the edges fit xywh and cxcywh, so cxcywh only counts if the usual forms do not fit.
    possible += ["cxcywh"] if faults["cxcywh"] * _CLEARLY < faults[best] else []
    if len(possible) > 1:
        readings = " or ".join(FORMS[form] for form in possible)
        problem = f"the boxes, such as {_text(numbers[0])}, may be {readings}; set {_keys(format, possible)}"
        _report(raw, len(numbers), 0, problem)
    elif best == "xyxy":
        raw.about.append(
            f"boxes are interpreted as corners {FORMS[best]}, because "
            f"{counted(faults[other], 'box', 'boxes')} would not fit into the image as {FORMS[other]}"
        )


def _check(raw: Raw, format: str, numbers: Boxes, faults: dict[str, int]) -> None:
    impossible = _reversed_or_beyond(raw, to_corners(numbers, raw.form))
    count, row = int(impossible.sum()), int(impossible.argmax())
    fitting = [form for form, others in faults.items() if not others and form != raw.form]
    if fitting and count and count >= _MANY * len(numbers):
        problem = (
            f"as {FORMS[raw.form]}, {count:,} of {counted(len(numbers), 'box', 'boxes')} end before they "
            f"begin or extend beyond the image, such as {_text(numbers[row])}; as {FORMS[fitting[0]]}, all "
            f"fit; correct the files, or set {_keys(format, fitting)}"
        )
        _report(raw, count, row, problem)


def _report(raw: Raw, count: int, row: int, problem: str) -> None:
    image = int(raw.image[row])
    where = raw.annotated_in[image] or raw.paths[image]
    raw.findings.add_many("other form", count, [Finding(where, problem)])


def _faults(raw: Raw, numbers: Boxes, form: str) -> int:
    boxes = to_corners(numbers, form)
    empty = (boxes[:, 2:] <= boxes[:, :2]).any(1)
    return int((empty | _reversed_or_beyond(raw, boxes)).sum())


def _reversed_or_beyond(raw: Raw, boxes: Boxes) -> NDArray[np.bool_]:
    """Return a mask, (T,), of finite boxes that end before they begin or extend beyond their image."""
    most = np.ones_like(boxes) if raw.normalized else np.tile(raw.sizes[raw.image, ::-1], 2).astype(float)
    slack = _SLACK[raw.normalized]
    beyond = ((boxes < -slack) | (boxes > most + slack)).any(1) & (most[:, 0] > 0)
    wrong: NDArray[np.bool_] = (beyond | (boxes[:, 2:] < boxes[:, :2]).any(1)) & np.isfinite(boxes).all(1)
    return wrong


def _keys(format: str, forms: list[str]) -> str:
    keys = " or ".join(f"data.format={format}:{form}" for form in forms)
    return f"{keys} (`rankless data`: --format {format}:{forms[0]})"


def _text(numbers: Boxes) -> str:
    return f"[{', '.join(f'{number:g}' for number in numbers.tolist())}]"
