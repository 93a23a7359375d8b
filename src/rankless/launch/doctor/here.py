"""Checks that each machine runs itself, such as for leftover ranks, the network and disks."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import platform
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from rankless.errors import UserError, counted, in_gb
from rankless.files.writing import flush
from rankless.hardware.network import addresses_of, interfaces, is_loopback, mtu_of
from rankless.launch.doctor import machine
from rankless.launch.doctor.check import Check, error, ok, run, warning
from rankless.launch.doctor.machine import GB
from rankless.recipe.schema import Recipe


def space(run: Path, free: int | None = None) -> Check:
    """Check the disk space for checkpoints in ``run``, which need not exist yet."""
    folder = existing(run)
    free = shutil.disk_usage(folder).free if free is None else free
    value, fix = (
        f"{in_gb(free)} free in {folder}",
        f"make room (du -xsh {folder}/* | sort -h), or another --run",
    )
    if free < GB:
        return error("disk", value, fix)
    return warning("disk", value, fix) if free < 10 * GB else ok("disk", value)


def _flush(file: IO[bytes]) -> None:
    file.write(b"rankless doctor\n")
    os.fsync(file.fileno())


def _lock(file: IO[bytes]) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _rename(file: IO[bytes]) -> None:
    other = Path(f"{file.name}-renamed")
    Path(file.name).rename(other)
    try:
        flush(other.parent)
    finally:
        other.rename(file.name)


_STEPS: dict[str, Callable[[IO[bytes]], None]] = {"fsync": _flush, "flock": _lock, "rename": _rename}


def writing(run: Path, steps: dict[str, Callable[[IO[bytes]], None]] | None = None) -> Check:
    """Check that files in ``run`` or its nearest existing parent can be flushed, locked and renamed."""
    folder, failed = existing(run), []
    fix = f"let this user write to {folder}, or give a --run on a local disk, NFS 4 or Lustre with flock"
    try:
        file = tempfile.NamedTemporaryFile("wb", buffering=0, prefix=".rankless-doctor-", dir=folder)  # noqa: SIM115
    except OSError as problem:
        return error("run directory", f"{folder}: no file can be made ({problem.strerror})", fix)
    with file:
        for name, step in (_STEPS if steps is None else steps).items():
            try:
                step(file)
            except OSError as problem:
                failed.append(f"{name} ({problem.strerror})")
    if failed:
        return error("run directory", f"{folder}: cannot do {', '.join(failed)}", fix)
    return ok("run directory", f"{folder}: writes, locks and renames")


def existing(path: Path) -> Path:
    """Return the path itself, or its nearest existing parent."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_TORCHRUN_PORT = 29500
_CONTAINERS = ("docker", "br-", "virbr", "cni", "flannel", "veth", "podman")


def own_name(
    name: str | None = None, found: Sequence[str] | None = None, own: Sequence[str] | None = None
) -> Check:
    """Check the addresses of the machine's own name."""
    name = name or platform.node()
    found = addresses_of(name) if found is None else found
    own = [address for every in interfaces().values() for address in every] if own is None else own
    public = next((one for one in own if not is_loopback(one) and not _is_link_local(one)), "ITS-ADDRESS")
    fix = f"in /etc/hosts: {public} {name}"
    if not found:
        return warning("own name", f"{name} cannot be resolved", fix)
    value = f"{name} → {', '.join(found)}"
    if is_loopback(found[0]):
        return warning("own name", f"{value}: ranks elsewhere cannot reach that", f"{fix}, and no other line")
    if own and (stray := [one for one in found if one.partition("%")[0] not in own]):
        return warning("own name", f"{value}: this machine does not have {', '.join(stray)}", fix)
    return ok("own name", value)


def addresses(found: Mapping[str, Sequence[str]] | None = None) -> Check:
    """Check the interfaces, their addresses and MTUs."""
    found = interfaces() if found is None else found
    shown = []
    families = set()
    for name, every in found.items():
        usable = [one for one in every if not is_loopback(one) and not _is_link_local(one)]
        if usable:
            shown.append(f"{name} {', '.join(usable)} (MTU {mtu_of(name) or 'unknown'})")
        if not name.startswith(_CONTAINERS):
            families |= {6 if ":" in one else 4 for one in usable}
    if not shown:
        fix = "for several machines: ip link set DEVICE up, ip addr add ADDRESS/24 dev DEVICE"
        return warning("interfaces", "none besides the loopback", fix)
    value = f"{'; '.join(shown)}; IPv{' and IPv'.join(map(str, sorted(families))) or '4 of containers alone'}"
    return ok("interfaces", value)


