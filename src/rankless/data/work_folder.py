"""A hidden folder beside a new one, for what is not whole yet; one that a killed process left goes."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankless.data.cache_folder import hold, remove_unheld


class _Holder:
    """As long as it lives, the folder is held."""


@contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """A new folder ``.NAME-…`` beside ``out``, which goes at the end unless it was renamed.

    Those of earlier processes that were killed are removed first; those of living ones stay.

    Raises:
        OSError: it cannot be made.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    left = re.compile(rf"\.{re.escape(out.name)}-[a-z0-9_]{{8}}")  # as mkdtemp names them
    for folder in [each for each in out.parent.iterdir() if left.fullmatch(each.name) and each.is_dir()]:
        if not folder.is_symlink():
            remove_unheld(folder)
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    holder = _Holder()
    hold(made, holder)
    try:
        made.chmod(0o777 & ~_umask())
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        del holder


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
