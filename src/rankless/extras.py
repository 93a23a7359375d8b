"""Import of optional libraries: the extras of ``pip install 'rankless[NAME]'``."""

from __future__ import annotations

import importlib
from typing import Any

from rankless.errors import UserError


def needed(module: str, extra: str, where: str) -> Any:
    """Import and return a module of an optional library.

    Args:
        module: the module's name.
        extra: the extra of this package that installs the library.
        where: the option or file that needs the library, for the start of the message.

    Raises:
        UserError: the library is not installed or cannot be imported.
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
