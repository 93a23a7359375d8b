"""``rankless doctor``: every check says what it saw, how bad that is, and what to do."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankless import cli
from rankless.errors import UserError
from rankless.launch.doctor import check, here
from rankless.launch.doctor.check import Check, error, ok, warning
from rankless.launch.doctor.here import Cards, Process
from rankless.recipe.schema import Recipe

GB = here.GB
OWN = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fd00::1", "fe80::1"]}
MINE = ["127.0.0.1", "10.0.0.1", "fe80::1"]
IFNAME, HOSTS_LINE = "NCCL_SOCKET_IFNAME", "add this line to /etc/hosts: 10.0.0.1 a"


def full(*args: object) -> None:
    raise OSError(28, "No space left on device")


def gpus(*names: str, free: float = 1.0, driver: str = "570.1", switched: bool = False) -> Check:
    """A check of GPUs, of which the last one has less free memory, and of a switch that nobody manages."""
    return here.gpus(Cards(names, [1.0, free][-len(names) :], driver, "CUDA 12.8", switched, False))


LEVELS: list[tuple[str, Callable[[], Check], str, str]] = [
    ("ok", lambda: here.software("1.2", "1.2"), "rankless 1.2, torch ", ""),
    (
        "warning",
        lambda: here.software("1.3", "1.2"),
        "but rankless 1.2 is installed",
        "or install rankless 1.3",
    ),
    ("ok", lambda: here.processor("a CPU", frozenset({"avx2", "avx", "sse4_1"})), "a CPU, AVX2", ""),
    ("warning", lambda: here.processor("old", frozenset({"sse4_1"})), "no AVX2", "newer"),
    ("ok", lambda: here.memory(8 * GB), "8.0 GB free", ""),
    ("warning", lambda: here.memory(GB), "1.0 GB free", "ps aux"),
    ("error", lambda: here.memory(GB // 4), "0.2 GB free", "ps aux"),
    ("error", lambda: here.shared_memory(Path("/nowhere")), "does not exist", "--shm-size"),
    ("error", lambda: here.shared_memory(Path("/"), GB // 100), "10.0 MB free of ", "--shm-size"),
    ("warning", lambda: here.shared_memory(Path("/"), GB // 2), "0.5 GB free of ", "--shm-size"),
    ("ok", lambda: here.shared_memory(Path("/"), 4 * GB), "4.0 GB free of ", ""),
    ("ok", lambda: here.open_files(65536), "65536", ""),
    ("ok", lambda: here.open_files(resource.RLIM_INFINITY), "unlimited", ""),
    ("warning", lambda: here.open_files(512), "512", "ulimit -n"),
    ("error", lambda: here.open_files(64), "64", "ulimit -n"),
    ("ok", lambda: here.locked_memory(65536, Path("/nowhere")), "64 KiB (there is no InfiniBand)", ""),
    ("ok", lambda: here.locked_memory(resource.RLIM_INFINITY), "unlimited", ""),
    ("warning", lambda: here.locked_memory(65536, Path("/proc/self")), "cannot register", "memlock"),
    ("ok", lambda: gpus("A100", "A100"), "2 × A100, driver 570.1, CUDA 12.8", ""),
    ("ok", lambda: gpus(driver=""), "runs on the CPU", ""),
    ("error", lambda: gpus(), "driver 570.1, but PyTorch sees no GPU (CUDA 12.8)", "nvidia-smi"),
    (
        "error",
        lambda: gpus("H100", switched=True),
        "the fabric manager of the NVSwitch is not running",
        "systemctl enable",
    ),
    ("ok", lambda: here.gpus(Cards(["H100"], [1.0], "570.1", "", True, True)), "1 × H100", ""),
    ("warning", lambda: gpus("A100", "T4"), "1 × A100, 1 × T4", "CUDA_VISIBLE_DEVICES"),
    ("warning", lambda: gpus("T4", "T4", free=0.1), "memory is in use on 1 GPU (1)", "nvidia-smi"),
    ("ok", lambda: here.own_name("a", ["10.0.0.1"], MINE), "a → 10.0.0.1", ""),
    ("warning", lambda: here.own_name("a", ["127.0.1.1"], MINE), "other machines cannot reach", HOSTS_LINE),
    ("warning", lambda: here.own_name("a", [], MINE), "cannot be resolved", HOSTS_LINE),
    (
        "warning",
        lambda: here.own_name("a", ["10.0.0.1", "fd00::9", "fe80::1%eth0"], MINE),
        "has fd00::9",
        "",
    ),
    ("ok", lambda: here.addresses(OWN), "eth0 10.0.0.1, fd00::1 (MTU", ""),
    ("ok", lambda: here.addresses({"eth0": ["10.0.0.1"]}), "; IPv4", ""),
    ("warning", lambda: here.addresses({"lo": ["127.0.0.1"]}), "only the loopback", "ip link set"),
    ("ok", lambda: here.chosen_interface({}, OWN), "reaches the other hosts", ""),
    ("ok", lambda: here.chosen_interface({IFNAME: "eth"}, OWN), "=eth", ""),
    ("ok", lambda: here.chosen_interface({IFNAME: "^docker0"}, OWN), "docker0", ""),
    (
        "error",
        lambda: here.chosen_interface({IFNAME: "=eth"}, OWN),
        f"{IFNAME}==eth: no such interface",
        "choose from lo, eth0",
    ),
    ("ok", lambda: here.space(Path("/nowhere/run"), 50 * GB), "50.0 GB free in /", ""),
    ("warning", lambda: here.space(Path("/nowhere"), 5 * GB), "5.0 GB free", "--run"),
    ("error", lambda: here.space(Path("/nowhere"), GB // 2), "0.5 GB free", "make room"),
    ("error", lambda: here.writing(Path("/proc/run")), "/proc: cannot create files", "--run"),
    ("ok", lambda: here.leftovers([], 7), "none", ""),
    ("ok", lambda: here.data_finding("digits", None, []), "digits", ""),
    ("error", lambda: here.data_finding("d", None, ["d: no such folder"]), "no such", "data check d"),
]


@pytest.mark.parametrize(("level", "look", "value", "fix"), LEVELS)
def test_a_check_says_what_it_saw_and_what_to_do(level, look, value, fix):
    found = look()
    assert found.level == level, found
    assert value in found.value
    assert fix in found.fix
    assert bool(found.fix) == (level != "ok")


def test_the_limit_of_open_files_is_the_kernels():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert here.open_files() == error("ulimit -n", "200", here.open_files().fix)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert here.open_files().value != "200"


def test_a_quota_is_seen_and_one_below_the_threads_is_a_warning(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    assert here.cores(tmp_path, 64, 1) == ok("cores", "1 of 64 (limited by CPU affinity or a control group)")
    found = here.cores(tmp_path, 64, 4)
    assert (found.level, found.fix) == (
        "warning",
        "use threads=1, or give the container more cores, as in: docker run --cpus 4",
    )


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a file system")
def test_small_file_systems_are_seen(tmp_path):
    """Docker's /dev/shm has 64 MB; the run directory may be on a full disk."""
    code = (
        "from pathlib import Path; from rankless.launch.doctor import here; import sys;"
        "folder = Path(sys.argv[1]);"
        "print(here.shared_memory(folder)); print(here.space(folder / 'run'));"
        "(folder / 'filled').write_bytes(bytes(900_000)); "
        "\ntry: (folder / 'more').write_bytes(bytes(900_000))\nexcept OSError: pass\n"
        "print(here.writing(folder / 'run')); print(sorted(p.name for p in folder.iterdir()))"
    )
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "bash", "-c", script, "-", str(tmp_path), sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    shm, space, writing, left = done.stdout.splitlines()
    assert "1.0 MB free of 1.0 MB: loader processes can die with a bus error" in shm
    assert "level='error'" in shm
    assert "level='error', value='1.0 MB free" in space
    assert "not supported: fsync (No space left on device)" in writing
    assert left == "['filled', 'more']"


