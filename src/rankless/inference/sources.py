"""Find the images and videos for ``rankless predict``, and choose names for its output files."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankless.data.images.image_file import EXTENSIONS
from rankless.errors import UserError, counted

MOST_SCENES = 10_000  # for each scene, an image is written to the output folder
SCENES = re.compile(r"digits:(train|val):(\d+)(?:-(\d+))?")
VIDEOS = frozenset({
    ".3gp", ".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm",
    ".wmv",
})  # fmt: skip
"""Extensions of video files, in lower case."""
CAMERAS = re.compile(r"webcam:(\d+)|/dev/video(\d+)")
STREAMS = re.compile(r"(rtsps?|rtmps?|https?|udp|srt)://", re.IGNORECASE)
FRAME = re.compile(r"(.*)-\d{6,}")
"""Pattern of the file stems for video frames."""
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
    elif scenes := SCENES.fullmatch(source):
        first, last = int(scenes[2]), int(scenes[3] or scenes[2])
        many = last - first >= MOST_SCENES  # reported by `_no_image`
        for index in () if many else range(first, last + 1):
            yield f"digits:{scenes[1]}:{index}"
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
    if source.startswith("digits:"):
        return (
            f"'{source}': expected built-in scenes such as digits:val:3 or digits:val:0-7, at most "
            f"{MOST_SCENES:,} at a time"
        )
    if glob.has_magic(source):
        return f"'{source}': no image matches this pattern"
    return f"'{source}': no such file or folder"


def output_names(sources: Sequence[str], out: Path) -> list[str]:
    """Return a unique file name for each source: a JPEG for a JPEG, an MP4 for a video, otherwise a PNG.

    Repeated names end in ``-2``, ``-3`` … A source in the output folder is an error.
    """
    folder = Path(os.path.realpath(out))
    inside = [source for source in sources if folder in Path(os.path.realpath(source)).parents]
    if inside:
        others = f" and {counted(len(inside) - 1, 'other source')}" if len(inside) > 1 else ""
        raise UserError(
            f"'{inside[0]}'{others} {'are' if others else 'is'} in the output folder {out}; use another --out"
        )
    taken: set[str] = set()
    names = []
    for source in sources:
        path = Path(source)
        stem, suffix = path.stem, path.suffix if path.suffix.lower() in JPEG else ".png"
        if is_live(source):
            address = public(source).partition("://")[2] or source
            address = address[: -len(path.suffix)] if path.suffix.lower() in VIDEOS else address
            stem = re.sub(r"[^\w.-]+", "-", address).strip("-.")[-80:]
        elif SCENES.fullmatch(source) and not path.exists():
            stem = source.replace(":", "-")
        if is_video(source):
            suffix = ".mp4"
        name, number = stem + suffix, 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}{suffix}"
        taken.add(name.casefold())
        names.append(name)
    return names


def stems(names: Sequence[str]) -> dict[int, str]:
    """Return a unique stem for each name whose stem is already taken, keyed by the name's position.

    A stem is taken if another name or a video frame, such as ``clip-000001``, has it.
    """
    taken, videos = set[str](), set[str]()
    found = {}
    for position, name in sorted(enumerate(names), key=lambda one: not one[1].endswith(".mp4")):
        plain = stem = Path(name).stem
        number = 1
        while stem.casefold() in taken or (
            (frame := FRAME.fullmatch(stem.casefold())) and frame[1] in videos
        ):
            number += 1
            stem = f"{plain}-{number}"
        taken.add(stem.casefold())
        if name.endswith(".mp4"):
            videos.add(stem.casefold())
        if number > 1:
            found[position] = stem
    return found
