"""Find the images and videos for ``rankless predict``, and choose names for its output files."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rankless.data.builtin import named
from rankless.data.images.image_file import EXTENSIONS
from rankless.errors import UserError, counted

MOST_SCENES = 10_000  # for each scene, an image is written to the output folder
_SCENES = re.compile(r"(\w+):(\w+):(\d{1,18})(?:-(\d{1,18}))?")
VIDEOS = frozenset({
    ".3gp", ".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm",
    ".wmv",
})  # fmt: skip
"""Extensions of video files, in lower case."""
CAMERAS = re.compile(r"webcam:(\d+)|/dev/video(\d+)")
STREAMS = re.compile(r"(rtsps?|rtmps?|https?|udp|srt)://", re.IGNORECASE)
FRAME = re.compile(r"(.*)-\d{6,}")
"""Pattern of the file stems for video frames."""
VIDEO = ".mp4"
JPEG = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


def find(sources: Sequence[str]) -> list[str]:
    """Return the images and videos that sources refer to, in order and without duplicates.

    The files in a folder are sorted by path. Cameras and streams are returned unchanged.
    """
    images: dict[str, str] = {}
    problems = []
    for source in sources:
        matches = list(_expand(source))
        if not matches:
            problems.append(_no_image(source))
        for match in matches:
            images.setdefault(os.path.realpath(match), match)
    if problems or not sources:
        raise UserError(
            problems or "no images given; expected files, folders, patterns or scenes such as digits:val:0-7"
        )
    return list(images.values())


def is_live(source: str) -> bool:
    """Check whether a source is a camera or a stream, which may never end."""
    return bool(CAMERAS.fullmatch(source) or STREAMS.match(source))


def is_video(source: str) -> bool:
    """Check whether a source is a video file, a camera or a stream."""
    return is_live(source) or Path(source).suffix.lower() in VIDEOS


def scenes(source: str) -> tuple[str, str, range] | None:
    """Return the data set, split and numbers of built-in scenes such as ``digits:val:0-7``, or None."""
    parts = _SCENES.fullmatch(source)
    if not parts or not (made := named(parts[1])) or parts[2] not in made.splits():
        return None
    return parts[1], parts[2], range(int(parts[3]), int(parts[4] or parts[3]) + 1)


def public(source: str) -> str:
    """Return the name of a source, without the user and the password in the URL of a stream."""
    if not STREAMS.match(source):
        return source
    scheme, _, rest = source.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _expand(source: str) -> Iterator[str]:
    path = Path(source)
    if is_live(source):
        yield source
    elif path.is_dir():
        yield from _in_folder(path)
    elif path.is_file():
        yield source
    elif made := scenes(source):
        root, split, numbers = made
        for index in numbers if len(numbers) <= MOST_SCENES else ():  # reported by `_no_image`
            yield f"{root}:{split}:{index}"
    else:
        for match in sorted(glob.glob(source, recursive=True)):  # noqa: PTH207 - takes absolute patterns too
            if Path(match).is_dir():
                yield from _in_folder(Path(match))
            elif Path(match).suffix.lower() in EXTENSIONS | VIDEOS:
                yield match


def _in_folder(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS | VIDEOS)
    return sorted(str(path) for path in paths if path.is_file())


def _no_image(source: str) -> str:
    if Path(source).is_dir():
        kinds = ", ".join(sorted(EXTENSIONS | VIDEOS))
        return f"'{source}': no images or videos in this folder or its subfolders; expected {kinds}"
    if (made := named(root := source.partition(":")[0])) and root != source:
        such = f"{root}:{made.splits()[-1]}"
        return (
            f"'{source}': expected built-in scenes such as {such}:3 or {such}:0-7, at most {MOST_SCENES:,} "
            "at a time"
        )
    if glob.has_magic(source):
        return f"'{source}': no image matches this pattern"
    return f"'{source}': no such file or folder"


def output_names(sources: Sequence[str], out: Path, taken: Iterable[str] = ()) -> list[str]:
    """Return a file name for each source: a JPEG for a JPEG, an MP4 for a video, otherwise a PNG.

    All files of a source have the stem of this name. Stems are unique, even if case is ignored: they are none
    of ``taken``, and not those of the frames of a video, such as ``clip-000001``. Repeated stems end in
    ``-2``, ``-3`` … A source in the output folder is an error.
    """
    folder = Path(os.path.realpath(out))
    inside = [source for source in sources if folder in Path(os.path.realpath(source)).parents]
    if inside:
        others = f" and {counted(len(inside) - 1, 'other source')}" if len(inside) > 1 else ""
        raise UserError(
            f"'{inside[0]}'{others} {'are' if others else 'is'} in the output folder {out}; use another --out"
        )
    used, videos, last = set(taken), set[str](), dict[str, int]()
    names = [""] * len(sources)
    for position in sorted(range(len(sources)), key=lambda at: not is_video(sources[at])):
        plain, suffix = _usual_name(sources[position])
        stem, number = plain, last.get(plain.casefold(), 1)
        while stem.casefold() in used or ((frame := FRAME.fullmatch(stem.casefold())) and frame[1] in videos):
            number += 1
            stem = f"{plain}-{number}"
        last[plain.casefold()] = number
        used.add(stem.casefold())
        if suffix == VIDEO:
            videos.add(stem.casefold())
        names[position] = stem + suffix
    return names


def _usual_name(source: str) -> tuple[str, str]:
    """Return the stem and the extension of a source's output, which other sources may also have."""
    path = Path(source)
    stem, suffix = path.stem, path.suffix if path.suffix.lower() in JPEG else ".png"
    if is_live(source):
        address = public(source).partition("://")[2] or source
        address = address[: -len(path.suffix)] if path.suffix.lower() in VIDEOS else address
        stem = re.sub(r"[^\w.-]+", "-", address).strip("-.")[-80:]
    elif scenes(source) and not path.exists():
        stem = source.replace(":", "-")
    return stem, VIDEO if is_video(source) else suffix
