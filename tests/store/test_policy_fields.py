"""Each field of a queue's policy, written as a user writes it, changes what the store does (Q7, Q9, Q12, Q26, Q28, Q30).

The same steps under two values of one field, everything else at its default, with two outcomes.
"""

import json
import math
from collections import Counter
from typing import Any

import pytest

from poolkeeper.policy import read_policy
from poolkeeper.store import calls, run
from store.scene import Scene, Worker, seconds


def policy(scene: Scene, spec: dict[str, Any]) -> None:
    """Apply what stands in a TaskQueue's spec."""
    stored = read_policy(spec, what="queue q").to_store()
    applied = scene.ask("operator", calls.apply_policy("local", "default", "default", "q", stored, who="test"))
    assert applied.code is None


def deliveries_until_dead(scene: Scene, worker: Worker) -> int:
    """How many failing deliveries a task gets."""
    task_id, count = scene.submit(), 0
    while scene.state(task_id) != "dead" and count < 50:
        scene.advance(3600)
        worker.renew()
        for delivery in worker.claim():
            count += 1
            worker.fail(delivery)
    return count


def delay_after_failures(scene: Scene, failures: int) -> float:
    """The longest of many delays after so many failures (full jitter: the bound is what counts)."""
    longest = 0.0
    for _ in range(40):
        worker, task_id = scene.worker(), scene.submit()
        for _ in range(failures):
            scene.advance(4000)
            worker.renew()
            worker.fail(worker.take())
        due = scene.value("SELECT due_at - poolkeeper.clock() FROM poolkeeper.later WHERE task_id = %s", task_id)
        longest = max(longest, due.total_seconds())
        scene.ask("person", calls.cancel(task_id, who="test", why="measured"))
    return longest


@pytest.mark.parametrize("bound", [1, 3])
def test_max_deliveries(scene: Scene, bound: int) -> None:
    policy(scene, {"maxDeliveries": bound})
    assert deliveries_until_dead(scene, scene.worker()) == bound


@pytest.mark.parametrize("bound", [1, 3])
def test_max_hand_backs(scene: Scene, bound: int) -> None:
    """Q26: up to the bound a hand-back returns the delivery; beyond it each one is spent."""
    policy(scene, {"maxHandBacks": bound, "maxDeliveries": 1})
    worker, task_id, count = scene.worker(), scene.submit(), 0
    while scene.state(task_id) != "dead" and count < 20:
        worker.settle(worker.take(), "handed_back")
        count += 1
    assert count == bound + 1


@pytest.mark.parametrize("bound", [1, 3])
def test_max_snoozes(scene: Scene, bound: int) -> None:
    policy(scene, {"maxSnoozes": bound})
    worker, task_id, count = scene.worker(), scene.submit(), 0
    while scene.state(task_id) != "dead" and count < 20:
        scene.advance(10)
        worker.renew()
        worker.settle(worker.take(), "snoozed", retry_after=seconds(1))
        count += 1
    assert count == bound + 1


@pytest.mark.parametrize(("length", "state"), [("5s", "ready"), ("1h", "running")])
def test_visibility_timeout(scene: Scene, length: str, state: str) -> None:
    """Q17: a worker silent for longer has lost its tasks."""
    policy(scene, {"visibilityTimeout": length})
    worker, task_id = scene.worker(), scene.submit()
    worker.take()
    scene.advance(60)
    scene.sweep()
    assert scene.state(task_id) == state


@pytest.mark.parametrize(("length", "count"), [("10s", 0), ("1h", 1)])
def test_max_age(scene: Scene, length: str, count: int) -> None:
    policy(scene, {"maxAge": length})
    scene.submit()
    scene.advance(60)
    assert len(scene.worker().claim()) == count


@pytest.mark.parametrize(("types", "code"), [([], None), (["a.b"], None), (["x.y"], "unknown_type")])
def test_task_types(scene: Scene, types: list[str], code: str | None) -> None:
    policy(scene, {"taskTypes": types})
    assert scene.verdict("a.b").code == code


@pytest.mark.parametrize(("how", "heard"), [("Notify", 1), ("Poll", 0)])
def test_wake_up(scene: Scene, how: str, heard: int) -> None:
    """Q15: with Poll a submit sends no notification."""
    policy(scene, {"wakeUp": how})
    listener = scene.connect("worker")
    listener.execute("LISTEN poolkeeper")
    scene.submit()
    assert len(list(listener.notifies(timeout=0.3, stop_after=1))) == heard


