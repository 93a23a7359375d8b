"""Read and write Pascal VOC: one XML file per image, with a class name and a box for each object.

``xmin`` to ``xmax`` are pixel numbers that count from 1, both inclusive (Everingham et al., "The PASCAL VOC
2012 Development Kit"), so the box ``(1, 1, width, height)`` covers the whole image. In continuous
coordinates, where pixel 1 extends from 0 to 1, a box is ``xyxy = (xmin - 1, ymin - 1, xmax, ymax)``.

A data set is a folder with ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``, as in VOC2012, or several
such folders, one per year, with or without ``VOCdevkit``. The lists in ``ImageSets/Main`` may be missing.
Annotations may also be next to the images, in one folder or in one folder per split.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankless.data.formats.darknet_description import YAML_NAMES
from rankless.data.formats.folders import FolderNames, SplitFiles, composed, read_text, spelled, subfolders
from rankless.data.formats.splits import as_file_name, chosen, usual_order
from rankless.data.formats.voc_xml import NOT_XML, Annotation, VocObject, parse, to_xml, unreadable
from rankless.data.formats.writing import (
    ImageFiles,
    file_names,
    fit_names,
    lost_areas,
    lost_of,
    names_of,
    rounded,
)
from rankless.data.images.image_file import EXTENSIONS, is_image
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.data.index.findings import KINDS, Findings
from rankless.data.index.raw import Raw, RawBuilder, joined
from rankless.data.index.scan import scan, with_headers
from rankless.errors import UserError, counted, printable
from rankless.files import reading

TITLE = "Pascal VOC"
BOXES_IN = "folders"
LAYOUT = (
    "'Annotations' (XML) and 'JPEGImages' with lists in 'ImageSets/Main', or XML files next to the images"
)
_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_FLAGS = {"-1", "0", "1"}  # in the list of a class, whether an image shows the class


@dataclass(frozen=True)
class Part:
    """One year of VOC, or one folder with images and annotations.

    ``lists`` maps each split to its list of images, or to None if the split consists of all images.
    """

    name: str
    annotations: Path
    images: Path
    lists: dict[str, Path | None]


@dataclass
class VocSplit(SplitFiles):
    """The files of one split, in the order of its lists.

    Attributes:
        items: pairs of an image and its XML file ("" if there is none).
        others: XML files of all other splits.
    """

    items: list[tuple[str, str]] = field(default_factory=list)
    others: list[tuple[str]] = field(default_factory=list)


def recognize(root: Path) -> str:
    """Return why ``root`` looks like Pascal VOC, or "" if it does not. Darknet data is not recognized."""
    others = (*YAML_NAMES, "labels")
    return "" if any((root / name).exists() for name in others) else recognize_beside(root)


def recognize_beside(root: Path) -> str:
    """Return why ``root`` could be read as Pascal VOC, even if it also contains Darknet data, or ""."""
    if not root.is_dir():
        return ""
    if years := _years(root):
        return f"it has '{years[0].annotations.relative_to(root)}' with XML files"
    if folders := _beside(root):
        return f"it has XML files next to the images in {', '.join(repr(part.name) for part in folders)}"
    return ""


def splits(root: Path) -> list[str]:
    """Return the names of the splits, excluding per-class lists and a redundant ``trainval``."""
    return usual_order(_plain_splits(_years(root) or _beside(root)))


def find_split(root: Path, split: str) -> VocSplit:
    """Find the files of a split in all years, or in a single year for a name such as ``VOC2012/train``."""
    parts = _years(root) or _beside(root)
    by_split: dict[str, list[Part]] = {}
    for part in parts:
        for name in part.lists:
            by_split.setdefault(name, []).append(part)
            if len(parts) > 1 and part.lists != {name: None}:
                by_split.setdefault(f"{part.name}/{name}", []).append(part)
    if split not in by_split:
        shown = {name: by_split[name] for name in [*_plain_splits(parts), *(n for n in by_split if "/" in n)]}
        lists = parts[0].annotations.parent / "ImageSets" / "Main" if parts else root
        name = chosen(root, split, shown, str(lists / f"{split}.txt"))
    else:
        name = split
    result, wanted = VocSplit(depends=_listed(root, parts)), by_split[name]
    short = name.rsplit("/", 1)[-1] if name not in wanted[0].lists else name
    if len(parts) > 1 and any(part.lists[short] for part in wanted):
        result.notes.append(f"the split '{split}' combines {', '.join(part.name for part in wanted)}")
    for part in parts:
        _gather(part, short if part in wanted else None, result)
    if not result.items:
        where = " and ".join(str(part.lists[short] or part.images) for part in wanted)
        missing = [f"{path}: {what}" for path, what in result.findings.first.get("no image", [])[:3]]
        what = f"{where}: the split '{name}' has no images; expected one image name per line"
        raise UserError([what, *missing])
    return result


def _listed(root: Path, parts: list[Part]) -> list[str]:
    """Return the folders that change if a year, a list or a split is added."""
    sets = [part.annotations.parent / "ImageSets" for part in parts]
    folders = [root, root / "VOCdevkit", *sets, *(folder / "Main" for folder in sets)]
    return [os.fspath(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]


def _years(root: Path) -> list[Part]:
    for folders in ([root], subfolders(root / "VOCdevkit"), subfolders(root)):
        if years := [year for folder in folders if (year := _year(folder)) is not None]:
            return years
    return []


def _year(folder: Path) -> Part | None:
    annotations = next((folder / name for name in _ANNOTATIONS if (folder / name).is_dir()), None)
    images = next((folder / name for name in _IMAGES if (folder / name).is_dir()), None)
    sets = folder / "ImageSets"
    if annotations is None or (images is None and not sets.is_dir()):
        return None
    if not sets.is_dir() and not _has_xml(annotations):  # COCO folders may have the same names
        return None
    lists: dict[str, Path | None] = {}
    for listing in (sets / "Main", sets):
        if not lists:
            lists = {file.stem: file for file in sorted(listing.glob("*.txt"))}
    return Part(folder.name, annotations, images or folder / "JPEGImages", lists or {"train": None})


def _beside(root: Path) -> list[Part]:
    """Return the subfolders with both annotations and images.

    If there are none, return ``root`` if it contains both.
    """
    parts = [
        Part(folder.name, folder, folder, {folder.name: None})
        for folder in subfolders(root)
        if _has_both(folder)
    ]
    return parts or ([Part(root.name, root, root, {"train": None})] if _has_both(root) else [])


def _has_xml(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.lower().endswith(".xml") for entry in entries)
    except OSError:
        return False


def _has_both(folder: Path) -> bool:
    if not _has_xml(folder):
        return False
    with os.scandir(folder) as entries:
        return any(is_image(entry.name) for entry in entries)


def _plain_splits(parts: list[Part]) -> list[str]:
    """Return the splits, excluding per-class lists and, if its parts exist, ``trainval``."""
    names = dict.fromkeys(name for part in parts for name in part.lists)
    joint = {"trainval"} if {"train", "val"} <= names.keys() else set()
    return [
        name for name in names if name not in joint and name.rpartition("_")[2] not in names.keys() - {name}
    ]


def _gather(part: Part, wanted: str | None, result: VocSplit) -> None:
    annotated = FolderNames(os.fspath(part.annotations), {".xml"})
    images = FolderNames(os.fspath(part.images), EXTENSIONS)
    result.depends += dict.fromkeys(
        os.fspath(folder) for folder in (part.annotations, part.images, *filter(None, part.lists.values()))
    )
    known = annotated.files.keys() | images.files.keys()
    used: dict[str, None] = {}
    if wanted is not None:
        file = part.lists[wanted]
        if file is None and wanted == "train" and len(part.lists) == 1:
            result.notes.append(f"{part.images}: no lists found, so all images are 'train'")
        names = list(_names(file, known) if file else enumerate(sorted(images.files), 1))
        listed = {name for _, name in names}
        taken = listed, listed | images.files.keys()
        for number, name in names:
            _add(name, f"{file}:{number}", used, (images, annotated), taken, result)
    others = {
        composed(name)
        for file in part.lists.values()
        for _, name in (_names(file, known) if file else enumerate(annotated.files))
    }
    result.others += [(xml,) for name in sorted(others - used.keys()) if (xml := annotated.with_stem(name))]
    if wanted is not None:
        have = {spelled(name) for name in (*others, *images.files)}
        for name in sorted(annotated.files):
            if spelled(name) not in have or (part.lists[wanted] is None and not images.with_stem(name)):
                result.findings.add("label without image", f"{annotated.folder}/{annotated.files[name]}")


def _add(
    name: str,
    where: str,
    used: dict[str, None],
    files: tuple[FolderNames, FolderNames],
    taken: tuple[Set[str], Set[str]],
    result: VocSplit,
) -> None:
    images, annotated = files
    if composed(name) in used:
        result.findings.add("listed twice", where, f"'{printable(name)}'")
        return
    used[composed(name)] = None
    if image := images.with_stem(name, taken[0]):
        stem = Path(image).stem
        xml = annotated.with_stem(name, taken[1]) or annotated.with_stem(stem, taken[1])
        result.items.append((image, xml))
        result.note_spelling(image, name)
        result.note_spelling(xml, name)
        if composed(stem) not in used:  # another spelling
            used[composed(stem)] = None
        elif composed(stem) != composed(name):
            problem = f"'{printable(name)}' refers to {image}, as another name in the list does"
            result.findings.add("shared file", where, f"{problem}; expected one name per image file")
        return
    folder = Path(images.folder).name
    endings = ", ".join(sorted(EXTENSIONS))
    problem = f"'{printable(name)}' has no file in '{folder}'; expected one of the extensions {endings}"
    result.findings.add("no image", where, problem)


def _names(file: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each line in a list, and the image name without flag and extension."""
    for number, line in enumerate(read_text(file, "one image name per line").splitlines(), 1):
        name = line.strip()
        words = name.rsplit(None, 1)
        if name not in known and len(words) == 2 and words[1] in _FLAGS:
            name = words[0]
        if name not in known and is_image(name):
            name = name[: name.rindex(".")]
        if name:
            yield number, name


