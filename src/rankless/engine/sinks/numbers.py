"""The metrics of a run, named for dashboards as in ``train/loss``, ``val/AP`` and ``time/seconds``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = ("step", "time")  # dashboards record both themselves


def of_step(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the journal's entry of a step."""
    found = {}
    for room, values in (("train", entry), ("train", entry["parts"]), ("time", entry["timing"])):
        found.update({f"{room}/{name}": value for name, value in _numbers(values) if name not in _KNOWN})
    return found


def of_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return an evaluation's scores except missing ones. Scores of a class are named ``val/CLASS/AP``."""
    found = {f"val/{name}": value for name, value in _numbers(scores)}
    for rows in scores.values():
        if isinstance(rows, Mapping):
            for name, row in rows.items():
                if isinstance(row, Mapping):
                    found.update({f"val/{name}/{column}": value for column, value in _numbers(row)})
    return found


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a recipe, as on the command line, with their values as text."""
    for name, value in recipe.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), float(value)
