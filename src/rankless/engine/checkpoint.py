"""Save and load checkpoints.

A checkpoint gets its final name only once it is completely on disk. It contains everything that determines
the next step, but nothing about the ranks that computed it, so any number of ranks can continue from it. To
check one manually, run ``sha256sum -c SHA256SUMS`` in its directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from rankless.errors import UserError
from rankless.files import checksums
from rankless.files.writing import flush, remove_tree
from rankless.models.weights_files import tensor_file, weights
from rankless.recipe.schema import Recipe
from rankless.runs import chain
from rankless.runs.directory import (
    RunDirectory,
    beside,
    damage,
    read_state,
    recover,
    remains,
    remove,
)


@dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint after ``step`` steps.

    ``training`` contains the optimizer's tensors, ``state`` contains JSON values such as the best score, and
    ``links`` binds the checkpoint to its run (:mod:`rankless.runs.chain`).
    """

    step: int
    model: Mapping[str, Tensor]
    ema: Mapping[str, Tensor] | None
    training: Mapping[str, Tensor]
    state: Mapping[str, Any]
    links: Mapping[str, Any] = field(default_factory=dict)


class Copies:
    """Reusable memory for a copy of the training state."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, str], Tensor] = {}

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """Return a copy on the CPU, overwriting the previous copy."""
        try:
            model = self._copied("model", snapshot.model)
            ema = None if snapshot.ema is None else self._copied("ema", snapshot.ema)
            training = self._copied("training", snapshot.training)
        except RuntimeError:
            self._tensors.clear()
            raise
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return Snapshot(snapshot.step, model, ema, training, deepcopy(dict(snapshot.state)))

    def _copied(self, part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        copied = {}
        for name, value in tensors.items():
            held = self._tensors.get((part, name))
            if held is None or held.shape != value.shape or held.dtype != value.dtype:
                # Copying from a GPU to pinned memory is many times faster.
                held = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
                self._tensors[part, name] = held
            copied[name] = held.copy_(value.detach(), non_blocking=True)
        return copied


def save(run: RunDirectory, snapshot: Snapshot, recipe: Recipe, class_names: Sequence[str]) -> None:
    """Write a checkpoint and point ``last`` to it."""
    target = run.step_directory(snapshot.step)
    new, old = beside(target, "tmp"), beside(target, "aside")
    for left in (new, old):
        remove_tree(left)
    try:
        new.mkdir(parents=True)
        _write(new, snapshot, recipe, class_names)
        if target.exists():  # damaged, or written before the run fell back to an earlier checkpoint
            target.rename(old)
        new.rename(target)
        flush(run.checkpoints)
    except BaseException:
        if old.exists() and not target.exists():
            with suppress(OSError):
                old.rename(target)
        remove_tree(new)
        raise
    remove_tree(old)
    run.point("last", snapshot.step)


def _write(folder: Path, snapshot: Snapshot, recipe: Recipe, class_names: Sequence[str]) -> None:
    sums: dict[str, str] = {}
    states = {"model.safetensors": snapshot.model, "ema.safetensors": snapshot.ema}
    for name, state in states.items():
        if state is not None:
            sums[name] = weights.save(
                folder / name,
                state,
                recipe=recipe,
                class_names=class_names,
                extra={"step": str(snapshot.step)},
            )
    sums["training.safetensors"] = tensor_file.write(folder / "training.safetensors", snapshot.training)
    values = {"state.json": {"step": snapshot.step, **snapshot.state}, chain.NAME: snapshot.links}
    texts = {name: json.dumps(value, indent=1).encode() for name, value in values.items() if value}
    sums |= {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    for name, text in {**texts, checksums.NAME: checksums.text(sums).encode()}.items():
        with (folder / name).open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    flush(folder)


def newest(run: RunDirectory, warn: Callable[[str], None]) -> int | None:
    """Return the step of the newest complete checkpoint, or None if there are no checkpoints."""
    recover(run)
    damaged: list[str] = []
    for step in reversed(run.steps()):
        folder = run.step_directory(step)
        if (problem := damage(folder)) is None:
            for each in damaged:
                warn(f"checkpoint {each}; falling back to the previous one")
            return step
        damaged.append(f"{folder} is damaged ({problem})")
    if damaged:
        advice = (
            "start again in another run directory, with model.pretrained=FILE if one of the weights files is "
            "readable"
        )
        raise UserError([*damaged, f"{run.checkpoints} contains no complete checkpoint; {advice}"])
    return None


def load(run: RunDirectory, step: int) -> Snapshot:
    """Read the checkpoint of ``step``, which must be complete (see :func:`newest`)."""
    folder = run.step_directory(step)
    averaged = folder / "ema.safetensors"
    state = read_state(folder)
    optimizer = folder / "training.safetensors"
    try:
        with optimizer.open("rb") as file:  # by descriptor, because safetensors requires UTF-8 names
            training = safetensors.torch.load_file(f"/dev/fd/{file.fileno()}")
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{optimizer} cannot be read ({error}); use another copy of the checkpoint") from None
    return Snapshot(
        state.pop("step"),
        weights.load(folder / "model.safetensors", checked=True).state,
        weights.load(averaged, checked=True).state if averaged.exists() else None,
        training,
        state,
        chain.links_in(folder),
    )


def remove_old(run: RunDirectory, keep: int, best: int | None) -> None:
    """Remove incomplete checkpoints, and all complete ones except the ``keep`` newest and the best one."""
    last = run.pointed("last")
    if last is None:  # the newest checkpoints are unknown
        return
    # Checkpoints after the last written one are damaged, and the run fell back to an earlier one.
    newest = [step for step in run.steps() if step <= last][-keep:]
    for step in run.steps():
        if step not in newest and step != best:
            remove(run.step_directory(step))
    for left in remains(run):  # the checkpoint that was just saved is newer
        remove_tree(left)
