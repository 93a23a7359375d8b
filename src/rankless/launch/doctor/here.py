"""Check this machine: software, processors, limits, network, disks and ranks."""

from __future__ import annotations

import errno
import fcntl
import importlib
import ipaddress
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from rankless import __version__
from rankless.errors import UserError, counted, in_gb, shell_word
from rankless.files.writing import flush
from rankless.hardware import instruction_set
from rankless.hardware.cores import usable_cores
from rankless.hardware.memory import available
from rankless.hardware.network import addresses_of, interfaces, is_loopback, mtu_of
from rankless.launch.doctor.check import Check, error, ok, run, warning
from rankless.recipe.schema import Recipe

GB = 1_000_000_000
_SHM = Path("/dev/shm")
_FEW_FILES, _FEWER_FILES = 1024, 256


def software(running: str = __version__, installed: str | None = None) -> Check:
    """Check the versions of Python, PyTorch and Rankless."""
    try:
        installed = installed or metadata.version("rankless")
    except metadata.PackageNotFoundError:  # the code was copied here, not installed
        installed = running
    value = f"rankless {running}, torch {metadata.version('torch')}, Python {platform.python_version()}"
    if installed != running:
        return warning(
            "software",
            f"{value}, but rankless {installed} is installed",
            f"check PYTHONPATH, or install rankless {running}",
        )
    return ok("software", f"{value} ({sys.executable})")


def processor(model: str | None = None, flags: frozenset[str] | None = None) -> Check:
    """Check the CPU and its instruction set."""
    model = model or instruction_set.model()
    flags = instruction_set.flags() if flags is None else flags
    best = instruction_set.of_onednn(flags)
    value = f"{model}, {best or platform.machine()}"
    if flags and "avx2" not in flags:
        return warning(
            "CPU", f"{value}: no AVX2, so training is slow", "use a newer processor, or cpu_isa=native"
        )
    return ok("CPU", value)


def cores(root: Path = Path("/"), every: int | None = None, threads: int = 1) -> Check:
    """Check that there are enough usable cores for a rank with ``threads`` threads."""
    usable, every = usable_cores(root), every or os.cpu_count() or 1
    value = f"{usable} of {every}"
    if usable < every:
        value += " (limited by CPU affinity or a control group)"
    if usable < threads:
        return warning(
            "cores",
            f"{value}, but a rank uses {threads} threads",
            f"use threads={usable}, or give the container more cores, as in: docker run --cpus {threads}",
        )
    return ok("cores", value)


def memory(free: int | None = None) -> Check:
    free = available() if free is None else free
    value = f"{in_gb(free)} free"
    fix = "close other programs (list them with ps aux --sort=-rss | head), or raise the container's limit"
    if free < GB // 2:
        return error("memory", value, fix)
    return warning("memory", value, fix) if free < 2 * GB else ok("memory", value)


def shared_memory(folder: Path = _SHM, free: int | None = None) -> Check:
    """Check the free space in /dev/shm, through which loader processes pass batches."""
    fix = "use docker run --shm-size 8g, or run mount -o remount,size=8G /dev/shm"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as problem:
        return error("/dev/shm", f"does not exist ({problem.strerror})", fix)
    free = usage.free if free is None else free
    value = f"{in_gb(free)} free of {in_gb(usage.total)}"
    if free < GB // 8:
        return error("/dev/shm", f"{value}: loader processes can die with a bus error", fix)
    return warning("/dev/shm", value, fix) if free < GB else ok("/dev/shm", value)


def open_files(limit: int | None = None) -> Check:
    """Check ``ulimit -n``, which limits the number of open files and sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = soft if limit is None else limit
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    fix = f"run ulimit -n {wanted} (hard limit: {most})"
    if soft == resource.RLIM_INFINITY:
        return ok("ulimit -n", "unlimited")
    if soft < _FEWER_FILES:
        return error("ulimit -n", str(soft), fix)
    return warning("ulimit -n", str(soft), fix) if soft < _FEW_FILES else ok("ulimit -n", str(soft))


def locked_memory(limit: int | None = None, devices: Path = Path("/sys/class/infiniband")) -> Check:
    """Check ``ulimit -l``, which limits the memory for RDMA and matters only with InfiniBand or RoCE."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    names = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    if soft == resource.RLIM_INFINITY:
        return ok("ulimit -l", "unlimited")
    value = f"{soft // 1024:,} KiB"
    if names:
        fix = (
            "raise memlock in /etc/security/limits.conf and run ulimit -l unlimited, or use docker run "
            "--ulimit memlock=-1"
        )
        return warning("ulimit -l", f"{value}: NCCL cannot register memory with {', '.join(names)}", fix)
    return ok("ulimit -l", f"{value} (there is no InfiniBand)")


@dataclass(frozen=True)
class Cards:
    """The visible GPUs and their software."""

    names: Sequence[str]
    free: Sequence[float]  # fraction (0–1) of each GPU's memory
    driver: str  # empty if there is none
    library: str
    switched: bool  # whether there is an NVSwitch
    managed: bool  # whether the fabric manager is running


