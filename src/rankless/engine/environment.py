"""The hardware and software of a run. They affect the weights but are not part of the recipe.

At each start, they are recorded, and compared between ranks and with the previous start.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rankless import __version__
from rankless.engine.compiled import compilers, missing_compiler
from rankless.errors import UserError, printable
from rankless.files.writing import keep_beside, write_atomically
from rankless.hardware import instruction_set
from rankless.printing import as_json
from rankless.recipe.schema import Recipe
from rankless.runs import starts
from rankless.world.process_group import World

Environment = dict[str, dict[str, str]]
"""Environment values by section (``hardware``, ``instruction_set``, ``versions``, ``variables``) and name."""

# Packages that compute numbers, and image decoders.
_PACKAGES = ("torch", "torchvision", "numpy", "timm")
_DECODERS = ("pillow", "simplejpeg")
_VARIABLES = re.compile(
    r"ONEDNN_.*|DNNL_.*|ATEN_CPU_CAPABILITY|MKL_.*|OMP_.*|KMP_.*|GOMP_.*|OPENBLAS_.*|NPY_.*|GLIBC_TUNABLES"
    r"|LD_PRELOAD|CUBLAS.*|CUDNN_.*|CUDA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE"
    r"|TORCHINDUCTOR_(?!CACHE_DIR$|COMPILE_THREADS$|DETERMINISTIC$).*"
    r"|TORCH_(ALLOW_TF32|BLAS|CUDNN|LINALG|MKLDNN).*|PYTORCH_.*|NCCL_(ALGO|PROTO|(NVLS|COLLNET)_ENABLE)"
)
_TALK = re.compile(r".*(VERBOSE|DUMP|PROFILE|LOG).*")
_LIBRARIES = {
    "oneDNN": r"MKL-DNN v(\S+)",
    "MKL": r"Math Kernel Library Version (\S+)",
    "OpenMP": r"OpenMP (\d+)",
}
_DRIVER = Path("/proc/driver/nvidia/version")


def describe(device: torch.device) -> Environment:
    """Describe the hardware and software used with ``device``. Equal descriptions mean equal results."""
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


@cache
def source() -> str:
    """Return a 12-digit hash of the package's code, because copies of the same version may differ."""
    root, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions of Python, of packages and of native libraries."""
    built = torch.__config__.show()
    matches = {name: re.search(pattern, built) for name, pattern in _LIBRARIES.items()}
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    native = {
        **{name: match[1] for name, match in matches.items() if match},
        "CUDA": torch.version.cuda if torch.cuda.is_available() else None,
        "cuDNN": str(cudnn) if cudnn else None,
        "NVIDIA driver": nvidia_driver() if torch.cuda.is_available() else None,
    }
    return {
        "python": platform.python_version(),
        "rankless": __version__,  # of the running code, which may differ from the installed version
        "rankless source": source(),
        **{name: metadata.version(name) for name in (*_PACKAGES, *_DECODERS)},
        **{name: value for name, value in native.items() if value},
    }


def nvidia_driver(path: Path = _DRIVER) -> str | None:
    """Return the version of the NVIDIA kernel driver, or None if there is none."""
    try:
        match = re.search(r"Module\s+(?:for \S+\s+)?([\d.]+)", path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


def compare_ranks(world: World, recipe: Recipe, data: str | None) -> tuple[Environment, list[str]]:
    """Return this rank's environment, and warnings about differences between ranks.

    All ranks must call this, with the digest of their training ``data`` if it has one. Differences that are
    not allowed raise a :class:`UserError`.
    """
    mine = describe(world.device)
    if recipe.compute == "compiled" and world.device.type == "cpu":
        mine["versions"] |= compilers()
    must = {name: value for name, value in mine["versions"].items() if name not in starts.MAY_DIFFER}
    must |= {"the backend": world.backend, "the training data": f"digest {data}"}
    gathered = world.all_gather([must, mine])
    errors = _version_differences([must for must, _ in gathered])
    environments = [environment for _, environment in gathered]
    errors += dict.fromkeys(text for one in environments for text in missing_compiler(one["versions"]))
    warnings = [*_rounding_differences(environments), *_variable_differences(environments)]
    used = [environment["instruction_set"]["ATen"] for _, environment in gathered]
    if recipe.cpu_isa != "native" and set(used) != {recipe.cpu_isa.upper()}:
        errors.append(
            f"cpu_isa is '{recipe.cpu_isa}', but PyTorch computes with {by_rank(used)}; use "
            "cpu_isa=native, or other machines"
        )
    if recipe.check.recompute:
        checked = f"check.recompute is {recipe.check.recompute}"
        errors += [f"{checked}, but {text}, or check.recompute=0" for text in warnings]
    if errors:
        raise UserError(errors)
    return mine, warnings


def record(path: Path, now: Environment, world: World, step: int, launched: Mapping[str, Any]) -> list[str]:
    """Append this start to the run's ``environment.json`` at ``path``.

    Returns warnings about differences from the previous start that can change the weights. ``now`` is the
    environment of rank 0, and ``launched`` is the launcher's record of the start.
    """
    before, problem = starts.read(path)
    warnings = []
    system = os.uname()  # unlike the platform module, this starts no process
    entry = {
        **launched,
        "after_step": step,
        "world_size": world.size,
        "backend": world.backend,
        "host": system.nodename,
        "system": f"{system.sysname} {system.release} {system.machine}",
        **now,
    }
    if problem:
        warnings.append(
            f"{path} cannot be read ({problem}), so the environment of earlier starts is unknown; the "
            f"original file is now {keep_beside(path)}"
        )
    if before and step:
        warnings += _differences(before[-1], now)
    again = before and {**before[-1], "after_step": step} == entry  # the launcher restarted the ranks
    if not again:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json([*before, entry], indent=1) + "\n")
    return warnings


def _differences(before: Mapping[str, Any], now: Environment) -> list[str]:
    """Return a warning about the differences between two starts if they can affect the results."""
    differing = []
    certain = False
    for section, values in now.items():
        old = before.get(section)
        if not isinstance(old, dict):
            continue  # an older version did not record this
        # An unset variable counts as a value, but missing packages and devices do not.
        names = {**old, **values} if section == "variables" else [name for name in values if name in old]
        for name in names:
            was, has = old.get(name, "not set"), values.get(name, "not set")
            if was != has and not starts.WITHOUT_EFFECT.fullmatch(name):
                differing.append(
                    f"{label(section, name)} is {has}, but was {printable(str(was))} at the previous start"
                )
                on_cpu = now["hardware"]["device"] == "cpu"
                certain |= name == "device" or (section == "instruction_set" and on_cpu)
    if not differing:
        return []
    return [
        f"{'; '.join(differing)}, so the final weights {'will' if certain else 'may'} differ from those of "
        "an uninterrupted run"
    ]


def label(section: str, name: str) -> str:
    """Return the name of an environment value for messages."""
    if section == "instruction_set":
        return f"the instruction set of {name}"
    return f"the {name}" if section == "hardware" else name


def _version_differences(ranks: Sequence[Mapping[str, str]]) -> list[str]:
    """Return an error message for each value that differs between ranks but must not."""
    differing = []
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        values = [rank.get(name, "missing") for rank in ranks]
        if len(set(values)) > 1:
            differing.append(f"{name} differs between ranks: {by_rank(values)}; use the same on all ranks")
    return differing


def hardware_differences(every: Sequence[Environment]) -> Iterator[tuple[str, list[str]]]:
    """Yield each difference in hardware or kernels that affects rounding, with the values."""
    for section, name in (("hardware", "device"), ("instruction_set", "ATen"), ("instruction_set", "oneDNN")):
        values = [one[section].get(name, "none") for one in every]
        if len(set(values)) > 1:
            yield label(section, name), values


def variable_differences(every: Sequence[Environment]) -> Iterator[tuple[str, list[str]]]:
    """Yield each environment variable that may affect rounding and differs, with the values."""
    variables = [starts.deciding(one["variables"]) for one in every]
    for name in sorted({name for one in variables for name in one}):
        values = [printable(one.get(name, "not set")) for one in variables]
        if len(set(values)) > 1:
            yield name, values


def _rounding_differences(ranks: Sequence[Environment]) -> list[str]:
    """Return a warning if ranks compute with hardware or kernels that round differently."""
    differing = [f"{what} is {by_rank(values)}" for what, values in hardware_differences(ranks)]
    if not differing:
        return []
    return [
        f"the ranks round differently ({'; '.join(differing)}), so the weights depend on how the work is "
        "distributed; use machines of the same kind or, if the CPUs differ, cpu_isa=avx2"
    ]


def _variable_differences(ranks: Sequence[Environment]) -> list[str]:
    """Return a warning if environment variables that may affect rounding differ between ranks."""
    differing = [f"{name} is {by_rank(values)}" for name, values in variable_differences(ranks)]
    if not differing:
        return []
    return [
        f"the ranks may round differently ({'; '.join(differing)}), so the weights may depend on how the "
        "work is distributed; use the same environment variables on all ranks"
    ]


def by_rank(values: Sequence[str]) -> str:
    """Return the values with their ranks, as in ``2.14.1 on rank 0, 2.13.0 on ranks 1, 3``."""
    return ", ".join(
        f"{value} on {rank_list([rank for rank, other in enumerate(values) if other == value])}"
        for value in dict.fromkeys(values)
    )


def rank_list(ranks: Sequence[int]) -> str:
    """Return a phrase such as ``rank 1``, or ``ranks 1, 2, 3, 4 and 5 more``."""
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))}{more}"
