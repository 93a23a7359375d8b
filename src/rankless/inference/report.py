"""The report of a prediction: the results of each image, read from the disk on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from rankless.inference.formats import Entry


@dataclass(frozen=True)
class ImageReport:
    """The predictions for one image, or for one frame of a video.

    Attributes:
        source: the image's path or scene, or the video.
        annotated: the image with its boxes drawn, or the video; None where nothing was drawn.
        width, height: of the image, in pixels.
        detections: best first; ``box`` (xyxy in pixels), ``score``, ``label`` and ``name`` of each.
        classes: for a classifier, in place of detections: ``score``, ``label`` and ``name`` of the best five.
        prediction: of a task of the user's own, in place of both.
        frame: its number in the video, from 0; None of an image.
        time: of the frame, in seconds from the video's start.
    """

    source: str
    annotated: Path | None
    width: int
    height: int
    detections: list[dict[str, Any]] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    prediction: dict[str, Any] | None = None
    frame: int | None = None
    time: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        found: dict[str, Any] = {"detections": self.detections}
        if self.prediction is not None:
            found = {"prediction": self.prediction}
        elif self.classes:
            found = {"classes": self.classes}
        where = {} if self.frame is None else {"frame": self.frame, "time": self.time}
        drawn = {"annotated": self.annotated.name} if self.annotated else {}
        return {"source": self.source, **where, **drawn, "width": self.width, "height": self.height, **found}


class ImageReports(Sequence[ImageReport]):
    """The reports of all images; each is read when it is asked for, so a million do not fill the memory."""

    def __init__(self, entries: Sequence[Entry], out: Path) -> None:
        self._entries, self._out = entries, out

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> ImageReport: ...

    @overload
    def __getitem__(self, index: slice) -> list[ImageReport]: ...

    def __getitem__(self, index: int | slice) -> ImageReport | list[ImageReport]:
        if isinstance(index, slice):
            return [self._report(entry) for entry in self._entries[index]]
        return self._report(self._entries[index])

    def __iter__(self) -> Iterator[ImageReport]:
        return map(self._report, self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _report(self, entry: Entry) -> ImageReport:
        image = dict(entry.image)
        drawn = image.pop("annotated", None)
        return ImageReport(annotated=None if drawn is None else self._out / drawn, **image)


@dataclass
class PredictionReport:
    """The result of :func:`rankless.predict`.

    Attributes:
        out: the folder of the results.
        weights: the weights file.
        precision: of the forward pass: that of the file's recipe, as in evaluation.
        images: one report per readable image or frame, in the order of the sources.
        failed: source and reason of each unreadable image.
        removed: files of an earlier call in the same folder, which this one did not write again.
        best: the highest score of any prediction, found or left out; 0.0 where none is known.
        seconds: how long reading, computing, drawing and writing took.
        computed: images and frames in that time; fewer than all where the prediction went on.
        notes: sentences about the results, such as class names that no font can show.
    """

    out: Path
    weights: Path
    precision: str = "fp32"
    images: Sequence[ImageReport] = ()
    failed: list[tuple[str, str]] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    best: float = 0.0
    seconds: float = 0.0
    computed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """Return 0, 1 if an image could not be read, or 2 if none could."""
        return 0 if not self.failed else 1 if self.images else 2

    @property
    def per_second(self) -> float:
        """Return images and frames per second, from the files to the results; 0.0 if there were none."""
        return self.computed / self.seconds if self.seconds else 0.0

    def predictions(self) -> list[dict[str, Any]]:
        """Return the content of ``predictions.json``."""
        return [image.as_json() for image in self.images]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data: images with predictions, and failures with reasons."""
        return {
            "weights": str(self.weights),
            "computed_in": self.precision,
            "out": str(self.out),
            "images_per_second": round(self.per_second, 2),
            "images": self.predictions(),
            "failed": [{"source": source, "reason": reason} for source, reason in self.failed],
            "removed": [str(file.relative_to(self.out)) for file in self.removed],
            "notes": self.notes,
        }
