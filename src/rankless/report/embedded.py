"""The report in a notebook."""

from __future__ import annotations

import html
import os
from pathlib import Path

from rankless.errors import UserError, check_all
from rankless.report.collected import Collected
from rankless.report.page import render
from rankless.runs.weights_digest import of_run


class Report:
    """The report of one run, or of several side by side, which a notebook displays as the value of a cell.

    The report is a frame without access to the notebook around it. It shows the runs as they were when this
    object was created. They may still be in progress.

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
