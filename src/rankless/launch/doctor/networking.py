"""Checks of a machine's own network: its name, interfaces, addresses and ports."""

from __future__ import annotations

import errno
import ipaddress
import os
import platform
import socket
from collections.abc import Mapping, Sequence

from rankless.hardware.network import addresses_of, interfaces, is_loopback, mtu_of
from rankless.launch.doctor.check import Check, error, ok, warning

_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_TORCHRUN_PORT = 29500
_CONTAINERS = ("docker", "br-", "virbr", "cni", "flannel", "veth", "podman")


def own_name(
    name: str | None = None, found: Sequence[str] | None = None, own: Sequence[str] | None = None
) -> Check:
    """What the machine's own name leads to.

    Args:
        name: of the machine.
        found: the addresses that its name leads to here.
        own: the addresses that it has.
    """
    name = name or platform.node()
    found = addresses_of(name) if found is None else found
    own = [address for every in interfaces().values() for address in every] if own is None else own
    public = next((one for one in own if not is_loopback(one) and not _is_link_local(one)), "ITS-ADDRESS")
    fix = f"in /etc/hosts: {public} {name}"
    if not found:
        return warning("own name", f"{name} cannot be resolved", fix)
    value = f"{name} → {', '.join(found)}"
    if is_loopback(found[0]):
        return warning("own name", f"{value}: ranks elsewhere cannot reach that", f"{fix}, and no other line")
    if own and (stray := [one for one in found if one.partition("%")[0] not in own]):
        return warning("own name", f"{value}: this machine does not have {', '.join(stray)}", fix)
    return ok("own name", value)


def addresses(found: Mapping[str, Sequence[str]] | None = None) -> Check:
    """The interfaces with their addresses and MTUs.

    Args:
        found: addresses by interface.
    """
    found = interfaces() if found is None else found
    shown = []
    families = set()
    for name, every in found.items():
        usable = [one for one in every if not is_loopback(one) and not _is_link_local(one)]
        if usable:
            shown.append(f"{name} {', '.join(usable)} (MTU {mtu_of(name) or 'unknown'})")
        if not name.startswith(_CONTAINERS):
            families |= {6 if ":" in one else 4 for one in usable}
    if not shown:
        fix = "for several machines: ip link set DEVICE up, ip addr add ADDRESS/24 dev DEVICE"
        return warning("interfaces", "none besides the loopback", fix)
    value = f"{'; '.join(shown)}; IPv{' and IPv'.join(map(str, sorted(families))) or '4 of containers alone'}"
    return ok("interfaces", value)


def chosen_interface(
    environment: Mapping[str, str] = os.environ, found: Mapping[str, Sequence[str]] | None = None
) -> Check:
    """The interface that variables name for gloo and NCCL."""
    found = interfaces() if found is None else found
    asked = {name: environment[name] for name in _VARIABLES if environment.get(name)}
    missing = {
        variable: value
        for variable, value in asked.items()
        if not any(_is_meant(value, name) for name in found)
    }
    value = ", ".join(f"{name}={chosen}" for name, chosen in asked.items())
    if missing:
        fix = f"unset {' '.join(missing)}, or name one of {', '.join(found)}"
        return error("chosen interface", f"{value}, which is not there", fix)
    return ok("chosen interface", value or "the one that leads to the others")


def rendezvous_port(port: int = _TORCHRUN_PORT) -> Check:
    """Whether torchrun's usual port is free."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as problem:
            if problem.errno != errno.EADDRINUSE:
                raise
            fix = f"ss -ltnp 'sport = :{port}' shows it; end it if it is left, or: torchrun --master-port …"
            return warning("port", f"another program listens on {port}, which torchrun uses", fix)
    return ok("port", f"{port} is free")


def _is_meant(value: str, interface: str) -> bool:
    """Whether a value of gloo's or NCCL's variable names an interface."""
    if value.startswith("^"):
        return True
    exact = value.startswith("=")
    names = value.lstrip("=").split(",")
    return any(
        interface == name.partition(":")[0] or (not exact and interface.startswith(name)) for name in names
    )


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
