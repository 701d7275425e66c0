"""Deploys and evictions on a real node, under load, with tasks of very different length: planned death costs nothing (P5, Q48).

Budgets of one delivery: a hand-back that counted as a failure would make a dead letter at once (C08).
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fixtures.calls import Calls
from fixtures.exits import Exits, exits
from fixtures.stage import Operator, Stage, until
from poolkeeper.store import calls

LENGTHS = ((1, 0.05), (2, 0.5), (3, 2.0), (4, 5.0))
"""Steps, and seconds for each: from 50 ms to 20 s."""


def submit(stage: Stage, queue: str, works: list[tuple[int, float]]) -> list[UUID]:
    tasks = [{"type": "stepper.work", "payload": {"steps": steps, "seconds": each}} for steps, each in works]
    verdicts = stage.run(calls.submit_many(f"{stage.namespace}/{queue}", tasks))
    return [verdict.task_id for verdict in verdicts if verdict.task_id is not None]


def pool(stage: Stage, model: Calls, image: str, version: int, **spec: Any) -> dict[str, Any]:
    template = {
        "image": image,
        "imagePullPolicy": "Never",
        "env": [{"name": "MODEL_URL", "value": model.url}, {"name": "VERSION", "value": str(version)}],
        "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    settings = {"app": "stepper:app", "concurrency": 6, "template": template, "rollout": {"maxSurge": 2}}
    return stage.pool("work", scaling={"min": 2, "max": 2}, **{**settings, **spec})


def left(stage: Stage) -> int:
    queues = stage.run(calls.stats(cluster=None)).queues
    return sum(q.ready + q.scheduled + q.waiting + q.leased + q.running + q.suspects for q in queues)


def busy(stage: Stage) -> int:
    """Tasks that run on the pods that stay."""
    here = {pod["metadata"]["name"] for pod in stage.pods("work")}
    pools = stage.run(calls.stats(cluster=None)).pools
    return sum(session.busy for pool in pools for session in pool.sessions if session.pod_name in here)


def drains(stage: Stage) -> list[Any]:
    return [drain for pool in stage.run(calls.stats(cluster=None)).pools for drain in pool.drains]


def outcomes(stage: Stage, ids: list[UUID]) -> dict[str, int]:
    """How all deliveries ended."""
    found: dict[str, int] = {}
    for task in ids:
        for row in stage.run(calls.timeline(task)):
            if row.outcome is not None:
                found[row.outcome] = found.get(row.outcome, 0) + 1
    return found


def ready(stage: Stage) -> list[str]:
    pods = stage.pods("work")
    return sorted(p["metadata"]["name"] for p in pods if any(_is_ready(c) for c in p["status"].get("conditions", [])))


def _is_ready(condition: dict[str, str]) -> bool:
    return condition["type"] == "Ready" and condition["status"] == "True"


def evict(stage: Stage, pod: str) -> bool:
    """What `kubectl drain` asks for; False: the disruption budget says not now."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": stage.namespace}}
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}/eviction"
    return "Success" in stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), check=False)


@pytest.fixture
def watch(stage: Stage, tmp_path: Path) -> Iterator[Exits]:
    with exits(stage.kubectl, tmp_path) as found:
        yield found


@pytest.fixture
def work(stage: Stage, operator: Operator) -> Stage:
    """The queue, with budgets of a single delivery."""
    del operator
    stage.apply(stage.db(), stage.queue("work", maxDeliveries=1, maxHandBacks=50))
    stage.wait_condition("taskqueue", "work", "Ready", "True")
    return stage


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_three_deploys_and_an_eviction_run_nothing_finished_again(
    work: Stage, model: Calls, stepper: str, watch: Exits
) -> None:
    """P5, C32: every step of every task is answered once, no task is lost, every pod exits with 0 and reports its drain."""
    work.apply(pool(work, model, stepper, 0))
    until(lambda: len(ready(work)) == 2, timeout=90, what="two workers")
    ids = submit(work, "work", [*LENGTHS] * 4)
    for version in (1, 2, 3):
        old = set(ready(work))
        ids += submit(work, "work", [*LENGTHS] * 3)
        until(lambda: model.in_flight() >= 6, timeout=60, what="the load is on")
        work.apply(pool(work, model, stepper, version))
        until(partial(_replaced, work, old), timeout=90, what=f"deploy {version}")
    ids += submit(work, "work", [*LENGTHS] * 3)
    for pod in ready(work):
        until(partial(evict, work, pod), timeout=90, what=f"{pod} may be evicted")
        until(lambda: len(ready(work)) == 2, timeout=90, what="its successor is there")
    until(lambda: not left(work), timeout=120, what="all tasks end")

    assert {work.run(calls.task(each)).state for each in ids} == {"succeeded"}
    answered = model.answered()
    assert set(answered.values()) == {1}, "no finished step was made again"
    assert sum(answered.values()) == len(ids) / len(LENGTHS) * sum(steps for steps, _ in LENGTHS)
    assert set(outcomes(work, ids)) <= {"succeeded", "returned"}
    until(lambda: len(watch.codes()) >= 8, timeout=60, what="eight pods ended")
    assert set(watch.codes().values()) == {0}
    until(lambda: len(drains(work)) >= 8, timeout=60, what="each reported its drain")
    reports = drains(work)
    assert not any(report.truncated for report in reports)
    assert max(report.seconds for report in reports) > 1, "some had work to finish"


