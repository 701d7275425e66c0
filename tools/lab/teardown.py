"""Taking clusters down: our own, those of killed owners, and waiting for the one that has a node.

Guarantees that after `take_down` no process, mount, bridge, rule, table or control group of that cluster is left,
whatever state it was in, and that kernel parameters are what they were.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import cache, network, state
from lab.errors import LabError
from lab.node import Node
from lab.state import State

_PATIENCE = 900.0


def take_down(found: State) -> None:
    """Take down whatever there is of a cluster; an error where its bridge and rules are out of reach, and would stay."""
    if (inside := _out_of_reach(found)) is not None:
        raise LabError(
            f"the cluster of {found.root} is in another network namespace, that of process {inside}; take it down there: "
            f"nsenter --net --target {inside} python -m lab down"
        )
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        found.stop(name, grace=0.0)  # nothing in etcd is worth keeping
    if found.facts.network is not None:
        others = any(each.facts.network for each in state.all_states() if each.root != found.root)
        Node(found, Path()).clear(fixed_places=not others)
        if found.has_node_here:  # elsewhere they end with their network namespace
            network.drop(found.facts.network)
    found.stop_all()
    found.restore_sysctls()
    found.remove()


def take_down_orphans(say: cache.Say) -> None:
    """Take down clusters whose owner was killed before it could; those of other network namespaces only when nobody is there."""
    for found in state.all_states():
        owner = found.facts.owner
        if owner is not None and not owner.alive() and _out_of_reach(found) is None:
            with cache.lock(lock_of(found), f"taking down {found.root}", say):
                again = State(found.root)  # somebody else may have done it meanwhile
                if again.facts.owner == owner:
                    say(f"taking down what process {owner.pid} left in {found.root}")
                    take_down(again)


def _out_of_reach(found: State) -> int | None:
    """A process of the other network namespace in which this cluster's bridge and rules will stay when the cluster has gone."""
    if found.facts.network is None or found.has_node_here:
        return None
    return state.another_in(found.facts.netns, found.root)


def lock_of(found: State) -> Path:
    """The file whose lock whoever changes this cluster holds; outside its folder, which goes."""
    return cache.folder() / f"{found.root.name}.lock"


@contextmanager
def one_node_at_a_time(say: cache.Say, *, wanted: bool) -> Iterator[None]:
    """Wait until no other cluster in this network namespace has a node: two kube-proxies break each other's services."""
    if not wanted:
        yield
        return
    with (cache.folder() / "node.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await_turn(say)
        if network.has_proxy_table():
            raise LabError(
                "another kube-proxy's services are on this machine, and two break each other's. If its owner is gone: "
                "nft delete table ip kube-proxy; else run in a network namespace of its own: unshare -n"
            )
        yield


def await_turn(say: cache.Say) -> None:
    """Return once no other cluster in this network namespace has a node."""
    end, said = time.monotonic() + _PATIENCE, False
    while others := [each for each in state.all_states() if each.has_node_here]:
        other, owner = others[0], others[0].facts.owner
        if owner is None or time.monotonic() > end:
            raise LabError(
                f"another cluster with a node is up ({other.root}), and only one fits on a machine. Take it down "
                f"(python -m lab down), or use it: POOLKEEPER_TEST_KUBECONFIG={other.root}/admin.kubeconfig"
            )
        if not said:
            say(f"another cluster with a node is up (process {owner.pid}); waiting until it is down, 15 min at most")
        said = True
        time.sleep(0.5)
        take_down_orphans(say)
