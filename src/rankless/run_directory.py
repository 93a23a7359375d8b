"""The run directory: where training and everything after it meet.

runs/NAME/
  recipe.yaml  environment.json  journal.jsonl  logs/
  checkpoints/step-000001200/  model.safetensors  ema.safetensors  training.safetensors
                               state.json  SHA256SUMS
  checkpoints/last  checkpoints/best      (text files that hold the name of a step, replaced atomically)
"""

from __future__ import annotations

import re
from pathlib import Path

from rankless.errors import UserError
from rankless.files import write_atomically

_STEP = re.compile(r"^step-(\d{9,})$")


class RunDirectory:
    """The places in one run directory. Creates nothing by itself.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.yaml"
        self.environment = self.path / "environment.json"
        self.journal = self.path / "journal.jsonl"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"

    def step_directory(self, step: int) -> Path:
        """Where the checkpoint of ``step`` lies."""
        return self.checkpoints / f"step-{step:09d}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint directory, whole or not, rising."""
        if not self.checkpoints.is_dir():
            return []
        found = (_STEP.match(entry.name) for entry in self.checkpoints.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def pointed(self, name: str) -> int | None:
        """The step that ``last`` or ``best`` names; None without one."""
        try:
            match = _STEP.match((self.checkpoints / name).read_text().strip())
        except OSError:
            return None
        return int(match[1]) if match else None

    def point(self, name: str, step: int) -> None:
        """Make ``last`` or ``best`` name ``step``, atomically."""
        write_atomically(self.checkpoints / name, self.step_directory(step).name + "\n")


def new_run_directory(name: str) -> Path:
    """``runs/NAME``, or ``runs/NAME-2``, ``-3`` … where that is taken."""
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def weights_of(target: Path) -> Path:
    """The weights file that ``target`` means.

    Args:
        target: a weights file, a run directory (its best checkpoint, else its last), a checkpoint directory,
            or a run's ``checkpoints/best`` or ``checkpoints/last``. The averaged weights (EMA) are preferred.

    Raises:
        UserError: nothing there, or nothing there that holds weights.
    """
    target = Path(target)
    if not target.exists():
        raise UserError(f"{target}: no such file or directory; expected a run directory or a weights file")
    if target.is_file() and target.name in ("best", "last"):
        run = RunDirectory(target.parent.parent)
        return _checkpoint_weights(run, target.name, run.pointed(target.name))
    if target.is_file():
        return target
    if (target / "model.safetensors").is_file():
        return _preferred(target)
    run = RunDirectory(target)
    for name in ("best", "last"):
        if (step := run.pointed(name)) is not None:
            return _checkpoint_weights(run, name, step)
    if run.journal.exists() or run.recipe.exists():
        raise UserError(f"{target}: this run has no checkpoint yet; train it on with --resume --run {target}")
    raise UserError(
        f"{target}: not a run directory (no recipe.yaml, no checkpoints); give a run or a weights file"
    )


def _checkpoint_weights(run: RunDirectory, name: str, step: int | None) -> Path:
    if step is None or not (run.step_directory(step) / "model.safetensors").is_file():
        raise UserError(
            f"{run.checkpoints / name}: names a checkpoint that is not there; "
            f"the run has {', '.join(run.step_directory(s).name for s in run.steps()) or 'none'}"
        )
    return _preferred(run.step_directory(step))


def _preferred(directory: Path) -> Path:
    averaged = directory / "ema.safetensors"
    return averaged if averaged.is_file() else directory / "model.safetensors"
