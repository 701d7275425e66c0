"""What was seen of the API server: never older than what was known, and complete after each list (kopf-and-style 1.2, 1)."""

from typing import Any

import pytest

from poolkeeper_operator.act.owners import foreign_scalers, who_scaled
from poolkeeper_operator.observe.world import World


def seen(name, version, **labels):
    return {"metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version), "labels": labels}}


def test_an_older_version_is_ignored():
    """Events of a slow watch do not undo what we wrote and were answered."""
    world = World()
    assert world.put("WorkerPool", seen("a", 7))
    assert not world.put("WorkerPool", seen("a", 6))
    assert not world.put("WorkerPool", seen("a", 7))
    kept = world.get("WorkerPool", "ns", "a")
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "7"


def test_what_a_list_lacks_is_forgotten_unless_it_is_newer_than_the_list():
    """Objects that vanished without an event are noticed; one created meanwhile stays."""
    world = World()
    world.put("WorkerPool", seen("gone", 3))
    world.put("WorkerPool", seen("kept", 4))
    since = world.newest("WorkerPool")
    world.put("WorkerPool", seen("created meanwhile", 9))
    changed = world.replace("WorkerPool", [seen("kept", 4), seen("new", 8)], since)
    assert changed == {("ns", "gone"), ("ns", "new")}
    assert world.get("WorkerPool", "ns", "gone") is None
    assert world.get("WorkerPool", "ns", "created meanwhile") is not None


def test_what_was_not_found_is_believed_again_when_a_list_has_it():
    """O30: nobody told of its end; a late event from before the end that was told changes nothing."""
    world = World()
    world.put("Pod", seen("lost", 5))
    world.drop("Pod", "ns", "lost")
    assert world.replace("Pod", [seen("lost", 5)], since=5) == {("ns", "lost")}
    assert world.get("Pod", "ns", "lost") is not None
    world.drop("Pod", "ns", "lost", at=6)
    assert not world.put("Pod", seen("lost", 5))


def test_pods_are_found_by_their_pool():
    """And forgotten with it."""
    world = World()
    world.put("Pod", seen("p1", 1, **{"poolkeeper.dev/pool": "a"}))
    world.put("Pod", seen("p2", 2, **{"poolkeeper.dev/pool": "b"}))
    assert [pod["metadata"]["name"] for pod in world.pods("ns", "a")] == ["p1"]
    world.drop("Pod", "ns", "p1")
    assert world.pods("ns", "a") == []


def test_of_who_owns_what_only_the_scalers_are_kept():
    """A thousand pools fit into the operator's memory (O33); who wrote replicas is still known (O19)."""
    world = World()
    deployment = seen("a", 1)
    fields: dict[str, Any] = {"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {}}}, "f:status": {}}
    deployment["metadata"]["managedFields"] = [
        {"manager": "kubectl", "operation": "Update", "fieldsV1": fields},
        {"manager": "kube-controller-manager", "fieldsV1": {"f:status": {}}},
    ]
    world.put("Deployment", deployment)
    kept = world.get("Deployment", "ns", "a")
    assert kept is not None
    assert "f:template" not in str(kept)
    assert foreign_scalers(kept) == ["kubectl"]
    assert "f:template" in str(deployment)  # what the caller holds is left as it is


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        ([], ["somebody"]),  # what `kubectl scale --replicas=0` leaves behind
        (["kubectl"], ["kubectl"]),
        (["poolkeeper-scaler"], []),
        (["poolkeeper-operator"], []),
        (["poolkeeper-scaler", "keda"], ["keda"]),
    ],
)
def test_who_took_the_size_of_a_deployment_is_known_or_nobody_s(entries, who):
    """O19, C36: the field is always ours, from the first write on."""
    owned = [{"manager": name, "fieldsV1": {"f:spec": {"f:replicas": {}}}} for name in entries]
    assert who_scaled({"metadata": {"managedFields": owned}}) == who
