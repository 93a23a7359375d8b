"""A real Slurm of two nodes on this machine, for tests, with its own configuration and ports. Root only."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.waiting import until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "sinfo")
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=10
FirstJobId={first}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=t1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
NodeName=t2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=t[1-2] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 State=UP
PartitionName=high Nodes=t[1-2] PriorityTier=9 PreemptMode=OFF State=UP
"""


def missing() -> str:
    if os.geteuid():
        return "a Slurm of its own needs root"
    gone = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(gone)} are not installed (slurm-wlm, munge)" if gone else ""


class Slurm:
    """The daemons, from entry to exit, with the variables for Slurm's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [one.getsockname()[1] for one in sockets]
        host = socket.gethostname().partition(".")[0]
        # Ranks meet at a port that is made of the job's number: another than that of other tests' jobs.
        first = 1000 + secrets.randbelow(50_000)
        text = _CONFIGURATION.format(
            host=host, ports=ports, folder=self.folder, cpus=os.cpu_count() or 1, first=first
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("")
        for name in ("state", "spool-t1", "spool-t2"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        where = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={self.folder}/munge.{name}" for option, name in where.items()]
        try:
            self._start("munged", "--foreground", "--force", f"--key-file={key}", *files)
            self.until(lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-f", self.variables["SLURM_CONF"])
            for node in ("t1", "t2"):
                self._start("slurmd", "-D", "-N", node, "-f", self.variables["SLURM_CONF"])
            self.until(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%T %D") == "idle 2")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.ask("scancel", "--user=root")
            self.until(lambda: not self.ask("squeue", "-h"), 30)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *command: str) -> None:
        log = (self.folder / "daemons.log").open("ab")
        with log:
            self.daemons.append(
                subprocess.Popen(command, env={**os.environ, **self.variables}, stdout=log, stderr=log)
            )

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip()

    def state(self, job: str) -> str:
        shown = self.ask("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Wait for something; fail with the daemons' logs where it does not come."""
        logs = self.folder.glob("*.log")
        until(
            condition,
            seconds,
            said=lambda: [one.read_text(errors="replace")[-2000:] for one in logs],
            every=0.1,
        )
