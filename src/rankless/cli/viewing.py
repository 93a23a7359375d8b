"""The commands ``rankless runs``, ``watch``, ``report`` and ``plot``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rankless.cli.options import Force, Json, Python, Ssh, app, flag, refuse_without, whole_number
from rankless.errors import UserError, check_all
from rankless.printing import print_json, say, warn

if TYPE_CHECKING:
    from rankless.report.collected import Collected
    from rankless.runs.directory import RunDirectory
    from rankless.runs.overview import Overview


@app.command(
    sort_key=3,
    usage="Usage: rankless runs [DIR] [OPTIONS]",
    help_epilogue="""\
States: running, finished, stopped (on request), failed (with an error),
died (a process was killed), interrupted (the machine or the launcher stopped),
new (no step finished yet), on HOST (started with --detach, and coordinated by
HOST).

Examples:
  rankless runs
  rankless runs /mnt/experiments --json
""",
)
def runs(
    folder: Annotated[Path, Parameter(name="DIR", help="A folder of runs, or a single run.")] = Path("runs"),
    /,
    *,
    as_json: Json = False,
) -> int:
    """List runs, newest first: state, step, best score, training time, and digest of the best weights."""
    from rankless.printing import ProgressBar
    from rankless.runs.directory import dangling
    from rankless.runs.overview import find, overview

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected a folder of runs, as in: rankless runs runs")
    found = []
    every = find(folder)
    with ProgressBar(len(every), "reading weights") as bar:
        for run in every:
            found.append(overview(run, _recipe(run)))
            bar.advance()
    if as_json:
        print_json([_plain(one) for one in found])
    elif not found:
        say(f"{folder}: no runs here; to start one: rankless train digits")
    else:
        print(f"{'state':12}{'step (saved)':>15}  {'score':12}  {'digest':12}  {'time':>8}  run")
        for one in found:
            say(_line(one))
    for problem, run in ((dangling(run, "last"), run) for run in every):
        if problem:
            warn(f"{problem}; to fix this, run: {run.again}")
    return 0


@app.command(
    sort_key=3,
    usage="Usage: rankless watch RUN [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless watch runs/digits
  rankless watch gpu1:experiments/runs/my
  rankless watch runs/digits --web
""",
)
def watch(
    run: Annotated[
        str,
        Parameter(
            name="RUN",
            help="The run directory, or HOST:DIRECTORY for a run on another machine (relative to the home "
            "directory there). A detached run is found automatically.",
        ),
    ],
    /,
    *,
    wait: Annotated[
        bool, Parameter(help="Wait for the run to start if it does not exist yet."), flag
    ] = False,
    web: Annotated[
        bool,
        Parameter(help="Serve the report to a browser on this machine, and update it every few seconds."),
        flag,
    ] = False,
    port: Annotated[
        str | None,
        Parameter(help="Port on 127.0.0.1 for --web. Default: 8765, or the next free port.", metavar="N"),
    ] = None,
    ssh: Ssh = "ssh",
    python: Python = None,
) -> int:
    """Follow a run in this terminal, starting with its first epoch. Ctrl-C leaves it running."""
    if not web:
        refuse_without("--web", {"--port": port})
    if not (wait or os.path.lexists(run) or ":" in run):
        from rankless.runs.directory import similar_run

        hint = similar_run(Path(run))
        raise UserError(f"{run}: no such run; to wait for this run to start, add --wait{hint}")
    if web:
        return _serve_report(run, None if port is None else whole_number("--port", port))
    from rankless.launch.hosts.names import ssh_words
    from rankless.launch.watching import watch as follow

    return follow(run, ssh_words(ssh), python)


def _serve_report(target: str, port: int | None) -> int:
    from rankless.launch.watching import wait_for
    from rankless.report.live import HOST, report_server

    run = Path(target)
    if port is not None and port > 65535:
        raise UserError(f"--port is {port}: expected a number from 1 to 65535")
    if not run.exists() and ":" in target:
        host, _, there = target.partition(":")
        raise UserError(
            f"--web: {target} is on another machine; expected a run on this one; to view it here, run: "
            f"ssh -L 8765:127.0.0.1:8765 {host} rankless watch {there} --web"
        )
    wait_for(run)
    with suppress(KeyboardInterrupt), report_server(run, port) as server:
        say(f"report of {run}: http://{HOST}:{server.server_port}/")
        say("press Ctrl-C to close it; training continues")
        sys.stdout.flush()
        server.serve_forever()
    return 0


def _recipe(run: RunDirectory) -> dict[str, Any]:
    from rankless.files import yaml12
    from rankless.files.reading import MIB, read_text

    try:
        tree, _ = yaml12.read(read_text(run.recipe, MIB), "recipe.yaml", lines=False)
    except (OSError, UserError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _line(one: Overview) -> str:
    steps = f"{one.step:,}/{one.steps:,}" if one.steps else f"{one.step:,}" if one.step else "–"
    if one.saved not in (None, one.step):  # a resumed run continues from there
        steps += f" ({one.saved:,})"
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


Runs = Annotated[
    Path, Parameter(name="RUN", help="One or more run directories, shown side by side.", required=True)
]


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
            help="The file to write. Default: report.html in the run directory or, for several runs, in the "
            "current one.",
            metavar="FILE",
        ),
    ] = None,
    force: Force = False,
) -> int:
    """Write a self-contained HTML report of runs, with scores, curves, images and times."""
    from rankless.files.outputs import drawing
    from rankless.report import page
    from rankless.runs.weights_digest import of_run

    target = None if out is None and len({*runs}) == 1 else out or Path("report.html")
    outputs, collected = check_all(
        lambda: None if target is None else drawing(target, "report", (".html",), force=force),
        lambda: _collected(runs),
    )
    digests = {str(one.run.path): of_run(one.run.path) or "" for one in collected}
    if target is None:
        target = collected[0].run.report
        try:
            page.write(collected, target, digests)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror}); choose another --out") from None
    else:
        outputs.refuse_inputs(path for one in collected for path in (one.run.journal, one.run.recipe))
        with outputs.writing(target) as part:
            part.write_text(page.render(collected, digests), encoding="utf-8")
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
    force: Force = False,
) -> int:
    """Plot loss, scores, learning rate and speed of runs."""
    from rankless.files.outputs import drawing

    outputs = drawing(out, "plot", force=force)
    collected = _collected(runs)
    outputs.refuse_inputs(path for one in collected for path in (one.run.journal, one.run.recipe))
    from rankless.report.plot import plot as draw

    draw(collected, out, outputs)
    say(str(out))
    return 0


def _collected(runs: tuple[Path, ...]) -> list[Collected]:
    """Read all runs, and identify runs with the same name by their paths."""
    from rankless.report.collected import Collected

    collected = check_all(*(Collected(path).refresh for path in dict.fromkeys(runs)))
    names = [one.name for one in collected]
    for one in collected:
        if names.count(one.name) > 1:
            one.name = str(one.run.path)
    return collected
