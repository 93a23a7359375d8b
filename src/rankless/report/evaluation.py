"""Panels of the best evaluation: scores, curves, classes, confusion matrix, object sizes and images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rankless.report.charts import Axes, Line, Mark, column_chart, line_chart
from rankless.report.collected import Collected
from rankless.report.markup import card, number, pairs, table, text

_NAMED = 8
"""Maximum number of classes drawn in their own color. Other classes are drawn as gray lines."""
_NUMBERED = 24
"""Maximum number of classes for which the confusion matrix shows numbers. A larger one shows only colors."""
_MOST_BARS = 40
_GRID = [step / 100 for step in range(101)]
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_LABELS = 12
"""Maximum number of labels on an image. An image with more than twice as many boxes has no labels."""
_SCORED = 5
"""Maximum number of boxes in an image for the labels to include scores."""
_TRUTHS = ("missed", "found", "ignored")
_FOUND = ("wrong", "right", "ignored")


def class_names(details: Mapping[str, Any]) -> list[str]:
    """Return the class names, made unique by appending the label to repeated names."""
    names: list[str] = []
    for label, name in enumerate(details.get("classes", [])):
        names.append(f"{name} ({label})" if name in names else str(name))
    return names


def curve_charts(run: Collected) -> str:
    """Return charts of scores by threshold, of precision–recall curves, and of calibration."""
    details = run.details
    parts = []
    if thresholds := details.get("thresholds"):
        best = thresholds["best"]
        precision, recall, f1 = thresholds["at_best"]
        keys = {"precision": "precision", "recall": "recall", "F1": "f1"}
        lines = [_curve(name, thresholds[key], color) for color, (name, key) in enumerate(keys.items())]
        at = ("evaluation", "thresholds")
        note = (
            f"Best F1 {number(f1, *at, 'at_best', 2, digits=3)} at the threshold "
            f"{number(best, *at, 'best', digits=3)}, with precision "
            f"{number(precision, *at, 'at_best', 0, digits=3)} and recall "
            f"{number(recall, *at, 'at_best', 1, digits=3)}."
        )
        axes = Axes(
            "score", x_range=(0, 1), y_range=(0, 1), marks=[Mark(best, f"best F1 at {best:.3f}", "best")]
        )
        parts.append(line_chart("Precision, recall and F1 by threshold", lines, axes, note))
    parts.append(_precision_recall(details))
    if calibration := details.get("calibration"):
        pairs = zip(calibration["confidence"], calibration["accuracy"], strict=True)
        points = [(x, y) for x, y in pairs if x is not None]
        error = number(calibration["error"], "evaluation", "calibration", "error", digits=3)
        lines = [Line("perfect", [(0, 0), (1, 1)], None, "dashed"), Line("accuracy", points, 0, "dots")]
        axes = Axes("confidence", x_range=(0, 1), y_range=(0, 1))
        parts.append(line_chart("Calibration", lines, axes, f"Expected calibration error {error}."))
    return "".join(parts)


def _curve(name: str, values: Sequence[float | None], color: int | None, style: str = "") -> Line:
    points = [(x, y) for x, y in zip(_GRID, values, strict=True) if y is not None]
    return Line(name, points, color, style)


def _precision_recall(details: Mapping[str, Any]) -> str:
    names, curves = class_names(details), details.get("pr", [])
    known = [label for label, curve in enumerate(curves) if curve]
    if not known:
        return ""
    means = {label: sum(curves[label]) / len(curves[label]) for label in known}
    order = sorted(known, key=lambda label: -means[label])
    named = order if len(order) <= _NAMED else [*order[: _NAMED // 2], *order[-_NAMED // 2 :]]
    lines = [_curve(names[label], curves[label], None, "faint") for label in known if label not in named]
    lines += [
        _curve(f"{names[label]} {means[label]:.2f}", curves[label], color)
        for color, label in enumerate(named)
    ]
    mean = [sum(curves[label][at] for label in known) / len(known) for at in range(len(_GRID))]
    lines.append(_curve("mean", mean, None, "strong"))
    left_out = len(known) - len(named)
    note = (
        "At an IoU of 0.5, with the AP50 of each class."
        if "iou" in details
        else "Each class against all others."
    )
    if left_out:
        note += f" The four best and the four worst are named; the other {left_out} are gray."
    return line_chart(
        "Precision–recall by class", lines, Axes("recall", x_range=(0, 1), y_range=(0, 1)), note
    )


def compared(runs: Sequence[Collected]) -> str:
    """Return charts of the mean precision–recall curve and of the F1 by threshold for several runs."""
    means: list[Line] = []
    f1: list[Line] = []
    for color, run in enumerate(runs):
        curves = [curve for curve in run.details.get("pr", []) if curve]
        if curves:
            mean = [sum(values) / len(curves) for values in zip(*curves, strict=True)]
            means.append(_curve(run.name, mean, color))
        if thresholds := run.details.get("thresholds"):
            f1.append(_curve(run.name, thresholds["f1"], color))
    recall, score = (Axes(name, x_range=(0, 1), y_range=(0, 1)) for name in ("recall", "score"))
    title = "Mean precision–recall curve of all classes"
    return line_chart(title, means, recall) + line_chart("F1 by threshold", f1, score)


def class_table(run: Collected) -> str:
    """Return a table of each class's scores, with both COCO's and Pascal VOC's AP."""
    if run.best is None or not isinstance(per_class := run.best[1].get("per_class"), dict):
        return ""
    step, details = run.best[0], run.details if run.details.get("step") == run.best[0] else {}
    columns = list(dict.fromkeys(name for row in per_class.values() if isinstance(row, dict) for name in row))
    pascal, at_best = details.get("pascal", {}).get("per_class"), details.get("at_best")
    truths = details.get("truths") if "iou" in details else None
    names = class_names(details)
    head = ["class", *columns, *(("VOC AP11", "VOC AP") if pascal else ())]
    head += [*(("P", "R") if at_best else ()), *(("objects",) if truths else ())]
    rows = []
    for name, row in per_class.items():
        label = names.index(name) if name in names else -1
        cells = [
            number(row.get(column), "scores", "per_class", name, column, digits=3, step=step)
            for column in columns
        ]
        for keys, values in ((("pascal", "per_class"), pascal), (("at_best",), at_best)):
            if values:
                pair = (values[label] if label >= 0 else None) or (None, None)
                where = ("evaluation", *keys, label)
                cells += [number(value, *where, at, digits=3) for at, value in enumerate(pair)]
        if truths:
            cells.append(number(truths[label] if label >= 0 else None, "evaluation", "truths", label))
        rows.append((text(name), *cells))
    note = ""
    if pascal:
        note = "VOC uses an IoU of 0.5. AP11 uses 11 recall levels (VOC 2007), and AP uses all (since 2010). "
    if at_best:
        note += "P and R are at the threshold with the best F1."
    return card(
        "Classes", table(head, rows, kind="numbers sortable"), note, width="two" if len(head) > 6 else ""
    )


