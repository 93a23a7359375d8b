"""The command audit, and the check of chains for digest."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from rankless.errors import UserError, check_all
from rankless.printing import print_json, say

if TYPE_CHECKING:
    from rankless.runs.chain import Chain

app = part()


def check_chains(runs: Sequence[Path], *, as_json: bool) -> int:
    """Check the chains of runs, print them, and return the exit code."""
    from rankless.launch.audit import examined
    from rankless.runs.directory import RunDirectory

    found = [examined(RunDirectory(_run(run))) for run in runs]
    if as_json:
        reports = [_as_json(run, chain) for run, chain in zip(runs, found, strict=True)]
        print_json(reports if len(runs) > 1 else reports[0])
    else:
        for run, chain in zip(runs, found, strict=True):
            for line in chain.lines:
                kept = "kept" if line.checkpoint in chain.sound else "not kept"
                say(f"{line.link}  {run} step {line.checkpoint} ({kept})")
            for text in (*chain.notes, *(f"DIFFERENT: {problem}" for problem in chain.problems)):
                say(text)
    return 1 if any(chain.problems for chain in found) else 0


def _as_json(run: Path, chain: Chain) -> dict[str, object]:
    links = [{"step": line.checkpoint, "link": line.link} for line in chain.lines]
    return {
        "ok": not chain.problems,
        "run": str(run),
        "chain": links,
        "problems": chain.problems,
        "notes": chain.notes,
    }


def _run(path: Path) -> Path:
    """Return the path of a run; raise if it is none."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "no such directory"
        raise UserError(f"{path}: {what}; expected the directory of a run, such as runs/digits")
    return path


def _seed(text: str | None) -> int:
    if text is None:
        return secrets.randbelow(10**9)
    if not text.isdecimal() or len(text) > 18:
        raise UserError(f"--seed is '{text}': expected a whole number of at least 0")
    return int(text)


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
    if run.is_dir():
        fix_instruction_set(None, [], run)
    _, count, wanted, drawn, *_ = check_all(
        lambda: compute_on(device),
        lambda: devices_here(devices),
        lambda: whole_number("--steps", steps),
        lambda: _seed(seed),
        lambda: refuse_stray(overrides, "data.root=FOLDER"),
        lambda: _run(run),
    )
    from rankless.launch import fork_server
    from rankless.launch.audit import audit as repeat

    log = sys.stderr if as_json else sys.stdout

    def echo(line: str) -> None:
        print(line, file=log, flush=True)

    fork_server.start()
    report = repeat(
        run, overrides, task=task, steps=None if every else wanted, seed=drawn, devices=count, echo=echo
    )
    if as_json:
        print_json(report.as_json())
    return 0 if report.ok else 1
