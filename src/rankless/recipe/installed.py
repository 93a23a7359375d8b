"""Files installed with Rankless: the shipped recipes and the JSON Schema of recipes.

Reading them imports neither PyTorch nor pydantic.
"""

from __future__ import annotations

from importlib import resources

from rankless.errors import UserError, nearest

SCHEMA_FILE = "recipe.schema.json"
EDITOR_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
"""First line of the shipped recipes, which tells editors to read the schema from a file next to them."""

_FOLDER = resources.files("rankless.recipe") / "shipped"


def shipped() -> dict[str, str]:
    """Map the names of the shipped recipes to their descriptions, taken from the second line of each file."""
    names = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    return {
        name.removesuffix(".yaml"): (_FOLDER / name).read_text("utf-8").split("\n", 2)[1].lstrip("# ")
        for name in names
    }


def shipped_text(name: str) -> str:
    """Return the text of a shipped recipe, including the header."""
    if name not in shipped():
        hint = nearest(name, shipped()) or f": expected one of {', '.join(shipped())}"
        raise UserError(f"no shipped recipe '{name}'{hint}")
    return (_FOLDER / f"{name}.yaml").read_text("utf-8")


def schema_text() -> str:
    """Return the JSON Schema of recipes; unlike :func:`.json_schema.schema`, it lists the models' names."""
    return (_FOLDER / SCHEMA_FILE).read_text("utf-8")
