"""Trained weights in the formats of other software."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rankless.errors import UserError
from rankless.files import write_atomically
from rankless.models import weights
from rankless.models.cfg_text import write_cfg
from rankless.models.darknet_weights import write_weights
from rankless.models.zoo import network
from rankless.run_directory import weights_of


@dataclass(frozen=True)
class Exported:
    """What :func:`export` wrote.

    Attributes:
        weights: the file it came from.
        files: the new files.
    """

    weights: Path
    files: tuple[Path, ...]


def export(target: Path, *, format: str, out: Path | None = None) -> Exported:
    """Write a run's weights for other software.

    Args:
        target: a run directory (its best weights are taken) or a weights file.
        format: ``darknet`` writes ``.cfg``, ``.weights`` and ``.names``, which Darknet and OpenCV read.
        out: the new files' path without an ending; beside the weights file if not given.

    Raises:
        UserError: no such format, no weights, a model that the format cannot say, or files that exist.
    """
    if format not in _FORMATS:
        raise UserError(f"--format is '{format}': expected one of {', '.join(_FORMATS)}")
    path = weights_of(target)
    loaded = weights.load(path)
    stem = out or Path(f"{Path(target).resolve().name.removesuffix('.safetensors')}")
    if not stem.name:
        raise UserError(f"--out {stem}: expected a path whose last part names the files, such as out/model")
    return Exported(path, _FORMATS[format](loaded, stem, str(path)))


def _darknet(loaded: weights.Weights, stem: Path, source: str) -> tuple[Path, ...]:
    recipe = loaded.recipe
    if recipe.task != "detect":
        raise UserError(f"{source}: is of the task '{recipe.task}'; Darknet's format takes detectors only")
    # Dropout adds no weights, and rests in what is exported.
    made = network(replace(recipe.model, dropout=0.0), len(loaded.class_names))
    size = recipe.model.image_size
    if size != "auto":
        made = replace(made, size=(size, size) if isinstance(size, int) else size)
    text = write_cfg(made, letterbox=recipe.data.fit == "letterbox", nms=recipe.evaluate.nms)
    files = tuple(stem.with_name(stem.name + ending) for ending in (".cfg", ".weights", ".names"))
    if there := [str(file) for file in files if file.exists()]:
        raise UserError(f"{', '.join(there)}: exists already; give another path with --out, or remove it")
    faults = [name for name in loaded.class_names if "\n" in name]
    if faults:
        raise UserError(f"the class name {faults[0]!r} has a line break, which a .names file cannot hold")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        write_weights(files[1], made, loaded.state)
        write_atomically(files[0], text)
        write_atomically(files[2], "".join(f"{name}\n" for name in loaded.class_names))
    except OSError as error:
        raise UserError(f"{stem}: cannot be written: {error.strerror or error}") from None
    return files


_FORMATS: dict[str, Callable[[weights.Weights, Path, str], tuple[Path, ...]]] = {"darknet": _darknet}
