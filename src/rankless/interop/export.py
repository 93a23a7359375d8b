"""Export of trained weights to the formats of other software."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rankless.errors import UserError, nearest, one_of
from rankless.files.outputs import Outputs
from rankless.models.checkpoints import weights
from rankless.models.checkpoints.darknet_weights import write_weights
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors.darknet import network
from rankless.recipe.model_kinds import AnchorFreeModel, YoloModel
from rankless.runs.directory import weights_of


@dataclass(frozen=True)
class Exported:
    """The result of :func:`export`.

    Attributes:
        weights: the source file.
        files: the new files.
    """

    weights: Path
    files: tuple[Path, ...]


def export(target: Path, *, format: str, out: Path | None = None, force: bool = False) -> Exported:
    """Export a run's weights for other software.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        format: ``darknet`` writes ``.cfg``, ``.weights`` and ``.names``, which Darknet and OpenCV read;
            ``pth`` a state dict of PyTorch's, under the names of the model.
        out: the new files' path without suffix; by default ``target``'s name in this folder.
        force: replace existing files.

    Raises:
        UserError: no such format, no weights, a model that the format does not support, or files that exist.
    """
    if format not in _FORMATS:
        raise UserError(f"--format is '{format}': expected {one_of(_FORMATS)}{nearest(format, _FORMATS)}")
    path = weights_of(target)
    loaded = weights.load(path)
    stem = out or Path(Path(os.path.realpath(target)).name.removesuffix(".safetensors"))
    if not stem.name:
        raise UserError(f"--out {stem}: expected a path whose last part names the files, such as out/model")
    return Exported(path, _FORMATS[format](loaded, stem, path, force))


def _darknet(loaded: weights.Weights, stem: Path, source: Path, force: bool) -> tuple[Path, ...]:
    recipe = loaded.recipe
    if recipe.task != "detect":
        raise UserError(f"{source}: is of the task '{recipe.task}'; Darknet's format takes detectors only")
    # Dropout has no weights, and is inactive in exported models.
    model = recipe.model
    if isinstance(model, YoloModel | AnchorFreeModel):
        model = replace(model, dropout=0.0)
    made = network(model, len(loaded.class_names))
    size = recipe.model.image_size
    if size != "auto":
        made = replace(made, size=(size, size) if isinstance(size, int) else size)
    text = write_cfg(made, letterbox=recipe.data.fit == "letterbox", nms=recipe.evaluate.nms)
    files = tuple(stem.with_name(stem.name + ending) for ending in (".cfg", ".weights", ".names"))
    outputs = Outputs(files, verb=None, force=force)
    outputs.refuse_inputs([source])
    problems = [name for name in loaded.class_names if "\n" in name]
    if problems:
        raise UserError(f"the class name {problems[0]!r} has a line break, which a .names file cannot hold")
    with outputs.as_one(files) as (cfg, numbers, names):
        write_weights(numbers, made, loaded.state, _seen(loaded))
        cfg.write_text(text, encoding="utf-8")
        names.write_text("".join(f"{name}\n" for name in loaded.class_names), encoding="utf-8")
    return files


def _seen(loaded: weights.Weights) -> int:
    """Return the number of images it was trained on, from which Darknet's schedule goes on."""
    if (seen := loaded.extra.get("seen", "")).isdecimal():
        return int(seen)
    step = loaded.extra.get("step", "")
    return int(step) * loaded.recipe.batch.images if step.isdecimal() else 0


def _pth(loaded: weights.Weights, stem: Path, source: Path, force: bool) -> tuple[Path, ...]:
    file = stem.with_name(stem.name + ".pth")
    outputs = Outputs([file], verb=None, force=force)
    outputs.refuse_inputs([source])
    with outputs.writing(file) as beside:
        torch.save(loaded.state, beside)
    return (file,)


_FORMATS: dict[str, Callable[[weights.Weights, Path, Path, bool], tuple[Path, ...]]] = {
    "darknet": _darknet,
    "pth": _pth,
}
