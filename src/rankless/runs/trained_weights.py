"""Find the weights file of a target for commands that cannot use an exported file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rankless.errors import UserError, shell_word
from rankless.files.reading import opened
from rankless.printing import warn
from rankless.runs.directory import weights_of

_EXPORTS = {
    ".onnx": "an ONNX file",
    ".xml": "an OpenVINO file",
    ".torchscript": "a TorchScript file",
    ".pt2": "a torch.export file",
}


def trained_weights_of(target: Path, warn: Callable[[str], None] = warn) -> Path:
    """Return the weights file of a target, or raise an error if it is an exported file."""
    path = weights_of(target, warn)
    if what := _EXPORTS.get(path.suffix.lower()):
        raise UserError(
            f"{path}: is {what}, which cannot be trained or compared; use the run or the weights file "
            "(.safetensors) from which it was exported"
        )
    try:
        with opened(path) as file:
            what = not_safetensors(path, file.read(9))
    except OSError:
        what = ""  # the file's reader reports this
    if what:
        raise UserError(f"{path}: is not a readable weights file: {what}")
    return path


def not_safetensors(path: Path, start: bytes) -> str:
    """Return why a file with these first 9 bytes is not a safetensors file, or "" if it may be one."""
    if not start:
        return "it is empty"
    if start[8:9] == b"{":  # after the header's length, which may look like the start of a pickle
        return ""
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        return (
            "it looks like a pickle (.pt, .pth), which can run arbitrary code; convert it with "
            f"`rankless import {shell_word(path)} --model NAME "
            f"--out {shell_word(path.name.partition('.')[0])}.safetensors`"
        )
    return "it does not start like a safetensors file; expected a run or a weights file"
