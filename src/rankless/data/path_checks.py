"""Check that a data path exists."""

from __future__ import annotations

from pathlib import Path

from rankless.data import builtin
from rankless.errors import UserError
from rankless.files.remote import is_remote


def refuse_gone(root: str, before: str, weights: Path) -> None:
    """Raise an error if a model would be evaluated on its training data, but the data no longer exists.

    ``root`` and ``before`` are ``data.root`` of the evaluation and of the training run.
    """
    if root == before and missing_data(root):
        where = "" if Path(root).is_absolute() else f" at {Path(root).resolve()}"
        raise UserError(
            f"{weights}: this model was trained on data.root={root}, which does not exist{where}; add "
            "data.root=FOLDER"
        )


def missing_data(root: str) -> list[str]:
    """Return a list with one error message if nothing exists at ``root``, otherwise an empty list."""
    by_name = builtin.is_built_in(root) or root.startswith("torchvision/") or is_remote(root)
    path = Path(root).expanduser()
    if by_name or path.exists():  # in this order, because a request to a server is slow
        return []
    where = f" at {path.absolute()}" if root != str(path.absolute()) else ""
    return [
        f"{root}: no such file or folder{where}; expected a folder, a file such as 'data.yaml', or "
        f"{' or '.join(map(repr, builtin.names()))} for the built-in data"
    ]
