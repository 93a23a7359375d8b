"""The report of a prediction, with the results for each image, read from disk on demand."""

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
        annotated: path of the annotated image or video; None if nothing was drawn.
        width, height: size of the image in pixels.
        detections: dicts with ``box`` (xyxy in pixels), ``score``, ``label`` and ``name``, best first.
        classes: a classifier's best five classes: dicts with ``score``, ``label`` and ``name``, best first.
        prediction: a custom task's dict; None for built-in tasks.
        frame: number of the frame in its video, from 0; None for an image.
        time: time of the frame in seconds from the video's start; None for an image.
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
    """The reports of all images. Each is read from disk on demand, so that they do not fill the memory."""

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
        out: the folder with the results.
        weights: the weights file.
        precision: precision of the forward pass, which is the recipe's, as in evaluation.
        images: one report per readable image or frame, in the order of the sources.
        failed: source and reason of each unreadable image.
        removed: files of an earlier call that were removed from the folder.
        best: the highest score of any prediction, reported or not; 0.0 if there is none.
        seconds: time for reading, computing, drawing and writing.
        computed: number of images and frames in that time; earlier ones are not counted after a resumption.
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
        """The command's exit code: 0 if all images could be read, 1 if some could not, 2 if none could."""
        return 0 if not self.failed else 1 if self.images else 2

    @property
    def per_second(self) -> float:
        """Images and frames per second, including reading and writing; 0.0 if nothing was computed."""
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