def read(root: Path, split: str) -> Raw:
    """Read one split of Pascal VOC.

    The class names are collected from all splits and sorted, so that classes have the same numbers in every
    split. Other splits are therefore also read, but their boxes are not checked.
    """
    files = find_split(root, split)
    if not any(annotation for _, annotation in files.items):
        raise UserError(
            f"{root}: the images of the split '{split}', such as {files.items[0][0]}, have no annotations; "
            "add XML files to 'Annotations', or choose another split"
        )
    raw = scan(read_annotations, files.items, "images")
    if files.others:
        raw = joined([raw, scan(read_class_names, files.others, "annotations of other splits")])
    if not raw.names and not any(KINDS[kind].outcome == "stops" for kind in raw.findings.counts):
        raise UserError(f"{root}: no objects found in any split; expected boxes with class names")
    raw.form = "xyxy"
    return files.with_raw(raw)


def read_annotations(items: list[tuple[str, ...]]) -> Raw:
    """Parse XML files and read image headers, given pairs of an image and its XML file (or "")."""
    made, labels, from_zero = RawBuilder(), dict[str, int](), False
    for file, annotation in items:
        parsed = Annotation([], (0, 0), [])
        if annotation:
            parsed = _read(annotation, made.findings)
            if parsed.readable and not parsed.objects and not parsed.problems:
                made.findings.add("empty", file)
        else:
            made.findings.add("no label file", file)
        for kind, sentence in parsed.problems:
            made.findings.add(kind, annotation, sentence)
        image = made.add_image(file, annotation, parsed.size)
        for each in parsed.objects:
            x1, y1, x2, y2 = each.box
            label = labels.setdefault(each.name, len(labels))
            box = x1 - parsed.first_pixel, y1 - parsed.first_pixel, x2, y2
            made.add_box(image, box, label, each.number, DIFFICULT * each.difficult)
        from_zero |= not parsed.first_pixel
    raw = _raw(made, labels, items)
    raw.one_based = not from_zero
    return with_headers(raw)


