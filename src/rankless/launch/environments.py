"""Detect the launcher that started this process as a rank.

There is a class for each kind of launcher. Its :meth:`Environment.export` sets PyTorch's environment
variables, and the rest of the package reads only those.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence

from rankless.errors import UserError, printable

_JOB = "RANKLESS_JOB_ID"
LOOPBACK = "127.0.0.1"


class Environment(ABC):
    """The environment that a launcher gives a rank."""

    name = "the launcher"  # in messages
    job_variable = ""  # the variable with the name of the job, if there is one
    leaves_orphans = False  # whether the ranks keep running when the launcher is killed
    address_hint = "set MASTER_ADDR to the name or address of the first machine"

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.rank = self.world_size = self.local_rank = self.local_world_size = self.restart = 0
        self._read()
        for what, value, of, most in (
            ("rank", self.rank, "the number of ranks", self.world_size),
            ("local rank", self.local_rank, "the number of ranks on this machine", self.local_world_size),
        ):
            if not 0 <= value < most:
                raise UserError(
                    f"{self.name}: the environment sets the {what} to {value}, but {of} is {most}; expected "
                    f"a number from 0 to {most - 1}; start all ranks with the same launcher"
                )

    @classmethod
    @abstractmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        """Check whether a launcher of this kind started this process as a rank."""

    @abstractmethod
    def _read(self) -> None:
        """Set the global and local ranks and world sizes from the launcher's variables."""

    @property
    def address(self) -> str:
        """The address of rank 0, from MASTER_ADDR or from the launcher."""
        if given := self.variables.get("MASTER_ADDR"):
            return given
        return LOOPBACK if self.local_world_size == self.world_size else self._address()

    @property
    def port(self) -> int:
        """The port of the ranks' store, from MASTER_PORT or derived from the job's name."""
        if self.variables.get("MASTER_PORT"):
            return self.number("MASTER_PORT")
        # The port is below the range of ephemeral ports.
        return 15_000 + zlib.crc32(self._port_seed().encode()) % 15_000

    def _address(self) -> str:
        raise UserError(
            f"{self.name}: the ranks are on several machines, but the address of rank 0 is unknown; "
            f"{self.address_hint}"
        )

    def _port_seed(self) -> str:
        """Return a string that is the same for all ranks of a job and usually differs between jobs."""
        return ""

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the integer value of the first variable in ``names`` that is set, or ``default``."""
        name = next((name for name in names if self.variables.get(name)), None)
        if name is None and default is not None:
            return default
        if name is None:
            raise UserError(
                f"{self.name}: {' or '.join(names)} is not set; expected a whole number; start the ranks "
                "with the launcher's own command, or set the variable"
            )
        text = self.variables[name].strip()
        if not (text.isascii() and text.isdecimal()) or len(text) > 9:
            raise UserError(
                f"{name} is '{printable(text)}' in the environment ({self.name}); expected a whole number; "
                "correct or unset it"
            )
        return int(text)

    def export(self, variables: MutableMapping[str, str] = os.environ) -> None:
        """Set the environment variables of PyTorch's launchers to the values for this rank."""
        found = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }
        if self.world_size > 1:
            found |= {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        variables.update(found)


def is_set(variables: Mapping[str, str], names: Sequence[str]) -> bool:
    return all(variables.get(name) for name in names)


RAY_WORKER = "RANKLESS_RAY_WORKER"  # set for the rank of a Ray Train worker


class Standard(Environment):
    """A launcher that sets RANK and WORLD_SIZE, as well as MASTER_ADDR and MASTER_PORT if needed."""

    name = "RANK and WORLD_SIZE"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return is_set(variables, ("RANK", "WORLD_SIZE"))

    def _read(self) -> None:
        self.leaves_orphans = "TORCHELASTIC_RUN_ID" in self.variables  # set by torchrun
        self.rank, self.world_size = self.number("RANK"), self.number("WORLD_SIZE")
        # Kubeflow's PyTorchJob starts one rank per machine and sets none of these. A script under srun or
        # mpirun often sets only RANK and WORLD_SIZE itself.
        local = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
        sizes = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
        self.local_rank = self.number(*local, default=0)
        self.local_world_size = self.number(*sizes, default=self.local_rank + 1)
        self.restart = self.number("TORCHELASTIC_RESTART_COUNT", default=0)
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not self.variables.get(name)]
        if missing and self.world_size > 1:
            raise UserError(
                f"{' and '.join(missing)}: not set, but RANK is {self.rank} and WORLD_SIZE is "
                f"{self.world_size}; expected the address of rank 0; start the ranks with torchrun, "
                "which sets all of them, or unset RANK and WORLD_SIZE"
            )

    @property
    def address(self) -> str:
        return self.variables.get("MASTER_ADDR", LOOPBACK)


