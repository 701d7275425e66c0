"""The NetworkPolicy of a pool, on a real API server; no network plugin of the tests enforces it (O5)."""

import json
from functools import partial

import pytest

from fixtures.stage import until

MODEL = [{"cidr": "10.64.0.0/10", "port": 443}]
STORE = [{"cidr": "10.1.2.3/32", "port": 5432}, {"cidr": "fd00::/8"}]
PROVIDERS = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def to(cidr, port=None):
    rule = {"to": [{"ipBlock": {"cidr": cidr}}]}
    return rule if port is None else {**rule, "ports": [{"port": port, "protocol": "TCP"}]}


def policy(stage):
    """Its spec."""
    return (stage.get("networkpolicy", "mail") or {}).get("spec")


def restricted(stage, *rules):
    """Whether the pods may reach DNS and this, and nothing else."""
    found = policy(stage) or {}
    return sorted(found["policyTypes"]) == ["Egress", "Ingress"] and found["egress"] == [DNS, *rules]


@pytest.fixture
def mail(stage, operator):
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 3), stage.pool("mail", providers=PROVIDERS))
    return stage


@pytest.mark.wide
def test_pods_may_reach_what_is_given_once_all_of_it_is(mail):
    """O5: in only to probes and metrics; out to DNS, database, providers and the pool's own; a change is no rollout."""
    stage = mail
    found = until(partial(policy, stage))
    assert found["podSelector"] == {"matchLabels": {"poolkeeper.dev/pool": "mail"}}
    assert found["policyTypes"] == ["Ingress"]
    assert found["ingress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}]}]
    condition = stage.wait_condition("workerpool", "mail", "EgressUnrestricted", "True", "PeersUnknown")
    assert f"networkPeers of database main, quota {stage.namespace}/api" in condition["message"]
    build = stage.get("deployment", "mail")["metadata"]["labels"]["poolkeeper.dev/build"]
    stage.apply(stage.db(networkPeers=STORE))
    until(
        lambda: (
            f"networkPeers of quota {stage.namespace}/api;"
            in stage.condition("workerpool", "mail", "EgressUnrestricted")["message"]
        )
    )
    assert policy(stage)["policyTypes"] == ["Ingress"], "half of the peers would cut it off from the others"
    stage.apply(stage.quota("api", 3, networkPeers=MODEL))
    store = [to("10.1.2.3/32", 5432), to("fd00::/8")]
    until(lambda: restricted(stage, *store, to("10.64.0.0/10", 443)))
    stage.wait_condition("workerpool", "mail", "EgressUnrestricted", "False", "Restricted")
    own = {"egress": [{"cidr": "10.9.0.0/16", "port": 80}]}
    stage.apply(stage.pool("mail", providers=PROVIDERS, isolation=own))
    until(lambda: restricted(stage, *store, to("10.64.0.0/10", 443), to("10.9.0.0/16", 80)))
    stage.apply(stage.pool("mail", providers=PROVIDERS, isolation={"networkPolicy": "None"}))
    nobody = {"matchLabels": {"poolkeeper.dev/pool": "mail", "poolkeeper.dev/no-policy": "true"}}
    until(lambda: policy(stage)["podSelector"] == nobody, what="it selects no pod any more")
    stage.wait_condition("workerpool", "mail", "EgressUnrestricted", "True", "NoPolicy")
    assert stage.get("deployment", "mail")["metadata"]["labels"]["poolkeeper.dev/build"] == build
    stage.apply(stage.pool("mail", providers=PROVIDERS))
    until(lambda: policy(stage)["podSelector"] == found["podSelector"], what="and selects them again")
    assert restricted(stage, *store, to("10.64.0.0/10", 443))


@pytest.mark.wide
def test_it_belongs_to_the_pool_comes_back_and_leaves_the_rest_alone(mail, audit):
    """O5: an owner reference, labels of others survive, a deleted or opened one is mended, a converged one not written."""
    stage = mail
    until(partial(policy, stage))
    stage.kubectl("label", "networkpolicy", "mail", "example.com/team=red")
    stage.kubectl("delete", "networkpolicy", "mail")
    until(partial(policy, stage), what="it comes back")
    stage.kubectl("label", "networkpolicy", "mail", "example.com/team=red")
    opened = '{"spec": {"podSelector": {"matchLabels": {"example.com/none": "true"}}, "ingress": [{}, {}]}}'
    stage.kubectl("patch", "networkpolicy", "mail", "--type=merge", "-p", opened)
    until(lambda: policy(stage)["ingress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}]}])
    assert policy(stage)["podSelector"] == {"matchLabels": {"poolkeeper.dev/pool": "mail"}}
    meta = stage.get("networkpolicy", "mail")["metadata"]
    assert meta["labels"]["example.com/team"] == "red"
    assert [owner["kind"] for owner in meta["ownerReferences"]] == ["WorkerPool"]
    until(lambda: not stage.quiet(audit, 3.0), timeout=90, what="nothing is written any more")
    stage.kubectl("delete", "workerpool", "mail")
    until(lambda: stage.get("networkpolicy", "mail") is None)


@pytest.mark.parametrize("cidr", ["db.example.com/32", "10.0.0.1"])
def test_what_is_no_network_is_refused_at_apply(stage, cidr):
    """O5: a policy knows no host names."""
    said = stage.kubectl("apply", "-f", "-", stdin=json.dumps(stage.db(networkPeers=[{"cidr": cidr}])), check=False)
    assert "spec.networkPeers[0].cidr" in said
    assert stage.get("database", "main") is None
