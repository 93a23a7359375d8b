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
    if root == before and not root.startswith("torchvision/") and missing_data(root):
        where = "" if Path(root).is_absolute() else f" at {Path(root).resolve()}"
        raise UserError(
            f"{weights}: this model was trained on data.root={root}, which does not exist{where}; add "
            "data.root=FOLDER"
        )


def missing_data(root: str) -> list[str]:
    """Return a list with one error message if nothing exists at ``root``, otherwise an empty list."""
    if builtin.is_built_in(root) or is_remote(root):  # for a URL, this avoids a slow request
        return []
    path = Path(root).expanduser()
    if path.exists():
        return []
    if root.startswith("torchvision/"):
        return [
            f"{root}: this name is valid only in recipes (data.root={root} data.folder=FOLDER); give a "
            "folder such as data/cifar-10-batches-py"
        ]
    where = f" at {path.absolute()}" if root != str(path.absolute()) else ""
    return [
        f"{root}: no such file or folder{where}; expected a folder, a file such as 'data.yaml', or "
        f"{' or '.join(map(repr, builtin.names()))} for the built-in data"
    ]
