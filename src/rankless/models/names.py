"""Check model names."""

from __future__ import annotations

from rankless.errors import UserError
from rankless.task_kinds import BUILT_IN, kind_of


def problem(task: str, name: str) -> str | None:
    """Return an error message if a task has no model with the given name, otherwise None.

    The model names of custom tasks are not checked.
    """
    try:
        if task in BUILT_IN:
            kind_of(task).check_name(name)
    except UserError as error:
        return "; ".join(error.problems)
    return None
