"""Who goes at a scale-down, on the real controller manager, which knows nothing of work (O17, F25)."""

from collections import Counter

import pytest

from fixtures.crew import crew
from fixtures.shrinking import SIZE, shrink
from fixtures.stage import until


def judge(found, operator, stage, pools):
    assert found.killed_busy == []
    assert found.deleted >= found.scale_downs * SIZE // 2
    assert found.deliveries == {"deliveries": found.tasks, "tasks": found.tasks, "otherwise": 0}, "nothing ran twice"
    for pool in pools:
        assert operator.metric("poolkeeper_pool_wrong_victims_total", namespace=stage.namespace, pool=pool) == 0


def test_no_busy_pod_is_taken_though_the_busy_ones_are_the_newest(stage, operator, audit):
    """F25, O17: two pools, twice each, while short tasks come; by the API server's own log and the store's deliveries."""
    pools = ("one", "two")
    judge(shrink(stage, audit, pools, rounds=2), operator, stage, pools)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_two_hundred_scale_downs(stage, operator, audit):
    """F25: as above."""
    pools = ("one", "two", "three", "four")
    found = shrink(stage, audit, pools, rounds=50)
    assert found.scale_downs == 200
    judge(found, operator, stage, pools)


@pytest.mark.wide
def test_a_busy_pod_that_is_not_ready_holds_the_size_until_it_is(stage, operator, audit):
    """O17: the controller takes the unready first, whatever they cost; nobody goes until it would take an idle one."""
    scaling = {"min": 3, "max": 3}
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling=scaling))
    stage.submit("mail")
    with crew(stage, "mail") as workers:
        until(lambda: len(workers.of("mail")) == 3, what="three workers")
        busy = until(lambda: [hand for hand in workers.of("mail") if hand.held], what="one works")[0]
        ready(stage, busy.name, "False")
        mark = audit.mark()
        stage.apply(stage.pool("mail", scaling={**scaling, "min": 0}))
        until(lambda: costs(stage) == {"-1": 2, None: 1}, what="both idle ones carry their cost")
        stage.quiet(audit, 4.0)
        assert stage.replicas("mail") == 3
        ready(stage, busy.name, "True")
        until(lambda: stage.replicas("mail") == 1, what="the idle ones go")
        until(lambda: [hand.name for hand in workers.of("mail")] == [busy.name], what="it stays")
        deleted = {w.name for w in audit.since(mark, namespace=stage.namespace) if w.verb == "delete"}
        assert busy.name not in deleted


@pytest.mark.wide
def test_a_cost_that_somebody_else_gave_a_busy_pod_does_not_have_it_taken(stage, operator, audit):
    """O17: all but the victims stand at zero when the number is lowered; Karpenter has a gate that sets costs, too."""
    scaling = {"min": 3, "max": 3}
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling=scaling))
    stage.submit("mail")
    with crew(stage, "mail") as workers:
        until(lambda: len(workers.of("mail")) == 3, what="three workers")
        busy = until(lambda: [hand for hand in workers.of("mail") if hand.held], what="one works")[0]
        stage.kubectl("annotate", "pod", busy.name, "controller.kubernetes.io/pod-deletion-cost=-50")
        mark = audit.mark()
        stage.apply(stage.pool("mail", scaling={**scaling, "min": 0}))
        until(lambda: stage.replicas("mail") == 1, what="the idle ones go")
        until(lambda: [hand.name for hand in workers.of("mail")] == [busy.name], what="it stays")
        deleted = {w.name for w in audit.since(mark, namespace=stage.namespace) if w.verb == "delete"}
        assert busy.name not in deleted


HINTS = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt", "poolkeeper.dev/busy")


@pytest.mark.wide
@pytest.mark.timeout(400)
def test_a_pod_that_works_for_long_asks_node_scalers_to_be_left_alone(stage, operator, audit):
    """O17: from a minute of work to a minute without, with one write each; the idle one beside it never does."""
    stage.apply(
        stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling={"min": 2, "max": 2})
    )
    with crew(stage, "mail") as workers:
        until(lambda: len(workers.of("mail")) == 2, what="two workers")
        mark = audit.mark()
        stage.submit("mail")
        busy = until(lambda: [hand for hand in workers.of("mail") if hand.held], what="one works")[0]
        until(lambda: hinted(stage) == {busy.name: ("false", "true", "true")}, timeout=120, what="it asks")
        workers.finish("mail")
        until(lambda: busy.held is None, what="it is done")
        stage.quiet(audit, 10.0)
        assert hinted(stage), "not at once: short pauses cause no writes"
        until(lambda: hinted(stage) == {}, timeout=120, what="it asks no more")
    written = [w for w in audit.since(mark, namespace=stage.namespace) if (w.verb, w.resource) == ("patch", "pods")]
    assert [write.name for write in written] == [busy.name] * 2


def hinted(stage):
    pods = {p["metadata"]["name"]: p["metadata"].get("annotations") or {} for p in stage.pods("mail")}
    return {name: tuple(a.get(key) for key in HINTS) for name, a in pods.items() if any(key in a for key in HINTS)}


def ready(stage, pod, status):
    stage._api.patch_status("pod", stage.namespace, pod, {"conditions": [{"type": "Ready", "status": status}]})


def costs(stage):
    annotations = [pod["metadata"].get("annotations") or {} for pod in stage.pods("mail")]
    return Counter(each.get("controller.kubernetes.io/pod-deletion-cost") for each in annotations)
