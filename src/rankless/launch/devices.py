"""Select the devices that a job uses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from rankless.errors import UserError, counted
from rankless.launch.opening import gpu_count

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def visible(devices: int | Sequence[int] | None, gpus: int | None = None) -> Iterator[int | None]:
    """Make only the listed GPUs visible to child processes, and yield the number of GPUs.

    GPUs are numbered as in PyTorch, which counts only those in ``CUDA_VISIBLE_DEVICES``. If ``devices`` is a
    number or None, it is yielded unchanged.
    """
    if devices is None or isinstance(devices, int):
        yield devices
        return
    if isinstance(devices, str):
        raise UserError(f"devices is {devices!r}; expected a number, or a list of GPUs such as [0, 1]")
    # This queries the driver without starting CUDA, which would fix the set of visible GPUs.
    if os.environ.get("RANKLESS_CPU"):
        gpus = 0
    there = torch.cuda.device_count() if gpus is None else gpus
    before = os.environ.get(_VISIBLE)
    if problem := _problem(list(devices), there, before):
        raise UserError(problem)
    names = before.split(",") if before else [str(number) for number in range(there)]
    os.environ[_VISIBLE] = ",".join(names[number].strip() for number in devices)
    try:
        yield len(devices)
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


class LeftOut:
    """The devices of this machine that ranks no longer use because they computed wrong results.

    Without GPUs, each excluded device means one rank fewer, because ranks are not bound to cores.
    """

    def __init__(self, numbers: Iterable[int] = (), gpus: int | None = None) -> None:
        self.numbers = list(numbers)
        self.gpus = gpu_count() if gpus is None else gpus

    def remaining(self) -> list[int]:
        """Return the numbers of the GPUs that ranks may use, or an empty list if there are none."""
        there = [number for number in range(self.gpus) if number not in self.numbers]
        if self.gpus and not there:
            raise UserError("all GPUs of this machine have computed wrong results; continue on other GPUs")
        return there

    def add(self, ranks: Sequence[int]) -> None:
        """Exclude the devices of the given ranks (numbered within this machine)."""
        there = self.remaining()
        self.numbers += {there[rank % len(there)] for rank in ranks} if there else ranks

    def variables(self) -> dict[str, str]:
        """Return the environment variables that hide the excluded GPUs from ranks."""
        if not self.numbers or not (there := self.remaining()):
            return {}
        names = (os.environ.get(_VISIBLE) or ",".join(map(str, range(self.gpus)))).split(",")
        return {_VISIBLE: ",".join(names[number].strip() for number in there)}


def _problem(numbers: list[int], there: int, limited: str | None) -> str:
    given = f"--devices is {','.join(map(str, numbers)) or 'an empty list'}"
    count = len(set(numbers))
    if not there:
        is_hidden = bool(os.environ.get("RANKLESS_CPU"))
        on_cpu = "the CPU was selected with --device cpu or RANKLESS_CPU"
        why = on_cpu if is_hidden else "PyTorch found no GPUs on this machine"
        return (
            f"{given}, which selects GPUs, but {why}; use a number of processes, such as --devices "
            f"{max(count, 1)}"
        )
    known = f"{counted(there, 'GPU')}, numbered {'0' if there == 1 else f'0 to {there - 1}'}"
    if limited:
        known += f" within {_VISIBLE}={limited}"
    if not numbers or min(numbers) < 0 or max(numbers) >= there:
        return f"{given}, but there {'is' if there == 1 else 'are'} {known}; select from these"
    if count < len(numbers):
        return f"{given}, which selects a GPU twice; list each GPU once, or use --devices {count}"
    return ""