def score_table(run: Collected) -> str:
    """Return a table of all scores of the best and the last evaluation, including Pascal VOC's AP."""
    if run.best is None:
        return ""
    (best, first), (last, second) = run.best, run.evaluations[-1]
    rows = []
    for name, value in first.items():
        if isinstance(value, int | float | None):
            shown = number(value, "scores", name, step=best)
            if last != best:
                shown += f" <small>{number(second.get(name), 'scores', name, step=last)}</small>"
            rows.append((text(name), shown))
    if (pascal := run.details.get("pascal")) and run.details.get("step") == best:
        rows += [
            (f"VOC {name}", number(pascal[name], "evaluation", "pascal", name)) for name in ("AP11", "AP")
        ]
    note = f"The best evaluation was at step {best:,}."
    if last != best:
        note += f" Small numbers are from the last evaluation, at step {last:,}."
    return card("Scores", pairs(rows, "short"), note, width="all")


def confusion_panel(run: Collected) -> str:
    """Return the confusion matrix, or the most frequent confusions if there are many classes."""
    details, source = run.details, "evaluation"
    names, matrix, step = class_names(details), details.get("confusion"), None
    if not matrix and run.best and isinstance(run.best[1].get("confusion"), list):
        matrix, source, step = run.best[1]["confusion"], "scores", run.best[0]
        per_class = run.best[1].get("per_class")
        names = names or [
            str(name) for name in (per_class if isinstance(per_class, dict) else range(len(matrix)))
        ]
    if matrix:
        labels = [*names, *(("background",) if len(matrix) == len(names) + 1 else ())]
        note = "Rows are true classes, and columns are predicted classes. Colors show fractions of the row."
        if len(labels) > len(names):
            note += " Background counts detections without an object (row) and missed objects (column)."
        if "thresholds" in details and source == "evaluation":
            best = number(details["thresholds"]["best"], "evaluation", "thresholds", "best", digits=3)
            note += f" Only detections with a score of at least {best} are counted."
        body = "".join(_matrix(matrix, labels, source, step))
        return card("Confusion matrix", body, note, width="two" if len(labels) > 11 else "")
    if confused := details.get("confused"):
        labels = [*names, "background"]
        rows = [
            (text(labels[truth]), text(labels[found]), number(count, "evaluation", "confused", at, 2))
            for at, (truth, found, count) in enumerate(confused[:20])
        ]
        return card("Most frequent confusions", table(("truth", "predicted", "times"), rows))
    return ""


