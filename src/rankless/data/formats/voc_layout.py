"""Where a Pascal VOC data set keeps the pictures of a split: its folders and its lists.

Understood are a folder with ``Annotations``, ``JPEGImages`` and ``ImageSets/Main``, as VOC2012 has them, and
a folder that holds one or several such years, with or without a ``VOCdevkit`` between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankless.data.pictures import EXTENSIONS, is_picture
from rankless.errors import UserError

_FLAGS = {"-1", "0", "1"}  # the lists of one class say beside each picture whether it shows the class


@dataclass
class VocSplit:
    """The files of one split, in the order of its lists.

    Attributes:
        pictures: picture files; empty where there is none.
        annotations: their XML files, None where there is none.
        others: the XML files of all other splits.
        names: what the lists call the pictures.
        places: list and line of each, for reports.
    """

    pictures: list[str] = field(default_factory=list)
    annotations: list[str | None] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_voc(root: str) -> bool:
    """Whether ``root`` is laid out as Pascal VOC; a folder with a ``data.yaml`` is not."""
    place = Path(root).expanduser()
    if not place.is_dir() or any((place / name).is_file() for name in ("data.yaml", "data.yml")):
        return False
    return bool(_years(place))


def find_split(root: str, split: str) -> VocSplit:
    """The files of ``split``: of every year that has it, or of one as ``VOC2012/train``.

    Raises:
        UserError: no such split, a list that cannot be read, or a split without pictures.
    """
    place = Path(root).expanduser()
    years = _years(place)
    lists = {year: _lists(year) for year in years}
    wanted = {year: lists[year][split] for year in years if split in lists[year]}
    if "/" in split and not wanted:
        name, _, rest = split.partition("/")
        wanted = {year: lists[year][rest] for year in years if year.name == name and rest in lists[year]}
    if not wanted:
        raise UserError(_no_split(place, split, years, lists))
    result = VocSplit()
    if len(years) > 1:
        result.notes.append(f"the split '{split}' is of {', '.join(year.name for year in wanted)}")
    for year in years:
        _gather(year, wanted.get(year), lists[year], result)
    if not result.pictures:
        empty = " and ".join(str(file) for file in wanted.values())
        raise UserError(f"{empty}: the split '{split}' has no pictures; expected a picture's name a line.")
    return result


def _years(root: Path) -> list[Path]:
    """The folders laid out as VOC: ``root`` itself, or those in it or in its ``VOCdevkit``, by name."""
    if _is_year(root):
        return [root]
    for base in (root / "VOCdevkit", root):
        if found := sorted(p for p in (base.iterdir() if base.is_dir() else ()) if _is_year(p)):
            return found
    return []


def _is_year(folder: Path) -> bool:
    beside = (folder / "ImageSets", folder / "JPEGImages")
    return (folder / "Annotations").is_dir() and any(place.is_dir() for place in beside)


def _lists(year: Path) -> dict[str, Path]:
    """The splits of one year and their files."""
    return {file.stem: file for file in sorted((year / "ImageSets" / "Main").glob("*.txt"))}


def _no_split(root: Path, split: str, years: Sequence[Path], lists: dict[Path, dict[str, Path]]) -> str:
    several = len(years) > 1
    names = [f"{year.name}/{name}" if several else name for year in years for name in lists[year]]
    if not names:
        return (
            f"{root}: found Pascal VOC's folders but no split, expected a list of picture names at "
            f"{years[0] / 'ImageSets' / 'Main' / (split + '.txt')}."
        )
    # VOC2012 has sixty lists of single classes besides its three splits.
    shown = sorted(names, key=lambda name: ("_" in name.split("/")[-1], names.index(name)))[:20]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    listed = ", ".join(f"'{name}'" for name in shown)
    return (
        f"{root} has no split '{split}'; it has {listed}{more}. Name one of these in the recipe (data.train, "
        f"data.val), or add {years[0] / 'ImageSets' / 'Main' / (split + '.txt')}."
    )


def _gather(year: Path, wanted: Path | None, lists: dict[str, Path], result: VocSplit) -> None:
    """Adds one year's pictures of the split ``wanted``, and what its other lists name."""
    annotated = {f.name.removesuffix(".xml") for f in _files(year / "Annotations") if f.suffix == ".xml"}
    pictures: dict[str, Path] = {}
    for file in sorted(_files(year / "JPEGImages")):
        if is_picture(file):
            pictures.setdefault(file.stem, file)
    seen: dict[str, None] = {}
    twice = 0
    for number, name in _names(wanted, annotated | pictures.keys()) if wanted else ():
        if name in seen:
            twice += 1
            continue
        seen[name] = None
        result.pictures.append(str(pictures.get(name, "")))
        result.annotations.append(_annotation(year, name) if name in annotated else None)
        result.names.append(name)
        result.places.append(f"{wanted}:{number}")
    if twice:
        result.notes.append(f"{twice} pictures are listed more than once in {wanted} and are taken once")
    others = {name for file in lists.values() for _, name in _names(file, annotated)}
    result.others += [_annotation(year, name) for name in sorted((others & annotated) - seen.keys())]


def _annotation(year: Path, name: str) -> str:
    return str(year / "Annotations" / f"{name}.xml")


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else iter(())


def _names(file: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line numbers and picture names of one list; a flag beside a name and a picture's ending are no part."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file} cannot be read: {error}; expected a picture's name a line, in UTF-8."
        ) from None
    for number, line in enumerate(lines, 1):
        name = line.strip()
        words = name.rsplit(None, 1)
        if name not in known and len(words) == 2 and words[1] in _FLAGS:
            name = words[0]
        if name not in known and Path(name).suffix.lower() in EXTENSIONS:
            name = name[: -len(Path(name).suffix)]
        if name:
            yield number, name
