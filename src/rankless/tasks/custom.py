"""Custom tasks, named ``package.module:Class`` or ``path/to/file.py:Class`` in a recipe.

A file outside a package, such as a script, is imported under a private name that encodes its path, so that
any process that needs one of its classes can import it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from rankless.errors import UserError, one_of, printable
from rankless.recipe.schema import Recipe
from rankless.tasks.checks import check_members
from rankless.tasks.protocol import Task
from rankless.user_code import is_users

BUILT_IN = ("detect", "classify")
_ELSEWHERE = "; run the command in the folder that contains it, or install it"
_opening = False

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


def open_custom(recipe: Recipe) -> Task:
    """Open the custom task that ``recipe.task`` names."""
    global _opening
    before, _opening = _opening, True
    try:
        made = load_class(recipe.task, "task")
        check_members(made, recipe.task)
        task: Task = made(recipe)
    finally:
        _opening = before
    return task


def refuse_unasked(task: str, source: Path) -> None:
    """Raise an error if a custom task is named only by a weights file, because its code would be run."""
    if task not in BUILT_IN:
        raise UserError(
            f"{source}: the recipe names the custom task '{printable(task)}'; if you trust its code, add "
            f"--task {shlex.quote(printable(task))} (in Python, task=…)"
        )


def absolute(task: str) -> str:
    """Make the path in a task's name absolute, so that it is valid in any working directory."""
    origin, _, name = task.rpartition(":")
    return f"{Path(origin).resolve()}:{name}" if _is_file(origin) else task


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


def refuse_while_opening() -> None:
    """Raise an error if training is started while a task is being imported."""
    if _opening:
        raise UserError(
            "importing the task started training, but every rank imports its file; put the call to "
            'rankless.train under `if __name__ == "__main__":`'
        )


def load_class(task: str, kind: str) -> Any:
    """Import the class of a task or sink by its name, ``package.module:Class`` or ``file.py:Class``."""
    origin, _, name = task.rpartition(":")
    if not origin:
        known = f"{', '.join(map(repr, BUILT_IN))}, " if kind == "task" else ""
        raise UserError(f"{kind} is '{task}': expected {known}'package.module:Class' or 'file.py:Class'")
    task = f"{kind} is '{task}'"
    path = Path(origin).resolve()
    if not _is_file(origin):
        # As with `python -m`, a user's module may be in the working directory.
        module = _imported(origin, Path.cwd(), task, f"the module '{origin}'", _ELSEWHERE)
    elif path.is_file():
        module = _imported(_PREFIX + os.fsencode(path).hex(), path.parent, task, str(path))
    else:
        raise UserError(
            f"{task}: no such file {path}; expected the file of the class, such as my_task.py:MyTask"
        )
    made = getattr(module, name, None)
    if made is None:
        classes = [
            n
            for n, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        known = f"; expected {one_of(classes)}" if classes else ""
        raise UserError(f"{task}: '{origin}' has no '{name}'{known}")
    return made


def _is_file(origin: str) -> bool:
    return origin.endswith(".py")


def _imported(name: str, folder: Path, task: str, what: str, advice: str = "") -> ModuleType:
    """Import a module that may import others from ``folder``, as Python does for a script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{task}: {what} cannot be imported ({error}){advice}") from error
    except SyntaxError as error:
        line = f"\n    {error.text.strip()}" if error.text else ""
        problem = f"{error.filename}:{error.lineno} is not valid Python ({error.msg}){line}"
        raise UserError(f"{task}: {problem}") from error


def _importable(name: str, file: Path) -> str:
    """Return a module's name if a new process in this folder can import it, otherwise its file's path."""
    file = file.resolve()
    installed = not is_users(str(file)) or any(
        file.is_relative_to(folder) for folder in map(sysconfig.get_path, ("purelib", "platlib"))
    )
    loose = "." not in name and file.stem == name
    return str(file) if loose and not installed and file.parent != Path.cwd() else name
