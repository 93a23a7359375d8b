"""Read JSON of Label Studio: a list of tasks with their annotations ("JSON"), or flat tasks ("JSON-MIN").

See https://labelstud.io/guide/task_format. Coordinates are percentages of the image size. A rotated box turns
about its upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rankless.data.formats import outlines
from rankless.data.formats.labeled_images import NO_BOX, Entry, ListFormat, Parsed, load_json, numbers
from rankless.data.formats.outlines import Box
from rankless.data.images.image_file import is_image
from rankless.data.index.raw import stated_size
from rankless.errors import UserError, counted, printable

TITLE = "Label Studio JSON"
BOXES_IN = "folders"
LAYOUT = "the exported .json file next to the images or a folder 'images', or one such file"
_EXPECTED = "a list of tasks, exported as JSON or JSON-MIN"


def parse(file: Path) -> Parsed:
    """Parse a file. If a task has several annotations, the ground truth or the newest one is used."""
    tasks = load_json(file, _EXPECTED)
    if not isinstance(tasks, list):
        raise UserError(f"{file}: not a list; expected {_EXPECTED}")
    made, several = [], 0
    for number, (task, found) in enumerate(_tasks(tasks), 1):
        made.append(_entry(task, found, number))
        several += len([each for each in found if not _is_skipped(each)]) > 1
    have = counted(several, "task has", "tasks have")
    note = f"{have} several annotations: only the ground truth or the newest one is used"
    return Parsed(made, notes=[note] if several else [])


def _tasks(tasks: list[Any]) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yield each task with its annotations. In JSON-MIN, each annotation has its own copy of the task."""
    flat: dict[Any, tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = {}
    for number, task in enumerate(tasks):
        if not isinstance(task, dict):
            yield {}, []
        elif (found := task.get("annotations", task.get("completions"))) is not None:
            yield task, [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        else:
            results = [
                {"value": each, **each}
                for value in task.values()
                if isinstance(value, list)
                for each in value
                if isinstance(each, dict) and "original_width" in each
            ]
            key = str(task.get("id", f"-{number}"))
            flat.setdefault(key, (task, []))[1].append({**task, "result": results})
    yield from flat.values()


def _entry(task: Mapping[str, Any], annotations: list[Mapping[str, Any]], number: int) -> Entry:
    identity = task.get("id")
    made = Entry(identity if isinstance(identity, int) and abs(identity) < 2**62 else number)
    data = task.get("data", task)
    names = _image_names(data) if isinstance(data, dict) else []
    if len(names) != 1:
        made.report("not understood", f"found {counted(len(names), 'image')} in the task; expected one image")
        return made
    done = [each for each in annotations if not _is_skipped(each)]
    if annotations and not done:
        made.report("left out", f"'{printable(names[0])}': the task was skipped")
        return made
    made.name = _file_name(names[0])
    if done:
        _add(made, max(enumerate(done), key=lambda pair: (*_rank(pair[1]), pair[0]))[1].get("result"))
    else:
        made.report("no label file", f"'{printable(names[0])}': the task has no annotation")
    return made


def _is_skipped(annotation: Mapping[str, Any]) -> bool:
    return bool(annotation.get("was_cancelled") or annotation.get("skipped"))


def _rank(annotation: Mapping[str, Any]) -> tuple[bool, str]:
    return bool(annotation.get("ground_truth")), str(
        annotation.get("updated_at") or annotation.get("created_at")
    )


def _image_names(data: Mapping[str, Any]) -> list[str]:
    texts = {key: value for key, value in data.items() if isinstance(value, str) and value}
    if "image" in texts:
        return [texts["image"]]
    return [value for value in texts.values() if is_image(_file_name(value))]


def _file_name(name: str) -> str:
    """Return the file name in a URL, without the host or bucket and the query, or the name as it is."""
    scheme, found, rest = name.partition("://")
    if not found:
        return name
    if scheme not in ("http", "https"):
        return rest
    try:
        url = urlsplit(name)
    except ValueError:
        return name
    return f"{url.path}?{url.query}" if url.query.startswith("d=") else unquote(url.path)


def _add(made: Entry, results: Any) -> None:
    """Add the regions of an annotation. Results with the same id describe the same region."""
    regions: dict[Any, dict[str, Any]] = {}
    for place, result in enumerate(results if isinstance(results, list) else []):
        if isinstance(result, dict) and isinstance(result.get("value"), dict):
            about = {key: result.get(key) for key in ("original_width", "original_height", "image_rotation")}
            region = regions.setdefault(str(result.get("id") or f"-{place}"), {})
            region |= result["value"] | {key: value for key, value in about.items() if value is not None}
        elif not isinstance(result, dict) or result.get("type") != "relation":
            made.report("not understood", f"result {place + 1} has no 'value'; expected a region")
    for place, region in enumerate(regions.values(), 1):
        if made.size == (0, 0):
            made.size = _size(region)
        if region.get("image_rotation"):
            turned = printable(str(region["image_rotation"]))
            made.report("not understood", f"region {place}: the image was rotated by {turned}; expected 0")
            continue
        labels = [
            label
            for key, value in region.items()
            if key.endswith("labels") or (key == "choices" and not _is_shape(region))
            for label in (value if isinstance(value, list) else [value])
        ]
        if labels or _is_shape(region):
            for label in labels or [None]:
                made.add(f"region {place}", label, _shape, region)


def _size(region: Mapping[str, Any]) -> tuple[int, int]:
    sides = region.get("original_height"), region.get("original_width")
    return stated_size(*sides) if all(isinstance(side, int | float) for side in sides) else (0, 0)


def _is_shape(region: Mapping[str, Any]) -> bool:
    return any(key in region for key in ("x", "points", "rle"))


def _shape(region: Mapping[str, Any]) -> tuple[str, Box]:
    if "points" in region:
        points = [numbers(*point) for point in region["points"]]
        return "outline", _fractions(outlines.bounds([x for x, _ in points], [y for _, y in points]))
    if "radiusX" in region:
        keys = ("x", "y", "radiusX", "radiusY")
        x, y, radius_x, radius_y = _pixels(region, keys)
        radians = math.radians(*numbers(region.get("rotation") or 0))
        return "outline", _of_pixels(region, outlines.ellipse_bounds(x, y, radius_x, radius_y, radians))
    if not all(key in region for key in ("x", "y", "width", "height")):
        return NO_BOX, (0, 0, 0, 0)
    x, y, width, height, degrees = numbers(
        *(region[key] for key in ("x", "y", "width", "height")), region.get("rotation") or 0
    )
    if degrees % 360 == 0:
        return "", _fractions((x, y, x + width, y + height))
    x, y, width, height = _pixels(region, ("x", "y", "width", "height"))
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    across, down = (width * cos, width * sin), (-height * sin, height * cos)  # two sides of the box
    xs = [x, x + across[0], x + down[0], x + across[0] + down[0]]
    ys = [y, y + across[1], y + down[1], y + across[1] + down[1]]
    return "turned", _of_pixels(region, outlines.bounds(xs, ys))


def _pixels(region: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[float, ...]:
    width, height = numbers(region["original_width"], region["original_height"])
    values = numbers(*(region[key] for key in keys))
    return tuple(value / 100 * side for value, side in zip(values, (width, height) * 2, strict=True))


def _of_pixels(region: Mapping[str, Any], box: Box) -> Box:
    x1, y1, x2, y2 = box
    width, height = numbers(region["original_width"], region["original_height"])
    return x1 / width, y1 / height, x2 / width, y2 / height


def _fractions(box: Box) -> Box:
    x1, y1, x2, y2 = box
    return x1 / 100, y1 / 100, x2 / 100, y2 / 100


_FORMAT = ListFormat(TITLE, LAYOUT, ".json", parse, counted="task", normalized=True)
recognize, splits, read = _FORMAT.recognize, _FORMAT.splits, _FORMAT.read