class Ray(Standard):
    """A Ray Train worker, which starts one rank (:mod:`rankless.launch.submit.ray`)."""

    name = "Ray Train"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return bool(variables.get(RAY_WORKER)) and super().is_here(variables)

    def _read(self) -> None:
        super()._read()
        self.leaves_orphans = True


_TASKS = "SLURM_STEP_NUM_TASKS"
_SHELLS = 0xFFFFFFF0  # step numbers from here on belong to the shells of sbatch and salloc
_SECONDS = 10
_HOSTS = re.compile(r"((?:[^\[,]|\[[^\]]*\])+)(?:,|$)")  # up to the first comma outside brackets
_RANGES = re.compile(r"\[([0-9]+)(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]")
_REPEATED = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class Slurm(Environment):
    """A task of a Slurm step.

    The shells of ``sbatch``, ``salloc`` and ``srun --pty`` have Slurm's variables but are not ranks. If a
    step has only one task, that is not a rank either: Rankless then starts a rank for each device.
    """

    name = "Slurm"
    job_variable = "SLURM_JOB_ID"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        if not is_set(variables, ("SLURM_PROCID", "SLURM_LOCALID", _TASKS, "SLURM_STEP_ID")):
            return False
        tasks, step = variables[_TASKS].strip(), variables["SLURM_STEP_ID"].strip()
        if tasks == "1" or (step.isdecimal() and int(step) >= _SHELLS) or variables.get("SLURM_PTY_PORT"):
            return False
        # Hydra's mpiexec runs a proxy as one task per node, and the ranks inherit that task's variables.
        return not variables.get("MPI_LOCALRANKID") or variables.get("PMI_SIZE") == tasks

    def _read(self) -> None:
        self.rank, self.world_size = self.number("SLURM_PROCID"), self.number(_TASKS)
        self.local_rank = self.number("SLURM_LOCALID")
        node, name = self.number("SLURM_NODEID"), "SLURM_STEP_TASKS_PER_NODE"
        try:
            self.local_world_size = nth_number(self.variables.get(name, ""), node)
        except ValueError:
            raise UserError(
                f"{name} is '{printable(self.variables.get(name, ''))}' in the environment of node {node}; "
                "expected a number of tasks for each node, such as 2(x3),1; start the ranks with srun"
            ) from None
        self.restart = self.number("SLURM_RESTART_COUNT", default=0)

    def _address(self) -> str:
        name = "SLURM_STEP_NODELIST"
        try:
            first = first_host(self.variables.get(name, ""))
        except ValueError:
            raise UserError(
                f"{name} is '{printable(self.variables.get(name, ''))}' in the environment; expected hosts, "
                "such as n[01-03]; start the ranks with srun, or set MASTER_ADDR to the first machine"
            ) from None
        return _node_address(first) or first

    def _port_seed(self) -> str:
        return f"{self.variables.get('SLURM_JOB_ID', '')}.{self.variables.get('SLURM_STEP_ID', '')}"


