"""Writes the table of what can be wrong in ``docs/data.md``: ``python docs/make_findings_table.py``.

The kinds and their outcomes come from ``rankless.data.index.findings``. A test checks the table.
"""

from __future__ import annotations

from pathlib import Path

from rankless.data.index.findings import KINDS

PAGE = Path(__file__).with_name("data.md")
START, END = "<!-- table: made by make_findings_table.py -->\n", "<!-- end of table -->\n"
THEN = {
    "stops": "**stops** before the first step",
    "needs range": "**stops** before the first step, unless `data.range` is set",
    "dropped": "left out, counted",
    "clipped": "clipped, counted",
    "replaced": "another image takes its place, counted",
    "reported": "counted",
}


def table() -> str:
    """What stops training first, each outcome in the order of the code."""
    ordered = sorted(KINDS.items(), key=lambda one: list(THEN).index(one[1].outcome))
    rows = [f"| {name} | {kind.what} | {THEN[kind.outcome]} |" for name, kind in ordered]
    return "\n".join(["| kind | meaning | result |", "|---|---|---|", *rows]) + "\n"


def page(text: str) -> str:
    """The page with its table written again."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + table() + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
