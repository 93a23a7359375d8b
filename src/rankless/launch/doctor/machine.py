"""Checks of a machine's software, processors, memory and limits."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rankless import __version__
from rankless.errors import counted, in_gb
from rankless.hardware import instruction_set
from rankless.hardware.cores import usable_cores
from rankless.hardware.memory import available
from rankless.launch.doctor.check import Check, error, ok, warning

GB = 1_000_000_000
_SHM = Path("/dev/shm")
_FEW_FILES, _FEWER_FILES = 1024, 256


def software(running: str = __version__, installed: str | None = None) -> Check:
    """Check the versions of Python, PyTorch and Rankless."""
    try:
        installed = installed or metadata.version("rankless")
    except metadata.PackageNotFoundError:  # the code was copied here
        installed = running
    value = f"rankless {running}, torch {metadata.version('torch')}, Python {platform.python_version()}"
    if installed != running:
        return warning(
            "software",
            f"{value}, but rankless {installed} is installed",
            f"check that PYTHONPATH is what you want, or install {running}",
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
            "CPU", f"{value}: no AVX2, so training on it is slow", "use a newer processor, or cpu_isa=native"
        )
    return ok("CPU", value)


def cores(root: Path = Path("/"), every: int | None = None, threads: int = 1) -> Check:
    """Check that there are enough usable cores for the ``threads`` of a rank."""
    usable, every = usable_cores(root), every or os.cpu_count() or 1
    value = f"{usable} of {every}"
    if usable < every:
        value += " (the affinity or a control group allows no more)"
    if usable < threads:
        return warning(
            "cores",
            f"{value}, but a rank has {threads} threads",
            f"threads={usable}, or give the container more, as in: docker run --cpus {threads}",
        )
    return ok("cores", value)


def memory(free: int | None = None) -> Check:
    """Check the available memory."""
    free = available() if free is None else free
    value = f"{in_gb(free)} free"
    fix = "end other programs (see: ps aux --sort=-rss | head), or raise the container's limit"
    if free < GB // 2:
        return error("memory", value, fix)
    return warning("memory", value, fix) if free < 2 * GB else ok("memory", value)


def shared_memory(folder: Path = _SHM) -> Check:
    """Check the size of /dev/shm, through which loader processes pass batches."""
    fix = "docker run --shm-size 8g, or: mount -o remount,size=8G /dev/shm"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as problem:
        return error("/dev/shm", f"not there ({problem.strerror})", fix)
    value = f"{in_gb(usage.free)} free of {in_gb(usage.total)}"
    if usage.free < GB // 8:
        return error("/dev/shm", f"{value}: loader processes die with a bus error", fix)
    return warning("/dev/shm", value, fix) if usage.free < GB else ok("/dev/shm", value)


def open_files(limit: int | None = None) -> Check:
    """Check ``ulimit -n``, the limit for sockets to ranks and for files of loader processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = soft if limit is None else limit
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    fix = f"ulimit -n {min(65536, hard) if hard != resource.RLIM_INFINITY else 65536} (at most {most} here)"
    if soft == resource.RLIM_INFINITY:
        return ok("ulimit -n", "unlimited")
    if soft < _FEWER_FILES:
        return error("ulimit -n", str(soft), fix)
    return warning("ulimit -n", str(soft), fix) if soft < _FEW_FILES else ok("ulimit -n", str(soft))


def locked_memory(limit: int | None = None, devices: Path = Path("/sys/class/infiniband")) -> Check:
    """Check ``ulimit -l``, the memory that RDMA may register; it matters only with InfiniBand or RoCE."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    names = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    if soft == resource.RLIM_INFINITY:
        return ok("ulimit -l", "unlimited")
    value = f"{soft // 1024:,} KiB"
    if names:
        fix = "ulimit -l unlimited (memlock in /etc/security/limits.conf), or: docker run --ulimit memlock=-1"
        return warning("ulimit -l", f"{value}: NCCL cannot register memory with {', '.join(names)}", fix)
    return ok("ulimit -l", f"{value} (there is no InfiniBand)")


@dataclass(frozen=True)
class Cards:
    """The visible GPUs and their software.

    Attributes:
        names: names of the GPUs that PyTorch sees.
        free: unused fraction of each one's memory.
        driver: version of the kernel driver; empty without one.
        library: versions of CUDA and NCCL in PyTorch.
        switched: whether there is an NVSwitch.
        managed: whether the fabric manager runs.
    """

    names: Sequence[str]
    free: Sequence[float]
    driver: str
    library: str
    switched: bool
    managed: bool


def cards(root: Path = Path("/")) -> Cards:
    """Return the GPUs of this machine; ``root`` is the parent of ``dev`` and ``proc``."""
    import torch

    from rankless.engine.environment import nvidia_driver

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
        with suppress(OSError):  # it has ended
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
    """Check that the GPUs are seen by PyTorch, of one kind, unused, and connected."""
    seen = seen or cards()
    if not seen.names:
        if not seen.driver:
            return ok("GPU", "none: training runs on the CPU")
        return error(
            "GPU",
            f"driver {seen.driver}, but PyTorch sees no GPU ({seen.library or 'built for CPUs'})",
            "check that nvidia-smi lists them and CUDA_VISIBLE_DEVICES is not empty, and install a "
            "PyTorch that is built for this driver's CUDA",
        )
    counts = {name: list(seen.names).count(name) for name in dict.fromkeys(seen.names)}
    kinds = ", ".join(f"{count} × {name}" for name, count in counts.items())
    value = f"{kinds}, driver {seen.driver}, {seen.library}"
    if seen.switched and not seen.managed:
        return error(
            "GPU",
            f"{value}; NVSwitch without its fabric manager",
            "sudo systemctl enable --now nvidia-fabricmanager",
        )
    if len(counts) > 1:
        return warning("GPU", value, "CUDA_VISIBLE_DEVICES: use cards of one kind, others round differently")
    if busy := [str(number) for number, share in enumerate(seen.free) if share < 0.5]:
        what = counted(len(busy), "GPU")
        return warning("GPU", f"{value}; the memory of {what} is in use ({', '.join(busy)})", "nvidia-smi")
    return ok("GPU", value)
