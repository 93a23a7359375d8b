"""Load the weights and the recipe of a model, and build one predictor per device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rankless.errors import UserError, check_all, printable
from rankless.hardware.computing import forward_pass
from rankless.hardware.instruction_set import is_limited
from rankless.hardware.precision import resolve
from rankless.inference.finder import Finder, PredictOptions
from rankless.models.weights_files import weights
from rankless.recipe import load
from rankless.recipe.schema import Recipe
from rankless.recipe.used import refuse_unused_in_prediction
from rankless.runs.directory import weights_of
from rankless.task_kinds import BUILT_IN, kind_of
from rankless.tasks import trained
from rankless.tasks.custom import refuse_unasked, with_absolute_names
from rankless.user_modules import name_of

BATCH_ON_GPU = 16
"""Default batch size on a GPU."""
BATCH_OF_FUSED = 4
"""Default batch size on a CPU for fused models, whose small layers take as long to call as to compute."""


@dataclass(frozen=True)
class Opened:
    """A loaded model with one predictor per device.

    The recipe contains the overrides and the resolved precision. ``batch`` is the batch size for live
    sources, whose results should not be delayed, and ``patient_batch`` is the batch size for all other
    sources.
    """

    path: Path
    recipe: Recipe
    finders: list[Finder]
    devices: list[torch.device]
    batch: int
    patient_batch: int

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """Enable inference mode, autocast and batch-invariant kernels inside a ``with`` block."""
        finder, device = self.finders[number], self.devices[number]
        with torch.inference_mode():
            if finder.fused and not is_limited():
                yield  # the contexts below intercept every call, which adds a third to a small model's time
                return
            with forward_pass(self.recipe.precision, device, training=False):
                yield


def open_finders(target: Path, asked: PredictOptions, *others: Callable[[], object]) -> Opened:
    """Load the weights of a run or file, and build one predictor per device.

    Errors from the checks in ``others`` are reported together with those about the weights and devices.
    """
    *_, devices, (path, found) = check_all(
        *others, lambda: devices_named(asked.device), lambda: _loaded(target, asked.task, asked.overrides)
    )
    recipe = found.recipe
    recipe = replace(recipe, precision=resolve(recipe.precision, devices[0], recipe.cpu_isa))
    found = replace(found, recipe=recipe)
    is_custom = recipe.task not in BUILT_IN
    if is_custom:  # user code is not called from several threads
        devices = devices[:1]
    finders = [_finder(found, asked, device, str(path)) for device in devices]
    batch = asked.batch or (BATCH_ON_GPU if devices[0].type == "cuda" else 1)
    patient = asked.batch or (BATCH_OF_FUSED if finders[0].fused else batch)
    if is_custom:
        batch = patient = 1
    return Opened(path, recipe, finders, devices, batch, patient)


def devices_named(names: str | None) -> list[torch.device]:
    """Parse devices like ``cpu`` or ``cuda:0,cuda:1``. None means all GPUs, or the CPU if there are none."""
    if names is None:
        count = 0 if os.environ.get("RANKLESS_CPU") else torch.cuda.device_count()
        return [torch.device("cuda", number) for number in range(count)] or [torch.device("cpu")]
    devices, kinds, problems = [], set(), []
    for name in names.split(","):
        try:
            device = torch.device(name.strip())
            kinds.add(device.type)
            if device.type not in ("cpu", "cuda"):
                raise RuntimeError("only CPUs and CUDA devices are supported")
            if device.type == "cuda" and not torch.cuda.device_count():
                raise RuntimeError("PyTorch found no GPU on this machine")
            torch.empty(0, device=device)
            devices.append(device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]
            if reason.startswith("Expected one of"):  # followed by all device types in PyTorch
                reason = "no such type of device"
            problems.append(
                f"device '{name}' cannot be used ({reason}); expected cpu, cuda, cuda:N, or a list such as "
                "cuda:0,cuda:1"
            )
    if len(kinds) > 1:
        problems.append(
            f"device is '{names}', but different kinds of devices round differently; use devices of one kind"
        )
    if problems:
        raise UserError(problems)
    return devices


def _loaded(target: Path, task: type | str | None, overrides: Sequence[str]) -> tuple[Path, weights.Weights]:
    path = weights_of(target)
    loaded = trained.load(path)
    recipe = loaded.recipe if task is None else replace(loaded.recipe, task=name_of(task))
    if overrides:
        refuse_unused_in_prediction(overrides, recipe)
        recipe = load.changed(recipe, overrides)
    refuse_unasked(recipe, path, overrides, task, reads_data=False)
    loaded = replace(loaded, recipe=with_absolute_names(recipe))
    several = any(one.startswith("evaluate.multi_label=") for one in overrides)
    if kind_of(loaded.recipe.task).boxes and not several:
        evaluate = replace(loaded.recipe.evaluate, multi_label=False)  # people expect one box per object
        loaded = replace(loaded, recipe=replace(loaded.recipe, evaluate=evaluate))
    return path, loaded


def _finder(loaded: weights.Weights, asked: PredictOptions, device: torch.device, source: str) -> Finder:
    task = loaded.recipe.task
    kind = kind_of(task)
    if asked.classes and not kind.boxes:
        raise UserError(
            f"--classes {','.join(map(str, asked.classes))}: is only for detectors, but the task is "
            f"'{printable(task)}'; remove --classes"
        )
    finder: Finder = kind.finder(loaded, asked, device, source)
    return finder