def read_class_names(items: list[tuple[str, ...]]) -> Raw:
    """Read only the class names from XML files. Each item is a tuple with the path of one file."""
    made, labels = RawBuilder(), dict[str, int]()
    for (annotation,) in items:
        labels.update((each.name, 0) for each in _read(annotation, made.findings).objects)
    return _raw(made, labels, items)


def _raw(made: RawBuilder, labels: Mapping[str, int], items: Sequence[tuple[str, ...]]) -> Raw:
    depends = [item[-1] for item in items if item[-1]]
    raw = made.raw(names=list(labels), counted="object", one_based=True, depends=depends)
    raw.rename(sorted(labels))
    return raw


def _read(file: str, findings: Findings) -> Annotation:
    try:
        parsed = parse(reading.read_bytes(file, reading.LABELS))
    except OSError as error:
        parsed = unreadable("unreadable file", f"{error.strerror or error}; expected an XML file")
    if parsed.readable:
        return parsed
    for kind, sentence in parsed.problems:
        findings.add(kind, file, sentence)
    return parsed._replace(problems=[])


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    """Write ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``.

    An image that several splits contain with the same boxes is written only once.
    """
    names, changed = fit_names(names_of(splits), distinct=False)
    _check(names)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (out / folder).mkdir(parents=True)
    taken: set[str] = set()
    stems: dict[tuple[object, ...], str] = {}
    for split, data in splits.items():
        keys = list(_keys(data))
        fresh = [index for index, key in enumerate(keys) if key not in stems]
        for index, name in zip(fresh, file_names(data, taken, fresh), strict=True):
            file = out / "JPEGImages" / name
            files.put(data, index, file)
            (out / "Annotations" / f"{file.stem}.xml").write_bytes(_xml_of(data, index, name, names))
            stems[keys[index]] = file.stem
        listed = "".join(f"{stems[key]}\n" for key in keys)
        file = out / "ImageSets" / "Main" / f"{as_file_name(split)}.txt"
        file.write_text(listed, encoding="utf-8", errors="surrogateescape")
    return [*_losses(splits, names), *changed]


