"""Measure the exact exchange of gradients on a slow network, PyTorch's all-reduce and an ideal ring.

    python benchmarks/exchange.py [--rate 1gbit] [--rounds 7]    # needs root and iproute2
    python benchmarks/exchange.py --loopback                     # anywhere, without a limit

Two ranks over gloo, each in a network namespace of its own, on a link of that rate in each direction, with a
delay of 0.5 ms each way where the kernel has ``netem``. They exchange the gradients of ResNet-18, 47 MB,
while a backward pass goes on that only sleeps, as long for one convolution as for another. ``exact`` and
``fast`` are ``rankless.world.reduce.GradientSum`` as in training; they take turns, step by step. An ideal
ring sends every gradient as soon as it exists, without overhead, at the rate of a plain socket on this link.
The exit code is 1 if ``exact`` takes over 1.1 times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

from rankless.world.exchange import Exchange
from rankless.world.process_group import World, join
from rankless.world.reduce import GradientSum

BACKWARD = (0.02, 0.3, 0.8)  # seconds
NETWORK = "10.93.17"
MOST = 1.1
_PORTS = 29_761, 29_762  # of the ranks' store, and of the plain socket


class Sleeper(nn.Module):
    """Parameters of a network, whose backward pass sleeps at each and leaves ones as its gradient.

    Args:
        shapes: of the parameters, in the order of the forward pass.
        seconds: of the whole backward pass, alike for every parameter with two dimensions or more.
    """

    def __init__(self, shapes: Sequence[torch.Size], seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self.naps = [seconds * (len(shape) > 1) for shape in shapes]
        self.naps = [nap / sum(len(shape) > 1 for shape in shapes) for nap in self.naps]

    def forward(self, value: Tensor) -> Tensor:
        """Pass a scalar on, through every parameter."""
        for weight, nap in zip(self.weights, self.naps, strict=True):
            value = _Nap.apply(value, weight, nap)
        return value

    def ideal(self, rate: float) -> float:
        """Return the seconds until the last gradient has arrived if each leaves as soon as it exists.

        Args:
            rate: bytes a second.
        """
        now = arrived = 0.0
        for weight, nap in zip(reversed(self.weights), reversed(self.naps), strict=True):
            now += nap
            arrived = max(arrived, now) + weight.numel() * weight.element_size() / rate
        return arrived


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, nap: float) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.nap = nap
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(ctx.nap)
        return gradients[0], torch.ones_like(ctx.saved_tensors[0]), None


def rank(rounds: int) -> None:
    """Run one rank; the first prints its measurements as JSON."""
    torch.set_num_threads(1)
    shapes = [weight.shape for weight in resnet18().parameters()]
    size = 4 * sum(map(torch.Size.numel, shapes))
    with join() as world:
        raw = [_plain_socket(world, size) for _ in range(3)]
        found: dict[str, Any] = {"bytes": size, "socket": min(raw), "steps": []}
        for seconds in BACKWARD:
            module = Sleeper(shapes, seconds)
            exchange = Exchange(2, world.rank, world.size, world.transport)
            steps = {kind: step(module, exchange, exact=kind == "exact") for kind in ("exact", "fast")}
            times: dict[str, list[float]] = {kind: [] for kind in steps}
            for number in range(rounds + 2):  # in the first two the buckets are laid out
                for kind, one in steps.items():
                    took = timed(world, one)
                    times[kind] += [took] * (number > 1)
            found["steps"].append([seconds, module.ideal(size / min(raw)), times["exact"], times["fast"]])
        if world.is_first:
            print(json.dumps(found), flush=True)


def step(module: Sleeper, exchange: Exchange, *, exact: bool) -> Callable[[], None]:
    """Return a function that runs one step of ``module`` and sums its gradients."""
    gradients = GradientSum(module, exchange, exact=exact)
    start = torch.zeros((), requires_grad=True)

    def run() -> None:
        gradients.begin()
        gradients.backward(module(start), exchange.own.start)

    return run


def timed(world: World, work: Callable[[], object]) -> float:
    """Return the seconds of the slower rank on the clock."""
    world.barrier()
    began = time.perf_counter()
    work()
    slowest: float = max(world.all_gather(time.perf_counter() - began))
    return slowest


def _plain_socket(world: World, size: int) -> float:
    """Return the seconds for this many bytes in both directions at once, through the kernel alone."""
    first, address = world.is_first, (os.environ["MASTER_ADDR"], _PORTS[1])
    server = socket.create_server(address, reuse_port=True) if first else None
    world.barrier()
    peer = server.accept()[0] if server else socket.create_connection(address)
    data = bytes(size)

    def both() -> None:
        sending = threading.Thread(target=peer.sendall, args=(data,))
        sending.start()
        left = size
        while left:
            left -= len(peer.recv(min(left, 1 << 20)))
        sending.join()

    took = timed(world, both)
    peer.close()
    if server:
        server.close()
    return took


@contextmanager
def hosts(count: int, rate: str) -> Iterator[tuple[list[list[str]], str]]:
    """Create namespaces that send at ``rate`` through a switch; yield their commands, and the delay."""
    switch, *names = [f"rankless-{os.getpid()}-{number}" for number in range(count + 1)]
    try:
        for name in (switch, *names):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        delay = "0.5 ms each way"
        for number, name in enumerate(names, 1):
            device = f"rl{number}"
            pair = ["netns", switch, "type", "veth", "peer", "name", "rl0", "netns", name]
            _run("ip", "link", "add", device, *pair)
            _run("ip", "-n", switch, "link", "set", device, "master", "br0", "up")
            _run("ip", "-n", name, "address", "add", f"{NETWORK}.{number}/24", "dev", "rl0")
            for up in ("lo", "rl0"):
                _run("ip", "-n", name, "link", "set", up, "up")
            queue = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "rl0"]
            _run(*queue, *f"root handle 1: tbf rate {rate} burst 256kb latency 50ms".split())
            delaying = ["parent", "1:1", "netem", "delay", "500us", "limit", "100000"]
            if subprocess.run([*queue, *delaying], capture_output=True).returncode:
                delay = "none added, as this kernel has no netem"
        yield [["ip", "netns", "exec", name] for name in names], delay
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"error: {' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        raise SystemExit(2)


def measured(prefixes: Sequence[Sequence[str]], address: str, command: Sequence[str]) -> str:
    """Start a rank of ``command`` after each of these prefixes; return the output of the first."""
    here = len(prefixes) if address == "127.0.0.1" else 1
    ranks = []
    for number, prefix in enumerate(prefixes):
        variables = {"RANK": f"{number}", "WORLD_SIZE": f"{len(prefixes)}", "OMP_NUM_THREADS": "1"}
        variables |= {"LOCAL_RANK": f"{number % here}", "LOCAL_WORLD_SIZE": f"{here}", "RANKLESS_CPU": "1"}
        variables |= {"MASTER_ADDR": address, "MASTER_PORT": f"{_PORTS[0]}"}
        whole = {**os.environ, **variables}
        ranks.append(subprocess.Popen([*prefix, *command], env=whole, stdout=subprocess.PIPE, text=True))
    try:
        said = ranks[0].communicate()[0]
        if max(one.wait() for one in ranks):
            print("error: a rank ended early; it has said why", file=sys.stderr)
            raise SystemExit(2)
    finally:
        for one in ranks:
            one.kill()
    return said


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loopback", action="store_true", help="two ranks of this machine, without a limit")
    parser.add_argument("--tiny", action="store_true", help="one round on loopback")
    parser.add_argument("--be-a-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: sys.exit(128 + which))  # takes the namespaces away first
    if options.be_a_rank:
        rank(options.rounds)
        return 0
    if options.tiny:
        options.rounds, options.loopback = 1, True
    command = [sys.executable, __file__, "--rounds", str(options.rounds), "--be-a-rank"]
    if options.loopback:
        said, words = measured([[], []], "127.0.0.1", command), "loopback without a limit"
    elif os.geteuid() or not all(map(shutil.which, ("ip", "tc"))):
        print("error: network namespaces need root and iproute2; or give --loopback", file=sys.stderr)
        return 2
    else:
        with hosts(2, options.rate) as (prefixes, delay):
            said = measured(prefixes, f"{NETWORK}.1", command)
        words = f"a link of {options.rate} in each direction; delay: {delay}"
    found: dict[str, Any] = json.loads(said)
    print(f"{found['bytes'] / 1e6:.0f} MB of gradients, two ranks, {words}")
    print(f"a plain socket takes {1000 * found['socket']:.0f} ms")
    print("\nbackward  ideal ring  exact: best, median  fast: best, median  exact/ideal  exact/fast")
    met = True
    for seconds, ideal, exact, fast in found["steps"]:
        cells = [f"{1000 * min(t):7.0f} {1000 * statistics.median(t):7.0f} ms" for t in (exact, fast)]
        ratios = f"{min(exact) / ideal:11.2f} {min(exact) / min(fast):11.2f}"
        print(f"{1000 * seconds:5.0f} ms  {1000 * ideal:7.0f} ms {cells[0]:>20} {cells[1]:>19} {ratios}")
        met = met and min(exact) <= MOST * ideal
    return 0 if met or options.loopback else 1


if __name__ == "__main__":
    raise SystemExit(main())
