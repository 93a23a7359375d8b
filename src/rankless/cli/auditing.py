"""The command audit, and the check of checkpoint chains in the command digest."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Devices,
    Json,
    Task,
    compute_on,
    devices_here,
    flag,
    part,
    refuse_stray,
    whole_number,
)
from rankless.cli.training import fix_instruction_set
from rankless.errors import UserError, check_all, counted
from rankless.printing import print_json, say

app = part()


def check_chains(runs: Sequence[Path], *, as_json: bool) -> int:
    """Check the chains of runs, print them, and return the exit code."""
    from rankless.launch.audit import examined
    from rankless.runs.directory import RunDirectory

    found = check_all(*(partial(examined, RunDirectory(run)) for run in runs))
    reports = [
        {
            "run": str(run),
            "ok": not chain.problems,
            "chain": [{"step": line.checkpoint, "link": line.link} for line in chain.lines],
            "kept": chain.sound,
            "problems": chain.problems,
            "notes": chain.notes,
        }
        for run, chain in zip(runs, found, strict=True)
    ]
    if as_json:
        print_json(reports if len(runs) > 1 else reports[0])
    for run, chain in zip(runs, found, strict=True) if not as_json else ():
        for line in chain.lines:
            kept = "kept" if line.checkpoint in chain.sound else chain.wrong.get(line.checkpoint, "not kept")
            say(f"{line.link}  {run} step {line.checkpoint} ({kept})")
        for text in (*chain.notes, *(f"DIFFERENT: {problem}" for problem in chain.problems)):
            say(text)
        if chain.problems:
            say(f"{counted(len(chain.problems), 'problem')} found")
        elif chain.lines:
            checked = counted(len(chain.sound), "checkpoint")
            removed = len({line.checkpoint for line in chain.lines} - {*chain.sound})
            say(f"{checked} checked, {removed:,} removed before; nothing was changed")
    return 0 if all(report["ok"] for report in reports) else 1


@app.command(
    sort_key=6,
    usage="Usage: rankless audit RUN [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless audit runs/digits
  rankless audit runs/digits --steps 500 --seed 7
  rankless audit runs/mine data.root=/mnt/data --all
""",
)
def audit(
    run: Annotated[Path, Parameter(name="RUN", help="A run directory, which is only read.")],
    /,
    *overrides: Annotated[
        str, Parameter(name="KEY=VALUE", help="Where data.root or model.pretrained is on this machine.")
    ],
    steps: Annotated[str, Parameter(help="Draw intervals until they have N steps.", metavar="N")] = "1",
    seed: Annotated[
        str | None, Parameter(help="Seed of the draw. Default: a random one, printed.", metavar="N")
    ] = None,
    every: Annotated[bool, Parameter(name="--all", help="Take all intervals: repeat the run."), flag] = False,
    devices: Devices = "auto",
    device: Device = "auto",
    task: Task = None,
    as_json: Json = False,
) -> int:
    """Train parts of a run again and compare them with its checkpoints, bit for bit."""
    from rankless.launch import environments

    environments.refuse("audit", "run it once, without the launcher; --devices sets the number of devices")
    if every and steps != "1":
        raise UserError("--all: takes all intervals, so --steps has no effect; leave one out")
    fix_instruction_set(None, [], run)
    _, count, wanted, drawn, *_ = check_all(
        lambda: compute_on(device),
        lambda: devices_here(devices),
        lambda: whole_number("--steps", steps),
        lambda: 1 + secrets.randbelow(10**9 - 1) if seed is None else whole_number("--seed", seed),
        lambda: refuse_stray(overrides, "data.root=FOLDER"),
    )
    from rankless.launch import fork_server
    from rankless.launch.audit import Audit

    fork_server.start()
    # With --json, only the report goes to the standard output.
    echo = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    report = Audit(run, overrides, task, count, echo).repeat(None if every else wanted, drawn)
    if as_json:
        print_json(report.as_json())
    if report.stopped:
        return 128 + report.stopped
    return 0 if report.ok else 1
