"""The base class of all launchers, with the rank's numbers and the address of rank 0."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence

from rankless.errors import UserError, printable

_JOB = "RANKLESS_JOB_ID"
LOOPBACK = "127.0.0.1"


class Environment(ABC):
    """The environment of a rank under a launcher.

    Attributes:
        name: the launcher's name in messages.
        rank: index of this process, from 0 to ``world_size - 1``.
        world_size: number of ranks.
        local_rank: index of this process among the ranks of its machine.
        local_world_size: number of ranks on this machine.
        restart: number of restarts of this job.
        leaves_orphans: whether the ranks keep running when the launcher is killed.
        address_hint: how to set MASTER_ADDR if ranks are on several machines, for error messages.
    """

    name = "the launcher"
    leaves_orphans = False
    address_hint = "set it to the name or the address of the first machine"

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.rank = self.world_size = self.local_rank = self.local_world_size = self.restart = 0
        self._read()
        for what, value, of, most in (
            ("rank", self.rank, "ranks", self.world_size),
            ("local rank", self.local_rank, "ranks of its machine", self.local_world_size),
        ):
            if not 0 <= value < most:
                raise UserError(
                    f"{self.name}: the environment says {what} {value}, but {most} {of}; expected a number "
                    f"from 0 to {most - 1}: start the ranks with one launcher"
                )

    @classmethod
    @abstractmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        """Return whether a launcher of this kind started this process as a rank."""

    @classmethod
    def job_of(cls, variables: Mapping[str, str]) -> str:
        """Return the job's name, which survives restarts and requeues; "" if the launcher has none."""
        return ""

    @abstractmethod
    def _read(self) -> None:
        """Set the rank's numbers from the environment variables."""

    @property
    def address(self) -> str:
        """Address of rank 0: the user's MASTER_ADDR, or the launcher's."""
        if given := self.variables.get("MASTER_ADDR"):
            return given
        return LOOPBACK if self.is_on_one_machine else self._address()

    @property
    def port(self) -> int:
        """Port of the ranks' store: the user's MASTER_PORT, or one derived from the job's name."""
        if self.variables.get("MASTER_PORT"):
            return self.number("MASTER_PORT")
        return _port(self._port_seed())

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.local_world_size == self.world_size

    def _address(self) -> str:
        """Return the launcher's address of rank 0."""
        raise UserError(
            f"{self.name}: there are ranks on several machines, and nothing says where rank 0 is; expected "
            f"its address in MASTER_ADDR: {self.address_hint}"
        )

    def _port_seed(self) -> str:
        """Return text that is the same for all ranks of a job and usually differs between jobs."""
        return ""

    def number(self, *names: str) -> int:
        """Return the integer value of the first of these variables that is set."""
        name = self.first(*names)
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

    def first(self, *names: str) -> str | None:
        """Return the first of these variables that is set and not empty."""
        return next((name for name in names if self.variables.get(name)), None)

    def standard(self) -> dict[str, str]:
        """Return the environment variables of PyTorch's launchers with this rank's values."""
        found = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }
        if self.world_size > 1:
            found |= {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        return found

    def export(self, variables: MutableMapping[str, str] = os.environ) -> None:
        """Set the environment variables of PyTorch's launchers."""
        variables.update(self.standard())


def is_set(variables: Mapping[str, str], names: Sequence[str]) -> bool:
    """Return whether each of these variables is set and not empty."""
    return all(variables.get(name) for name in names)


def job_named(variables: Mapping[str, str]) -> str:
    """Return the job's name from RANKLESS_JOB_ID, or ""."""
    return variables.get(_JOB, "")


def _port(seed: str) -> int:
    """Return a port below the range of ephemeral ports."""
    return 15_000 + zlib.crc32(seed.encode()) % 15_000
