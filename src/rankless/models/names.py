"""Check model names."""

from __future__ import annotations

from rankless.errors import UserError


def problem(task: str, name: str) -> str | None:
    """Return an error message if a task has no model with the given name, otherwise None.

    The model names of custom tasks are not checked.
    """
    try:
        if task == "detect":
            from rankless.models.zoo import check_name

            check_name(name)
        elif task == "classify":
            from rankless.models.classifiers.catalog import classifier_named

            classifier_named(name)
    except UserError as error:
        return "; ".join(error.problems)
    return None
