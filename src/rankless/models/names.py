"""A check of model names."""

from __future__ import annotations

from rankless.errors import UserError


def problem(task: str, name: str) -> str | None:
    """Return the problem with a model's name; empty if there is none.

    Args:
        task: ``detect``, ``classify``, or a custom one, whose names only it knows.
        name: the recipe's ``model.name``.

    Returns:
        A sentence; None if there is such a model.
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
