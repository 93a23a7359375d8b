"""The report of a prediction, whose results are read from disk on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from rankless.inference.prediction_journal import Entry, Journal


@dataclass(frozen=True)
class ImageReport:
    """The predictions for one image, or for one frame of a video.

    Attributes:
        source: path of the image or video, or name of the scene.
        output: name of all files for the image or frame, without extension.
        annotated: path of the annotated image or video, or None if nothing was drawn.
        width, height: size of the image in pixels.
        detections: dicts with ``box`` (xyxy in pixels), ``score``, ``label`` and ``name``, best first.
        classes: dicts with ``score``, ``label`` and ``name`` of a classifier's best five classes, best first.
        prediction: the dict that a custom task returned, or None for built-in tasks.
        frame: number of the frame in its video, from 0, or None for an image.
        time: time of the frame in seconds from the start of the video, or None for an image.
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
    output: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        found: dict[str, Any] = {"detections": self.detections}
        if self.prediction is not None:
            found = {"prediction": self.prediction}
        elif self.classes:
            found = {"classes": self.classes}
        where = {} if self.frame is None else {"frame": self.frame, "time": self.time}
        drawn = {"output": self.output} | ({"annotated": self.annotated.name} if self.annotated else {})
        return {"source": self.source, **where, **drawn, "width": self.width, "height": self.height, **found}


class ImageReports(Sequence[ImageReport]):
    """A sequence of the reports of all images, each of which is read from disk on demand."""

    def __init__(self, entries: Journal, out: Path) -> None:
        self._entries, self._out = entries, out

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> ImageReport: ...

    @overload
    def __getitem__(self, index: slice) -> list[ImageReport]: ...

    def __getitem__(self, index: int | slice) -> ImageReport | list[ImageReport]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
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
        out: the folder with the results.
        weights: the weights file.
        precision: precision of the forward pass, as in the recipe.
        images: one report per readable image or frame, in the order of the sources.
        failed: source and reason for each unreadable image.
        removed: files from an earlier call that were removed from the folder.
        best: the highest score of all predictions, reported or not, or 0.0 if there are none.
        seconds: time spent reading, computing, drawing and writing.
        computed: number of images and frames processed in this time, excluding those finished before the
            prediction was resumed.
        notes: messages about the results, for example about class names that no font can draw.
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
        """The exit code: 0 if all images could be read, 1 if some could not, 2 if none could."""
        return 0 if not self.failed else 1 if self.images else 2

    @property
    def per_second(self) -> float:
        """The number of images and frames per second, including reading and writing."""
        return self.computed / self.seconds if self.seconds else 0.0

    def predictions(self) -> list[dict[str, Any]]:
        """Return the contents of ``predictions.json``."""
        return [image.as_json() for image in self.images]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
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
