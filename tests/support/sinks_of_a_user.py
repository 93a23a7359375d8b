"""Sinks as a user writes them; the ranks import them by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import rankless


class Recorder(rankless.Sink):
    """Writes every call beside the run's files, and changes whatever it is given."""

    def start(self, run: Any) -> None:
        self.path = Path(run.run) / "recorded.jsonl"
        self._write("start", run.recipe["epochs"], run.first, run.steps, run.world_size)
        run.recipe.clear()

    def step(self, entry: Mapping[str, Any]) -> None:
        torch.manual_seed(0)  # dropout must not notice
        assert isinstance(entry, dict)
        self._write("step", entry.pop("step"), entry.pop("loss"))
        entry.clear()

    def scores(self, step: int, scores: dict[str, Any], is_best: bool) -> None:
        self._write("scores", step, dict(scores), is_best)
        scores.clear()

    def event(self, name: str, step: int, text: str) -> None:
        self._write("event", name, step, text)

    def close(self) -> None:
        self._write("close")

    def _write(self, *call: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")


class Fails(rankless.Sink):
    """Raises at its third step, and would again."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, entry: Mapping[str, Any]) -> None:
        self.steps += 1
        if self.steps >= 3:
            raise RuntimeError("no connection")

    def close(self) -> None:
        raise AssertionError("a sink that was dropped is not closed")


class Exits(rankless.Sink):
    def scores(self, step: int, scores: dict[str, Any], is_best: bool) -> None:
        sys.exit("enough")


class CannotBeMade(rankless.Sink):
    def __init__(self) -> None:
        raise OSError("no key")


class NotOne:
    def start(self, run: Any) -> None: ...
