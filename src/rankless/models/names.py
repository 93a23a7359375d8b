"""Whether there is a model of a name."""

from __future__ import annotations

from rankless.errors import UserError


def problem(task: str, name: str) -> str | None:
    """Say what is wrong with a model's name.

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
