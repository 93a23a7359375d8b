"""The metadata of an exported file, stored in ONNX and OpenVINO files as named text entries.

Other programs need only ``preprocessing``, ``class_names`` and ``outputs``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankless.errors import UserError, one_of, printable
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.task_kinds import BUILT_IN, TaskKind, kind_of

FORMAT = "1"
_AFTER_NMS = {
    "detections": "float32 (found, 7): number of the image in the batch, x1, y1, x2, y2 in pixels of the "
    "input, score, class; best first in each image"
}


@dataclass(frozen=True)
class Facts:
    """The metadata of an exported file.

    Attributes:
        recipe: the recipe of the weights, with the input size and the precision (``fp32`` or ``fp16``) of the
            file.
        size: (height, width) of the input in pixels.
        nms: confidence threshold of the built-in NMS; None without NMS.
        digest: SHA-256 of the weights.
        placing: entries of ``preprocessing`` that describe how an image is placed on the input.
    """

    recipe: Recipe
    class_names: tuple[str, ...]
    size: tuple[int, int]
    nms: float | None = None
    digest: str = ""
    placing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> TaskKind:
        return kind_of(self.recipe.task)

    @property
    def outputs(self) -> Mapping[str, str]:
        """Descriptions of the outputs by name."""
        return self.kind.outputs if self.nms is None else _AFTER_NMS

    def texts(self) -> dict[str, str]:
        """Return the metadata as text entries for a file."""
        every: dict[str, Any] = {
            "task": self.recipe.task,
            "class_names": list(self.class_names),
            "preprocessing": self._preprocessing(),
            "outputs": dict(self.outputs),
            "precision": self.recipe.precision,
            "digest": self.digest,
            "recipe": to_json(self.recipe),
        }
        if self.nms is not None:
            settings = self.recipe.evaluate
            every["nms"] = {
                "confidence": self.nms,
                "iou": settings.iou,
                "class_agnostic": settings.class_agnostic,
            }
        texts = {
            name: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            for name, one in every.items()
        }
        return {"rankless": FORMAT, **texts}

    def _preprocessing(self) -> dict[str, Any]:
        """Describe how to convert an image to the input ``images``, float32 (images, 3, height, width)."""
        height, width = self.size
        return {
            "channels": "RGB",
            "range": [0.0, 1.0],
            "height": height,
            "width": width,
            "resize": "bilinear, antialiased",
            **self.placing,
        }


def read(texts: Mapping[str, str], source: str) -> Facts:
    """Read the metadata from the text entries of a file. Error messages start with ``source``."""
    written = texts.get("rankless")
    if written is None:
        raise UserError(
            f"{source}: does not describe its classes and preprocessing; expected a file written by "
            "`rankless export`"
        )
    if written != FORMAT:
        raise UserError(
            f"{source}: has the format '{printable(written)}', but this version reads only '{FORMAT}'; "
            "update Rankless"
        )
    recipe = from_json(texts.get("recipe", ""), f"{source}: the recipe inside")
    if recipe.task not in BUILT_IN:
        raise UserError(f"{source}: its task is '{printable(recipe.task)}'; expected {one_of(BUILT_IN)}")
    size, names = recipe.model.input_size(), _parsed(texts, "class_names", source)
    nms = _parsed(texts, "nms", source) if "nms" in texts else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _damaged(source, "class_names")
    if nms is not None and not (isinstance(nms, dict) and isinstance(nms.get("confidence"), float | int)):
        raise _damaged(source, "nms")
    if size is None:
        raise _damaged(source, "recipe")
    return Facts(
        recipe,
        tuple(names),
        size,
        None if nms is None else float(nms["confidence"]),
        texts.get("digest", ""),
    )


def _parsed(texts: Mapping[str, str], name: str, source: str) -> Any:
    try:
        return json.loads(texts.get(name, ""))
    except (ValueError, RecursionError):
        raise _damaged(source, name) from None


def _damaged(source: str, name: str) -> UserError:
    return UserError(f"{source}: the entry '{name}' is damaged; export the model again, or use another copy")
