"""Detection of ranks that Slurm's ``srun`` started as tasks."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from rankless.errors import UserError, printable
from rankless.launch.environments.environment import Environment, is_set

_TASKS = "SLURM_STEP_NUM_TASKS"
_SHELLS = 0xFFFFFFF0  # step numbers from here on belong to the shells of sbatch and salloc
_SECONDS = 10
_HOSTS = re.compile(r"((?:[^\[,]|\[[^\]]*\])+)(?:,|$)")  # up to the first comma outside brackets
_RANGES = re.compile(r"\[([0-9]+)(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]")
_REPEATED = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class Slurm(Environment):
    """A task of a Slurm step.

    The shells of ``sbatch``, ``salloc`` and ``srun --pty`` have Slurm's variables, but are not ranks. The
    only task of a step does not count as a rank either: there, Rankless starts a rank for each device.
    """

    name = "Slurm"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        if not is_set(variables, ("SLURM_PROCID", "SLURM_LOCALID", _TASKS, "SLURM_STEP_ID")):
            return False
        tasks, step = variables[_TASKS].strip(), variables["SLURM_STEP_ID"].strip()
        if tasks == "1" or (step.isdecimal() and int(step) >= _SHELLS) or variables.get("SLURM_PTY_PORT"):
            return False
        # Hydra's mpiexec runs a proxy as one task per node, and the ranks inherit that task's variables.
        return not variables.get("MPI_LOCALRANKID") or variables.get("PMI_SIZE") == tasks

    @classmethod
    def job_of(cls, variables: Mapping[str, str]) -> str:
        """Return the job ID, which survives a requeue and differs for each task of an array."""
        return variables.get("SLURM_JOB_ID", "")

    def _read(self) -> None:
        self.rank, self.world_size = self.number("SLURM_PROCID"), self.number(_TASKS)
        self.local_rank = self.number("SLURM_LOCALID")
        node, name = self.number("SLURM_NODEID"), "SLURM_STEP_TASKS_PER_NODE"
        try:
            self.local_world_size = nth_number(self.variables.get(name, ""), node)
        except ValueError:
            raise UserError(
                f"{name}: is '{printable(self.variables.get(name, ''))}' in the environment of node {node}; "
                "expected a number of tasks for each node, such as 2(x3),1: start the ranks with srun"
            ) from None
        if self.first("SLURM_RESTART_COUNT"):
            self.restart = self.number("SLURM_RESTART_COUNT")

    def _address(self) -> str:
        name = "SLURM_STEP_NODELIST"
        try:
            first = first_host(self.variables.get(name, ""))
        except ValueError:
            raise UserError(
                f"{name}: is '{printable(self.variables.get(name, ''))}' in the environment; expected hosts, "
                "such as n[01-03]: start the ranks with srun, or set MASTER_ADDR to the first machine"
            ) from None
        return _node_address(first) or first

    def _port_seed(self) -> str:
        return f"{self.variables.get('SLURM_JOB_ID', '')}.{self.variables.get('SLURM_STEP_ID', '')}"


def _node_address(node: str) -> str:
    """Return the node address that Slurm's daemons use; "" if unknown."""
    command = shutil.which("scontrol")
    if command is None:
        return ""
    try:
        shown = subprocess.run(
            [command, "--oneliner", "show", "node", node],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\bNodeAddr=(\S+)", shown.stdout)
    return match[1] if match else ""


def first_host(text: str) -> str:
    """Return the first host of a list such as ``rack[1-2]n[01-03,07],gpu5``."""
    match = _HOSTS.match(text)
    host = _RANGES.sub(r"\1", match[1]) if match else ""
    if not host or "[" in host or "]" in host:
        raise ValueError(text)
    return host


def nth_number(text: str, index: int) -> int:
    """Return entry ``index`` of a run-length encoded list such as ``2(x3),1``."""
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if match is None:
            break
        index -= int(match[2] or 1)
        if index < 0:
            return int(match[1])
    raise ValueError(text)
