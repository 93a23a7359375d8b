"""``rankless doctor --hosts`` on real machines: what is wrong with each of them is found and named."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import pytest

from rankless.launch.doctor.hosts import bandwidth
from support.machines.harness import machines
from support.machines.rig import CLIENT, Rig, why_not
from support.thorough import thorough_only
from support.waiting import until

pytestmark = pytest.mark.processes

LEFT_OVER = (
    "from rankless.hardware.processes import name_process; "
    "import time; name_process('rank 4'); time.sleep(600)"
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with machines(tmp_path_factory.mktemp("doctor") / "rig", 3) as made:
        yield made


def examined(rig: Rig, *words: str) -> tuple[int, str]:
    """The exit code and the output of ``rankless doctor``, which ends in time."""
    with tempfile.TemporaryFile("w+") as output:
        ssh = f"ssh -F {rig.config}"
        command = [sys.executable, "-m", "rankless", "doctor", *words, "--ssh", ssh, "--run", "runs/one"]
        process = rig.start(CLIENT, command, stdout=output, stderr=output, env={"COLUMNS": "400"})
        try:
            code = process.wait(150)
        finally:
            process.kill()
        output.seek(0)
        text = output.read()
    assert "Traceback" not in text, text
    return code, text


def on(rig: Rig, host: str, command: str) -> None:
    assert rig.start(host, ["bash", "-c", command]).wait(20) == 0, command


def left(rig: Rig, host: str) -> list[str]:
    return [str(command) for command in rig.processes(host).values() if "rankless" in str(command)]


def test_hosts_that_are_well_are_measured(rig):
    code, text = examined(rig, "small.yaml", "--hosts", "h1:1,h2:1", "--json")
    assert code == 0, text
    found: dict[str, Any] = json.loads(text)
    level = {(check["name"], check["host"]): check["level"] for check in found["checks"]}
    assert level["own name", "h1"] == level["own name", "h2"] == "warning"  # Debian's 127.0.1.1
    assert set(level.values()) == {"ok", "warning"}
    assert {name for name, host in level if not host} == {
        *("recipe", "consistency", "clocks", "connections", "network", "step")
    }
    assert {timing["size"] for timing in found["timings"]} >= {1 << 10, 1 << 20, 1 << 26}
    assert found["measured"] == 2
    assert found["shares"] == [1, 1]
    assert found["step"] > 0
    assert found["exchange"] > 0
    until(lambda: not left(rig, "h1") + left(rig, "h2"), 15)
    assert not (rig.files("h1") / "runs").exists()


@thorough_only
def test_a_slow_network_is_measured_as_what_it_is(rig):
    """A link of 400 Mbit/s, by the kernel's own shaping, carries 50 MB/s and no more."""
    shaped = "tc qdisc add dev eth0 root tbf rate 400mbit burst 64kb latency 200ms"
    if rig.start("h1", ["sh", "-c", f"{shaped} && tc qdisc del dev eth0 root"]).wait(20):
        pytest.skip("needs tc and the kernel's tbf")
    for host in ("h1", "h2"):
        on(rig, host, shaped)
    try:
        code, text = examined(rig, "--hosts", "h1,h2", "--json")
    finally:
        for host in ("h1", "h2"):
            on(rig, host, "tc qdisc del dev eth0 root")
    assert code == 0, text
    found = json.loads(text)
    (network,) = [check for check in found["checks"] if check["name"] == "network"]
    assert network["level"] == "warning"
    assert "slower than 1 Gbit/s" in network["value"]
    largest = max(found["timings"], key=lambda timing: timing["size"])
    assert bandwidth(largest, 2) < 52e6, largest


def test_packets_that_are_too_large_for_the_network_between(rig):
    """Cards of 9000 bytes on a switch of 1500: SSH works, and the first all-reduce would hang."""
    for host in ("h1", "h2"):
        on(rig, host, "ip link set eth0 mtu 9000 gso_max_segs 1")
    try:
        code, text = examined(rig, "--hosts", "h1,h2")
    finally:
        for host in ("h1", "h2"):
            on(rig, host, "ip link set eth0 mtu 1500 gso_max_segs 65535")
    assert code == 1
    assert "h1 → h2 at 10.91.7.2: large packets are lost (eth0 has MTU 9000)" in text
    assert "fix: run ip link set eth0 mtu 1500 on h1 and h2" in text


def test_all_that_is_wrong_with_all_hosts_is_found_at_once(rig):
    rig.power_off("h3")
    other = rig.files("h2") / "site" / "pillow-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pillow\nVersion: 0.1\n")
    on(rig, "h1", "ip route add blackhole 10.91.7.2")
    on(rig, "h1", f'{sys.executable} -c "{LEFT_OVER}" >/dev/null 2>&1 & sleep 3')
    code, text = examined(rig, "--hosts", "h1,h2,h3")
    assert code == 1
    errors = [line for line in text.splitlines() if line.startswith("error ")]
    assert len(errors) == 5, text
    for found in (
        "1 process without a launcher (rank 4)",
        "on h1; 0.1 on h2",
        "h1 → h2: no connection (10.91.7.2: ",
        "h2 → h1: no connection (10.91.7.1: ",
        "ssh: connect to host h3 port 22: ",
    ):
        assert any(found in line for line in errors), (found, text)
    assert text.count("fix: ") >= len(errors)
    assert "ok       /dev/shm          h1, h2" in text
    assert "fix: check that it is up (ping h3)" in text