def test_backoff_initial(scene: Scene) -> None:
    policy(scene, {"backoff": {"initial": "100s", "max": "1h"}})
    assert 10 < delay_after_failures(scene, 1) <= 100


def test_backoff_max(scene: Scene) -> None:
    policy(scene, {"backoff": {"initial": "100s", "max": "150s", "factorPercent": 1000}})
    assert 100 < delay_after_failures(scene, 2) <= 150


@pytest.mark.parametrize(("factor", "bound"), [(100, 100), (1000, 1000)])
def test_backoff_factor(scene: Scene, factor: int, bound: int) -> None:
    policy(scene, {"backoff": {"initial": "100s", "max": "1h", "factorPercent": factor}})
    longest = delay_after_failures(scene, 2)
    assert bound / 10 < longest <= bound


@pytest.mark.parametrize(("length", "states"), [("10s", {"dead"}), ("1h", {"ready", "scheduled"})])
def test_backoff_max_elapsed(scene: Scene, length: str, states: set[str]) -> None:
    policy(scene, {"backoff": {"maxElapsed": length}})
    task_id = scene.submit()
    scene.advance(60)
    worker = scene.worker()
    worker.fail(worker.take())
    assert scene.state(task_id) in states


@pytest.mark.parametrize(
    ("field", "value", "asked", "given"), [("min", 2, 0, 2), ("max", 6, 9, 6), ("default", 5, None, 5)]
)
def test_priority_range(scene: Scene, field: str, value: int, asked: int | None, given: int) -> None:
    policy(scene, {"priority": {field: value}})
    view = scene.ask("reader", calls.task(scene.submit(priority=asked)))
    assert view is not None
    assert view.priority == given


@pytest.mark.parametrize(("every", "first"), [("10s", "old and low"), ("168h", "new and high")])
def test_priority_age_every(scene: Scene, every: str, first: str) -> None:
    policy(scene, {"priority": {"ageEvery": every}})
    names = {scene.submit(priority=0): "old and low"}
    scene.advance(120)
    names[scene.submit(priority=9)] = "new and high"
    assert names[scene.worker().take().task_id] == first


@pytest.mark.parametrize(("size", "code"), [("10", "payload_too_large"), ("1Ki", None)])
def test_admission_max_payload_size(scene: Scene, size: str, code: str | None) -> None:
    policy(scene, {"admission": {"maxPayloadSize": size}})
    assert scene.verdict(payload="x" * 100).code == code


@pytest.mark.parametrize(("bound", "running"), [(None, 8), (3, 3)])
def test_concurrency_max(scene: Scene, bound: int | None, running: int) -> None:
    """Q12: two workers claim at will; together they run no more."""
    policy(scene, {"concurrency": {} if bound is None else {"max": bound}})
    scene.submit_many(8)
    claimed = [len(scene.worker(pool=f"local/{n}").claim(5)) for n in "ab"]
    assert sum(claimed) == running


@pytest.mark.parametrize(
    ("spec", "running"),
    [
        ({}, {"a": 4, "b": 4}),
        ({"perTenant": 3}, {"a": 3, "b": 3}),
        ({"perTenant": 3, "tenants": [{"name": "b", "max": 1}]}, {"a": 3, "b": 1}),
        ({"perTenant": 1, "tenants": [{"name": "a", "max": 2}]}, {"a": 2, "b": 1}),
    ],
)
def test_concurrency_of_tenants(scene: Scene, spec: dict[str, Any], running: dict[str, int]) -> None:
    """Q12: two workers claim at will; of each tenant together they run no more."""
    policy(scene, {"concurrency": spec})
    for tenant in "ab":
        scene.submit_many(4, tenant=tenant)
    claimed = [c.tenant for n in "ab" for c in scene.worker(pool=f"local/{n}").claim(5)]
    claimed += [c.tenant for c in scene.worker().claim(5)]
    assert Counter(claimed) == running


