"""The report of a search: a self-contained ``report.html`` in its folder."""

from __future__ import annotations

import math

from rankless.files.writing import beside
from rankless.launch.tuning.record import FAILED, Record, Trial, as_text
from rankless.launch.tuning.space import Range
from rankless.report.charts import Axes, Line, Mark, line_chart, shown
from rankless.report.markup import card, duration, number, table, text, tile
from rankless.report.page import document, section

NAME = "report.html"


def write(record: Record) -> None:
    with beside(record.folder / NAME, durable=False) as part:
        part.write_text(render(record), encoding="utf-8")


def render(record: Record) -> str:
    """Return the report of a search as HTML."""
    scored = [one for one in record.trials if one.score is not None and math.isfinite(one.score)]
    charts = _score_chart(record, scored)
    charts += "".join(_key_chart(record, scored, key, one) for key, one in record.search.space.items())
    body = _summary(record) + section("Scores", charts)
    body += section("Trials", card("All trials, the best first", _table(record), width="all"))
    return document(record.folder.resolve().name, body)


def _summary(record: Record) -> str:
    name, best = record.search.score_name, record.ranked()[:1]
    goal = "lowest" if record.search.lower_is_better else "highest"
    sentence = f"Search for the {goal} {text(name)} of {text(record.search.name)}"
    failed = sum(one.state == FAILED for one in record.trials)
    tiles = [
        *(tile(f"best {name}, trial {one.number}", _score(record, one), "main") for one in best),
        *(tile(f"{name} of the unchanged recipe", _score(record, one)) for one in record.trials[:1]),
        tile("trials", f"{len(record.trials):,}"),
        tile("failed", f"{failed:,}"),
        tile("training time", duration(sum(one.seconds for one in record.trials))),
    ]
    below = f'<pre class="command">{text(record.command(best[0]))}</pre>' if best else ""
    return f'<p class="lead">{sentence}.</p><div class="tiles">{"".join(tiles)}</div>' + (
        f'<p class="note">Train with the best values:</p>{below}' if best else ""
    )


def _score(record: Record, one: Trial) -> str:
    return number(one.score, "trials", record.trials.index(one), "score")


def _score_chart(record: Record, scored: list[Trial]) -> str:
    name, better = record.search.score_name, min if record.search.lower_is_better else max
    scores = [(one.number, float(one.score or 0.0)) for one in scored]
    best = [(at, better(score for _, score in scores[:done])) for done, (at, _) in enumerate(scores, 1)]
    marks = [Mark(one.number, f"best: trial {one.number}", "best") for one in record.ranked()[:1]]
    lines = [Line(name, scores, 0, "points"), Line("best so far", best, 1)]
    return line_chart(f"{name} over trials", lines, Axes("trial", marks=marks))


def _key_chart(record: Record, scored: list[Trial], key: str, one: Range) -> str:
    tried = [trial for trial in scored if trial.params.get(key) is not None]

    def place(value: object) -> float:
        if one.choices:
            return float(one.choices.index(str(value)))
        return math.log10(float(str(value))) if one.is_logarithmic else float(str(value))

    tried.sort(key=lambda trial: place(trial.params[key]))
    points = [(place(trial.params[key]), float(trial.score or 0.0)) for trial in tried]
    labels = [f"{as_text(trial.params[key])}, trial {trial.number}" for trial in tried]
    ticks = [(place(choice), choice) for choice in one.choices]
    low, high = map(place, (one.choices[0], one.choices[-1]) if one.choices else (one.low, one.high))
    if one.is_logarithmic:
        steps = [power + math.log10(first) for power in range(-12, 13) for first in (1, 2, 5)]
        ticks = [(step, shown(10**step)) for step in steps if low - 1e-9 <= step <= high + 1e-9]
        ticks = ticks if len(ticks) <= 7 else [tick for tick in ticks if abs(tick[0] - round(tick[0])) < 1e-9]
    axes = Axes(key, x_range=(low - 0.5, high + 0.5) if one.choices else (low, high), x_ticks=ticks)
    line = Line(record.search.score_name, points, 2, "points", labels)
    return line_chart(f"{record.search.score_name} against {key}", [line], axes)


def _table(record: Record) -> str:
    keys, rows = list(record.search.space), []
    for one in [*record.ranked(), *(one for one in record.trials if one.score is None)]:
        link = f'<a href="{text(record.run(one.number).name)}/{NAME}">{one.number}</a>'
        link = link if one.score is not None else str(one.number)
        at = record.trials.index(one)
        values = [_cell(one.params.get(key), "trials", at, "params", key) for key in keys]
        seconds = number(one.seconds, "trials", at, "seconds", digits=0)
        rows.append([link, _score(record, one), *values, seconds, text(one.problem or one.state)])
    head = ("trial", record.search.score_name, *keys, "seconds", "state")
    return table(head, rows, kind="numbers sortable compare trials")


def _cell(value: object, *where: str | int) -> str:
    if not isinstance(value, int | float):
        return text("–" if value is None else value)
    power = math.floor(math.log10(abs(value))) if value else 0
    return number(value, *where, digits=min(max(2 - power, 0), 12))