def chosen_interface(
    environment: Mapping[str, str] = os.environ, found: Mapping[str, Sequence[str]] | None = None
) -> Check:
    """Check the interface that environment variables name for gloo and NCCL."""
    found = interfaces() if found is None else found
    asked = {name: environment[name] for name in _VARIABLES if environment.get(name)}
    missing = {
        variable: value
        for variable, value in asked.items()
        if not any(_is_meant(value, name) for name in found)
    }
    value = ", ".join(f"{name}={chosen}" for name, chosen in asked.items())
    if missing:
        fix = f"unset {' '.join(missing)}, or name one of {', '.join(found)}"
        return error("chosen interface", f"{value}, which is not there", fix)
    return ok("chosen interface", value or "the one that leads to the others")


def rendezvous_port(port: int = _TORCHRUN_PORT) -> Check:
    """Check that torchrun's usual port is free."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE:
                raise
            fix = f"ss -ltnp 'sport = :{port}' shows it; end it if it is left, or: torchrun --master-port …"
            return warning("port", f"another program listens on {port}, which torchrun uses", fix)
    return ok("port", f"{port} is free")


def _is_meant(value: str, interface: str) -> bool:
    """Check whether the value of a gloo or NCCL variable names an interface."""
    if value.startswith("^"):
        return True
    exact = value.startswith("=")
    names = value.lstrip("=").split(",")
    return any(
        interface == name.partition(":")[0] or (not exact and interface.startswith(name)) for name in names
    )


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local


_RANK = re.compile(r"rank[ -]\d+|loader server")
# In a container, the launcher of ranks may be the first process.
_LAUNCHER = re.compile(rb"rankless|torch|slurm|srun|mpi|orted|prted|hydra|ray")
_REAPERS = ("systemd", "init", "tini", "dumb-init", "docker-init")


@dataclass(frozen=True)
class Process:
    """A process as the kernel describes it."""

    id: int
    parent: int
    name: str
    command: bytes
    user: int


def processes(root: Path = Path("/proc")) -> list[Process]:
    """Return all visible processes."""
    found = []
    for folder in root.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            name, rest = stat.partition("(")[2].rpartition(")")[::2]
            state, parent = rest.split()[:2]
            if state != "Z":
                command = (folder / "cmdline").read_bytes()
                found.append(Process(int(folder.name), int(parent), name, command, folder.stat().st_uid))
        except (OSError, ValueError):  # it has ended
            continue
    return found


def leftovers(found: Iterable[Process] | None = None, user: int | None = None) -> Check:
    """Check for ranks of this user whose launcher is gone."""
    user = os.getuid() if user is None else user
    every = {process.id: process for process in (processes() if found is None else found)}
    ranks = [one for one in every.values() if one.user == user and _RANK.fullmatch(one.name)]
    left = [rank for rank in ranks if _is_adopted(every.get(rank.parent))]
    if left:
        numbers = " ".join(str(rank.id) for rank in left)
        names = ", ".join(sorted({rank.name for rank in left}))
        value = f"{counted(len(left), 'process', 'processes')} without a launcher ({names})"
        return error("leftover ranks", value, f"kill {numbers}; kill -9 {numbers} if they stay")
    return ok("leftover ranks", f"none; {counted(len(ranks), 'rank')} at work" if ranks else "none")


def _is_adopted(parent: Process | None) -> bool:
    """Check whether a process has lost the parent that started it."""
    if parent is None:  # outside this container
        return False
    is_reaper = parent.id == 1 or parent.name in _REAPERS
    return is_reaper and not _LAUNCHER.search(parent.command)


_LIMIT = 30.0  # seconds, imports included
DATA_LIMIT = 300.0
"""Seconds that reading the data for the first time may take."""


def checks(directory: Path, threads: int = 1) -> list[Check]:
    """Run all checks of this machine."""
    return run(
        {
            "software": machine.software,
            "CPU": machine.processor,
            "cores": partial(machine.cores, threads=threads),
            "memory": machine.memory,
            "GPU": machine.gpus,
            "/dev/shm": machine.shared_memory,
            "ulimit -n": machine.open_files,
            "ulimit -l": machine.locked_memory,
            "own name": own_name,
            "interfaces": addresses,
            "chosen interface": chosen_interface,
            "port": rendezvous_port,
            "disk": partial(space, directory),
            "run directory": partial(writing, directory),
            "leftover ranks": leftovers,
        },
        _LIMIT,
    )


def data(recipe: Recipe) -> Check:
    """Check that the data can be read."""

    def look() -> Check:
        from rankless.tasks import data_digest

        try:
            return of_data(recipe.data.root, data_digest(recipe), [])
        except UserError as problem:
            return of_data(recipe.data.root, None, list(problem.problems))

    return run({"data": look}, DATA_LIMIT)[0]


def of_data(root: str, digest: str | None, problems: list[str]) -> Check:
    """Return the finding about the data at ``root``: its digest, or the problems found when reading it."""
    if problems:
        return error("data", "; ".join(problems), f"rankless data check {root}")
    return ok("data", f"{root}, digest {digest[:12]}" if digest else root)
