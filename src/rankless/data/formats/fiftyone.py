"""Read FiftyOneDataset exports: ``samples.json``, ``metadata.json`` and images in ``data``.

A box consists of x, y, width and height, normalized by the image size. Tags of samples determine the splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankless.data.formats.labeled_images import load_json
from rankless.data.formats.rows import Row, Table, read_tables
from rankless.data.formats.splits import WORDS, chosen, usual_order
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError

TITLE = "FiftyOne"
LAYOUT = "'samples.json', 'metadata.json' and the images in 'data'"
_FILE = "samples.json"
_EXPECTED = "samples exported as a FiftyOneDataset"
_KINDS = ("Detections", "Classification")
_USUAL = "ground_truth"

Sample = Mapping[str, Any]


def recognize(root: Path) -> str:
    there = all((root / name).is_file() for name in (_FILE, "metadata.json"))
    return f"it has '{_FILE}' and 'metadata.json'" if there else ""


def splits(root: Path) -> list[str]:
    """Return the tags that are usual names of splits, and ``train`` for samples without such a tag."""
    return usual_order(_by_split(_samples(root)))


def read(root: Path, split: str) -> Raw:
    samples = _samples(root)
    by_split = _by_split(samples)
    name = chosen(root, split, by_split, LAYOUT)
    kind, label_field = _label_field(root / _FILE, samples)
    tables = {
        each: _Samples(root / _FILE, by_split[each], label_field, boxed=kind == _KINDS[0])
        for each in by_split
    }
    raw = read_tables(root, [tables.pop(name)], list(tables.values()))
    raw.about.insert(0, f"labels are read from the field '{label_field}'")
    return raw


class _Samples(Table):
    def __init__(self, file: Path, samples: list[Sample], label_field: str, *, boxed: bool) -> None:
        super().__init__(file)
        self._samples, self._label_field, self._boxed = samples, label_field, boxed
        self.normalized = boxed

    def rows(self, findings: Findings) -> Iterator[Row]:
        for number, sample in enumerate(self._samples, 1):
            value = sample.get(self._label_field)
            value = value if isinstance(value, dict) else {}
            labels: dict[str, Any] = {"label": value.get("label")}
            if self._boxed:
                labels = {"objects": value.get("detections") or {"bounding_box": [], "label": []}}
            yield number, {"file_name": sample.get("filepath"), **labels}


def _samples(root: Path) -> list[Sample]:
    file = root / _FILE
    content = load_json(file, _EXPECTED)
    samples = content.get("samples") if isinstance(content, dict) else None
    if isinstance(samples, list) and all(isinstance(each, dict) for each in samples):
        return samples
    raise UserError(f"{file}: 'samples' is not a list of objects; expected {_EXPECTED}")


def _by_split(samples: list[Sample]) -> dict[str, list[Sample]]:
    made: dict[str, list[Sample]] = {}
    for sample in samples:
        tags = sample.get("tags")
        usual = [tag for tag in tags if tag in WORDS] if isinstance(tags, list) else []
        made.setdefault(usual[0] if usual else "train", []).append(sample)
    return made


def _label_field(file: Path, samples: list[Sample]) -> tuple[str, str]:
    """Return the kind and name of the label field, preferring a field with boxes to one with classes."""
    fields: dict[str, set[str]] = {}
    for sample in samples:
        for name, value in sample.items():
            if isinstance(value, dict) and isinstance(value.get("_cls"), str):
                fields.setdefault(value["_cls"], set()).add(name)
    kind = next((kind for kind in _KINDS if kind in fields), "")
    names = sorted(fields.get(kind, ()))
    if not names:
        have = ", ".join(sorted(fields.keys() - {"ImageMetadata"})) or "no labels"
        raise UserError(
            f"{file}: the samples have {have}; expected a field with Detections or Classification"
        )
    if len(names) > 1 and _USUAL not in names:
        raise UserError(
            f"{file}: several fields with {kind} ({', '.join(names)}); expected only one, or one called "
            f"'{_USUAL}'; export a single field with dataset.select_fields(NAME).export(…)"
        )
    return kind, _USUAL if _USUAL in names else names[0]
