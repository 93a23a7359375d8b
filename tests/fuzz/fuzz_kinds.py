"""The kinds of input, by name."""

from __future__ import annotations

from collections.abc import Callable

import inputs_data
import inputs_models
import inputs_recipes
import inputs_runs
import inputs_words
from fuzz_case import Case
from hypothesis import strategies as st

KINDS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "cfg": inputs_models.cfgs,
    "darknet weights": inputs_models.darknet_weights,
    "checkpoint, zip": lambda: inputs_models.checkpoints_zipped,
    "checkpoint, legacy": lambda: inputs_models.checkpoints_legacy,
    "safetensors": inputs_models.safetensors,
    "weights' metadata": inputs_models.hostile_metadata,
    "recipe": inputs_recipes.recipes,
    "override": inputs_recipes.overrides,
    **inputs_data.ALL,
    "run directory": inputs_runs.runs,
    "strange folder": inputs_runs.strange_folders,
    "output place": inputs_words.output_places,
    "command line": inputs_words.command_lines,
}