@pytest.mark.parametrize(("weight", "share"), [(1, 4), (3, 6)])
def test_concurrency_tenants_weight(scene: Scene, weight: int, share: int) -> None:
    """Q13: of eight claims, one at a time."""
    policy(scene, {"concurrency": {"tenants": [{"name": "a", "weight": weight}]}})
    for tenant in "ab":
        scene.submit_many(10, tenant=tenant)
    worker = scene.worker()
    assert [worker.take().tenant for _ in range(8)].count("a") == share


@pytest.mark.parametrize(("size", "code"), [("10", "checkpoint_too_large"), ("1Ki", None)])
def test_checkpoint_max_size(scene: Scene, size: str, code: str | None) -> None:
    policy(scene, {"checkpoint": {"maxSize": size}})
    worker, _ = scene.worker(), scene.submit()
    delivery = worker.take()
    saved = run(worker.conn, calls.checkpoint(delivery.task_id, delivery.token, "x" * 100, sequence=1))
    assert saved.code == code


@pytest.mark.parametrize(("ordering", "goes_on"), [("Block", 0), ("Skip", 1)])
def test_ordering(scene: Scene, ordering: str, goes_on: int) -> None:
    """Q9: what a dead letter does to the next of its key."""
    policy(scene, {"ordering": ordering})
    scene.submit_many(2, ordering_key="k")
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    assert len(worker.claim(5)) == goes_on


def test_dead_letter_owner_and_runbook(scene: Scene) -> None:
    """Q29: who looks at a dead letter sees whose it is and what to do."""
    policy(
        scene, {"maxDeliveries": 1, "deadLetter": {"owner": "team-a", "runbookURL": "https://runbooks.example.com/a"}}
    )
    worker, _ = scene.worker(), scene.submit()
    worker.fail(worker.take())
    (letter,) = scene.ask("person", calls.dead_letters())
    assert (letter.owner, letter.runbook) == ("team-a", "https://runbooks.example.com/a")


@pytest.mark.parametrize(("length", "gone"), [("20h", 1), ("60h", 0)])
@pytest.mark.parametrize(
    ("field", "counted"),
    [
        ("payload", "payloads"),
        ("result", "results"),
        ("checkpoint", "checkpoints"),
        ("events", "tasks"),
        ("deadLetters", "dead_letters"),
        ("keys", "keys"),
    ],
)
def test_retention(scene: Scene, field: str, counted: str, length: str, gone: int) -> None:
    """Q52: 40 hours after an end and a death; beside keys everything else is shorter, as it must be."""
    others = dict.fromkeys(
        ("payload", "result", "checkpoint", "events", "deadLetters"), "20h" if field == "keys" else "100h"
    )
    policy(scene, {"retention": {**others, "keys": "100h", field: length}})
    worker = scene.worker()
    scene.submit(key="k")
    worker.succeed(worker.take(), 1)
    scene.submit()
    delivery = worker.take()
    run(worker.conn, calls.checkpoint(delivery.task_id, delivery.token, 1, sequence=1))
    worker.settle(delivery, "dead")
    scene.advance(40 * 3600)
    pages = [scene.ask("operator", calls.maintain()) for _ in range(2)]
    assert sum(getattr(page, counted) for page in pages) == gone


def refused_of_five(scene: Scene, tenant: str) -> list[str]:
    """The codes of the refusals when five tasks of a tenant are submitted."""
    codes = (scene.verdict(tenant=tenant).code for _ in range(5))
    return [code for code in codes if code is not None]


@pytest.mark.parametrize("bound", [2, 4])
def test_admission_max_waiting(scene: Scene, bound: int) -> None:
    """Q7: of all tenants together."""
    policy(scene, {"admission": {"maxWaiting": bound}})
    assert refused_of_five(scene, "a") == ["queue_limit"] * (5 - bound)
    assert refused_of_five(scene, "b") == ["queue_limit"] * 5


@pytest.mark.parametrize("bound", [2, 4])
def test_admission_max_waiting_per_tenant(scene: Scene, bound: int) -> None:
    """Q7: of each tenant."""
    policy(scene, {"admission": {"maxWaitingPerTenant": bound}})
    for tenant in "ab":
        assert refused_of_five(scene, tenant) == ["tenant_queue_limit"] * (5 - bound)


