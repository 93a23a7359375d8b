"""The commands that look at trainings: runs, watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rankless.cli.words import Json, Python, Ssh, part
from rankless.errors import UserError
from rankless.printing import print_json, say

if TYPE_CHECKING:
    from rankless.runs.directory import RunDirectory
    from rankless.runs.overview import Overview

app = part()


@app.command(
    sort_key=3,
    usage="Usage: rankless runs [DIR] [OPTIONS]",
    help_epilogue="""\
States: running, finished, stopped (it was asked to), failed (an error), died (a process), interrupted (the
machine or the launcher stopped), new (no step was done), on HOST (left to another machine by --detach).

Examples:
  rankless runs
  rankless runs /mnt/experiments --json
""",
)
def runs(
    folder: Annotated[Path, Parameter(name="DIR", help="A folder with runs in it, or a run.")] = Path("runs"),
    /,
    *,
    as_json: Json = False,
) -> int:
    """List runs: state, step, best score, digest of the best weights, training time; the newest first."""
    from rankless.printing import ProgressBar
    from rankless.runs.overview import find, overview

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with runs in it, as in: rankless runs runs")
    found = []
    every = find(folder)
    with ProgressBar(len(every), "reading weights") as bar:
        for run in every:
            found.append(overview(run, _recipe(run)))
            bar.advance()
    if as_json:
        print_json([_plain(one) for one in found])
    elif not found:
        say(f"{folder}: no runs here; rankless train digits begins one")
    else:
        print(f"{'state':12}{'step':>15}  {'score':12}  {'digest':12}  {'time':>8}  run")
        for one in found:
            say(_line(one))
    return 0


@app.command(
    sort_key=3,
    usage="Usage: rankless watch RUN [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless watch runs/digits
  rankless watch gpu1:experiments/runs/my
""",
)
def watch(
    run: Annotated[
        str,
        Parameter(
            name="RUN",
            help="The run directory; HOST:DIRECTORY on another machine, from the home directory there where "
            "it is not a whole path; one that was detached is found by itself.",
        ),
    ],
    /,
    *,
    ssh: Ssh = "ssh",
    python: Python = None,
) -> int:
    """Follow a training in this terminal, from its first epoch on; Ctrl-C leaves it running."""
    import shlex

    from rankless.launch.watching import watch as follow

    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise UserError(f"--ssh is '{ssh}': {error}; expected a command, as in 'ssh -p 2222'") from None
    return follow(run, words or ["ssh"], python)


def _recipe(run: RunDirectory) -> dict[str, Any]:
    """The recipe of a run as plain values; empty where it cannot be read."""
    from rankless.files.reading import MIB, read_text
    from rankless.recipe import yaml12

    try:
        tree, _ = yaml12.read(read_text(run.recipe, MIB), "recipe.yaml", lines=False)
    except (OSError, UserError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _line(one: Overview) -> str:
    steps = f"{one.step:,}/{one.steps:,}" if one.steps else f"{one.step:,}" if one.step else "–"
    score = f"{one.score_name or 'score'} {one.score:.4f}" if one.score is not None else "–"
    minutes, seconds = divmod(round(one.seconds), 60)
    hours, minutes = divmod(minutes, 60)
    time = f"{hours}:{minutes:02}:{seconds:02}"
    digest = one.digest[:12] if one.digest else "–"
    return f"{one.state:12}{steps:>15}  {score:12}  {digest:12}  {time:>8}  {one.run}"


def _plain(one: Overview) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    changed = datetime.fromtimestamp(one.changed, UTC).isoformat(timespec="seconds")
    return {**asdict(one), "run": str(one.run), "changed": changed}
