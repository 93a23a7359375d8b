"""The run directory, which training writes and all later commands read.

runs/NAME/
  recipe.yaml  environment.json  data.sha256  journal.jsonl  epochs.csv  logs/
  evaluation.json  report.html            (details of the best evaluation, and the report)
  checkpoints/step-000001200/  model.safetensors  ema.safetensors  training.safetensors
                               state.json  chain.json  SHA256SUMS
  checkpoints/last  checkpoints/best      (text files with a step's name, replaced atomically)
  last.safetensors  best.safetensors      (links to their weights, for people and other programs)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from rankless.errors import UserError, remedy, shell_word, similar
from rankless.files import checksums
from rankless.files.reading import MIB, POINTER, opened, read_text
from rankless.files.writing import remove_tree, write_atomically
from rankless.printing import warn

DETACHED = "detached.json"
"""File in a local run directory with the name of the machine that coordinates a detached run."""
_STEP = re.compile(r"step-([0-9]{9,18})")
_LEFT = re.compile(r"\.step-[0-9]{9,18}\.[0-9]+\.(tmp|aside|gone)")
_OUR_LINK = re.compile(r"checkpoints/step-[0-9]{9,18}/(ema|model)\.safetensors")
_LONGEST_STATE = 256 * MIB  # enough for a state with a million unreadable images
_NEEDED = ("model.safetensors", "training.safetensors", "state.json")


class RunDirectory:
    """The paths inside a run directory, none of which need to exist."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.yaml"
        self.environment = self.path / "environment.json"
        self.data_sums = self.path / "data.sha256"
        self.journal = self.path / "journal.jsonl"
        self.evaluation = self.path / "evaluation.json"
        self.report = self.path / "report.html"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"

    @property
    def again(self) -> str:
        """The command that continues this run."""
        return f"rankless train --resume --run {shell_word(self.path)}"

    def step_directory(self, step: int) -> Path:
        """Return the directory of the checkpoint saved after ``step``."""
        return self.checkpoints / f"step-{step:09d}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint directory, complete or not, in increasing order."""
        if not self.checkpoints.is_dir():
            return []
        # Ignore pipes, links and other files with such a name.
        entries = (entry for entry in self.checkpoints.iterdir() if entry.is_dir() and not entry.is_symlink())
        matches = (_STEP.fullmatch(entry.name) for entry in entries)
        return sorted(int(match[1]) for match in matches if match)

    def pointed(self, name: str) -> int | None:
        """Return the step in the file ``last`` or ``best``, or None if the file is missing or damaged."""
        try:
            text = read_text(self.checkpoints / name, POINTER, encoding="ascii", errors="replace")
        except OSError:
            return None
        match = _STEP.fullmatch(text.strip())
        return int(match[1]) if match else None

    def point(self, name: str, step: int) -> None:
        """Point ``last`` or ``best`` to ``step``, atomically."""
        write_atomically(self.checkpoints / name, self.step_directory(step).name + "\n")
        self.link(name)

    def link(self, name: str) -> None:
        """Update the link ``NAME.safetensors`` of ``last`` or ``best``."""
        self.link_weights(f"{name}.safetensors", self.pointed(name))

    def link_weights(self, name: str, step: int | None) -> None:
        """Link ``name`` to the weights of the checkpoint of ``step``, or remove the link if ``step`` is None.

        Rankless never reads these links. If the file system does not support links, or the user has a file
        with this name, nothing is done.
        """
        path = self.path / name
        with suppress(OSError):
            there = str(path.readlink()) if path.is_symlink() else None
            if os.path.lexists(path) and not _OUR_LINK.fullmatch(there or ""):
                return
            if step is None:
                path.unlink(missing_ok=True)
                return
            folder = self.step_directory(step)
            file = folder / ("ema.safetensors" if (folder / "ema.safetensors").is_file() else _NEEDED[0])
            target = file.relative_to(self.path).as_posix()  # relative, so that a run can be moved
            if there != target:
                new = path.with_name(f".{path.name}.tmp")
                new.unlink(missing_ok=True)  # left by a killed process
                new.symlink_to(target)
                new.replace(path)

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Convert an ``OSError`` from writing ``path`` in this block to a user error with advice."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error}); {remedy(error)} and continue from the newest "
                f"checkpoint with `{self.again}`"
            ) from error


