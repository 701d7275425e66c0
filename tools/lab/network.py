"""The bridge of a node's pods, from which nothing can leave the machine.

Guarantees: pods reach each other, services and the bridge's own address (where Postgres and others may listen), and
nothing else: their packets are looked up in a routing table without a default route. Checks that an address is this
machine's before anything is sent to it.
"""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import BaseModel

from lab.errors import LabError
from lab.packages import require

_RULE = "5000"


class Network(BaseModel, frozen=True):
    """Names and ranges of one cluster's pods and services."""

    bridge: str
    pods: str
    services: str
    gateway: str
    table: int

    @property
    def pod_range(self) -> tuple[str, str]:
        """First and last address given to pods."""
        base = self.gateway.rsplit(".", 2)[0]
        return f"{base}.1.1", f"{base}.1.254"


def plan(ident: str, used: Sequence[ipaddress.IPv4Network], tables: Collection[int] = ()) -> Network:
    """A pair of /16 in 10.64.0.0/10 and a routing table that overlap nothing in use; `ident` (hexadecimal) spreads the choice."""
    first = int(ident[:2], 16) % 32
    for step in range(32):
        second = 64 + 2 * ((first + step) % 32)
        pods = ipaddress.IPv4Network(f"10.{second}.0.0/16")
        services = ipaddress.IPv4Network(f"10.{second + 1}.0.0/16")
        if 20000 + second not in tables and not any(each.overlaps(pods) or each.overlaps(services) for each in used):
            return Network(
                bridge=f"pk{ident[:8]}",
                pods=str(pods),
                services=str(services),
                gateway=str(pods[1]),
                table=20000 + second,
            )
    raise LabError("no free pair of networks in 10.64.0.0/10; `ip route show table all` shows who uses them")


def in_use() -> tuple[list[ipaddress.IPv4Network], set[int]]:
    """Every IPv4 network that this machine has a route for, apart from the default; the numbers of tables with any route or rule.

    A bridge that goes takes its routes along but for the one that says where the table ends: a killed cluster's table stays.
    """
    networks, tables = [], set()
    for route in json.loads(_ip("-j", "-4", "route", "show", "table", "all") or "[]"):
        tables.add(str(route.get("table", "main")))
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.IPv4Network(route.get("dst", ""), strict=False))
    tables |= {str(rule.get("table")) for rule in json.loads(_ip("-j", "rule") or "[]")}
    return networks, {int(each) for each in tables if each.isdecimal()}


def make(network: Network) -> None:
    """Bring the bridge up with its address and its routing table."""
    bridge, table = network.bridge, str(network.table)
    _ip("link", "add", bridge, "type", "bridge")
    for parameter, value in (("ipv6/conf/{}/disable_ipv6", "1"), ("ipv4/conf/{}/send_redirects", "0")):
        path = Path("/proc/sys/net") / parameter.format(bridge)
        if path.exists():
            path.write_text(value)
    _ip("addr", "add", f"{network.gateway}/16", "dev", bridge)
    _ip("link", "set", bridge, "up")
    _ip("link", "set", "lo", "up")
    # services are routed to the bridge as well, so that an unknown service address dies there
    _ip("route", "add", network.services, "dev", bridge)
    # what comes from pods is looked up in a table that knows pods and services and nothing else
    _ip("route", "add", network.pods, "dev", bridge, "table", table)
    _ip("route", "add", network.services, "dev", bridge, "table", table)
    _ip("route", "add", "unreachable", "default", "table", table)
    _ip("rule", "add", "pref", _RULE, "iif", bridge, "lookup", table)
    require_local(network.gateway)


def drop(network: Network) -> None:
    """Take away whatever of it there is, until nothing is left."""
    end = time.monotonic() + 10
    while left := _left(network):
        _ip("rule", "del", "pref", _RULE, "iif", network.bridge, check=False)
        _ip("route", "flush", "table", str(network.table), check=False)  # gives up when routes change meanwhile
        _ip("link", "del", network.bridge, check=False)
        for family in ("ip", "ip6"):
            _nft("delete", "table", family, "kube-proxy")
        if time.monotonic() > end:
            raise LabError(
                f"the network of {network.bridge} does not go away: {left}; remove it by hand (ip link, ip rule)"
            )


def _left(network: Network) -> str:
    rules = [line for line in _ip("rule").splitlines() if f"iif {network.bridge} " in line]
    routes = _ip("route", "show", "table", str(network.table), check=False)
    tables = "nftables of kube-proxy" if has_proxy_table() else ""
    return " ".join((*rules, routes, _ip("-o", "link", "show", network.bridge, check=False), tables)).strip()


def has_proxy_table() -> bool:
    """Whether some kube-proxy's services are in this network namespace: two of them break each other's."""
    return _nft("list", "table", "ip", "kube-proxy")


def require_local(address: str) -> None:
    """Refuse an address that is not this machine's own, before the first packet goes to it."""
    if ipaddress.ip_address(address).is_loopback:
        return
    found = json.loads(_ip("-j", "route", "get", address, check=False) or "[]")
    if not found or found[0].get("type") != "local":
        raise LabError(
            f"{address} is not an address of this machine (ip route get says {found}); nothing was sent to it"
        )


def go_apart() -> None:
    """Return where loopback is the only network, for programs that listen on every address; this command is run anew in a namespace of its own.

    What is started before is not seen from there. Raises LabError where the machine does not allow it.
    """
    if {name for _, name in socket.if_nameindex()} == {"lo"}:
        return
    apart = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    tried = subprocess.run([*apart, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise LabError(f"no network namespace of its own: {tried.stderr.strip()}; run it as root: sudo unshare --net …")
    os.execvp(apart[0], [*apart, sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the command that was given


def free_ports(count: int, addresses: Sequence[str] = ("127.0.0.1",)) -> list[int]:
    """Ports that are free on all these addresses, below the range that outgoing connections take theirs from.

    They are not held: ask for all that you need in one go.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    start = 20000 + (os.getpid() * 37) % max(1, low - 21000)  # spreads several clusters
    for port in [*range(start, low), *range(20000, start)]:
        if len(found) == count:
            return found
        if all(_is_free(address, port) for address in addresses):
            found.append(port)
    raise LabError(f"fewer than {count} free ports below {low}; end what listens there (`ss -tln`)")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _ip(*argv: str, check: bool = True) -> str:
    done = subprocess.run([require("ip"), *argv], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LabError(f"ip {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _nft(*argv: str) -> bool:
    return subprocess.run([require("nft"), *argv], capture_output=True, check=False).returncode == 0
