"""Export trained weights to the formats of other software."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rankless.arguments import several
from rankless.errors import UserError, nearest, one_of
from rankless.files.outputs import Outputs
from rankless.interop import model_folder, onnx_file, torch_files
from rankless.interop.comparison import LIMITS, Agreement, compare
from rankless.interop.export_plan import ExportOptions, Plan, plan_export
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors.darknet import network
from rankless.models.exported.sessions import OnnxSession, OpenVinoSession, Session
from rankless.models.weights_files import weights
from rankless.models.weights_files.darknet_weights import write_weights
from rankless.recipe.model_kinds import AnchorFreeModel, YoloModel
from rankless.runs.trained_weights import trained_weights_of
from rankless.task_kinds import kind_of


@dataclass(frozen=True)
class Exported:
    """The result of :func:`export`. Formats that contain only weights have no ``agreement`` with PyTorch."""

    weights: Path
    files: tuple[Path, ...]
    agreement: Agreement | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        compared = {"compared": asdict(self.agreement)} if self.agreement else {}
        return {"weights": str(self.weights), "files": [str(file) for file in self.files], **compared}


class DisagreementError(UserError):
    """Raised when the results of an export differ from PyTorch's."""

    exit_code = 1


@dataclass(frozen=True)
class Program:
    """An export format that contains the computation in addition to the weights.

    ``endings`` are the suffixes of its files. The first one belongs to the main file, which other programs
    open. Given the path of the main file, ``write`` writes all files, and ``session`` opens the main file.
    """

    endings: tuple[str, ...]
    write: Callable[[Plan, Path], None]
    session: Callable[[Path, Plan], Session]


PROGRAMS: dict[str, Program] = {
    "onnx": Program((".onnx",), onnx_file.write, lambda path, _: OnnxSession(path)),
    "torchscript": Program(
        (".torchscript",),
        torch_files.write_torchscript,
        lambda path, plan: torch_files.TorchSession(path, plan, script=True),
    ),
    "pt2": Program(
        (".pt2",),
        torch_files.write_pt2,
        lambda path, plan: torch_files.TorchSession(path, plan, script=False),
    ),
    "openvino": Program((".xml", ".bin"), onnx_file.write_openvino, lambda path, _: OpenVinoSession(path)),
}
_RUNNABLE = PROGRAMS | {
    "triton": Program(onnx_file.TRITON_FILES, onnx_file.write_triton, lambda path, _: OnnxSession(path))
}


def export(
    target: str | os.PathLike[str],
    *,
    format: str,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    overrides: str | Sequence[str] = (),
    nms: bool = False,
    confidence: float | None = None,
    batch: int | None = None,
    any_size: bool = False,
    half: bool = False,
) -> Exported:
    """Export trained weights for other software.

    The formats ``onnx``, ``torchscript``, ``pt2``, ``openvino`` and ``triton`` contain the computation. Their
    results are compared with PyTorch on real images before the files are copied to ``out``.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        format: ``onnx`` for ONNX Runtime and most other programs; ``openvino`` (``.xml`` and ``.bin``);
            ``torchscript`` for LibTorch; ``pt2`` for ``torch.export``; ``triton``, a model folder for Triton
            or OpenVINO Model Server; ``darknet`` (``.cfg``, ``.weights`` and ``.names``) for Darknet and
            OpenCV; ``pth``, a PyTorch state dict; ``folder``, a folder with a model card for the Hugging Face
            Hub, which Rankless reads like a run.
        out: path of the new files, with or without an extension, or of the new folder. By default, the name
            of ``target`` in the current folder.
        force: replace existing files.
        overrides: changes to the recipe, ``key=value``, such as ``evaluate.iou=0.5``.
        nms: include NMS in the exported model.
        confidence: confidence threshold of the NMS, 0..1. The default is 0.25.
        batch: fixed batch size. By default, any batch size is accepted.
        any_size: accept any height and width that are multiples of 32.
        half: compute in float16, with inputs and outputs in float32.

    Raises:
        UserError: the format is unknown, there are no weights, the format does not support the model, or
            output files already exist.
        DisagreementError: the results of the export differ from PyTorch's. No files are written.

    Examples:
        >>> done = rankless.export("runs/digits", format="onnx", out="digits", force=True)
        >>> [file.name for file in done.files]
        ['digits.onnx']
    """
    if format not in FORMATS:
        raise UserError(f"--format is '{format}'; expected {one_of(FORMATS)}{nearest(format, FORMATS)}")
    asked, target, overrides = (
        ExportOptions(nms, confidence, batch, any_size, half),
        Path(target),
        several(overrides),
    )
    stem = Path(out) if out else Path(Path(os.path.realpath(target)).name.removesuffix(".safetensors"))
    endings = _RUNNABLE[format].endings if format in _RUNNABLE else _ENDINGS[format]
    if stem.suffix in endings:
        stem = stem.with_suffix("")
    if not stem.name:
        raise UserError(f"--out {stem}: expected a path that ends with a file name, such as out/model")
    if format in _RUNNABLE:
        return _program(plan_export(target, asked, overrides), format, stem, force)
    if overrides or asked != ExportOptions():
        raise UserError(
            f"--format {format}: writes only weights; remove --nms, --confidence, --batch, --any-size, "
            "--half and key=value"
        )
    path = trained_weights_of(target)
    return Exported(path, _WEIGHTS[format](weights.load(path), stem, path, force))