def test_a_run_directory_that_works_is_left_as_it_was(tmp_path):
    assert here.writing(tmp_path / "not" / "yet").level == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "flock", "rename"])
def test_a_disk_that_cannot_do_something_is_an_error(tmp_path, step):
    found = here.writing(tmp_path, {**here._STEPS, step: full})
    assert found.value == f"{tmp_path}: not supported: {step} (No space left on device)"
    assert found.level == "error"
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_a_warning():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = here.rendezvous_port(port)
        assert (found.level, str(port) in found.fix) == ("warning", True)
    assert here.rendezvous_port(port).level == "ok"


INIT = Process(1, 0, "systemd", b"/sbin/init", 0)


@pytest.mark.parametrize(
    ("parent", "is_left"),
    [
        (INIT, True),
        (Process(1, 0, "sleep", b"sleep infinity", 0), True),  # of a container
        (Process(600, 1, "systemd", b"systemd --user", 7), True),
        (Process(1, 0, "python", b"python -m rankless train digits", 7), False),  # in a container
        (Process(600, 1, "rankless", b"rankless train digits", 7), False),
        (Process(600, 1, "slurmstepd", b"slurmstepd: [4711.0]", 0), False),
        (Process(600, 1, "bash", b"bash my-ranks.sh", 7), False),
    ],
)
def test_a_rank_without_a_launcher_is_left_over(parent, is_left):
    rank = Process(700, parent.id, "rank 3", b"python -m rankless train digits", 7)
    found = here.leftovers([INIT, parent, rank], 7)
    assert (found.level == "error") == is_left
    assert not is_left or found.fix == "run kill 700, or kill -9 700 if that does not help"
    assert here.leftovers([INIT, parent, rank], 8).level == "ok"  # somebody else's


