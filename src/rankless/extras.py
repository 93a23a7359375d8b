"""Libraries that only some users need: the extras of ``pip install 'rankless[NAME]'``."""

from __future__ import annotations

import importlib
from typing import Any

from rankless.errors import UserError


def needed(module: str, extra: str, where: str) -> Any:
    """Import a library of an extra.

    Args:
        module: its name in an import.
        extra: the extra of this package that brings it.
        where: what needs it: an option or a file, with which the message begins.

    Returns:
        The module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == name
        why = "" if is_missing else f", which is installed but cannot be imported ({error})"
        raise UserError(
            f"{where}: needs {name}{why}; install it with: pip install 'rankless[{extra}]'"
        ) from error
