"""Read video files, webcams and streams, and write videos, with PyAV (extra ``video``)."""

from __future__ import annotations

import importlib.util
import math
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from rankless.data.images.image_file import MOST_PIXELS, Decoded, Pixels, UnreadableImage
from rankless.errors import UserError, counted
from rankless.inference.finder import Finder
from rankless.inference.inputs import reduced
from rankless.inference.pipeline import Source
from rankless.inference.sources import CAMERAS, is_live, public

_SECONDS_TO_WAIT = 15.0  # for the next frame of a camera or a stream
_FFMPEG_WAITS = 20.0  # seconds; longer than _SECONDS_TO_WAIT, so that FFmpeg does not time out first
_USUAL_RATE = Fraction(25)  # for a video without a frame rate
_HIGHEST_RATE = 240
_CODECS = ("libx264", "mpeg4")
_MILLISECONDS = Fraction(1, 1000)


class Frame(NamedTuple):
    """A video frame: the upright image, uint8 RGB (H, W, 3), its number from 0, and its time in seconds."""

    pixels: Pixels
    number: int
    time: float


def refuse_without_av(names: list[str]) -> None:
    """Raise an error if there are videos but PyAV is not installed."""
    if names and importlib.util.find_spec("av") is None:
        raise UserError(
            f"'{public(names[0])}': video needs the package av; run `pip install 'rankless[video]'`"
        )


def sources(name: str) -> Iterator[Source]:
    """Yield a source for each frame of a video.

    If a frame cannot be read, its source raises :class:`UnreadableImage`, and no more frames are read.
    """
    shown = public(name)
    try:
        for frame in frames(name):
            image = torch.from_numpy(frame.pixels).permute(2, 0, 1)
            yield Source(shown, partial(reduced, image), frame.number, frame.time)
    except UnreadableImage as error:
        reason = error.reason

        def fail(_: Finder) -> tuple[torch.Tensor, Decoded]:
            raise UnreadableImage(shown, reason)

        yield Source(shown, fail)


def frames(name: str, patience: float = _SECONDS_TO_WAIT) -> Iterator[Frame]:
    """Yield the frames of a video, camera or stream until it ends.

    The next frame of a camera or stream is awaited for ``patience`` seconds.
    """
    return _decoded_in_thread(name, patience) if is_live(name) else _decoded(name)


def _decoded_in_thread(name: str, patience: float) -> Iterator[Frame]:
    """Decode frames in a thread, because FFmpeg ignores Ctrl-C while it waits for a camera or a server."""
    ready: queue.Queue[Frame | UnreadableImage | None] = queue.Queue(2)
    left = threading.Event()

    def put(one: Frame | UnreadableImage | None) -> bool:
        while not left.is_set():
            with suppress(queue.Full):
                ready.put(one, timeout=0.5)
                return True
        return False

    def read() -> None:
        try:
            _ = all(map(put, _decoded(name))) and put(None)
        except UnreadableImage as error:
            put(error)

    threading.Thread(target=read, name="rankless-stream", daemon=True).start()
    number = 0
    try:
        while (one := ready.get(timeout=patience)) is not None:
            if isinstance(one, UnreadableImage):
                raise one
            yield one
            number += 1
    except queue.Empty:
        reason = f"no data for {patience:g} s"
        raise UnreadableImage(name, _failure(name, number, reason)) from None
    finally:
        left.set()