@pytest.mark.parametrize("bound", [2, 4])
def test_concurrency_tenants_max_waiting(scene: Scene, bound: int) -> None:
    """Q7: of the one that is named."""
    tenants = [{"name": "acme", "maxWaiting": bound}, {"name": "other"}]
    policy(scene, {"admission": {"maxWaitingPerTenant": 1}, "concurrency": {"tenants": tenants}})
    assert refused_of_five(scene, "acme") == ["tenant_queue_limit"] * (5 - bound)
    assert refused_of_five(scene, "other") == ["tenant_queue_limit"] * 4


@pytest.mark.parametrize(("paused", "code", "count"), [(True, "queue_paused", 0), (False, None, 2)])
def test_paused(scene: Scene, paused: bool, code: str | None, count: int) -> None:
    """Q7, Q12: a paused queue takes nothing and gives nothing."""
    scene.submit()
    policy(scene, {"paused": paused})
    assert scene.verdict().code == code
    assert len(scene.worker().claim(5)) == count


@pytest.mark.parametrize(("types", "claimed"), [([], {"a.b", "c.d"}), (["c.d"], {"a.b"})])
def test_paused_task_types(scene: Scene, types: list[str], claimed: set[str]) -> None:
    """Q12: a paused type is accepted and not claimed."""
    policy(scene, {"pausedTaskTypes": types})
    assert [scene.verdict(name).code for name in ("a.b", "c.d")] == [None, None]
    assert {c.type for c in scene.worker(types=["a.b", "c.d"]).claim(5)} == claimed


@pytest.mark.parametrize(("names", "code", "claimed"), [([], None, {"a", "b"}), (["b"], "tenant_suspended", {"a"})])
def test_suspended_tenants(scene: Scene, names: list[str], code: str | None, claimed: set[str]) -> None:
    """Q7, Q12: a suspended tenant's tasks are neither accepted nor claimed."""
    for tenant in "ab":
        scene.submit(tenant=tenant)
    policy(scene, {"suspendedTenants": names})
    assert [scene.verdict(tenant=tenant).code for tenant in "ab"] == [None, code]
    assert {c.tenant for c in scene.worker().claim(5)} == claimed


@pytest.mark.parametrize(("percent", "retries"), [(20, 2), (50, 5)])
def test_retry_share_percent(scene: Scene, percent: int, retries: int) -> None:
    """Q13: so many of the claims go to tasks that have failed before, while others are ready."""
    worker = scene.worker(concurrency=30)
    again = set(scene.submit_many(8))
    for delivery in worker.claim(8):
        worker.fail(delivery, retry_after=seconds(0))
    scene.sweep()
    scene.submit_many(10)
    policy(scene, {"retrySharePercent": percent})
    assert len({c.task_id for c in worker.claim(10)} & again) == retries


def test_a_policy_is_stored_whole(scene: Scene) -> None:
    """What the operator applies is what the store keeps: applied again it is no change."""
    stored = read_policy({"maxAge": "24h", "concurrency": {"max": 7}, "taskTypes": ["a.b"]}, what="q").to_store()
    first = scene.ask("operator", calls.apply_policy("local", "default", "default", "q", stored, who="test"))
    again = scene.ask("operator", calls.apply_policy("local", "default", "default", "q", stored, who="test"))
    assert (first.changed, again.changed) == (True, False)
    assert json.loads(json.dumps(stored)) == stored
    assert not any(isinstance(v, float) and math.isnan(v) for v in stored.values())


@pytest.mark.parametrize(("spec", "told"), [({}, None), ({"max": 3}, 3)])
def test_the_operator_is_told_the_queues_own_limit(scene: Scene, spec: dict[str, int], told: int | None) -> None:
    """O12: tasks that wait for it start no pods."""
    policy(scene, {"concurrency": spec})
    (queue,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert queue.concurrency_max == told


@pytest.mark.parametrize("field", ["maxRunTime", "maxTenure", "progressTimeout"])
@pytest.mark.parametrize("bound", [20, 60])
def test_run_limits(scene: Scene, field: str, bound: int) -> None:
    """Q21: a delivery whose worker renews is ended at the bound (and half a visibility timeout, which marks of progress may take)."""
    policy(scene, {field: f"{bound}s"})
    task_id, worker = scene.submit(), scene.worker()
    worker.take()
    passed = 0
    while scene.state(task_id) == "running":
        scene.advance(4)
        passed += 4
        worker.renew(task_id)
    assert bound <= passed <= bound + 12