@pytest.mark.processes
def test_ranks_are_found_by_their_names():
    code = "from rankless.hardware.processes import name_process; name_process('rank 3'); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        found = [process for process in here.processes() if process.id == child.pid]
        child.send_signal(signal.SIGKILL)
    assert [(one.name, one.parent, one.user) for one in found] == [("rank 3", os.getpid(), os.getuid())]
    assert b"name_process" in found[0].command


def test_what_hangs_or_fails_is_a_finding_and_the_rest_is_looked_at():
    stuck = threading.Event()

    def hangs() -> Check:
        stuck.wait()
        return ok("a", "")

    def fails() -> Check:
        raise ValueError("odd")

    def refuses() -> Check:
        raise UserError("c: no such file")

    found = check.run({"a": hangs, "b": fails, "c": refuses, "d": lambda: ok("d", "fine")}, 0.2)
    stuck.set()
    assert [one.level for one in found] == ["error", "warning", "error", "ok"]
    assert found[0].value == "no answer within 0.2 s"
    assert found[1].value == "could not be checked (ValueError: odd)"
    assert found[2].value == "c: no such file"


def test_data_that_cannot_be_read_is_an_error(tmp_path, small_recipe):
    from rankless.recipe.load import load

    assert here.data(load(small_recipe)).value.partition(", digest ")[2].isalnum()
    missing = load(small_recipe, [f"data.root={tmp_path}/missing"])
    assert here.data(missing).level == "error"
    assert here.data(Recipe()).value == "digits"


def test_the_same_on_all_hosts_is_one_line_and_errors_come_last():
    checks = [
        Check("disk", "error", "0.1 GB free", "make room", "b"),
        *(Check("memory", "ok", "8 GB free", "", host) for host in "abc"),
        *(Check("ulimit -n", "warning", "512", "ulimit -n 65536", host) for host in "ac"),
        warning("clocks", "a is 20 s ahead of c", "set them"),
    ]
    assert check.lines(checks, ["a", "b", "c"], 100) == [
        "ok       memory     all   8 GB free",
        "warning  ulimit -n  a, c  512",
        "                          fix: ulimit -n 65536",
        "warning  clocks           a is 20 s ahead of c",
        "                          fix: set them",
        "error    disk       b     0.1 GB free",
        "                          fix: make room",
        "",
        "1 error, 2 warnings, 1 ok",
    ]
    assert max(map(len, check.lines(checks, [], 60))) <= 60


def test_what_a_host_says_cannot_harm_a_terminal():
    assert "\x1b" not in "".join(check.lines([error("SSH", "\x1b[2J", "look")], [], 80))


def test_the_command_ends_with_1_where_there_is_an_error(tmp_path, capsys):
    code = cli.main(["doctor", "--run", str(tmp_path / "run"), "--json"])
    found = json.loads(capsys.readouterr().out)
    errors = {one["name"] for one in found["checks"] if one["level"] == "error"}  # of this machine
    assert (code, found["ok"]) == (int(bool(errors)), not errors)
    assert len({one["name"] for one in found["checks"]}) == len(found["checks"]) == 15
    assert not [one for one in found["checks"] if "could not be checked" in one["value"]]
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["doctor", "digits", "epochs=-1", f"data.root={tmp_path}"]) == 1
    out, err = capsys.readouterr()
    assert (out.count("error    recipe"), err) == (1, "")
    assert cli.main(["doctor", "digits", f"data.root={tmp_path}/none", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in found["checks"] if one["level"] == "error"} == {"data", *errors}


def test_gpus_are_asked_of_pytorch_and_the_kernel(tmp_path):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        mem_get_info=lambda number: (number * 40, 80),
        get_device_name=lambda number: "H100",
        nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
    )
    distributed = SimpleNamespace(is_nccl_available=lambda: True)
    torch = SimpleNamespace(cuda=cuda, distributed=distributed, version=SimpleNamespace(cuda="12.8"))
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-nvswitch0").touch()
    seen = Cards(["H100"] * 2, [0.0, 0.5], "570.86.15", "PyTorch for CUDA 12.8, NCCL 2.28.9", True, False)
    assert here.cards(tmp_path, torch) == seen
    (tmp_path / "proc/77").mkdir()
    (tmp_path / "proc/77/comm").write_text("nv-fabricmanage\n")
    assert here.cards(tmp_path, torch).managed
