"""The top of the page: the result and cost of a run, or the differences between several runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rankless.errors import counted
from rankless.report.collected import Collected
from rankless.report.markup import card, duration, number, pairs, table, text, tile
from rankless.runs.pace import speed_text

Digests = Mapping[str, str]
"""SHA-256 of each run's weights, by run directory. Runs in progress have no entry."""
_HEADLINE = ("AP", "AP50", "AP75", "top1", "top5", "f1")


def claim(run: Collected, digest: str | None) -> str:
    """Return the summary of a run: its result, cost, digest and recipe."""
    tiles = []
    if run.best is not None:
        step, scores = run.best
        names = [name for name in _HEADLINE if isinstance(scores.get(name), float)]
        if run.score_name and run.score_name not in names:
            names.insert(0, run.score_name)
        for place, name in enumerate(names[:4]):
            value = number(scores.get(name), "scores", name, digits=3, step=step)
            tiles.append(tile(name, value, "main" if not place else ""))
    tiles.append(tile("training time", _spent(run)))
    if (speed := run.images_per_second) is not None:
        tiles.append(tile("images/s", speed_text(speed)))
    if run.pace.waited is not None:
        tiles.append(tile("waiting for images", f"{run.pace.waited:.0%}"))
    if run.ranks:
        tiles.append(tile("ranks", f"{run.ranks}"))
    if run.memory:
        sizes = dict.fromkeys(f"{one / 1024:.1f}" for one in (min(run.memory), max(run.memory)))
        tiles.append(tile("memory per rank", f"{'–'.join(sizes)} GiB"))
    if run.busy:
        shares = dict.fromkeys(f"{one:.0%}" for one in (min(run.busy), max(run.busy)))
        tiles.append(tile("time computing per rank", "–".join(shares)))
    tiles.append(tile("steps", f"{run.step:,}"))
    sentence = text(run.recipe.get("model.name") or "a model")
    if data := run.recipe.get("data.root"):
        sentence += f" on {text(data)}"
    sentence += f"; {text(run.state)}, {counted(run.step, 'step')}"
    if run.best is not None:
        sentence += f", best at step {run.best[0]:,}"
    below = (
        f'<p class="digest"><span>SHA-256 of the weights</span> <code>{text(digest)}</code></p>'
        if digest
        else ""
    )
    if run.recipe_text:
        written = "\n".join(map(text, run.recipe_text.splitlines()))
        below += (
            f'<details class="recipe"><summary>Recipe</summary><pre class="scroll">{written}</pre></details>'
        )
    return f'<p class="lead">{sentence}.</p><div class="tiles">{"".join(tiles)}</div>{below}'


def _spent(run: Collected) -> str:
    return duration(run.steps.total("seconds"))


def comparison(runs: Sequence[Collected], digests: Digests) -> str:
    """Return a table of the runs' results and a table of the differences between their recipes."""
    rows: list[list[str]] = [["state", *(text(run.state) for run in runs)]]
    names = [name for name in _HEADLINE if any(run.best and name in run.best[1] for run in runs)]
    for name in names:
        best = [run.best and number(run.best[1].get(name), "scores", name, step=run.best[0]) for run in runs]
        rows.append([text(name), *(score or "–" for score in best)])
    rows.append(["best step", *(f"{run.best[0]:,}" if run.best else "–" for run in runs)])
    rows.append(["steps", *(f"{run.step:,}" for run in runs)])
    rows.append(["training time", *map(_spent, runs)])
    speeds = [run.images_per_second for run in runs]
    rows.append(["images/s", *(speed_text(speed) if speed else "–" for speed in speeds)])
    rows.append(["ranks", *(str(run.ranks or "–") for run in runs)])
    note = ""
    if digests:
        shown = [digests.get(str(run.run.path)) for run in runs]
        cells = [f'<code title="{text(one)}">{text(one[:12])}…</code>' if one else "–" for one in shown]
        rows.append(["digest", *cells])
        two = itertools.combinations(zip(runs, shown, strict=True), 2)
        if same := [f"{a.name} and {b.name}" for (a, one), (b, other) in two if one and one == other]:
            note = f"The weights of {text('; '.join(same))} are bitwise identical."
    body = table(["", *(run.name for run in runs)], rows, kind="numbers compare")
    return card("Side by side", body, note, width="all") + _differences(runs)


def _differences(runs: Sequence[Collected]) -> str:
    keys = dict.fromkeys(key for run in runs for key in run.recipe)
    rows = []
    for key in keys:
        values = [run.recipe.get(key, "–") for run in runs]
        if any(value != values[0] for value in values[1:]):
            rows.append([f"<code>{text(key)}</code>", *(text(_value(value)) for value in values)])
    if not rows:
        return card("Recipes", "<p>The recipes are identical.</p>", width="all")
    body = table(["key", *(run.name for run in runs)], rows)
    return card("Differences between the recipes", body, width="all")


def _value(value: Any) -> str:
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 80 else f"{written[:80]}…"


def environment(run: Collected) -> str:
    """Return panels with the run's hardware and software, and with its starts."""
    parts = []
    if run.starts:
        last = run.starts[-1]
        plain = [
            (name, last[name])
            for name in ("command", "host", "system", "backend", "world_size")
            if name in last
        ]
        rows = [(text(name.replace("_", " ")), text(value)) for name, value in plain]
        for section in ("hardware", "instruction_set", "versions", "variables"):
            values = last.get(section)
            if isinstance(values, dict):
                rows += [(text(name), text(value)) for name, value in values.items()]
        note = f"These values are from the last of {len(run.starts)} starts." if len(run.starts) > 1 else ""
        parts.append(card("Environment", pairs(rows), note, width="all"))
        if len(run.starts) > 1:
            cells = ("started", "after_step", "world_size", "host")
            starts = [[text(one.get(name, "–")) for name in cells] for one in run.starts[-50:]]
            parts.append(card("Starts", table([name.replace("_", " ") for name in cells], starts)))
    return "".join(parts)