def _decoded(name: str) -> Iterator[Frame]:
    import av

    number, first = 0, None
    try:
        with _opened(name) as container:
            if not container.streams.video:
                raise UnreadableImage(name, "it contains no video, only sound or other data")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                if frame.width * frame.height > MOST_PIXELS:
                    raise UnreadableImage(name, "its frames have too many pixels")
                time = float(frame.time) if frame.time is not None else number / float(_rate(stream))
                first = time if first is None else first
                pixels = frame.to_ndarray(format="rgb24")
                # Videos from phones are rotated by their metadata.
                quarters = round(math.remainder(getattr(frame, "rotation", 0), 360) / 90) % 4
                yield Frame(np.ascontiguousarray(np.rot90(pixels, quarters)), number, max(0.0, time - first))
                number += 1
    except (av.error.FFmpegError, OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise UnreadableImage(name, _failure(name, number, reason)) from error
    if not number:
        raise UnreadableImage(name, "it has no frames")


def _failure(name: str, number: int, reason: str) -> str:
    if number:
        return f"it cannot be read after {counted(number, 'frame')} ({reason})"
    if CAMERAS.fullmatch(name):
        there = ", ".join(sorted(map(str, Path("/dev").glob("video*")))) or "none"
        return f"the camera cannot be opened ({reason}); available cameras: {there}"
    if is_live(name):
        hint = "check the host, port and path of its URL, and that the stream is being sent"
        return f"the stream cannot be opened ({reason}); {hint}"
    return f"the video cannot be read ({reason}); check that a video player can play the file"


def length_and_rate(name: str) -> tuple[int, Fraction]:
    """Return the approximate number of frames in a video, or 0 if unknown, and its frames per second."""
    import av

    with suppress(av.error.FFmpegError, OSError, ValueError, IndexError):
        if not is_live(name):
            with _opened(name) as container:
                stream = container.streams.video[0]
                rate = _rate(stream)
                seconds = container.duration / av.time_base if container.duration else 0
                return stream.frames or round(seconds * float(rate)), rate
    return 0, _USUAL_RATE


class Writer:
    """A writer for an annotated video: H.264 in MP4, with the frame times of the source."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        import av

        library: Any = av
        # Players can start before the file is complete if the table of frames comes first.
        self._container = library.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        codec = next(name for name in _CODECS if name in av.codecs_available)
        self._stream = self._container.add_stream(codec, rate=rate)
        self._stream.pix_fmt = "yuv420p"
        # Milliseconds suit every frame rate and a camera's irregular times.
        self._stream.time_base = self._stream.codec_context.time_base = _MILLISECONDS
        self._last, self._size = -1, (0, 0)

    def add(self, image: Image.Image, time: float) -> None:
        """Add an RGB frame at ``time`` seconds from the start, resized to the size of the first frame."""
        import av

        if self._last < 0:
            # The pixel format stores colors for every second pixel, so both sides must be even.
            self._size = image.width + image.width % 2, image.height + image.height % 2
            self._stream.width, self._stream.height = self._size
        pixels = np.asarray(image.convert("RGB"))
        if pixels.shape[:2] != self._size[::-1]:
            pixels = _padded(pixels, self._size)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        self._last = max(self._last + 1, round(time * 1000))
        frame.pts, frame.time_base = self._last, _MILLISECONDS
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def close(self) -> None:
        """Write the remaining frames and close the file."""
        if self._last >= 0:
            for packet in self._stream.encode():
                self._container.mux(packet)
        self._container.close()


def _padded(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Fit a frame to the even size of the video by repeating its last column and row, or by resizing it."""
    height, width = pixels.shape[:2]
    if not (0 <= size[0] - width <= 1 and 0 <= size[1] - height <= 1):
        return np.asarray(Image.fromarray(pixels).resize(size))
    return np.pad(pixels, ((0, size[1] - height), (0, size[0] - width), (0, 0)), "edge")


def _opened(name: str) -> Any:
    import av

    if camera := CAMERAS.fullmatch(name):
        return av.open(f"/dev/video{camera[1] or camera[2]}", format="v4l2")
    if is_live(name):
        options = {"rtsp_transport": "tcp"} if name.lower().startswith("rtsp") else {}
        return av.open(name, options=options, timeout=_FFMPEG_WAITS)
    # FFmpeg would mistake a relative path with a colon for a URL.
    return av.open(str(Path(name).absolute()))


def _rate(stream: Any) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate
    return Fraction(rate) if rate and 0 < rate <= _HIGHEST_RATE else _USUAL_RATE
