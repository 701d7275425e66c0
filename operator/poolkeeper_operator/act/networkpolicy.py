"""The NetworkPolicy of a pool: what may reach its pods, and what they may reach. Pure.

Guarantees (O5): in comes nothing but to the port of probes and metrics. Egress is restricted only when the whereabouts of everything
that the pool declares to use are known, for half of them would cut it off; the condition EgressUnrestricted says what is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poolkeeper_operator.act.children import head, taken
from poolkeeper_operator.act.podtemplate import PORT
from poolkeeper_operator.decide.conditions import Condition
from poolkeeper_operator.resources import WorkerPoolSpec
from poolkeeper_operator.resources.parts import NetworkPeer
from poolkeeper_operator.resources.workerpool import NetworkPolicy
from poolkeeper_operator.runtime.kinds import GROUP, NETWORK_POLICY, POOL_LABEL

DNS = 53
NOBODY = f"{GROUP}/no-policy"  # a label that no pod has


@dataclass(frozen=True)
class Reach:
    """What a pool may reach."""

    peers: tuple[NetworkPeer, ...]
    unknown: tuple[str, ...]  # what it uses, and nobody said where it is


def reach(
    spec: WorkerPoolSpec, database: tuple[str, Sequence[NetworkPeer]], quotas: Mapping[str, Sequence[NetworkPeer]]
) -> Reach:
    """Of its Database (name, peers), of the quotas that it uses, and of its own."""
    name, of_database = database
    given = {f"database {name}": of_database, **{f"quota {key}": peers for key, peers in sorted(quotas.items())}}
    peers = [peer for found in given.values() for peer in found] + list(spec.isolation.egress)
    return Reach(tuple(dict.fromkeys(peers)), tuple(what for what, found in given.items() if not found))


def build_network_policy(
    pool: Mapping[str, Any], spec: WorkerPoolSpec, allowed: Reach, *, live: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The policy; None where the pool asks for none and there is none of its.

    One that is there is made to select nothing: the operator has no right to delete, and one that allows all would open what
    others have closed.
    """
    name = pool["metadata"]["name"]
    selected = {POOL_LABEL: name}
    if spec.isolation.network_policy is NetworkPolicy.NONE:
        if live is None or taken(live, pool) is not None:
            return None
        selected |= {NOBODY: "true"}
    made: dict[str, Any] = {
        "podSelector": {"matchLabels": selected},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [_port(PORT)]}],
    }
    if not allowed.unknown:
        made["policyTypes"] = ["Ingress", "Egress"]
        made["egress"] = [{"ports": [_port(DNS, "UDP"), _port(DNS)]}, *map(_to, allowed.peers)]
    return {**head(pool, NETWORK_POLICY, name), "spec": made}


def egress(spec: WorkerPoolSpec, allowed: Reach) -> Condition:
    """Whether the pods may reach everything, and why."""
    if spec.isolation.network_policy is NetworkPolicy.NONE:
        return Condition("EgressUnrestricted", "True", "NoPolicy", "isolation.networkPolicy is None")
    if allowed.unknown:
        where = ", ".join(allowed.unknown)
        text = f"its pods may reach everything: there are no networkPeers of {where}; egress is restricted once all are given"
        return Condition("EgressUnrestricted", "True", "PeersUnknown", text)
    text = f"its pods may reach DNS and {len(allowed.peers)} networks, where the network plugin enforces policies"
    return Condition("EgressUnrestricted", "False", "Restricted", text)


def _to(peer: NetworkPeer) -> dict[str, Any]:
    rule: dict[str, Any] = {"to": [{"ipBlock": {"cidr": peer.cidr}}]}
    return rule if peer.port is None else {**rule, "ports": [_port(peer.port)]}


def _port(number: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": number, "protocol": protocol}
