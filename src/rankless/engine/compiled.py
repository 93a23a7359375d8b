"""The forward and backward passes of a model as compiled programs (``compute: compiled``).

``torch.compile`` turns each of the two passes into one program: C++ on a CPU, Triton on a GPU. The loss stays
outside, because some losses match boxes on the CPU, and the shapes of boxes would have to be padded. So every
micro-batch has the same shapes, and a compiled pass contains no seeding, check or wait for the device.

Every process compiles for itself. PyTorch's caches contain pickles and programs, and their default folder has
a name in ``/tmp`` that other users can guess, so no cache is read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankless.errors import UserError
from rankless.files.cache_folder import private_folder

_MISSING = "missing"

_OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,  # one C++ file per pass instead of one per kernel, which takes many times as long
    "cpp_cache_precompile_headers": False,  # their folder in /tmp cannot be changed
    "compile_threads": 1,  # otherwise, PyTorch starts a pool of processes
}


class Compiled:
    """A model whose forward pass, and its backward pass, are compiled in the first call.

    They are compiled again only for inputs of other shapes.

    Attributes:
        model: a module with the class and the members of the given one.
        was_called: whether a loss has called it.
    """

    def __init__(self, model: nn.Module) -> None:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # read when the compiler is imported
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = _folder()
        torch.compiler.reset()  # the number of variants of a function is limited, also over several runs
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
        self.was_called = False
        self.passes: Any = torch.compile(model.forward, fullgraph=True, dynamic=False, options=_OPTIONS)
        kind = type(model)

        def forward(_: nn.Module, *inputs: Any, **named: Any) -> Any:
            self.was_called = True
            return self.passes(*inputs, **named)

        made: Any = object.__new__(type(kind.__name__, (kind,), {"forward": forward}))
        made.__dict__ = model.__dict__
        self.model: nn.Module = made

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Convert errors of the compiler in this block to user errors, and check that it calls the model."""
        try:
            with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
                yield
        except Exception as error:
            compiler = sys.modules.get("torch._dynamo.exc")
            if compiler is None or not isinstance(error, compiler.TorchDynamoException):
                raise
            raise UserError(
                f"compute is 'compiled', but the network cannot be compiled: {_reason(str(error))}; use "
                "compute=eager, or change that part of the network"
            ) from error
        if not self.was_called:
            raise UserError(
                "compute is 'compiled', but the loss does not call the model, so nothing would be compiled; "
                "use compute=eager, or call model(…) in loss()"
            )


@cache
def _folder() -> str:
    """Return the folder of this process for generated code, which is removed at exit."""
    return str(private_folder())


def _reason(text: str) -> str:
    """Return the first sentence of a compiler's error, and the line of the network that it is about."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text.partition("from user code")[2])
    if not frames:
        return said
    file, line, function = frames[-1]
    return f"{said} (in {function}, {Path(file).name}, line {line})"


def compilers() -> dict[str, str]:
    """Return the versions of what decides the bits of a compiled pass on a CPU, besides PyTorch.

    The C++ compiler is ``missing`` if it cannot be run.
    """
    try:
        done = subprocess.run([_cxx(), "--version"], capture_output=True, text=True, check=True)
        version = done.stdout.partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        version = _MISSING
    return {"C++ compiler": version, "C library": os.confstr("CS_GNU_LIBC_VERSION") or "unknown"}


def missing_compiler(versions: Mapping[str, str]) -> list[str]:
    """Return an error message if :func:`compilers` has not found a C++ compiler."""
    if versions.get("C++ compiler") != _MISSING:
        return []
    return [
        f"compute is 'compiled', which needs a C++ compiler, but '{_cxx()}' cannot be run; install g++, set "
        "the environment variable CXX to the name of a compiler, or use compute=eager"
    ]


def _cxx() -> str:
    return os.environ.get("CXX", "g++")
