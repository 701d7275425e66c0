"""maxWorkerConnections of a Database bounds the pods of all its pools together (O15)."""

import pytest

from fixtures.stage import until


def pods_asked(stage):
    """Pods that are asked for or exist, of all pools, as of one moment for each kind."""
    deployments = {each["metadata"]["name"]: each["spec"]["replicas"] for each in stage.all("deployment")}
    living = {name: len(stage.pods(name)) for name in deployments}
    return {name: max(size, living[name]) for name, size in deployments.items()}


def asked(stage):
    return {each["metadata"]["name"]: each["spec"]["replicas"] for each in stage.all("deployment")}


def work_for(stage, name):
    """Sessions for the pods that have none: pods that cannot start would stop growth."""
    for pod in stage.pods(name):
        if pod["metadata"]["uid"] not in stage.known:
            stage.known.add(pod["metadata"]["uid"])
            stage.session(pod, name, name)


@pytest.fixture
def crowded(stage, operator):
    """Two pools with much to do on a Database whose connections are enough for six pods."""
    stage.known = set()
    stage.apply(stage.db(maxWorkerConnections=13), stage.queue("one"), stage.queue("two"), stage.pool("one"))
    for name in ("one", "two"):
        stage.wait_condition("taskqueue", name, "Ready", "True")
        stage.submit(name, 30)
    return stage


def test_two_pools_share_the_connections_and_never_pass_them(crowded):
    """O15: the first takes all, gives back when the second comes, and the sum never passes the bound; the reason is Connections."""
    stage, seen = crowded, []

    def sizes():
        found = asked(stage)
        seen.append(sum(found.values()))
        for name in found:
            work_for(stage, name)
        return found

    until(lambda: sizes() == {"one": 6}, what="what nobody else wants is handed out")
    status = until(lambda: (s := stage.status("workerpool", "one"))["wanted"]["limitedBy"] == "Connections" and s)
    assert "maxWorkerConnections of database main (13, 2 a pod) leaves it 6 pods" in status["decisions"][0]["sentence"]
    stage.apply(stage.pool("two"))
    until(lambda: sizes() == {"one": 3, "two": 3}, timeout=90, what="three each")
    assert max(seen) == 6


@pytest.mark.wide
def test_neither_minimum_nor_another_scaler_stands_above_the_connections(crowded):
    """O15, O19: an idle pod is connected as well as a busy one."""
    stage = crowded
    until(lambda: asked(stage).get("one") == 6)
    stage.apply(stage.pool("one", scaling={"min": 8}))
    stage.apply(stage.pool("two", scaling={"mode": "External", "min": 1}))
    until(lambda: stage.status("workerpool", "two").get("mode") == "External")
    stage.kubectl("scale", "workerpool/two", "--replicas=9")
    seen = []

    def settled():
        found = asked(stage)
        seen.append(sum(found.values()))
        for name in found:
            work_for(stage, name)
        return found == {"one": 3, "two": 3}

    until(settled, timeout=90, what="three each")
    assert max(seen) == 6
    stage.wait_condition("workerpool", "two", "ScalingActive", "True", "ExternalBounded")


@pytest.mark.wide
def test_pods_of_a_pool_that_is_gone_count_until_they_are(crowded):
    """O15: whoever is connected counts; orphaned pods too."""
    stage = crowded
    until(lambda: asked(stage).get("one") == 6)
    until(lambda: len(stage.pods("one")) == 6)
    stage.kubectl("delete", "workerpool", "one", "--cascade=orphan")
    stage.apply(stage.pool("two"))
    stage.wait_condition("workerpool", "two", "Ready", "True")
    until(lambda: stage.status("workerpool", "two")["wanted"]["limitedBy"] == "Connections")
    assert asked(stage) == {"one": 6, "two": 0}
    stage.kubectl("delete", "deployment", "one")
    until(lambda: asked(stage) == {"two": 6})