@dataclass(frozen=True)
class CheckedExport:
    """Exported files in a temporary folder, after the comparison with PyTorch."""

    files: tuple[Path, ...]
    session: Session
    agreement: Agreement


def write_checked(plan: Plan, format: str, folder: Path, name: str = "") -> CheckedExport:
    """Write an export to a folder, and compare its results with PyTorch.

    ``name`` is the name of the export in messages. By default, it is the format.
    """
    program = _RUNNABLE[format]
    files = _files(folder / "model", program.endings)
    program.write(plan, files[0])
    session = program.session(files[0], plan)
    agreement = compare(plan, session, name or format)
    if not agreement.is_close(LIMITS[plan.facts.recipe.precision]):
        remedy = "remove --half" if plan.half else "use another format, and report this as a bug"
        raise DisagreementError(
            f"{name or format}: the export was discarded, because its results differ from PyTorch's "
            f"({agreement.sentence()}); {remedy}"
        )
    return CheckedExport(files, session, agreement)


def _program(plan: Plan, format: str, stem: Path, force: bool) -> Exported:
    files = _files(stem, _RUNNABLE[format].endings)
    outputs = Outputs(files, verb=None, force=force)
    outputs.refuse_inputs([plan.source])
    with tempfile.TemporaryDirectory(prefix="rankless-export-") as folder:
        written = write_checked(plan, format, Path(folder), str(files[0]))
        with outputs.as_one(files) as parts:
            for source, part in zip(written.files, parts, strict=True):
                shutil.copyfile(source, part)
    return Exported(plan.source, files, written.agreement)


def _files(stem: Path, endings: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(f"{stem}{ending}") for ending in endings)


def _darknet(loaded: weights.Weights, stem: Path, source: Path, force: bool) -> tuple[Path, ...]:
    recipe = loaded.recipe
    if not kind_of(recipe.task).cfg:
        raise UserError(
            f"{source}: its task is '{recipe.task}', but --format darknet is only for detectors; use "
            "another --format"
        )
    # Dropout has no weights, and is inactive in exported models.
    model = recipe.model
    if isinstance(model, YoloModel | AnchorFreeModel):
        model = replace(model, dropout=0.0)
    made = network(model, len(loaded.class_names))
    if size := recipe.model.input_size():
        made = replace(made, size=size)
    letterbox, nms = recipe.data.fit == "letterbox", recipe.evaluate.nms
    text = write_cfg(made, letterbox=letterbox, nms=nms, foreign=True)
    files = _files(stem, _ENDINGS["darknet"])
    outputs = Outputs(files, verb=None, force=force)
    outputs.refuse_inputs([source])
    problems = [name for name in loaded.class_names if "\n" in name]
    if problems:
        raise UserError(
            f"the class name {problems[0]!r} contains a line break, which .names files do not support; use "
            "another --format"
        )
    with outputs.as_one(files) as (cfg, numbers, names):
        write_weights(numbers, made, loaded.state, _seen(loaded))
        cfg.write_text(text, encoding="utf-8")
        names.write_text("".join(f"{name}\n" for name in loaded.class_names), encoding="utf-8")
    return files


def _seen(loaded: weights.Weights) -> int:
    """Return the number of images the model was trained on. Darknet's schedule continues from it."""
    if (seen := loaded.extra.get("seen", "")).isdecimal():
        return int(seen)
    step = loaded.extra.get("step", "")
    return int(step) * loaded.recipe.batch.images if step.isdecimal() else 0


def _pth(loaded: weights.Weights, stem: Path, source: Path, force: bool) -> tuple[Path, ...]:
    (file,) = _files(stem, _ENDINGS["pth"])
    outputs = Outputs([file], verb=None, force=force)
    outputs.refuse_inputs([source])
    with outputs.writing(file) as beside:
        torch.save(loaded.state, beside)
    return (file,)


_ENDINGS = {"darknet": (".cfg", ".weights", ".names"), "pth": (".pth",), "folder": ()}
_WEIGHTS: dict[str, Callable[[weights.Weights, Path, Path, bool], tuple[Path, ...]]] = {
    "darknet": _darknet,
    "pth": _pth,
    "folder": model_folder.write,
}
FORMATS = (*_RUNNABLE, *_WEIGHTS)
