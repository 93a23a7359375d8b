"""Import optional libraries, which users install with ``pip install 'rankless[NAME]'``."""

from __future__ import annotations

import importlib
from typing import Any

from rankless.errors import UserError


def needed(module: str, extra: str, where: str) -> Any:
    """Import and return a module of an optional library.

    If the library is missing or broken, the error starts with ``where``, the option or file that needs it,
    and recommends installing ``rankless[extra]``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == name
        why = "" if is_missing else f", which is installed but cannot be imported ({error})"
        raise UserError(f"{where}: needs {name}{why}; run `pip install 'rankless[{extra}]'`") from error