def cards(root: Path = Path("/"), torch: Any = None) -> Cards:
    """Return the visible GPUs of this machine.

    ``root`` is the folder that contains ``dev`` and ``proc``. ``torch`` is the module that lists the GPUs, by
    default PyTorch.
    """
    from rankless.engine.environment import nvidia_driver

    torch = torch or importlib.import_module("torch")
    names: list[str] = []
    free: list[float] = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            left, total = torch.cuda.mem_get_info(number)
            names.append(torch.cuda.get_device_name(number))
            free.append(left / total)
    library = f"PyTorch for CUDA {torch.version.cuda}" if torch.version.cuda else ""
    if names and torch.distributed.is_nccl_available():
        library += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    running: set[str] = set()
    for path in (root / "proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # the process has ended
            running.add(path.read_text(encoding="utf-8", errors="replace").strip())
    return Cards(
        names,
        free,
        nvidia_driver(root / "proc/driver/nvidia/version") or "",
        library,
        any((root / "dev").glob("nvidia-nvswitch*")),
        any(name.startswith("nv-fabricmanage") for name in running),
    )


def gpus(seen: Cards | None = None) -> Check:
    """Check that PyTorch sees the GPUs, and that they are idle, connected and of the same model."""
    seen = seen or cards()
    if not seen.names:
        if not seen.driver:
            return ok("GPU", "none: training runs on the CPU")
        return error(
            "GPU",
            f"driver {seen.driver}, but PyTorch sees no GPU ({seen.library or 'PyTorch for CPUs'})",
            "check that nvidia-smi lists the GPUs and that CUDA_VISIBLE_DEVICES is not empty, or install a "
            "version of PyTorch for the CUDA version of this driver",
        )
    counts = {name: list(seen.names).count(name) for name in dict.fromkeys(seen.names)}
    kinds = ", ".join(f"{count} × {name}" for name, count in counts.items())
    value = f"{kinds}, driver {seen.driver}, {seen.library}"
    if seen.switched and not seen.managed:
        return error(
            "GPU",
            f"{value}; the fabric manager of the NVSwitch is not running",
            "run sudo systemctl enable --now nvidia-fabricmanager",
        )
    if len(counts) > 1:
        return warning(
            "GPU",
            value,
            "select GPUs of one model with CUDA_VISIBLE_DEVICES, because different GPUs round differently",
        )
    if busy := [str(number) for number, share in enumerate(seen.free) if share < 0.5]:
        what = counted(len(busy), "GPU")
        return warning(
            "GPU",
            f"{value}; more than half of the memory is in use on {what} ({', '.join(busy)})",
            "find the processes with nvidia-smi",
        )
    return ok("GPU", value)


def space(run: Path, free: int | None = None) -> Check:
    """Check the disk space for checkpoints in ``run``, which need not exist yet."""
    folder = existing(run)
    free = shutil.disk_usage(folder).free if free is None else free
    value, fix = (
        f"{in_gb(free)} free in {folder}",
        f"make room (find large folders with du -xsh {folder}/* | sort -h), or use another --run",
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
    fix = (
        f"give this user write access to {folder}, or use a --run on a local disk, NFS 4 or Lustre with flock"
    )
    try:
        file = tempfile.NamedTemporaryFile("wb", buffering=0, prefix=".rankless-doctor-", dir=folder)  # noqa: SIM115
    except OSError as problem:
        return error("run directory", f"{folder}: cannot create files ({problem.strerror})", fix)
    with file:
        for name, step in (_STEPS if steps is None else steps).items():
            try:
                step(file)
            except OSError as problem:
                failed.append(f"{name} ({problem.strerror})")
    if failed:
        return error("run directory", f"{folder}: not supported: {', '.join(failed)}", fix)
    return ok("run directory", f"{folder}: files can be written, locked and renamed")


def existing(path: Path) -> Path:
    """Return ``path`` if it is a folder; otherwise, return its nearest existing parent."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_TORCHRUN_PORT = 29500
_CONTAINERS = ("docker", "br-", "virbr", "cni", "flannel", "veth", "podman")


def own_name(
    name: str | None = None, found: Sequence[str] | None = None, own: Sequence[str] | None = None
) -> Check:
    """Check the addresses to which this machine's name resolves."""
    name = name or platform.node()
    found = addresses_of(name) if found is None else found
    own = [address for every in interfaces().values() for address in every] if own is None else own
    public = next((one for one in own if not is_loopback(one) and not _is_link_local(one)), "ITS-ADDRESS")
    fix = f"add this line to /etc/hosts: {public} {name}"
    if not found:
        return warning("own name", f"{name} cannot be resolved", fix)
    value = f"{name} → {', '.join(found)}"
    if is_loopback(found[0]):
        return warning(
            "own name",
            f"{value}: ranks on other machines cannot reach this address",
            f"{fix} (and remove other lines with this name)",
        )
    if own and (stray := [one for one in found if one.partition("%")[0] not in own]):
        return warning("own name", f"{value}: no interface of this machine has {', '.join(stray)}", fix)
    return ok("own name", value)


def addresses(found: Mapping[str, Sequence[str]] | None = None) -> Check:
    """Check the network interfaces, their addresses and their MTUs."""
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
        fix = "to use several machines, run ip link set DEVICE up and ip addr add ADDRESS/24 dev DEVICE"
        return warning("interfaces", "only the loopback interface", fix)
    value = f"{'; '.join(shown)}; IPv{' and IPv'.join(map(str, sorted(families))) or '4 for containers only'}"
    return ok("interfaces", value)


def chosen_interface(
    environment: Mapping[str, str] = os.environ, found: Mapping[str, Sequence[str]] | None = None
) -> Check:
    """Check the network interface that the environment variables of gloo and NCCL select."""
    found = interfaces() if found is None else found
    given = {name: environment[name] for name in _VARIABLES if environment.get(name)}
    missing = {
        variable: value
        for variable, value in given.items()
        if not any(_selects(value, name) for name in found)
    }
    value = ", ".join(f"{name}={chosen}" for name, chosen in given.items())
    if missing:
        fix = f"unset {' and '.join(missing)}, or choose from {', '.join(found)}"
        wrong = ", ".join(f"{name}={chosen}" for name, chosen in missing.items())
        return error("chosen interface", f"{wrong}: no such interface", fix)
    return ok("chosen interface", value or "not set: the interface that reaches the other hosts is used")


def rendezvous_port(port: int = _TORCHRUN_PORT) -> Check:
    """Check that torchrun's default port is free."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE:
                raise
            fix = f"find it with ss -ltnp 'sport = :{port}' and stop it, or use torchrun --master-port …"
            return warning("port", f"another program listens on {port}, the default port of torchrun", fix)
    return ok("port", f"{port} is free")


def _selects(value: str, interface: str) -> bool:
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
    """A process in ``/proc``."""

    id: int
    parent: int
    name: str
    command: bytes
    user: int


def processes() -> list[Process]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            name, rest = stat.partition("(")[2].rpartition(")")[::2]
            state, parent = rest.split()[:2]
            if state != "Z":
                command = (folder / "cmdline").read_bytes()
                found.append(Process(int(folder.name), int(parent), name, command, folder.stat().st_uid))
        except (OSError, ValueError):  # the process has ended
            continue
    return found


def leftovers(found: Iterable[Process] | None = None, user: int | None = None) -> Check:
    """Check for ranks of this user whose launcher has exited."""
    user = os.getuid() if user is None else user
    every = {process.id: process for process in (processes() if found is None else found)}
    ranks = [one for one in every.values() if one.user == user and _RANK.fullmatch(one.name)]
    left = [rank for rank in ranks if _is_adopted(every.get(rank.parent))]
    if left:
        numbers = " ".join(str(rank.id) for rank in left)
        names = ", ".join(sorted({rank.name for rank in left}))
        value = f"{counted(len(left), 'process', 'processes')} without a launcher ({names})"
        return error(
            "leftover ranks", value, f"run kill {numbers}, or kill -9 {numbers} if that does not help"
        )
    return ok("leftover ranks", f"none; {counted(len(ranks), 'rank')} with a launcher" if ranks else "none")


def _is_adopted(parent: Process | None) -> bool:
    """Check whether ``parent`` is a process that adopts orphans rather than a launcher."""
    if parent is None:  # the parent is outside this container
        return False
    is_reaper = parent.id == 1 or parent.name in _REAPERS
    return is_reaper and not _LAUNCHER.search(parent.command)


_LIMIT = 30.0  # seconds for all checks, including imports
DATA_LIMIT = 300.0  # seconds for reading the data for the first time


def checks(directory: Path, threads: int = 1) -> list[Check]:
    """Run all checks on this machine, and return the findings."""
    return run(
        {
            "software": software,
            "CPU": processor,
            "cores": partial(cores, threads=threads),
            "memory": memory,
            "GPU": gpus,
            "/dev/shm": shared_memory,
            "ulimit -n": open_files,
            "ulimit -l": locked_memory,
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
    """Check that the recipe's data can be read."""

    def check() -> Check:
        from rankless.tasks import data_digest

        try:
            return data_finding(recipe.data.root, data_digest(recipe), [])
        except UserError as problem:
            return data_finding(recipe.data.root, None, list(problem.problems))

    return run({"data": check}, DATA_LIMIT)[0]


def data_finding(root: str, digest: str | None, problems: list[str]) -> Check:
    if problems:
        return error("data", "; ".join(problems), f"run rankless data check {shell_word(root)}")
    return ok("data", f"{root}, digest {digest[:12]}" if digest else root)
