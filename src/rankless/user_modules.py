"""Import classes and modules of the user's own: tasks, sinks, detector families and data formats.

They are named ``package.module:Class`` or ``path/to/file.py:Class``, and a data format is a whole module,
``package.module`` or ``path/to/file.py``. A file outside a package, such as a script, is imported under a
private name that encodes its path, so that any process that needs one of its classes can import it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from rankless.errors import UserError, counted, one_of
from rankless.task_kinds import BUILT_IN
from rankless.user_code import is_users

_ELSEWHERE = "; run the command in the folder that contains it, or install it"
_is_opening = False

# This makes the import system treat this module as a package, whose modules are files named by their paths.
__path__: list[str] = []
_PREFIX = f"{__name__}.file_"


class _ByPath:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(_PREFIX):
            return None
        return importlib.util.spec_from_file_location(
            name, os.fsdecode(bytes.fromhex(name.removeprefix(_PREFIX)))
        )


if not any(getattr(finder, "__qualname__", "") == _ByPath.__qualname__ for finder in sys.meta_path):
    sys.meta_path.append(_ByPath)


def absolute(name: str) -> str:
    """Make the path in the name of a class or module absolute, so that it is valid in any folder."""
    origin, colon, rest = (name, "", "") if _is_file(name) else name.rpartition(":")
    return f"{Path(origin).resolve()}{colon}{rest}" if _is_file(origin) else name


def name_of(task: type | str, kind: str = "task") -> str:
    """Return the name by which other processes can import a class. A name is returned unchanged.

    Error messages call the class a ``kind``: ``task`` or ``sink``.
    """
    if isinstance(task, str):
        return task
    if not isinstance(task, type):
        raise UserError(
            f"{kind} is {task!r}: expected a class, such as My{kind.title()}, or its name "
            f"'package.module:My{kind.title()}'"
        )
    if "." in task.__qualname__:
        raise UserError(
            f"{kind} is {task.__qualname__}, which is defined in a function or class, so the ranks "
            "cannot import it; define it at the top level of a module"
        )
    module = sys.modules.get(task.__module__)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UserError(
            f"{kind} is {task.__qualname__} in '{task.__module__}', which is not a file, so the ranks cannot "
            f"import it; move the class to a file, such as my_{kind}.py"
        )
    spec = getattr(module, "__spec__", None)
    if task.__module__ != "__main__":
        return f"{_importable(task.__module__, Path(file))}:{task.__qualname__}"
    # A script has an importable name under `python -m package.script`, but not under `python script.py`.
    return f"{spec.name if spec else Path(file).resolve()}:{task.__qualname__}"


@contextmanager
def opening() -> Iterator[None]:
    """Mark that the user's code is being imported or opened; see :func:`refuse_while_opening`."""
    global _is_opening
    before, _is_opening = _is_opening, True
    try:
        yield
    finally:
        _is_opening = before


def refuse_while_opening() -> None:
    """Raise an error if training is started while the user's code is being imported."""
    if _is_opening:
        raise UserError(
            "importing the task started training, but every rank imports its file; put the call to "
            'rankless.train under `if __name__ == "__main__":`'
        )


def load_class(name: str, kind: str) -> Any:
    """Import a class by its name, ``package.module:Class`` or ``file.py:Class``.

    ``kind`` is ``task``, ``sink`` or the recipe's key, for error messages.
    """
    origin, _, attribute = name.rpartition(":")
    what = f"{kind} is '{name}'"
    if not origin:
        known = f"{', '.join(map(repr, BUILT_IN))}, " if kind == "task" else ""
        raise UserError(f"{what}: expected {known}'package.module:Class' or 'file.py:Class'")
    module = load_module(origin, what, "the class, such as my_task.py:MyTask")
    made = getattr(module, attribute, None)
    if made is None:
        classes = [
            n
            for n, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        known = f"; expected {one_of(classes)}" if classes else ""
        raise UserError(f"{what}: '{origin}' has no '{attribute}'{known}")
    if not callable(made):
        raise UserError(f"{what}: expected a class, found {type(made).__name__}")
    return made


def load_module(name: str, what: str, expected: str) -> ModuleType:
    """Import a module by its name, ``package.module`` or ``file.py``.

    ``what`` begins error messages, and ``expected`` describes what the file contains.
    """
    path = Path(name).resolve()
    if not _is_file(name):
        # As with `python -m`, a user's module may be in the working directory.
        return _imported(name, Path.cwd(), what, f"the module '{name}'", _ELSEWHERE)
    if path.is_file():
        return _imported(_PREFIX + os.fsencode(path).hex(), path.parent, what, str(path))
    raise UserError(f"{what}: no such file {path}; expected the file of {expected}")


def refuse_lacking(made: Any, what: str, members: Mapping[str, str], kind: str = "method") -> None:
    """Raise an error if ``made`` lacks some of the ``members``, whose descriptions the error lists.

    Members whose descriptions begin like a call, as in ``loss(self, …)``, must be callable.
    """
    found = {name: getattr(made, name, None) for name in members}
    missing = [
        members[name]
        for name, one in found.items()
        if one is None or (not callable(one) and members[name].startswith(f"{name}("))
    ]
    if missing:
        raise UserError([f"{what}, which lacks {counted(len(missing), f'required {kind}')}; add:", *missing])


def _is_file(origin: str) -> bool:
    return origin.endswith(".py")


def _imported(name: str, folder: Path, begin: str, what: str, advice: str = "") -> ModuleType:
    """Import a module that may import others from ``folder``, as Python does for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with opening():
            return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{begin}: {what} cannot be imported ({error}){advice}") from error
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        problem = f"{error.filename}:{error.lineno} is not valid Python ({error.msg}){line}"
        raise UserError(f"{begin}: {problem}") from error


def _importable(name: str, file: Path) -> str:
    """Return a module's name if a new process in this folder can import it, otherwise its file's path."""
    file = file.resolve()
    installed = not is_users(str(file)) or any(
        file.is_relative_to(folder) for folder in map(sysconfig.get_path, ("purelib", "platlib"))
    )
    loose = "." not in name and file.stem == name
    return str(file) if loose and not installed and file.parent != Path.cwd() else name
