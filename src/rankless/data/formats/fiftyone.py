"""Reader of FiftyOne's own format: ``samples.json`` and ``metadata.json`` with the images in ``data``.

A box is x, y, width, height as fractions of the image. Splits are the samples' tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rankless.data.formats.folders import ImageSearch
from rankless.data.formats.listed_images import ListedImages
from rankless.data.formats.splits import WORDS, chosen, usual_order
from rankless.data.index.annotations import CROWD
from rankless.data.index.raw import Raw
from rankless.errors import UserError, printable
from rankless.files import reading

TITLE = "FiftyOne"
LAYOUT = "'samples.json', 'metadata.json' and the images in 'data'"
_FILE = "samples.json"
_EXPECTED = "expected the samples that FiftyOneDataset exports"
_KINDS = ("Detections", "Classification")
_USUAL = "ground_truth"

Sample = Mapping[str, Any]


def recognize(root: Path) -> str:
    """Return why ``root`` is FiftyOne's; empty if it is not."""
    there = all((root / name).is_file() for name in (_FILE, "metadata.json"))
    return f"it has '{_FILE}' and 'metadata.json'" if there else ""


def splits(root: Path) -> list[str]:
    """Return the tags that are usual names of splits; ``train`` if there is none."""
    return usual_order(_by_split(_samples(root)))


def read(root: Path, split: str) -> Raw:
    """Read one split; see :class:`rankless.data.formats.registry.Format`."""
    samples = _samples(root)
    by_split = _by_split(samples)
    name = chosen(root, split, by_split, LAYOUT)
    kind, label_field = _label_field(root / _FILE, samples)
    found = {str(each.get("label")) for one in samples for each in _labels(one, label_field)}
    reader = _Reader(
        root / _FILE, ImageSearch([root]), names=sorted(found), kind=kind, label_field=label_field
    )
    for sample in by_split[name]:
        reader.add(sample)
    about = [f"labels are those of the field '{label_field}'"]
    boxed = kind == _KINDS[0]
    depends = [str(root), str(root / _FILE)]
    return reader.raw(
        reader.names, depends, about, "it lists no image", boxed=boxed, normalized=boxed, counted="label"
    )


def _samples(root: Path) -> list[Sample]:
    file = root / _FILE
    try:
        samples = msgspec.json.decode(reading.read_bytes(file))["samples"]
        if isinstance(samples, list) and all(isinstance(each, dict) for each in samples):
            return samples
        problem = "'samples' is no list of objects"
    except OSError as error:
        problem = f"cannot be read: {reading.reason(error)}"
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        problem = f"no JSON with 'samples': {printable(str(error))}"
    raise UserError(f"{file}: {problem}; {_EXPECTED}")


def _by_split(samples: list[Sample]) -> dict[str, list[Sample]]:
    made: dict[str, list[Sample]] = {}
    for sample in samples:
        tags = sample.get("tags")
        usual = [tag for tag in tags if tag in WORDS] if isinstance(tags, list) else []
        made.setdefault(usual[0] if usual else "train", []).append(sample)
    return made


def _label_field(file: Path, samples: list[Sample]) -> tuple[str, str]:
    """Return the kind and the name of the field with the labels: boxes before classes."""
    fields: dict[str, set[str]] = {}
    for sample in samples:
        for name, value in sample.items():
            if isinstance(value, dict) and isinstance(value.get("_cls"), str):
                fields.setdefault(value["_cls"], set()).add(name)
    kind = next((kind for kind in _KINDS if kind in fields), "")
    names = sorted(fields.get(kind, ()))
    if not names:
        have = ", ".join(sorted(fields.keys() - {"ImageMetadata"})) or "no labels"
        raise UserError(f"{file}: its samples have {have}; expected a field of Detections or Classification")
    if len(names) > 1 and _USUAL not in names:
        raise UserError(
            f"{file}: several fields of {kind} ({', '.join(names)}); expected one, or '{_USUAL}'; export one "
            "with: dataset.select_fields(NAME).export(…)"
        )
    return kind, _USUAL if _USUAL in names else names[0]


def _labels(sample: Sample, label_field: str) -> list[Mapping[str, Any]]:
    value = sample.get(label_field)
    if not isinstance(value, dict):
        return []
    labels = value.get("detections", []) if value.get("_cls") == _KINDS[0] else [value]
    return [each for each in labels if isinstance(each, dict)] if isinstance(labels, list) else []


@dataclass
class _Reader(ListedImages):
    """Reader of one split's samples."""

    names: list[str] = field(kw_only=True)
    kind: str = field(kw_only=True)
    label_field: str = field(kw_only=True)

    def add(self, sample: Sample) -> None:
        """Add an image and its labels."""
        name = sample.get("filepath")
        where = f": {printable(str(name))}"
        if not isinstance(name, str):
            self.report("not understood", where, "a 'filepath' that is no text")
            return
        if not (path := self.locate(name, where)):
            return
        image = self.image(path)
        labels = _labels(sample, self.label_field)
        if not labels and self.kind != _KINDS[0]:
            self.report("no class", where)
        for number, each in enumerate(labels, 1):
            label = self.names.index(str(each.get("label")))
            if self.kind != _KINDS[0]:
                self.made.add_label(image, label)
                continue
            try:
                x, y, width, height = each["bounding_box"]
                crowd = CROWD if each.get("iscrowd") else 0
                self.made.add_box(image, (x, y, x + width, y + height), label, number, crowd)
            except (TypeError, ValueError, KeyError, OverflowError):
                shown = printable(str(each.get("bounding_box")))
                self.report("not a number", where, f"'{shown}'; expected x, y, width, height")
