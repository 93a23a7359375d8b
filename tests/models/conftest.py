"""Helpers of these tests lie beside them, and hostile checkpoints with the fuzzing of all inputs."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "heads"), str(HERE.parent / "fuzz")]
