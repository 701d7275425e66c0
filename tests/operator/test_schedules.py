"""At zero pods the operator fires the slots of schedules, and their tasks start the first pod (Q34, O12)."""

from typing import Any

from fixtures.stage import until
from poolkeeper.store import calls


def test_a_slot_starts_the_first_pod_of_a_pool_at_zero(stage, operator):
    """Long before the tick: the reading comes with the slot. Those of a queue that is paused wait, and are not asked for in vain."""
    stage.apply(stage.db(tickInterval="1m"), stage.queue("mail"), stage.queue("still", paused=True), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    until(lambda: stage.condition("taskqueue", "still", "Ready"), what="both queues")
    assert stage.replicas("mail") == 0
    how: dict[str, Any] = {
        "cron": "*/5 * * * * *",
        "zone": "UTC",
        "catch_up": "latest",
        "catch_up_limit": 1,
        "who": "test",
    }
    for queue in ("still", "mail"):
        name = f"{stage.namespace}/{queue}"
        assert stage.run(calls.set_schedule(name, "tick", task={"type": "mail.send"}, **how)).code is None
    until(lambda: stage.pods("mail"), timeout=60, what="a pod")
    by_name = {one.queue: one for one in stage.run(calls.schedules())}
    assert by_name[f"{stage.namespace}/mail"].fired_at is not None
    assert by_name[f"{stage.namespace}/still"].fired_at is None
    assert stage.run(calls.task(by_name[f"{stage.namespace}/mail"].fired_task)).state == "ready"
    assert not [line for line in operator.lines() if "schedules.failed" in line.get("message", "")]
