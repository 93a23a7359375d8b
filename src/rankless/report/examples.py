"""The best and worst images of an evaluation: ground truth on the left, predictions on the right."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rankless.report.collected import Collected
from rankless.report.evaluation import class_names
from rankless.report.markup import number, text

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_LABELS = 12
"""Maximum number of labels on an image. An image with more than twice as many boxes has no labels."""
_SCORED = 5
"""Maximum number of boxes in an image for the labels to include scores."""

_TRUTHS = ("missed", "found", "ignored")
_FOUND = ("wrong", "right", "ignored")


def galleries(run: Collected) -> str:
    """Return the section of example images, worst first."""
    examples = run.details.get("examples", [])
    names = class_names(run.details)
    parts = []
    for kind, title in (("worst", "Worst images"), ("best", "Best images")):
        shown = [_example(at, one, names) for at, one in enumerate(examples) if one.get("kind") == kind]
        if any(shown):
            parts.append(f'<h3>{title}</h3><div class="gallery">{"".join(shown)}</div>')
    if not parts:
        return ""
    key = ""
    if "iou" in run.details:
        key = (
            '<ul class="legend boxes"><li class="found">found</li><li class="missed">missed</li>'
            '<li class="right">correct</li><li class="wrong">wrong</li>'
            '<li class="ignored">not counted</li></ul>'
            '<p class="note">Left: ground truth. Right: predictions at the threshold with the best F1.</p>'
        )
    return f'<section class="examples"><h2>Images</h2>{key}{"".join(parts)}</section>\n'


def _example(at: int, one: Mapping[str, Any], names: Sequence[str]) -> str:
    jpeg = str(one.get("jpeg", ""))
    if not _BASE64.fullmatch(jpeg):
        return ""
    name = PurePath(str(one.get("name", ""))).name
    style = f"--image:url(data:image/jpeg;base64,{jpeg});--ratio:{int(one['width'])}/{int(one['height'])}"
    score = number(one["score"], "evaluation", "examples", at, "score", digits=3)
    title = f'<figcaption title="{text(one.get("name", ""))}"><span>{text(name)}</span>'
    if isinstance(one["truth"], list):
        truth = [(*row[:5], "", _TRUTHS[int(row[5])]) for row in one["truth"]]
        found = [(*row[:5], f"{row[5]:.2f}", _FOUND[int(row[6])]) for row in one["found"]]
        panes = "".join(f'<div class="pane">{_boxes(rows, names)}</div>' for rows in (truth, found))
        return (
            f'<figure style="{style}"><div class="panes">{panes}</div>'
            f"{title}<span>F1 {score}</span></figcaption></figure>"
        )
    likeliest = "".join(
        f'<li class="{_judged(label == one["truth"], place)}">{text(names[int(label)])} '
        f"{number(probability, 'evaluation', 'examples', at, 'likeliest', place, 1, digits=3)}</li>"
        for place, (label, probability) in enumerate(one["likeliest"])
    )
    return (
        f'<figure class="classified" style="{style}"><div class="pane"></div>{title}'
        f"<b>{text(names[one['truth']])}</b></figcaption><ul>{likeliest}</ul></figure>"
    )


def _judged(is_right: bool, place: int) -> str:
    """Return the CSS class of a predicted class: ``right``, ``wrong`` (only for the likeliest) or empty."""
    return "right" if is_right else "wrong" if not place else ""


def _boxes(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> str:
    boxes = ""
    for place, (x1, y1, x2, y2, label, score, kind) in enumerate(rows):
        sides = zip(("left", "top", "width", "height"), (x1, y1, x2 - x1, y2 - y1), strict=True)
        where = ";".join(f"{name}:{100 * part:.2f}%" for name, part in sides)
        said = text(f"{names[int(label)]} {score}".strip())
        edge = f"{' low' if y1 < 0.08 else ''}{' end' if x1 > 0.7 else ''}"
        name = said if len(rows) <= _SCORED else text(names[int(label)])
        shown = f"<b>{name}</b>" if place < _LABELS and len(rows) <= 2 * _LABELS else ""
        boxes += f'<span class="box {kind}{edge}" style="{where}" title="{said}">{shown}</span>'
    return boxes
