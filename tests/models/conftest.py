"""What the fuzzing of all inputs has of hostile checkpoints, these tests look at one by one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
