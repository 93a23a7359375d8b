"""The command ``rankless doctor``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import Hosts, Json, Python, Ssh, Sync, app, recipe_of
from rankless.errors import UserError
from rankless.printing import print_json

if TYPE_CHECKING:
    from rankless.launch.doctor.check import Check
    from rankless.recipe.schema import Recipe


@app.command(
    sort_key=6,
    usage="Usage: rankless doctor [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless doctor
  rankless doctor my.yaml --hosts a,b:4 --run /data/runs/my
""",
)
def doctor(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A recipe, followed by changes. Its data is checked and, with --hosts, its steps are timed.",
        ),
    ],
    run: Annotated[
        Path, Parameter(name=("--run", "--out"), help="Folder in which run directories will be created.")
    ] = Path("runs"),
    hosts: Hosts = None,
    sync: Sync = False,
    ssh: Ssh = "ssh",
    python: Python = None,
    as_json: Json = False,
) -> int:
    """Check whether machines can train, alone and together, and suggest fixes."""
    chosen, checks = _recipe(recipe)
    from rankless.launch.doctor import here
    from rankless.launch.doctor.check import lines
    from rankless.launch.doctor.hosts import Examination, examine, speed

    if hosts is None:
        names: list[str] = []
        found = Examination(here.checks(run, chosen.threads if chosen else 1))
        if chosen:
            found.checks.append(here.data(chosen))
    else:
        from rankless.launch.hosts.channel import host_access
        from rankless.launch.hosts.names import parse_hosts

        parsed = parse_hosts(hosts)
        names = [host.name for host in parsed]
        found = examine(parsed, chosen, run, host_access(ssh, python, sync=sync))
    checks = [*checks, *found.checks]
    is_well = all(check.level != "error" for check in checks)
    if as_json:
        print_json({"ok": is_well, **asdict(found), "checks": [asdict(check) for check in checks]})
        return 0 if is_well else 1
    for line in (*lines(checks, names), *speed(found.timings, found.measured)):
        print(line)
    return 0 if is_well else 1


def _recipe(words: tuple[str, ...]) -> tuple[Recipe | None, list[Check]]:
    """Return the recipe (None if it is invalid or not given) and the result of checking it."""
    from rankless.launch.doctor.check import error, ok

    if not words:
        return None, []
    try:
        chosen, called = recipe_of(words)
    except UserError as problem:
        return None, [error("recipe", text, "fix the recipe") for text in problem.problems]
    return chosen, [ok("recipe", called)]
