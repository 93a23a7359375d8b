"""A CUDA runtime whose kernels do nothing, on which PyTorch's CUDA build runs its host code without a GPU.

Real are the caching allocators, streams and events as far as the host sees them, autograd's threads,
ProcessGroupNCCL, autocast, and PyTorch's refusals under ``use_deterministic_algorithms``. Not real are
values: all that is read from a device is zero. cuDNN's convolutions and batch norms only allocate their
results (:mod:`cudnn`), so neither their workspaces nor their choice of an algorithm is seen.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"  # also takes the place of the driver that PyTorch looks up by this name
# What PyTorch imports at its end, by its own rules for devices that other packages bring.
ENTRY_POINT = "[torch.backends]\npretended_gpu = pretended_cudnn:replace_cudnn\n"
# The runtime, cuBLAS, NCCL, and the driver without cuFile.
REPLACED = re.compile(r"(__cuda|cuda|cublas|cublasLt|nccl|cu(?!File))[A-Z]")
COMPUTES = re.compile(r"cublas.*(gemm|gemv|dot|trsm|Matmul$|Batched)")


class UnavailableError(Exception):
    """Raised if the runtime cannot be built here."""


def variables(build: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process with pretended GPUs, given where they were built."""
    kept = {name: value for name, value in os.environ.items() if name != "RANKLESS_CPU"}
    return {
        **kept,
        "LD_PRELOAD": str(build / LIBRARY),
        "PYTHONPATH": os.pathsep.join([str(build), str(HERE), str(HERE.parents[1])]),
        "USE_PYTORCH_KERNEL_CACHE": "0",  # otherwise, compiled kernels are kept for a real GPU
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }


def built(place: Path) -> Path:
    """Build the runtime in ``place`` unless another process has, and return the folder.

    Raises:
        UnavailableError: PyTorch has no CUDA, or the compiler or a header is missing.
    """
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / LIBRARY).exists():
            _build(place)
    return place


def _build(place: Path) -> None:
    compiler = shutil.which("g++")
    if sys.platform != "linux" or not compiler:
        raise UnavailableError("there is no g++ on this machine, or it does not run Linux")
    include, torch = _headers()
    runtime = place / "runtime.o"
    _run(compiler, "-O1", "-fPIC", f"-I{include}", "-c", str(HERE / "runtime.cpp"), "-o", str(runtime))
    stubs = place / "stubs.cpp"
    stubs.write_text(_stubs(_imported(torch) - _symbols("--defined-only", runtime)))
    library = ["-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(place / "new.so")]
    _run(compiler, "-O1", "-fPIC", str(runtime), str(stubs), *library)
    metadata = place / "pretended_gpu-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pretended_gpu\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    (place / "new.so").rename(place / LIBRARY)


def _headers() -> tuple[Path, Path]:
    """Return the folders of CUDA's headers, which triton brings complete, and of PyTorch's libraries."""
    found = importlib.util.find_spec("torch")
    torch = Path((found and found.origin) or "").parent / "lib"
    if not (torch / "libtorch_cuda.so").exists():
        raise UnavailableError("this build of PyTorch has no CUDA")
    site = torch.parents[1]
    folders = site / "triton/backends/nvidia/include", site / "nvidia/cu13/include"
    for folder in folders:
        if (folder / "crt/host_defines.h").exists() and (folder / "cuda_runtime_api.h").exists():
            return folder, torch
    raise UnavailableError(
        "the headers of CUDA are missing (the packages triton or nvidia-cuda-crt bring them)"
    )


def _imported(torch: Path) -> set[str]:
    """Return the symbols that PyTorch's libraries import from those that are replaced."""
    names = set().union(*(_symbols("--undefined-only", file, "-D") for file in torch.glob("*.so")))
    return {name for name in names if REPLACED.match(name)}


def _symbols(kind: str, file: Path, *more: str) -> set[str]:
    lines = _run("nm", *more, kind, str(file)).splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.strip()}


def _stubs(names: set[str]) -> str:
    computes = [name for name in names if COMPUTES.match(name)]
    lines = [f'extern "C" int {name}() {{ return 0; }}' for name in sorted(names.difference(computes))]
    lines += [f'extern "C" int {name}() {{ pretended_launch(1); return 0; }}' for name in sorted(computes)]
    return "\n".join(['extern "C" void pretended_launch(int);' * bool(computes), *lines, ""])


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"{words[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


class PretendedGpu:
    """Runs Python in processes with pretended GPUs, which were built in the folder ``build``."""

    def __init__(self, build: Path) -> None:
        self.build = build

    def run(self, *words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Do what ``python WORDS`` does with more variables, and wait for its end."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=variables(self.build, **more),
            capture_output=True,
            text=True,
        )

    def answers(self, script: str, jobs: Sequence[Any], cwd: Path, **more: str) -> list[Any]:
        """Run a script of this folder, and return the JSON that it prints for each job."""
        done = self.run(str(HERE / script), json.dumps(jobs), cwd=cwd, **more)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
        assert len(lines) == len(jobs), done.stdout[-2000:] + done.stderr[-4000:]
        return [json.loads(line) for line in lines]
