"""Whether all variants of a test are wanted: ``make test HYPOTHESIS=thorough``."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("HYPOTHESIS") == "thorough"
