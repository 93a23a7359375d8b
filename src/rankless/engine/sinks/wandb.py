"""A sink that records offline for Weights & Biases. ``wandb sync RUN/wandb/offline-*`` uploads a run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankless.engine.sinks.numbers import of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.structures import Scores

_DEFAULTS = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}


class WandbSink(Sink):
    """Logs the recipe and all numbers. ``WANDB_MODE``, ``WANDB_PROJECT`` etc. apply."""

    def __init__(self) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        import wandb

        self._library = wandb

    def start(self, run: RunStart) -> None:
        """Start a part of the run. All parts of a run share an ID."""
        wandb = self._library
        folder = run.run / "wandb"
        folder.mkdir(exist_ok=True)
        self._board = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rankless"),
            name=run.run.name,
            id=_id(folder / "run-id", is_new=not run.first),
            dir=run.run,
            config=dict(run.recipe),
            # Send nothing about the machine, the source code or the output.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )

    def step(self, entry: Mapping[str, Any]) -> None:
        self._board.log(of_step(entry), step=entry["step"])

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._board.log(of_scores(scores), step=step)
        if is_best:
            best = {name: value for name, value in of_scores(scores).items() if name.count("/") == 1}
            self._board.summary.update({f"best/{name.partition('/')[2]}": best[name] for name in best})

    def close(self) -> None:
        self._board.finish()


def _id(path: Path, *, is_new: bool) -> str:
    if is_new or not path.is_file():
        path.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
