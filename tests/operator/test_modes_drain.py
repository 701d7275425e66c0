"""scaling.mode: HoldAndDrain: workers stop claiming, what runs is finished or handed back, then the pods go (O3, O17)."""

from functools import partial

import psycopg
import pytest

from fixtures.calls import model_server
from fixtures.puppets import puppets
from fixtures.stage import until
from poolkeeper.store import Settle, calls


@pytest.fixture
def three(stage, operator):
    """A pool of three pods: two work on a task of twenty, the third is idle."""
    stage.apply(
        stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling={"min": 3, "max": 3})
    )
    pods = until(lambda: len(found := stage.pods("mail")) == 3 and found, what="three pods")
    sessions = {pod["metadata"]["name"]: stage.session(pod, "mail", "mail") for pod in pods}
    stage.submit("mail", 20)
    busy = {}
    for name in sorted(sessions)[:2]:
        busy[name] = stage.run(calls.turn(sessions[name], 1, 0, [], 1)).claimed[0]
    return stage, sessions, busy


def drain(stage, **scaling):
    stage.apply(stage.pool("mail", scaling={"min": 3, "max": 3, **scaling, "mode": "HoldAndDrain"}))


def drained(stage, status, reason):
    found = stage.condition("workerpool", "mail", "Drained") or {}
    fresh = found.get("observedGeneration") == stage.get("workerpool", "mail")["metadata"]["generation"]
    return found if fresh and (found["status"], found["reason"]) == (status, reason) else None


def cap(stage):
    pools = {p.pool: p.max_running for p in stage.run(calls.stats(cluster=None)).pools}
    return pools[f"{stage.namespace}/mail"]


def test_idle_goes_first_nobody_claims_and_drained_says_when_nothing_runs(three):
    """O3, O17: min does not hold it, no idle pod outlives a busy one, leases count until they end, and Auto resumes."""
    stage, sessions, busy = three
    drain(stage)
    until(partial(drained, stage, "False", "Draining"), what="Drained counts what is left")
    until(lambda: cap(stage) == 0, what="the store starts nothing more for it")
    for number, (name, session) in enumerate(sessions.items()):
        if name not in busy:
            assert stage.run(calls.turn(session, 10 + number, 0, [], 1)).claimed == []
    until(lambda: stage.replicas("mail") == 0, what="all pods are asked to go")
    found = until(lambda: (c := drained(stage, "False", "Draining")) and "2 tasks and 0 pods" in c["message"] and c)
    assert found, "pods without a node go at once, and their tasks are left to their leases"
    for (name, held), number in zip(busy.items(), (20, 21), strict=True):
        done = Settle(task_id=held.task_id, token=held.token, outcome="succeeded")
        answer = stage.run(calls.turn(sessions[name], number, 1, [done], 5))
        assert answer.claimed == []
    stage.kubectl("wait", "--for=condition=Drained", "workerpool/mail", "--timeout=60s")
    found = drained(stage, "True", "Drained")
    assert found["message"] == "nothing of it runs, and nothing starts until scaling.mode is changed"
    assert stage.run(calls.stats(cluster=None)).queues[0].ready == 18
    stage.apply(stage.pool("mail", scaling={"min": 3, "max": 3}))
    until(lambda: stage.replicas("mail") == 3, what="Auto resumes")
    until(partial(drained, stage, "False", "Working"))
    until(lambda: cap(stage) is None)


@pytest.mark.wide
def test_no_busy_pod_is_ended_while_an_idle_one_exists(three, audit):
    """O17: by the writes to the Deployment and what was left of the pods at each of them."""
    stage, _, busy = three
    mark = audit.mark()
    drain(stage)

    def written():
        writes = [w for w in audit.since(mark, namespace=stage.namespace) if w.resource == "deployments"]
        return [w.body["spec"]["replicas"] for w in writes if "replicas" in (w.body.get("spec") or {})]

    until(lambda: len(written()) > 1)
    assert written() == [2, 0], "the idle one first, then those that work"

    def deleted():
        writes = audit.since(mark, namespace=stage.namespace)
        return [write.name for write in writes if write.resource == "pods" and write.verb == "delete"]

    gone = until(lambda: len(found := deleted()) == 3 and found, what="all three were ended")  # the log comes late
    assert gone[0] not in busy
    assert set(gone[1:]) == set(busy)


@pytest.mark.wide
def test_drained_in_other_modes_tells_of_this_moment(stage, operator):
    """O3: True at zero, with a reason that says that it may change; False with what is left."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    until(partial(drained, stage, "True", "AtZero"))
    stage.submit("mail")
    found = until(partial(drained, stage, "False", "Working"))
    assert "1 pod" in found["message"]
    drain(stage, min=0)
    until(partial(drained, stage, "True", "Drained"))
    assert stage.condition("workerpool", "mail", "ScalingActive")["reason"] == "HoldAndDrain"
    stage.apply(stage.pool("mail", scaling={"min": 0, "mode": "External"}))
    until(partial(drained, stage, "True", "AtZero"))


@pytest.mark.wide
def test_real_workers_finish_or_hand_back_and_nothing_is_lost(stage, operator, tmp_path):
    """O3, O17: short tasks are finished, long ones handed back within the grace, and all of them end after the way back to Auto."""
    scaling = {"max": 2, "down": {"window": "1s", "maxStepPods": 100}, "toZeroAfter": "1s"}
    spec = {"app": "stepper:app", "concurrency": 4, "drain": {"minGrace": "9s", "maxGrace": "9s"}}
    pool = partial(stage.pool, "mail", **spec)
    stage.apply(stage.db(), stage.queue("mail"), pool(scaling=scaling))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    with model_server(tmp_path / "model.log") as model, puppets(stage, tmp_path, {"MODEL_URL": model.url}) as workers:
        tasks = [{"type": "stepper.work", "payload": {"steps": steps, "seconds": 0.5}} for steps in [40, 40] + [1] * 12]
        stage.run(calls.submit_many(f"{stage.namespace}/mail", tasks))
        until(lambda: ends(stage).get("succeeded", 0) > 1, timeout=90, what="work goes on")
        stage.apply(pool(scaling={**scaling, "mode": "HoldAndDrain"}))
        stage.kubectl("wait", "--for=condition=Drained", "workerpool/mail", "--timeout=120s")
        before = ends(stage)
        assert before["handed_back"] == 2, "the long ones, at the end of the grace"
        assert stage.run(calls.stats(cluster=None)).queues[0].running == 0
        assert all(worker.wait(30) == 0 for worker in workers.workers.values()), "they left well"
        stage.apply(pool(scaling=scaling))
        until(lambda: ends(stage).get("succeeded") == len(tasks), timeout=120, what="all of them, once")
    assert ends(stage) == {"succeeded": len(tasks), "handed_back": 2}, "no delivery was lost or cut"


def ends(stage):
    """Deliveries by their ends."""
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        return dict(conn.execute("SELECT outcome, count(*) FROM poolkeeper.delivery GROUP BY outcome").fetchall())
