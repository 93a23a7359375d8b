"""Read checkpoints from other projects without running code.

:mod:`~rankless.models.weights_files.unwrapping` finds the weights in a checkpoint, and
:mod:`~rankless.models.weights_files.matching` matches their names to a model.
"""

from __future__ import annotations

import argparse
import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from rankless.errors import UserError, printable
from rankless.files import reading
from rankless.models.weights_files import tensor_file
from rankless.models.weights_files.pickle_inspection import SAVE_WEIGHTS, Inspection, RefusedFileError
from rankless.models.weights_files.unwrapping import Checkpoint, unwrap

# Files of torch.save before version 1.6 start with this number as a separate pickle.
_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY = b"\x80\x02\x8a\x0a" + _MAGIC.to_bytes(10, "little") + b"."
_LEGACY_PROTOCOL = 1001


def read_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Read the weights in a checkpoint from another project.

    The format is detected from the file's contents: safetensors, or ``torch.save`` (also before version 1.6).
    No code in the file is run. The sizes stated in the file are compared with its actual size before memory
    is allocated. ``key`` is the entry with the weights, such as ``model`` or ``ema.module``. By default, it
    is found automatically.
    """
    path = Path(path)
    if reading.is_folder(path):
        raise UserError(f"{path}: is a folder; expected a checkpoint (.pt, .pth, .ckpt, .bin, .safetensors)")
    try:
        with io.BufferedReader(reading.opened(path)) as file:
            return unwrap(_content(path, file), key, size=os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RefusedFileError as error:
        raise UserError(f"{path}: this file {error}") from None
    except MemoryError:
        raise UserError(f"{path}: is larger than this machine's memory") from None


def _content(path: Path, file: IO[bytes]) -> Any:
    start = file.read(512)
    file.seek(0)
    if start.startswith(b"PK"):
        return _from_zip(file)
    if start.startswith(_LEGACY):
        return _from_legacy(file)
    if start[8:9] == b"{":
        return tensor_file.read(path)[0]
    raise RefusedFileError(_what_else(start, file))


def _from_zip(file: IO[bytes]) -> Any:
    """Read the current format: a zip archive with one pickle and a record for each storage."""
    try:
        records, names = _records(file), set[str]()
    except RefusedFileError:
        raise
    except Exception as error:  # BadZipFile, struct.error, EOFError …, depending on the damage
        raise RefusedFileError(f"is a damaged archive ({printable(str(error))}); use another copy") from None
    if "data.pkl" not in records:
        raise RefusedFileError(
            f"is a zip archive, but not from torch.save (it has no data.pkl); {SAVE_WEIGHTS}"
        )
    inspection = Inspection()
    inspection.walk(io.BytesIO(records["data.pkl"]))
    for storage in inspection.storages.values():
        name = f"data/{storage.key}"
        if name not in records:
            raise RefusedFileError(f"is damaged: storage {printable(storage.key)} is missing")
        if (size := len(records[name])) != storage.nbytes:
            raise RefusedFileError(
                f"is damaged: storage {printable(storage.key)} has {size:,} bytes; expected "
                f"{storage.nbytes:,}"
            )
        names.add(name)
    # PyTorch reads a copy of the inspected records, because two zip readers may interpret a file differently.
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as archive:
        for name in ("data.pkl", "byteorder", "version", *sorted(names)):
            archive.writestr(f"archive/{name}", records.get(name, b"3\n" if name == "version" else b"little"))
            records.pop(name, None)  # one copy at a time
    copy.seek(0)
    return _load(copy)


def _records(file: IO[bytes]) -> dict[str, bytes]:
    """Read all records of an archive, keyed by their names within its top-level folder."""
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.filename.endswith("/constants.pkl") for entry in entries):
            raise RefusedFileError(f"is a TorchScript archive, which contains a program; {SAVE_WEIGHTS}")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise RefusedFileError(
                f"is compressed, so torch.save did not write it; unpack it, or {SAVE_WEIGHTS}"
            )
        if sum(entry.file_size for entry in entries) > size:
            raise RefusedFileError("is damaged or malicious: its parts are larger in total than the file")
        records: dict[str, bytes] = {}
        for entry in entries:
            name = entry.filename.partition("/")[2]
            if not name:
                continue  # a folder, or outside the archive's folder
            if name in records:
                raise RefusedFileError(f"is damaged: it has two records named {printable(name)}")
            records[name] = archive.read(entry)
    return records


def _from_legacy(file: IO[bytes]) -> Any:
    """Read the format from before PyTorch 1.6: five pickles, then the sizes and values of the storages."""
    inspection = Inspection()
    head = [inspection.walk(file) for _ in range(5)]
    _, protocol, _, _, keys = head
    if protocol != _LEGACY_PROTOCOL:
        raise RefusedFileError(f"is damaged: it has an unknown protocol, {printable(repr(protocol))}")
    storages = inspection.storages
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(storages):
        raise RefusedFileError("is damaged: its storages do not match its list of storages")
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        if count != storages[key].numel:
            raise RefusedFileError(
                f"is damaged: a storage has {count:,} values; expected {storages[key].numel:,}"
            )
        file.seek(storages[key].nbytes, os.SEEK_CUR)
    if (end := file.tell()) != (size := os.fstat(file.fileno()).st_size):
        raise RefusedFileError(f"is damaged: it has {size:,} bytes; expected {end:,}; use another copy")
    file.seek(0)
    return _load(file)


def _load(file: IO[bytes]) -> Any:
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # warnings about old protocols and classes
            return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except MemoryError:
        raise
    except Exception as error:  # UnpicklingError, RuntimeError, TypeError …, depending on the content
        first = str(error).strip().partition("\n")[0]
        raise RefusedFileError(
            f"cannot be read with torch.load(weights_only=True) ({printable(first, 200)}); {SAVE_WEIGHTS}"
        ) from None


def _what_else(start: bytes, file: IO[bytes]) -> str:
    if not start:
        return "is empty"
    if start[257:262] == b"ustar":
        return (
            "is in the tar format from before PyTorch 0.1.12, which can only be read by unpickling; load it "
            "with the PyTorch version that wrote it, and save its state_dict() with a newer version"
        )
    if start.startswith(b"\x80"):
        Inspection().walk(file)  # reports the classes that the file needs, if that is the reason
        return f"is a pickle, but not from torch.save; {SAVE_WEIGHTS}"
    text = start.lstrip().lower()
    if text.startswith(b"version https://git-lfs"):
        return "is only a Git LFS pointer; run `git lfs pull` to fetch the file"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a checkpoint; download it again"
    return (
        "is not in a known checkpoint format; expected a file written by torch.save or safetensors "
        "(.pt, .pth, .ckpt, .bin, .safetensors)"
    )