def _node_address(node: str) -> str:
    """Return the address that Slurm's daemons use for a node, or "" if it is unknown."""
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


_OPEN_RANK, _OPEN_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_RANKS = ("PMI_RANK", "PMIX_RANK")
_SIZES = ("PMI_SIZE", "WORLD_SIZE")  # PMIx sets no size: the user sets WORLD_SIZE
_LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "LOCAL_RANK",
)
_LOCAL_SIZES = (
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
)


class OpenMPI(Environment):
    """Open MPI, detected by ``OMPI_COMM_WORLD_*``.

    MPI launchers do not provide the address of rank 0, so on several machines the user must set MASTER_ADDR.
    A single MPI process is not a rank: Rankless then starts a rank for each device.
    """

    name = "Open MPI"
    address_hint = "run mpirun -x MASTER_ADDR=HOST …, where HOST is the first host of the host list"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return is_set(variables, (_OPEN_RANK, _OPEN_SIZE)) and variables[_OPEN_SIZE].strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(_OPEN_RANK), self.number(_OPEN_SIZE)
        self.local_rank = self.number("OMPI_COMM_WORLD_LOCAL_RANK")
        self.local_world_size = self.number("OMPI_COMM_WORLD_LOCAL_SIZE")

    def _port_seed(self) -> str:
        # Releases 5 and 4 use different variables.
        return self.variables.get("PMIX_NAMESPACE") or self.variables.get("OMPI_MCA_ess_base_jobid", "")


class PMI(Environment):
    """A PMI launcher, detected by ``PMI_RANK`` and ``PMI_SIZE`` or their variants.

    Examples are Hydra (``mpiexec`` of MPICH and Intel MPI), MVAPICH, Cray PALS, and ``prun`` of PMIx.
    """

    name = "MPI (PMI)"
    address_hint = "run mpiexec -genv MASTER_ADDR HOST …, where HOST is the first host of the host list"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        size = next((variables[name] for name in _SIZES if variables.get(name)), "1")
        return any(is_set(variables, (name,)) for name in _RANKS) and size.strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(*_RANKS), self.number(*_SIZES)
        self.local_rank = self.number(*_LOCAL_RANKS)
        self.local_world_size = self.number(*_LOCAL_SIZES)

    def _port_seed(self) -> str:
        names = ("PMI_JOBID", "PMIX_NAMESPACE", "PALS_APID")
        return next(filter(None, map(self.variables.get, names)), None) or ""


# The innermost launcher comes first: torchrun may run under srun, and so may mpirun.
_KINDS: tuple[type[Environment], ...] = (Ray, Standard, OpenMPI, Slurm, PMI)


def detect(variables: Mapping[str, str] = os.environ) -> Environment | None:
    """Return the launcher that started this process as a rank, or None if there is none."""
    for kind in _KINDS:
        if kind.is_here(variables):
            return kind(variables)
    return None


def refuse(what: str, instead: str, variables: Mapping[str, str] = os.environ) -> None:
    """Raise a UserError if a launcher started this process as one of several ranks.

    The error is empty on ranks other than 0, so that it is printed only once.
    """
    environment = detect(variables)
    if environment and environment.world_size > 1:
        text = (
            f"{what}: starts the ranks itself, but a launcher has started this process as one of "
            f"{environment.world_size} ranks ({environment.name}); {instead}"
        )
        raise UserError([] if environment.rank else text)


def speaks(variables: Mapping[str, str] = os.environ) -> bool:
    """Check whether this process should print messages. If there are several ranks, only rank 0 should."""
    try:
        environment = detect(variables)
    except UserError:
        return True
    return environment is None or environment.rank == 0


def job(variables: Mapping[str, str] = os.environ) -> str:
    """Return the name of the job, which stays the same after a restart or requeue, or "" if there is none."""
    names = (_JOB, *(kind.job_variable for kind in _KINDS))
    return next(filter(None, map(variables.get, names)), "")
