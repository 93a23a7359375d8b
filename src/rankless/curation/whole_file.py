"""A file that is there as a whole or not at all: a full disk leaves no empty one, and spares the old one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankless.errors import UserError


@contextmanager
def whole_file(out: Path, option: str = "--out") -> Iterator[Path]:
    """Another name beside ``out``, with its ending, to write to; renamed to ``out`` at the end.

    Raises:
        UserError: it cannot be written; then nothing is left of it.
    """
    target = Path(os.path.realpath(out))  # a link goes on leading where it led
    made: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        file, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
        os.close(file)
        made = Path(name)
        yield made
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o666 & ~mask)
        made.replace(target)
    except OSError as error:
        raise UserError(f"{option} {out}: it cannot be written: {error.strerror or error}") from error
    finally:
        if made is not None:
            made.unlink(missing_ok=True)
