"""The report as one self-contained HTML file for small and large screens, in light and dark mode.

Its content security policy forbids network requests.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankless import __version__
from rankless.errors import UserError, check_all
from rankless.files.writing import beside
from rankless.report import evaluation, overview, training
from rankless.report.collected import Collected
from rankless.report.markup import card, fill_rows, text
from rankless.runs.weights_digest import of_run

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(runs: Sequence[Collected], digests: overview.Digests | None = None, *, refresh: int = 0) -> str:
    """Return the page of one run, or of several runs side by side.

    ``digests`` maps run directories, as passed, to digests of weights. If ``refresh`` is not 0, the browser
    reloads the page after that many seconds.
    """
    known = digests or {}
    if len(runs) == 1:
        (run,) = runs
        title = run.name
        body = overview.claim(run, known.get(str(run.run.path))) + _sections(run)
    else:
        title = " · ".join(run.name for run in runs)
        body = f'<div class="grid">{overview.comparison(runs, known)}</div>'
        body += section("Curves", training.compared(runs) + _panel(evaluation.compared, runs))
        for at, run in enumerate(runs):
            inner = overview.claim(run, known.get(str(run.run.path))) + _sections(run)
            body += (
                f'<details class="run"><summary class="c{at % 8}">{text(run.name)}</summary>{inner}</details>'
            )
    return document(title, body, refresh=refresh)


def document(title: str, body: str, *, refresh: int = 0) -> str:
    """Return a complete HTML page with a title and a body."""
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)} – Rankless</title><style>{style}</style></head>\n"
        f"<body><header><h1>{text(title)}</h1></header><main>{body}</main>"
        f"<footer>Rankless {text(__version__)}</footer><script>{script}</script></body></html>\n"
    )


def _sections(run: Collected) -> str:
    found = "".join(
        _panel(make, run)
        for make in (
            evaluation.score_table,
            evaluation.curve_charts,
            evaluation.class_table,
            evaluation.confusion_panel,
            evaluation.class_bars,
            evaluation.size_charts,
        )
    )
    title, step = "Best evaluation", run.details.get("step")
    if run.best is not None and step not in (None, run.best[0]):  # in a copy of a run
        title += f", with curves and images of step {step:,}"
    return "".join(
        (
            section("Training", training.score_charts(run) + training.loss_charts(run)),
            section(title, found),
            _panel(evaluation.galleries, run),
            section("Time", training.time_charts(run) + training.events_panel(run)),
            section("Environment", overview.environment(run)),
        )
    )


def _panel(make: Callable[[Any], str], subject: Collected | Sequence[Collected]) -> str:
    """Return the result of ``make``, or a note if a file of the run has an unexpected format."""
    try:
        return make(subject)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        runs = [subject] if isinstance(subject, Collected) else subject
        files = ", ".join(text(run.run.evaluation) for run in runs)
        return card("Not shown", f"<p>{files}: the format is not supported by this version.</p>")


def section(title: str, cards: str) -> str:
    """Return a section with a title and panels, or an empty string if there are no panels."""
    return f'<h2>{title}</h2><div class="grid">{fill_rows(cards)}</div>\n' if cards else ""


def write(runs: Sequence[Collected], path: Path, digests: overview.Digests | None = None) -> None:
    """Write the page to ``path``, replacing an earlier one."""
    content = render(runs, digests)
    with beside(path, durable=False) as part:
        part.write_text(content, encoding="utf-8")


class Report:
    """The report of one run, or of several side by side, for display in a notebook.

    The report is an iframe without access to the notebook. It shows the runs, which may still be in progress,
    as they were when this object was created.

    Args:
        runs: run directories.
        height: height of the frame in pixels.

    Raises:
        UserError: no run is given, or a folder is not a run directory with a journal.

    Examples:
        >>> page = rankless.Report("runs/digits")
        >>> page._repr_html_()[:15]
        '<iframe srcdoc='
    """

    def __init__(self, *runs: str | os.PathLike[str], height: int = 720) -> None:
        if not runs:
            raise UserError("rankless.Report(): expected at least one run directory, such as runs/digits")
        collected = check_all(*(Collected(Path(run)).refresh for run in runs))
        digests = {str(one.run.path): of_run(one.run.path) or "" for one in collected}
        self._page, self._height = render(collected, digests), height

    def _repr_html_(self) -> str:
        style = f"box-sizing:border-box;width:100%;height:{self._height:d}px;border:1px solid #8886"
        page = html.escape(self._page)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="report" style="{style}"></iframe>'
