"""A provider's quota holds while real pods start, surge and drain, by the provider's own log (O15, P7)."""

from typing import Any

import pytest

from fixtures.calls import Calls
from fixtures.stage import Operator, Stage, until
from poolkeeper.store import calls

pytestmark = pytest.mark.wide

QUOTA = 5


def pool(stage: Stage, name: str, model: Calls, image: str, version: int) -> dict[str, Any]:
    template = {
        "image": image,
        "imagePullPolicy": "Never",
        "env": [{"name": "MODEL_URL", "value": model.url}, {"name": "VERSION", "value": str(version)}],
        "resources": {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    return stage.pool(
        name,
        scaling={"max": 2, "toZeroAfter": "2m"},
        app="stepper:app",
        concurrency=4,  # twice two pods have more slots than the quota has calls
        template=template,
        rollout={"maxSurge": 2},
        providers=[{"name": "model", "quotaRef": {"name": "model"}, "perTask": {"concurrentCalls": 1}}],
    )


@pytest.mark.timeout(300)
def test_no_pod_that_starts_surges_or_drains_passes_the_quota(
    stage: Stage, operator: Operator, model: Calls, stepper: str
) -> None:
    """Two pools, weights 1:2, both deployed anew at the same moment while everything is in use."""
    del operator
    weights = {"pools": [{"namespace": stage.namespace, "name": "b", "weight": 2}]}
    stage.apply(stage.db(), stage.queue("a"), stage.queue("b"), stage.quota("model", QUOTA, shares=weights))
    ids = []
    for name in ("a", "b"):
        stage.wait_condition("taskqueue", name, "Ready", "True")
        tasks = [{"type": "stepper.work", "payload": {"steps": 2, "seconds": 0.7}}] * 60
        ids += [each.task_id for each in stage.run(calls.submit_many(f"{stage.namespace}/{name}", tasks))]
    stage.apply(pool(stage, "a", model, stepper, 0), pool(stage, "b", model, stepper, 0))
    until(lambda: model.in_flight() == QUOTA, timeout=90, what="all of the quota is in use")
    old = {pod["metadata"]["uid"] for name in ("a", "b") for pod in stage.pods(name)}
    stage.apply(pool(stage, "a", model, stepper, 1), pool(stage, "b", model, stepper, 1))
    until(lambda: not old & uids(stage), timeout=120, what="all pods are new")
    until(lambda: all(stage.run(calls.task(each)).state == "succeeded" for each in ids), timeout=120)
    assert model.most_in_flight() == QUOTA
    assert (model.cut_off(), max(model.answered().values())) == (0, 1)
    assert sum(model.answered().values()) == 2 * len(ids)


def uids(stage: Stage) -> set[str]:
    """Of all pods, those that drain included."""
    return {pod["metadata"]["uid"] for pod in stage.all("pod")}
