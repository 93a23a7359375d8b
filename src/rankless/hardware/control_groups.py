"""The control groups (containers) that limit this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group, and whether the group uses version 2.

    Ancestors are included because their limits apply as well. In a container, the folder of the process's own
    group may be missing. ``root`` is the folder that contains ``proc`` and ``sys``.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = [name for name in path.split("/") if name not in ("", ".", "..")]
        if not controllers:
            mounts = [root / "sys/fs/cgroup"]
        else:
            matches = controller in controllers.split(",")
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller) if matches]
        for mount in mounts:
            for count in range(len(names), -1, -1):
                yield mount.joinpath(*names[:count]), not controllers
