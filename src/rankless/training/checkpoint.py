"""Checkpoints: written beside, flushed, checked and renamed; a half-written one is never seen.

A checkpoint holds what decides the next number and nothing of who computed it, so any number of ranks can go
on from it. ``sha256sum -c SHA256SUMS`` in its directory checks it by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from rankless.errors import UserError
from rankless.models import weights
from rankless.recipe import Recipe
from rankless.run_directory import RunDirectory

SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds.

    Attributes:
        step: steps done.
        model: the bare model's state.
        average: the averaged model's state, if there is one.
        training: the optimiser's tensors.
        state: the rest, JSON-ready: best score, loss scale, number of training pictures.
    """

    step: int
    model: Mapping[str, Tensor]
    average: Mapping[str, Tensor] | None
    training: Mapping[str, Tensor]
    state: Mapping[str, Any]


def save(run: RunDirectory, snapshot: Snapshot, recipe: Recipe, class_names: Sequence[str]) -> None:
    """Write one checkpoint and make ``last`` name it.

    Raises:
        OSError: the disk is full or gone; nothing half-written stays.
    """
    target = run.step_directory(snapshot.step)
    beside = run.checkpoints / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        _write(beside, snapshot, recipe, class_names)
        if target.exists():  # a damaged one of this step, or one from before a fall back
            shutil.rmtree(target)
        beside.rename(target)
        _flush_directory(run.checkpoints)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    run.point("last", snapshot.step)


def _write(folder: Path, snapshot: Snapshot, recipe: Recipe, class_names: Sequence[str]) -> None:
    states = {"model.safetensors": snapshot.model, "ema.safetensors": snapshot.average}
    for name, state in states.items():
        if state is not None:
            weights.save(
                folder / name,
                state,
                recipe=recipe,
                class_names=class_names,
                extra={"step": str(snapshot.step)},
            )
            if weights.digest_file(folder / name) != weights.digest(state):
                raise OSError(f"{folder / name}: reads back other than it was written")
    plain = {key: value.detach().cpu().contiguous().clone() for key, value in snapshot.training.items()}
    safetensors.torch.save_file(plain, folder / "training.safetensors")
    text = json.dumps({"step": snapshot.step, **snapshot.state}, indent=1)
    (folder / "state.json").write_text(text, encoding="utf-8")
    names = sorted(entry.name for entry in folder.iterdir())
    (folder / SUMS).write_text("".join(f"{_sum(folder / name)}  {name}\n" for name in names))
    for name in (*names, SUMS):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    _flush_directory(folder)


def newest(run: RunDirectory, warn: Callable[[str], None]) -> int | None:
    """The newest step whose checkpoint is whole; None without any.

    Args:
        run: where to look.
        warn: told about every damaged checkpoint that is passed over.

    Raises:
        UserError: there are checkpoints, but every one is damaged.
    """
    steps = run.steps()
    for step in reversed(steps):
        if (fault := damage(run.step_directory(step))) is None:
            return step
        folder = run.step_directory(step)
        warn(f"checkpoint {folder} is damaged ({fault}); falling back to the one before")
    if steps:
        raise UserError(
            f"{run.checkpoints}: all {len(steps)} checkpoints are damaged; "
            "start anew in another run directory"
        )
    return None


def damage(folder: Path) -> str | None:
    """What is wrong with the checkpoint in ``folder``; None when it is whole."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        for name in ("model.safetensors", "training.safetensors", "state.json"):
            if name not in listed:
                return f"{SUMS} does not list {name}"
        wrong = [name for name, digest in listed.items() if _sum(folder / name) != digest]
    except (OSError, ValueError) as error:
        return str(error)
    return f"wrong checksum of {', '.join(wrong)}" if wrong else None


def load(run: RunDirectory, step: int) -> Snapshot:
    """Read the checkpoint of ``step``, which :func:`newest` found whole."""
    folder = run.step_directory(step)
    averaged = folder / "ema.safetensors"
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return Snapshot(
        state.pop("step"),
        weights.load(folder / "model.safetensors").state,
        weights.load(averaged).state if averaged.exists() else None,
        safetensors.torch.load_file(folder / "training.safetensors"),
        state,
    )


def tidy(run: RunDirectory, keep: int, best: int | None) -> None:
    """Remove all but the ``keep`` newest checkpoints and the best, and what died half-written.

    Args:
        run: where.
        keep: how many stay.
        best: the step that stays too.
    """
    # Those after the last that was written are damaged: the run fell back behind them.
    last = run.pointed("last") or 0
    kept = [step for step in run.steps() if step <= last][-keep:]
    for step in run.steps():
        if step not in kept and step != best:
            shutil.rmtree(run.step_directory(step), ignore_errors=True)
    for left in run.checkpoints.glob(".step-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_directory(folder: Path) -> None:
    """Make a rename in ``folder`` outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
