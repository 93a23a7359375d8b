"""The result for one image, for Python programs and notebooks."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rankless.data.images.drawing import Mark, annotate
from rankless.data.images.image_file import Pixels
from rankless.errors import UserError, counted, escaped
from rankless.inference.sources import scenes

if TYPE_CHECKING:
    import supervision

BEST = 5
"""Number of classes reported for a classified image."""
_WIDEST = 640  # maximum side length of an image in a notebook, in pixels
_ROWS = 10  # maximum number of rows in the table below an image
_SHOWN = 12  # maximum number of images that a notebook shows for a list
_SCENE = 320  # side length up to which built-in scenes are enlarged, in pixels


@dataclass(frozen=True, eq=False, kw_only=True)
class _Result:
    """Base class of results.

    Attributes:
        image: the image, uint8 RGB (H, W, 3).
        scores: scores in 0..1, highest first, float32 (N,).
        classes: class ids, int64 (N,).
        class_names: names of the model's classes, one per id.
        source: path of the image, or name of the scene. Empty if unknown.
    """

    image: Pixels
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]
    class_names: tuple[str, ...]
    source: str = ""
    _key: ClassVar = ""

    @property
    def names(self) -> list[str]:
        """The class name for each score."""
        return [self.class_names[label] for label in self.classes.tolist()]

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per score."""
        raise NotImplementedError

    def entry(self) -> dict[str, Any]:
        """Return the rows by their key, as they are recorded for an image of a prediction."""
        return {self._key: self.rows()}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, as in ``predictions.json``."""
        height, width = self.image.shape[:2]
        return {"source": self.source, "width": width, "height": height, **self.entry()}

    def marks(self) -> list[Mark]:
        """Return the boxes and captions that :meth:`draw` draws."""
        raise NotImplementedError

    def draw(self) -> Image.Image:
        """Return a copy of the image with boxes and labels drawn on it.

        A built-in scene, which is as small as the network's input, is enlarged to make room for the labels.
        """
        image, marks = Image.fromarray(self.image), self.marks()
        factor = _SCENE // max(image.size) if scenes(self.source) else 1
        if factor > 1:
            enlarged = (image.width * factor, image.height * factor)
            image = image.resize(enlarged, Image.Resampling.BICUBIC)
            marks = [mark.scaled(factor) for mark in marks]
        return annotate(image, marks)


@dataclass(frozen=True, eq=False, kw_only=True)
class DetectionResult(_Result):
    """The objects found in one image, best first.

    Attributes:
        xyxy: boxes (left, top, right, bottom) in pixels of the image, float32 (N, 4).
    """

    xyxy: NDArray[np.float32]
    _key: ClassVar = "detections"

    def rows(self) -> list[dict[str, Any]]:
        """Return the ``box`` (rounded to 0.01 pixels), ``score``, ``label`` and ``name`` of each object."""
        return [
            {
                "box": [round(side, 2) for side in box],
                "score": round(score, 6),  # with 4 digits, low scores tie, which changes the AP
                "label": label,
                "name": self.class_names[label],
            }
            for box, score, label in self._objects()
        ]

    def marks(self) -> list[Mark]:
        return [
            Mark((x1, y1, x2, y2), f"{self.class_names[label]}: {score:.0%}", label)
            for (x1, y1, x2, y2), score, label in self._objects()
        ]

    def to_supervision(self) -> supervision.Detections:
        """Convert the result to ``supervision.Detections``, with the class names in ``data["class_name"]``.

        Raises:
            UserError: supervision is not installed.
        """
        found: supervision.Detections = _supervision().Detections(
            xyxy=self.xyxy.reshape(-1, 4),
            confidence=self.scores,
            class_id=self.classes,
            data={"class_name": np.array(self.names, dtype=str)},
        )
        return found

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for name in self.names:
            counts[name] = counts.get(name, 0) + 1
        found = ", ".join(f"{count:,} × {name}" for name, count in counts.items()) or "nothing found"
        return f"<DetectionResult {_about(self)}: {found}>"

    def _repr_html_(self) -> str:
        rows = [
            [row["name"], f"{row['score']:.0%}", ", ".join(f"{side:.0f}" for side in row["box"])]
            for row in self.rows()
        ]
        return _html(self, ("class", "score", "box (xyxy)"), rows)

    def _objects(self) -> Iterator[tuple[list[float], float, int]]:
        return zip(self.xyxy.tolist(), self.scores.tolist(), self.classes.tolist(), strict=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassificationResult(_Result):
    """The most likely classes of one image, at most five, best first.

    Attributes:
        probabilities: probabilities of all classes, float32 (C,).
    """

    probabilities: NDArray[np.float32]
    _key: ClassVar = "classes"

    def rows(self) -> list[dict[str, Any]]:
        """Return the ``score``, ``label`` and ``name`` of each class."""
        return [
            {"score": round(score, 4), "label": label, "name": self.class_names[label]}
            for score, label in zip(self.scores.tolist(), self.classes.tolist(), strict=True)
        ]

    def entry(self) -> dict[str, Any]:
        return super().entry() if len(self) else {"detections": []}  # like an image without objects

    def marks(self) -> list[Mark]:
        height, width = self.image.shape[:2]
        whole = (0.0, 0.0, float(width), float(height))
        return [Mark(whole, f"{row['name']}: {row['score']:.0%}", row["label"]) for row in self.rows()[:1]]

    def to_supervision(self) -> supervision.Classifications:
        """Convert the result to ``supervision.Classifications``.

        Raises:
            UserError: supervision is not installed.
        """
        found: supervision.Classifications = _supervision().Classifications(
            class_id=self.classes, confidence=self.scores
        )
        return found

    def __repr__(self) -> str:
        best = ", ".join(f"{row['name']} {row['score']:.0%}" for row in self.rows()[:3])
        return f"<ClassificationResult {_about(self)}: {best or 'nothing likely'}>"

    def _repr_html_(self) -> str:
        return _html(self, ("class", "score"), [[row["name"], f"{row['score']:.0%}"] for row in self.rows()])


Result = DetectionResult | ClassificationResult


class Results(list[Result]):
    """A list with one result per image, which notebooks show as images."""

    def _repr_html_(self) -> str:
        more = f"<p>… and {counted(len(self) - _SHOWN, 'more image')}</p>" if len(self) > _SHOWN else ""
        cells = "".join(f'<div style="max-width:20rem">{one._repr_html_()}</div>' for one in self[:_SHOWN])
        return f'<div style="display:flex;flex-wrap:wrap;gap:1rem;align-items:start">{cells}</div>{more}'


def _about(result: Result) -> str:
    height, width = result.image.shape[:2]
    return f"{escaped(result.source)} {width} × {height}".strip()


def _html(result: Result, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    drawn = result.draw()
    drawn.thumbnail((_WIDEST, _WIDEST))
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    title = html.escape(_about(result))
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(escaped(text))}</td>' for text in row)}</tr>"
        for row in rows[:_ROWS]
    )
    more = f"<p>… and {len(rows) - _ROWS:,} more</p>" if len(rows) > _ROWS else ""
    return (
        f'<figure style="margin:0"><img alt="{title}" src="data:image/png;base64,{encoded}" '
        f'style="max-width:100%;height:auto"><figcaption>{title}</figcaption></figure>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def _supervision() -> Any:
    try:
        import supervision
    except ImportError:
        raise UserError("supervision is not installed; run `pip install supervision`") from None
    return supervision
