"""Disks as small as a test needs them: a file system that only root can mount, and a limit for files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[bool]:
    """A file system of ``size``, such as 256k, at ``folder``, which is made; whether it could be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    done = not os.geteuid() and not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of ``size`` KiB at ``folder``; without it the test is skipped."""
    with mounted(folder, f"{size}k") as done:
        if not done:
            pytest.skip("a small disk can only be mounted by root")
        yield folder


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """Inside, no file may grow beyond ``size`` bytes; not the test's own report either, so be brief."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    # Python would write the first half of a module's bytecode, and never again import that module.
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def fill(folder: Path) -> Path:
    """Leave no room on a file system; the file that takes it."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return folder / "filler"
