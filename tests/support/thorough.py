"""How much a run of the tests tries: see HYPOTHESIS in the Makefile."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

_ASKED = os.environ.get("HYPOTHESIS", "")
THOROUGH = _ASKED == "thorough"  # all variants of a test
thorough_only = pytest.mark.skipif(not THOROUGH, reason="only HYPOTHESIS=thorough runs it")
EXAMPLES = {"short": 6, "thorough": 500}.get(_ASKED, 10)  # of a property

# How long an example takes says how busy the machine is, not whether the code is right. Every run draws other
# examples; where each takes long there are fewer. `make test-fast` draws few, HYPOTHESIS=thorough many.
settings.register_profile("here", deadline=None, max_examples=EXAMPLES)
settings.register_profile("files", max_examples=EXAMPLES if THOROUGH else EXAMPLES // 2, deadline=None)
settings.load_profile("here")
