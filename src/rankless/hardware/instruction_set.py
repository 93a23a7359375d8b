"""Detect the CPU's instruction set, and limit libraries to the instruction set of a recipe.

Libraries choose kernels to suit the processor, and kernels for different instruction sets add numbers in
different orders, so the same recipe would not give the same bits on another CPU. Environment variables can
limit the libraries to one instruction set. Some libraries read these variables when they are loaded, so they
must be set before PyTorch and NumPy are imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from rankless.errors import UserError

# oneDNN's names of instruction sets, from weakest to strongest, each with the processor flags that it needs
# in addition to those of the weaker sets.
_ONEDNN: dict[str, frozenset[str]] = {
    name: frozenset(flags.split())
    for name, flags in {
        "SSE41": "sse4_1",
        "AVX": "avx",
        "AVX2": "avx2",
        "AVX2_VNNI": "avx2 avx_vnni",
        "AVX2_VNNI_2": "avx2 avx_vnni avx_vnni_int8 avx_ne_convert",
        "AVX512_CORE": "avx512f avx512bw avx512vl avx512dq",
        "AVX512_CORE_VNNI": "avx512f avx512bw avx512vl avx512dq avx512_vnni",
        "AVX512_CORE_BF16": "avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16",
        "AVX512_CORE_FP16": "avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 avx512_fp16",
        "AVX512_CORE_AMX": "avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16",
        "AVX512_CORE_AMX_FP16": "avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16",
    }.items()
}
_RANK = {name: rank for rank, name in enumerate(_ONEDNN)}
_ALIASES = {"AVX10_1_512": "AVX512_CORE_FP16", "AVX10_1_512_AMX": "AVX512_CORE_AMX"}
_NEEDS = ("avx2", "fma", "bmi2")


def flags() -> frozenset[str]:
    """Return the features of the processor, named as in Linux, or an empty set if they are unknown."""
    return frozenset(_cpuinfo().get("flags", "").split())


def model() -> str:
    """Return the processor's name, such as ``AMD EPYC 9354``, or its architecture if the name is unknown."""
    return _cpuinfo().get("model name") or os.uname().machine


def of_onednn(
    features: frozenset[str] | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return oneDNN's name for the best instruction set that the processor and the environment allow.

    The result is a name such as ``AVX512_CORE_BF16``, or None if the processor is not x86. The variables
    ``ONEDNN_MAX_CPU_ISA`` and ``DNNL_MAX_CPU_ISA`` may set a limit. By default, ``features`` are the flags of
    this processor.
    """
    features = flags() if features is None else features
    limit = environment.get("ONEDNN_MAX_CPU_ISA", environment.get("DNNL_MAX_CPU_ISA", "")).upper()
    most = _RANK.get(_ALIASES.get(limit, limit), len(_RANK))
    usable = [name for name, needed in _ONEDNN.items() if needed <= features and _RANK[name] <= most]
    return usable[-1] if usable else None


def computes_bf16(cpu_isa: str = "native", features: frozenset[str] | None = None) -> bool:
    """Check whether a CPU multiplies bf16 natively; emulated bf16 is slower than fp32."""
    name = of_onednn(features) if cpu_isa == "native" else None
    return name is not None and _RANK[name] >= _RANK["AVX512_CORE_BF16"]


def variables(cpu_isa: str) -> dict[str, str]:
    """Return the environment variables that limit every library to ``cpu_isa`` (none for ``native``)."""
    if cpu_isa == "native":
        return {}
    return {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        # MKL honors 'AVX2' only on Intel processors.
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": _more_than_avx2_in_numpy(),
    }


@cache
def is_limited() -> bool:
    """Check whether this process's libraries are limited to AVX2, by :func:`fix` or by its environment."""
    return all(os.environ.get(name) == value for name, value in variables("avx2").items())


def refuse_unable(cpu_isa: str, features: frozenset[str] | None = None) -> None:
    """Raise a UserError that names the missing features if this processor does not support ``cpu_isa``."""
    missing = [flag for flag in _NEEDS if flag not in (flags() if features is None else features)]
    if cpu_isa != "native" and missing:
        raise UserError(
            f"cpu_isa is '{cpu_isa}', but this processor ({model()}) lacks {', '.join(missing)}: "
            "use cpu_isa=native or another machine"
        )


def fix(cpu_isa: str) -> None:
    """Limit this process and its children to ``cpu_isa``; call it before PyTorch is imported.

    Raises:
        RuntimeError: PyTorch or NumPy has already been imported.
    """
    if cpu_isa == "native":
        return
    refuse_unable(cpu_isa)
    if late := [name for name in ("torch", "numpy") if name in sys.modules]:
        raise RuntimeError(f"cannot limit the instruction set after importing {' and '.join(late)}")
    os.environ.pop("NPY_ENABLE_CPU_FEATURES", None)  # NumPy accepts only one of the two
    os.environ.update(variables(cpu_isa))


def _more_than_avx2_in_numpy() -> str:
    """Return the features beyond AVX2 that this version of NumPy knows; naming others causes a warning."""
    major, minor = map(int, metadata.version("numpy").split(".")[:2])
    if (major, minor) >= (2, 4):
        return "X86_V4 AVX512_ICL AVX512_SPR"
    return "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL" + (
        " AVX512_SPR" if major >= 2 else ""
    )


@cache
def _cpuinfo() -> dict[str, str]:
    """Return the entries of the first processor in ``/proc/cpuinfo``."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