def _matrix(
    matrix: Sequence[Sequence[int]], labels: Sequence[str], source: str, step: int | None
) -> Iterator[str]:
    many = len(labels) > _NUMBERED
    head = "".join(f'<th scope="col"><span>{text(name)}</span></th>' for name in labels)
    yield f'<div class="scroll"><table class="confusion{" many" if many else ""}"><thead><tr><td></td>{head}'
    yield "</tr></thead><tbody>"
    for row, (name, counts) in enumerate(zip(labels, matrix, strict=True)):
        total = sum(counts) or 1
        yield f'<tr><th scope="row">{text(name)}</th>'
        for column, count in enumerate(counts):
            kind = "right" if row == column else "wrong"
            share = f'style="--v:{count / total:.3f}"' if count else ""
            said = text(f"{name} predicted as {labels[column]}: {count:,} ({count / total:.0%})")
            cell = number(count, source, "confusion", row, column, step=step) if count and not many else ""
            yield f'<td class="{kind}" {share} title="{said}">{cell}</td>'
        yield "</tr>"
    yield "</tbody></table></div>"


def size_charts(run: Collected) -> str:
    """Return charts of the recall by object size and of the distribution of sizes."""
    sizes = run.details.get("sizes")
    if not sizes:
        return ""
    training = run.details.get("training", {}).get("sizes")
    rows = [sizes["truths"], *([training] if training else [])]
    filled = [at for row in rows for at, count in enumerate(row) if count] or [0]
    shown = slice(min(filled), max(filled) + 1)  # leave out empty ranges at both ends
    edges = [str(side) for side in sizes["sides"][shown]]
    recalls = [
        (
            name,
            [
                part / whole if whole else None
                for part, whole in zip(sizes[key][shown], sizes["truths"][shown], strict=True)
            ],
        )
        for name, key in (("at the best threshold", "found"), ("at any threshold", "found_at_any"))
    ]
    note = "The size is the square root of the object's area in pixels."
    parts = [column_chart("Recall by object size", edges, recalls, "recall", note)]
    shares = [("evaluation", sizes["truths"])]
    if training:
        shares.insert(0, ("training", training))
    as_shares = [(name, [100 * one / (sum(row) or 1) for one in row[shown]]) for name, row in shares]
    parts.append(column_chart("Object sizes", edges, as_shares, "% of objects", note))
    return "".join(parts)


def class_bars(run: Collected) -> str:
    """Return bars with the number of objects or images of each class, for training and evaluation."""
    details, names = run.details, class_names(run.details)
    truths, training = details.get("truths"), details.get("training", {}).get("truths")
    if not truths:
        return ""
    ranked = sorted(range(len(names)), key=lambda label: -(training or truths)[label])
    top = max(1, *truths, *(training or [0]))
    rows = []
    for label in ranked[:_MOST_BARS]:
        bars = ""
        for color, (keys, row) in enumerate(((("training", "truths"), training), (("truths",), truths))):
            if row:
                share = f'style="width:{78 * row[label] / top:.2f}%"'
                count = number(row[label], "evaluation", *keys, label)
                bars += f'<div class="bar"><i class="c{color}" {share}></i>{count}</div>'
        rows.append(f"<dt>{text(names[label])}</dt><dd>{bars}</dd>")
    what = "Objects" if "iou" in details else "Images"
    kinds = [("training", 0)] if training else []
    legend = "".join(f'<li class="c{color}">{name}</li>' for name, color in [*kinds, ("evaluation", 1)])
    body = f'<ul class="legend">{legend}</ul><dl class="bars">{"".join(rows)}</dl>'
    more = f"The {_MOST_BARS} most frequent of {len(names):,} classes." if len(names) > _MOST_BARS else ""
    return card(f"{what} by class", body, more)


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
    likeliest = ""
    for place, (label, probability) in enumerate(one["likeliest"]):
        kind = "right" if label == one["truth"] else "" if place else "wrong"
        value = number(probability, "evaluation", "examples", at, "likeliest", place, 1, digits=3)
        likeliest += f'<li class="{kind}">{text(names[int(label)])} {value}</li>'
    return (
        f'<figure class="classified" style="{style}"><div class="pane"></div>{title}'
        f"<b>{text(names[one['truth']])}</b></figcaption><ul>{likeliest}</ul></figure>"
    )


def _boxes(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> str:
    boxes = ""
    for place, (x1, y1, x2, y2, label, score, kind) in enumerate(rows):
        sides = zip(("left", "top", "width", "height"), (x1, y1, x2 - x1, y2 - y1), strict=True)
        where = ";".join(f"{name}:{100 * part:.2f}%" for name, part in sides)
        label_text = names[int(label)] if label >= 0 else "region to ignore"
        said = text(f"{label_text} {score}".strip())
        edge = f"{' low' if y1 < 0.08 else ''}{' end' if x1 > 0.7 else ''}"
        name = said if len(rows) <= _SCORED else text(label_text)
        shown = f"<b>{name}</b>" if place < _LABELS and len(rows) <= 2 * _LABELS else ""
        boxes += f'<span class="box {kind}{edge}" style="{where}" title="{said}">{shown}</span>'
    return boxes
