"""Writes the JSON Schema that is installed beside the shipped recipes: ``python docs/make_recipe_schema.py``.

It is the recipe's own schema, with the names of all tasks and models. A test compares them.
"""

from __future__ import annotations

import re
from pathlib import Path

from rankless.models.classifiers.catalog import CLASSIFIERS
from rankless.models.zoo import MODELS
from rankless.printing import as_json
from rankless.recipe.installed import SCHEMA_FILE
from rankless.recipe.json_schema import schema
from rankless.task_kinds import BUILT_IN

PAGE = Path(__file__).parents[1] / "src" / "rankless" / "recipe" / "shipped" / SCHEMA_FILE


def page(_: str) -> str:
    """The schema, in which editors and shells find names as examples of ``task`` and ``model.name``."""
    whole = schema()
    whole["properties"]["task"]["examples"] = list(BUILT_IN)
    names = [*MODELS, *CLASSIFIERS]
    for kind in whole["$defs"].values():
        name = kind["properties"].get("name", {})
        if kind["title"].endswith("Model"):
            name["examples"] = [one for one in names if re.search(name.get("pattern", ""), one)]
    return as_json(whole, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(""), encoding="utf-8")
