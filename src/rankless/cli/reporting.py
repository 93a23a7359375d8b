"""The commands report and plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import flag, part
from rankless.errors import UserError, check_all
from rankless.printing import say

if TYPE_CHECKING:
    from rankless.report.collected import Collected

app = part()

Runs = Annotated[
    Path, Parameter(name="RUN", help="The run directories; several are shown side by side.", required=True)
]
Replace = Annotated[bool, Parameter(help="Replace a file that this command did not write."), flag]


@app.command(
    sort_key=5,
    usage="Usage: rankless report RUN [RUN ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless report runs/digits
  rankless report runs/digits runs/digits-2 --out both.html
""",
)
def report(
    *runs: Runs,
    out: Annotated[
        Path | None,
        Parameter(
            help="The file to write. Default: report.html in the run directory, or here for several runs.",
            metavar="FILE",
        ),
    ] = None,
    force: Replace = False,
) -> int:
    """Write a self-contained HTML report of runs: scores, curves, images and times."""
    collected = _collected(runs)
    is_own = out is None and len(collected) == 1
    from rankless.files.outputs import Outputs
    from rankless.report import page
    from rankless.runs.weights_digest import of_run

    digests = {str(one.run.path): of_run(one.run.path) or "" for one in collected}
    target = collected[0].run.report if is_own else out or Path("report.html")
    if is_own:
        try:
            page.write(collected, target, digests)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror}); give another --out") from None
    else:
        outputs = Outputs([target], verb="report", force=force)
        outputs.refuse_inputs(path for one in collected for path in (one.run.journal, one.run.recipe))
        with outputs.writing(target) as part_of:
            part_of.write_text(page.render(collected, digests), encoding="utf-8")
    say(str(target))
    return 0


@app.command(
    sort_key=5,
    usage="Usage: rankless plot RUN [RUN ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless plot runs/digits
  rankless plot runs/digits runs/digits-2 --out curves.svg
""",
)
def plot(
    *runs: Runs,
    out: Annotated[
        Path, Parameter(help="The image to write: .png, .svg, .pdf, .jpg or .webp.", metavar="FILE")
    ] = Path("curves.png"),
    force: Replace = False,
) -> int:
    """Draw the curves of runs as an image: loss, scores, learning rate, speed."""
    from rankless.files.outputs import drawing

    outputs = drawing(out, "plot", force=force)
    collected = _collected(runs)
    outputs.refuse_inputs(path for one in collected for path in (one.run.journal, one.run.recipe))
    from rankless.report.plot import plot as draw

    draw(collected, out, outputs)
    say(str(out))
    return 0


def _collected(runs: tuple[Path, ...]) -> list[Collected]:
    """Read all runs; report all unreadable ones together."""
    from rankless.report.collected import Collected

    collected = [Collected(path) for path in dict.fromkeys(runs)]
    return _named_apart(check_all(*(one.refresh for one in collected)))


def _named_apart(runs: list[Collected]) -> list[Collected]:
    """Rename runs that have the same name to their paths."""
    names = [one.name for one in runs]
    for one in runs:
        if names.count(one.name) > 1:
            one.name = str(one.run.path)
    return runs