def _replaced(stage: Stage, old: set[str]) -> bool:
    now = set(ready(stage))
    return len(now) == 2 and not now & old


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_what_does_not_fit_into_the_grace_goes_on_from_its_checkpoint_and_the_grace_grows(
    work: Stage, model: Calls, stepper: str, watch: Exits
) -> None:
    """P5, C30, O20, O21: cut drains lose the step in progress and no budget; real reports of real exits bring a longer grace, paced."""
    short = {"minGrace": "10s", "handBackMargin": "5s"}
    work.apply(pool(work, model, stepper, 0, drain={**short, "maxGrace": "10s"}))
    until(lambda: len(ready(work)) == 2, timeout=90, what="two workers")
    ids = submit(work, "work", [(40, 0.5)] * 20)
    until(lambda: busy(work) == 12, timeout=60, what="all slots are in use")
    old = set(ready(work))
    work.apply(pool(work, model, stepper, 1, drain={**short, "maxGrace": "10s"}))
    until(partial(_replaced, work, old), timeout=90, what="a deploy")
    for pod in ready(work):
        until(lambda: busy(work) >= 10, timeout=60, what="most slots are in use")
        until(partial(evict, work, pod), timeout=90, what=f"{pod} may be evicted")
        until(lambda: len(ready(work)) == 2, timeout=90, what="its successor is there")
    until(lambda: sum(report.truncated for report in drains(work)) >= 3, timeout=60, what="cut drains are reported")

    before = set(ready(work))
    work.apply(pool(work, model, stepper, 1, drain={**short, "maxGrace": "2m"}))
    event = until(lambda: work.events("GraceRollout"), timeout=60, what="the operator lengthens the grace")[0]
    assert "were cut by the present grace of 10 s" in event["message"]
    until(partial(_replaced, work, before), timeout=120, what="pod after pod")
    graces = {pod["spec"]["terminationGracePeriodSeconds"] for pod in work.pods("work")}
    assert len(graces) == 1
    assert min(graces) >= 15

    until(lambda: not left(work), timeout=120, what="all tasks end")
    assert {work.run(calls.task(each)).state for each in ids} == {"succeeded"}
    ended = outcomes(work, ids)
    assert set(ended) <= {"succeeded", "handed_back", "returned"}
    assert ended["handed_back"] >= 3
    again = sum(times - 1 for times in model.answered().values())
    assert again <= ended["handed_back"], "a hand-back costs the step in progress at most"
    assert len(model.answered()) == 40 * len(ids), "and no step was left out"
    assert set(watch.codes().values()) == {0}


@pytest.mark.wide
@pytest.mark.timeout(240)
def test_a_pod_that_is_given_less_grace_than_its_template_says_hands_back_in_time(
    work: Stage, model: Calls, stepper: str, watch: Exits
) -> None:
    """O20: `kubectl delete pod --grace-period`, an eviction or a node may give less; the worker hears it and exits with 0."""
    work.apply(pool(work, model, stepper, 0))
    until(lambda: len(ready(work)) == 2, timeout=90, what="two workers")
    ids = submit(work, "work", [(40, 0.5)] * 8)
    until(lambda: len(model.answered()) >= 8, timeout=60, what="each has gone some way")
    (pod, *_) = ready(work)
    work.kubectl("delete", "pod", pod, "--grace-period=14", "--wait=false")
    until(lambda: pod in watch.codes(), timeout=60, what="it ended")
    assert watch.codes()[pod] == 0
    until(lambda: not left(work), timeout=120, what="all tasks end")
    assert {work.run(calls.task(each)).state for each in ids} == {"succeeded"}
    ended = outcomes(work, ids)
    assert set(ended) <= {"succeeded", "handed_back", "returned"}
    assert ended["handed_back"] >= 1
