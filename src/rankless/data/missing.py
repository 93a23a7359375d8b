"""Whether there is anything where data is looked for."""

from __future__ import annotations

from pathlib import Path

from rankless.files.remote import is_remote


def missing_data(root: str) -> list[str]:
    """Return the problem that there is nothing at ``root``, or nothing."""
    if is_remote(root):  # asking for it takes its libraries and a while
        return []
    path = Path(root).expanduser()
    if path.exists():
        return []
    if root.startswith("torchvision/"):
        return [
            f"{root}: a name for recipes (data.root={root} data.folder=FOLDER); expected the folder itself "
            "here; give that, such as data/cifar-10-batches-py"
        ]
    where = f" at {path.absolute()}" if root != str(path.absolute()) else ""
    return [
        f"{root}: no such file or folder{where}; expected a folder, a file such as "
        "'data.yaml', or 'digits' for the built-in data"
    ]
