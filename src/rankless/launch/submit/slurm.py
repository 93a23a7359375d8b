"""Write Slurm batch scripts, which run one task per rank and requeue the job before the time limit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from string import Template

from rankless.errors import LOST_PEER, STOPPED
from rankless.launch.submit.request import Request, pass_on

WARNING = 90  # seconds before the time limit for a step, a checkpoint and the requeue
_RESOURCES = re.compile(r"generic resource|\bgres\b|node configuration is not available", re.IGNORECASE)
_TIME = r"[0-9]+|[0-9]+(:[0-9]{2}){1,2}|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}|UNLIMITED|INFINITE"
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._:,+=@%/-]{0,199}"  # needs no quotes
_CHARACTERS = "letters, digits and ._:,+=@%/-"
EXPECTED = {
    "--name": (_PLAIN, _CHARACTERS),
    "--partition": (_PLAIN, "a partition listed by sinfo"),
    "--account": (_PLAIN, _CHARACTERS),
    "--qos": (_PLAIN, _CHARACTERS),
    "--gres": (_PLAIN, "a node's resources, such as gpu:8 or none"),
    "--memory": (r"[0-9]+[KMGT]?", "a node's memory, such as 64G"),
    "--time": (_TIME, "minutes, hours:minutes:seconds or days-hours"),
}  # option: its pattern, and a description of valid values

_SCRIPT = Template("""\
#!/bin/bash
$options
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@$warning

cd $folder || exit 2

$variables
# Before the time limit, Slurm signals this shell, which signals the ranks. They save and exit with $stopped.
# Before a preemption, Slurm signals the ranks and this shell, which waits until they have saved.
stopping=
trap 'stopping=1 again=1; kill -USR1 $$!' USR1
trap 'stopping=1 again=1' TERM

for start in 1 2 3 4; do
    # A failed task must not end the others, which save or report why they cannot continue.
    srun --kill-on-bad-exit=0$cpus $command &
    step=$$! again=1
    while [ $$again = 1 ]; do  # a signal interrupts wait
        again=0
        wait $$step
        code=$$?
    done
    case $$code in
        0 | 1 | 2 | 130) exit $$code ;;  # done, or starting again would not help
        $stopped) break ;;
        *) [ -z "$$stopping" ] || break ;;  # a rank was lost ($lost, or a signal's number): start again here
    esac
done

# A requeued job continues at the same step in the same directory. A canceled job is no longer running.
if [ $$code = $stopped ] || [ -n "$$stopping" ]; then
    state=$$(squeue --noheader --jobs "$$SLURM_JOB_ID" --format %T)
    [ "$$state" != RUNNING ] || scontrol requeue "$$SLURM_JOB_ID"
fi
exit $$code
""")


def script(request: Request, folder: str, python: str, options: Mapping[str, str | None]) -> str:
    """Return a batch script that runs the ranks with the interpreter ``python`` in ``folder``."""
    gres = options.get("--gres") or f"gpu:{request.devices}"
    given = {
        "job-name": request.name,
        "output": f"{request.name}-%j.log",
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.devices),
        "gres": None if gres == "none" else gres,
        "cpus-per-task": request.cpus and str(request.cpus),
        "mem": options.get("--memory"),
        **{name: options.get(f"--{name}") for name in ("time", "partition", "account", "qos")},
    }
    alone = "# Rankless does not count a single Slurm task as a rank.\nexport RANK=0 WORLD_SIZE=1\n"
    several = (
        "# The ranks authenticate each other with this secret.\n"
        "RANKLESS_SECRET=$(head -c 32 /dev/urandom | base64)\nexport RANKLESS_SECRET\n"
    )
    return _SCRIPT.substitute(
        options="\n".join(f"#SBATCH --{name}={value}" for name, value in given.items() if value),
        folder=shlex.quote(folder),
        command=shlex.join([python, "-m", *request.words()]),
        variables=alone if request.ranks == 1 else several,
        cpus=f" --cpus-per-task={request.cpus}" if request.cpus else "",
        warning=WARNING,
        stopped=STOPPED,
        lost=LOST_PEER,
    )


def submit(text: str) -> str:
    """Submit a script with sbatch and return the job ID."""
    printed = pass_on(
        text,
        ("sbatch", "--parsable"),
        instead="expected a machine with Slurm; log in to one, or print the script with --dry-run",
        remedy=_remedy,
    )
    return printed.strip().partition(";")[0]


def _remedy(reason: str) -> str:
    if _RESOURCES.search(reason):
        return (
            "expected resources of the cluster's nodes; list them with sinfo --format '%N %G', and set "
            "--gres to one of them, such as gpu:a100:2, or to none if the nodes have no GPUs"
        )
    return "expected values that this cluster accepts; correct the options"
