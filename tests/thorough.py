"""How much a run of the tests tries: see HYPOTHESIS in the Makefile."""

from __future__ import annotations

import os

_ASKED = os.environ.get("HYPOTHESIS", "")
THOROUGH = _ASKED == "thorough"  # all variants of a test
EXAMPLES = {"short": 10, "thorough": 500}.get(_ASKED, 30)  # of a property
