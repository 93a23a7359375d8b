"""Machines made of namespaces: each has its own network, name, processes, files and SSH server.

They hang on a bridge that has no way out. Needs root, iproute2, util-linux and OpenSSH.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NETWORK = "10.91.7"
CLIENT = "client"
_TOOLS = ("ip", "unshare", "nsenter", "ssh", "ssh-keygen", "sshd")
_STARTUP = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshenv")
_SSHD = "/usr/sbin/sshd"
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")  # of the instruction set: make test CPU=avx2


def why_not() -> str:
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    missing = [
        tool for tool in _TOOLS if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    ]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux, openssh-client, openssh-server)"
    tried = subprocess.run(["unshare", "-n", "-u", "-i", "-p", "-m", "-f", "true"], capture_output=True)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


class Rig:
    """Hosts ``h1``, ``h2``, … and a client; a context manager.

    ``folder/work`` is another folder on every machine, under the same path. ``own_name`` is the address of a
    host's own name in its /etc/hosts; Debian's installer writes 127.0.1.1.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        environment: Mapping[str, str],
        own: Mapping[str, Mapping[str, str]] | None = None,
        own_name: str = "127.0.1.1",
    ) -> None:
        self.own = own or {}
        limits = {name: os.environ[name] for name in _LIMITS if name in os.environ}
        self.folder, self.environment, self.own_name = folder, limits | dict(environment), own_name
        self.work = folder / "work"
        self.numbers = {f"h{number}": number for number in range(1, count + 1)} | {CLIENT: 100}
        self.holders: dict[str, subprocess.Popen[bytes]] = {}
        self.servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Rig:
        self.work.mkdir(parents=True)
        keys = self.folder / "keys"
        keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name))
        self.config = self.folder / "ssh_config"
        self.config.write_text(
            f"Host *\n  User root\n  IdentityFile {keys}/user\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )
        try:
            self._hold("switch", "ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
            for name in self.numbers:
                self.power_on(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self.holders):
            self._end(name)

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.numbers[name]}"

    def files(self, name: str) -> Path:
        """The folder that a machine sees as ``work``."""
        return self.folder / "disks" / name

    def power_on(self, name: str) -> None:
        self.files(name).mkdir(parents=True, exist_ok=True)
        hosts = self.folder / f"etc-hosts-{name}"
        others = [f"{self.address(other)} {other}" for other in self.numbers if other != name]
        hosts.write_text("\n".join(["127.0.0.1 localhost", f"{self.own_name} {name}", *others]) + "\n")
        server, own = self.folder / f"sshd-{name}", self.environment | dict(self.own.get(name, {}))
        values = " ".join(f'"{key}={value}"' for key, value in own.items())
        server.write_text(
            f"HostKey {self.folder}/keys/host\nAuthorizedKeysFile {self.folder}/keys/user.pub\n"
            f"StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\n"
            + (f"SetEnv {values}\n" if values else "")
        )
        # What this user's shell does at its start is none of the tests' business, and may wait for a lock.
        shell = [file for file in map(Path(pwd.getpwuid(0).pw_dir).joinpath, _STARTUP) if file.exists()]
        quiet = "".join(f"mount --bind /dev/null {shlex.quote(str(file))}; " for file in shell)
        self._hold(
            name,
            f"{quiet}hostname {name}; mount --bind {hosts} /etc/hosts; mount -t tmpfs tmpfs /dev/shm; "
            f"mount --bind {self.files(name)} {self.work}; mkdir -p /run/sshd; ip link set lo up",
        )
        pid = self.pid(name)
        self._in(
            "switch", "ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", pid
        )
        # A machine keeps its address on the wire; the others remember it.
        self._in(name, "ip", "link", "set", "eth0", "address", f"02:00:00:00:00:{self.numbers[name]:02x}")
        self._in("switch", "ip", "link", "set", f"v{name}", "master", "br0", "up")
        self._in(name, "ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "eth0", "up")
        if name != CLIENT:
            self.servers[name] = self.start(
                name,
                [_SSHD, "-D", "-e", "-f", str(server)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def power_off(self, name: str) -> None:
        """Take a machine away, with all that runs on it, and without a word to the others."""
        self.cut(name)
        self._end(name)

    def cut(self, name: str) -> None:
        self._in("switch", "ip", "link", "set", f"v{name}", "down")

    def heal(self, name: str) -> None:
        self._in("switch", "ip", "link", "set", f"v{name}", "up")

    def start(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a machine, in its ``work``."""
        env = {**os.environ, **self.environment, **self.own.get(name, {}), **options.pop("env", {})}
        entered = ["nsenter", "-t", self.pid(name), "-n", "-u", "-i", "-p", "-m", f"--wdns={self.work}", "--"]
        return subprocess.Popen([*entered, *command], env=env, **options)

    def processes(self, name: str) -> dict[int, tuple[str, str]]:
        """The names and command lines of a machine's processes, without its first and its SSH server."""
        if name not in self.holders:
            return {}
        root = Path(f"/proc/{self.pid(name)}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # gone meanwhile
                if folder.name.isdigit() and (folder / "ns/pid").readlink() == root:
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(folder.name)] = ((folder / "comm").read_text().strip(), command)
        ours = ("sleep infinity", "sshd", _SSHD)
        return {pid: both for pid, both in found.items() if both[1] and not both[1].startswith(ours)}

    def listening(self, name: str) -> set[tuple[str, int]]:
        found = set()
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for line in Path(f"/proc/{self.pid(name)}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                address, port = local.split(":")
                words = bytes.fromhex(address)
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                if state == "0A":
                    found.add((socket.inet_ntop(family, raw), int(port, 16)))
        return found

    def pid(self, name: str) -> str:
        """The first process of a machine, as this one sees it."""
        holder = self.holders[name].pid
        until = time.monotonic() + 5
        while time.monotonic() < until:
            children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
            if children:
                return children[0]
            time.sleep(0.02)
        raise TimeoutError(f"{name} did not start")

    def _hold(self, name: str, prepared: str) -> None:
        """Start the first process of a machine, after what has to be done before."""
        ready, done = os.pipe()
        flags = ["--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
        script = f"set -e; {prepared}; echo >&{done}; exec {done}>&-; exec sleep infinity"
        self.holders[name] = subprocess.Popen(
            ["unshare", *flags, "bash", "-c", script],
            pass_fds=(done,),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(done)
        with os.fdopen(ready, "rb") as answer:
            if not answer.read(1):
                raise RuntimeError(f"{name} could not be made: {prepared}")

    def _end(self, name: str) -> None:
        holder = self.holders.pop(name)
        holder.send_signal(signal.SIGKILL)  # --kill-child takes its first process along, and that all others
        holder.wait()
        if server := self.servers.pop(name, None):
            server.wait()
        if name in self.numbers and "switch" in self.holders:
            self._in("switch", "ip", "link", "del", f"v{name}", fails=True)  # the kernel would take a moment

    def _in(self, name: str, *command: str, fails: bool = False) -> int:
        words = ["nsenter", "-t", self.pid(name), "-n", "--", *command]
        done = subprocess.run(words, capture_output=True)
        if done.returncode and not fails:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
        return done.returncode


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":  # a rig to play with: python tests/support/machines/rig.py FOLDER [HOSTS]
    with Rig(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2, {}) as shown:
        print(f"client: nsenter -t {shown.pid(CLIENT)} -n -u -i -p -m --wdns={shown.work} bash")
        print(f"then:   ssh -F {shown.config} h1")
        signal.pause()