def _check(names: Sequence[str]) -> None:
    problems = [
        f"class '{printable(name)}': empty, repeated or not representable in XML, so it cannot be written as "
        "Pascal VOC; rename the class"
        for label, name in enumerate(names)
        if not name or NOT_XML.search(name) or name in names[:label]
    ]
    if problems:
        raise UserError(problems)


def _keys(annotations: Annotations) -> Iterator[tuple[object, ...]]:
    for index, path in enumerate(annotations.paths()):
        objects = tuple((*box, label, flags) for box, label, flags, _ in annotations.objects(index))
        yield path, annotations.byte_ranges[index : index + 1].tobytes(), objects


def _xml_of(annotations: Annotations, index: int, name: str, names: Sequence[str]) -> bytes:
    height, width = annotations.sizes[index].tolist()
    objects = (
        VocObject(names[label], (x1, y1, x2, y2), bool(flag & (DIFFICULT | CROWD)))
        for (x1, y1, x2, y2), label, flag, _ in annotations.objects(index)
    )
    return to_xml(name, (height, width), objects)


def _losses(splits: Mapping[str, Annotations], names: Sequence[str]) -> list[str]:
    lost = []
    for split, data in splits.items():
        crowds = int(((data.flags & CROWD) > 0).sum())
        marked = "marked a crowd: written as difficult, because the format has no such flag"
        lost += lost_of(split, crowds, "box", "boxes", marked)
        lost += lost_areas(split, int((~np.isnan(data.areas)).sum()))
        begins = data.boxes[:, :2].astype(np.float64)
        lost += rounded(split, int(((begins + 1 - 1).astype(np.float32) != begins).any(1).sum()))
    used = {label for data in splits.values() for label in np.unique(data.labels).tolist()}
    if unused := [name for label, name in enumerate(names) if label not in used]:
        shown = ", ".join(f"'{name}'" for name in unused[:8])
        are = counted(len(unused), "class is", "classes are")
        lost.append(f"{are} lost, because the format stores only classes with boxes: {shown}")
    if list(names) != sorted(names):
        lost.append("the order of the classes is lost, because the format sorts classes by name")
    return lost