def beside(folder: Path, kind: str) -> Path:
    """Return a temporary name for a checkpoint's directory that :func:`recover` recognizes.

    ``kind`` is ``tmp`` while the checkpoint is being written, ``aside`` while another one is replacing it,
    and ``gone`` while it is being removed.
    """
    return folder.with_name(f".{folder.name}.{os.getpid()}.{kind}")


def remove(folder: Path) -> None:
    """Remove a checkpoint. If this is interrupted, the remains are never mistaken for a checkpoint."""
    gone = beside(folder, "gone")
    remove_tree(gone)
    try:
        folder.rename(gone)
    except OSError:
        gone = folder
    remove_tree(gone)


def damage(folder: Path) -> str | None:
    """Return the problem with the checkpoint in ``folder``, or None if it is complete."""
    try:
        listed = checksums.read(folder)
        if listed is None:
            return f"{checksums.NAME} is missing"
        for name in _NEEDED:
            if name not in listed:
                return f"{checksums.NAME} does not list {name}"
        limits = {"state.json": _LONGEST_STATE}
        wrong = [
            name
            for name, digest in listed.items()
            if checksums.of_file(folder / name, limits.get(name)) != digest
        ]
        if not wrong:
            read_state(folder)
    except (OSError, ValueError, UserError) as error:
        return str(error)
    return f"wrong checksum of {', '.join(wrong)}" if wrong else None


class _Best(msgspec.Struct):
    step: int
    score: float


class _State(msgspec.Struct):
    step: int
    images: int
    best: _Best | None
    scaler: dict[str, float] = {}
    data: str | None = None
    unscored: bool = False
    unreadable: dict[str, list[tuple[int, str, str]]] = {}


