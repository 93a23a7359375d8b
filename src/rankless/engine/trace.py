"""Record digests of all tensors after every step, to show where two runs start to differ."""

from __future__ import annotations

import json
from pathlib import Path

from rankless.engine.evaluate import fingerprint
from rankless.engine.state import TrainingState
from rankless.structures import Scores


class Trace:
    """An observer that writes one line per step: ``{"step": …, "tensors": {name: digest}, "scores": …}``."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8")

    def __call__(self, step: int, state: TrainingState, scores: Scores | None) -> None:
        tensors = {name: fingerprint(value) for name, value in state.tensors().items()}
        entry = {"step": step, "tensors": tensors, "scores": scores}
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
