"""What this process computes with: everything outside the recipe that can change a number."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import torch

from rankless.recipe import instruction_set

Facts = dict[str, dict[str, str]]
"""Section, name, value: ``hardware``, ``instruction_set``, ``versions`` and ``variables``."""

# What computes numbers, then the decoders.
_PACKAGES = ("rankless", "torch", "torchvision", "numpy", "faster-coco-eval", "scikit-learn", "timm")
_DECODERS = ("pillow", "simplejpeg")
_VARIABLES = re.compile(
    r"ONEDNN_.*|DNNL_.*|ATEN_CPU_CAPABILITY|MKL_.*|OMP_.*|KMP_.*|GOMP_.*|OPENBLAS_.*|NPY_.*|GLIBC_TUNABLES"
    r"|LD_PRELOAD|CUBLAS.*|CUDNN_.*|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE"
    r"|TORCH_(ALLOW_TF32|BLAS|CUDNN|LINALG|MKLDNN).*|PYTORCH_.*"
)
_TALK = re.compile(r".*(VERBOSE|DUMP|PROFILE|LOG).*")
_LIBRARIES = {
    "oneDNN": r"MKL-DNN v(\S+)",
    "MKL": r"Math Kernel Library Version (\S+)",
    "OpenMP": r"OpenMP (\d+)",
}
_DRIVER = Path("/proc/driver/nvidia/version")


def facts(device: torch.device) -> Facts:
    """What this process computes with on ``device``; the same numbers come of equal facts."""
    computes = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    sets = {"ATen": torch.backends.cpu.get_cpu_capability(), "oneDNN": instruction_set.of_onednn()}
    return {
        "hardware": {"device": computes, "CPU": instruction_set.model()},
        "instruction_set": {name: value for name, value in sets.items() if value},
        "versions": versions(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name) and not _TALK.fullmatch(name)
        },
    }


def versions() -> dict[str, str]:
    """Of Python, the packages and the native libraries that compute."""
    built = torch.__config__.show()
    found = {name: re.search(pattern, built) for name, pattern in _LIBRARIES.items()}
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    native = {
        **{name: match[1] for name, match in found.items() if match},
        "CUDA": torch.version.cuda if torch.cuda.is_available() else None,
        "cuDNN": str(cudnn) if cudnn else None,
        "NVIDIA driver": _driver() if torch.cuda.is_available() else None,
    }
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in (*_PACKAGES, *_DECODERS)},
        **{name: value for name, value in native.items() if value},
    }


def _driver() -> str | None:
    """The version of the kernel's NVIDIA driver."""
    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?([\d.]+)", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None