def read_state(folder: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint's ``state.json``."""
    path, named = folder / "state.json", _STEP.search(folder.name)
    try:
        state: dict[str, Any] = json.loads(read_text(path, _LONGEST_STATE))
        saved = msgspec.convert(state, _State).step
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not the state of a checkpoint ({error}); use another copy") from None
    if named and saved != int(named[1]):
        raise UserError(f"{path}: is the state of step {saved}, not {int(named[1])}; use another copy")
    return state


def remains(run: RunDirectory) -> list[Path]:
    """Return the directories with temporary names from :func:`beside`."""
    return [path for path in run.checkpoints.glob(".step-*") if _LEFT.fullmatch(path.name)]


def recover(run: RunDirectory) -> None:
    """Restore complete checkpoints that a killed process left under temporary names.

    Other remains are removed. No process may be writing to the run.
    """
    # A new checkpoint (tmp) takes precedence over the one that it replaces (aside).
    for path in sorted(remains(run), key=lambda path: path.suffix, reverse=True):
        target = run.checkpoints / path.name[1:].rsplit(".", 2)[0]
        if path.suffix == ".gone" or damage(path) is not None or damage(target) is None:
            remove_tree(path)
            continue
        if target.exists():
            remove(target)
        path.rename(target)


def is_run(folder: Path) -> bool:
    """Check whether a folder is the directory of a run on this or another machine."""
    return any((folder / name).is_file() for name in ("journal.jsonl", DETACHED)) or (
        (folder / "recipe.yaml").is_file() and (folder / ".lock").is_file()
    )


def similar_run(path: Path) -> str:
    """Suggest a run with a similar name in ``runs`` or next to the path, as in ``; did you mean 'x'?``."""
    folders = (*Path("runs").glob("*"), *path.parent.glob("*"))
    runs = {one.name: one for one in folders if is_run(one)}
    return "".join(f"; did you mean '{runs[name]}'?" for name in similar(path.name, runs))


def weights_of(target: Path, warn: Callable[[str], None] = warn) -> Path:
    """Return the weights file for a target on the command line.

    Averaged weights (EMA) are preferred. If a run's best checkpoint is missing, another one is used, and
    ``warn`` is called with a message.

    Args:
        target: a weights file, a run directory (for its best or, if there is none, its last checkpoint), a
            checkpoint directory, or a run's ``best.safetensors``, ``checkpoints/best`` or
            ``checkpoints/last``.
        warn: receives the warning.
    """
    target = Path(target)
    if not target.exists():
        what = "no such file or directory"
        if target.is_symlink():
            what = f"is a link to {target.readlink()}, which does not exist"
        raise UserError(f"{target}: {what}; expected a run directory or a weights file{similar_run(target)}")
    if target.is_file() and target.name in ("best", "last") and target.parent.name == "checkpoints":
        run = RunDirectory(target.parent.parent)
        folder = _named(run, target.name)
        if folder is None:
            raise UserError(f"{dangling(run, target.name)}; available checkpoints: {_names(run)}")
        return _preferred(folder)
    if target.is_file():
        if _is_darknets(target):
            raise UserError(_darknet(target))
        return target
    if (target / "model.safetensors").is_file() or (target / checksums.NAME).is_file():
        return _preferred(target)
    run = RunDirectory(target)
    if (folder := _of_run(run, warn)) is not None:
        return _preferred(folder)
    if run.journal.exists() or run.recipe.exists():
        raise UserError(f"{target}: the run has no saved weights yet; continue it with `{run.again}`")
    raise UserError(
        f"{target}: not a run directory (no recipe.yaml, no checkpoints); expected a run or a weights file"
    )


def _is_darknets(target: Path) -> bool:
    """Check whether a file contains Darknet weights, as ``yolov4.weights`` and ``darknet53.conv.74`` do."""
    if target.suffix != ".weights" and ".conv." not in target.name:
        return False
    try:
        with opened(target) as file:
            return file.read(9)[8:] != b"{"
    except OSError:
        return False


def _darknet(target: Path) -> str:
    cfg, names = target.with_suffix(".cfg"), target.with_suffix(".names")
    known = target.stem.startswith("yolov") and not cfg.is_file()
    network = f"--model {target.stem}" if known else f"--cfg {cfg}"
    more = f" --names {names}" if names.is_file() else ""
    return (
        f"{target}: contains Darknet weights, which must be imported first; run "
        f"`rankless import {target} {network}{more} --out {target.stem}.safetensors`"
    )


def _of_run(run: RunDirectory, warn: Callable[[str], None]) -> Path | None:
    """Return the best, last or newest checkpoint, in that order of preference, or None if there is none."""
    missed: list[str] = []
    for name in ("best", "last"):
        if (folder := _named(run, name)) is not None:
            if missed:
                warn(f"{'; '.join(missed)}; using {run.checkpoints / name} ({folder.name}) instead")
            return folder
        if problem := dangling(run, name):
            missed.append(problem)
    there = [folder for folder in map(run.step_directory, run.steps()) if holds_weights(folder)]
    if not there:
        if missed:
            raise UserError(f"{'; '.join(missed)}; available checkpoints: {_names(run)}")
        return None
    if missed:
        warn(f"{'; '.join(missed)}; using the newest checkpoint ({there[-1].name}) instead")
    return there[-1]


def _named(run: RunDirectory, name: str) -> Path | None:
    step = run.pointed(name)
    folder = None if step is None else run.step_directory(step)
    return folder if folder is not None and holds_weights(folder) else None


def dangling(run: RunDirectory, name: str) -> str:
    """Return the problem if ``last`` or ``best`` points to a missing checkpoint, otherwise ""."""
    if not (run.checkpoints / name).exists() or _named(run, name) is not None:
        return ""
    step = run.pointed(name)
    if step is None:
        return f"{run.checkpoints / name}: is damaged (it does not contain the name of a checkpoint)"
    return f"{run.checkpoints / name}: points to a missing checkpoint ({run.step_directory(step).name})"


def _names(run: RunDirectory) -> str:
    return ", ".join(run.step_directory(step).name for step in run.steps()) or "none"


def holds_weights(folder: Path) -> bool:
    """Check whether a folder contains a model's weights."""
    return (folder / "model.safetensors").is_file()


def _preferred(folder: Path) -> Path:
    """Return the averaged weights in a checkpoint, or the plain weights if the run has no average."""
    averaged, plain = folder / "ema.safetensors", folder / "model.safetensors"
    if averaged.is_file():
        return averaged
    try:
        listed = checksums.read(folder)
    except OSError as error:
        raise UserError(f"{folder / checksums.NAME}: cannot be read ({error})") from None
    if listed is None and not (folder / "state.json").exists():
        return plain
    for path in (averaged, plain):
        if path.name in (listed or {}) and not path.is_file():
            raise UserError(
                f"{path}: is missing, but {checksums.NAME} lists it; use another checkpoint, or another copy "
                "of the run"
            )
    if plain.name not in (listed or {}):
        raise UserError(
            f"{folder / checksums.NAME}: is missing or damaged, so the checkpoint cannot be checked; use "
            f"another checkpoint, or the unchecked file {plain}"
        )
    return plain
