"""Equal names, and names that coincide when joined, in several namespaces of one database stay apart (C50, O1)."""

import pytest

from fixtures.letters import about, kill_tasks, told
from fixtures.remains import remains
from fixtures.stage import Stage, until
from poolkeeper.store import calls

pytestmark = pytest.mark.wide


def test_names_that_coincide_when_joined_stay_apart(stage, start_operator, kubectl):
    """Namespaces a and a-b, queues mail and b-mail: "a-b-mail" twice. Tasks, slots, series, Events, children, rows."""
    other = f"{stage.namespace}-b"
    kubectl("create", "namespace", other)
    there = Stage(kubectl, other, stage.database)
    here = stage
    try:
        operator = start_operator("--namespace", here.namespace, "--namespace", other).wait_ready()
        places = [(here, "mail"), (here, "b-mail"), (there, "mail")]
        there.apply(there.secret())
        for at, name in places:
            at.apply(at.db(), at.queue(name), at.pool(name), at.quota(name, 5))
        for at, name in places:
            at.wait_condition("workerpool", name, "SignalFresh", "True", timeout=60)
        for count, (at, name) in enumerate(places, 1):
            at.submit(name, count, key=None)
        for count, (at, name) in enumerate(places, 1):
            until(lambda: at.replicas(name) == count, timeout=60, what=f"{at.namespace}/{name} has {count} pods")
            where = {"namespace": at.namespace, "queue": name}
            until(lambda: operator.metric("poolkeeper_queue_runnable_tasks", **where) == count)
            assert remains(at, name)["ready"] == count
            (owner,) = at.get("deployment", name)["metadata"]["ownerReferences"]
            assert owner["uid"] == at.get("workerpool", name)["metadata"]["uid"]
            session = at.run(
                calls.register_session("local/x", [f"{at.namespace}/{name}"], ["demo.echo"], concurrency=9, info={})
            )
            claimed = at.run(calls.turn(session, 1, 0, [], 9)).claimed
            assert {task.queue for task in claimed} == {f"{at.namespace}/{name}"}
            assert len(claimed) == count
            at.run(calls.end_session(session))
        for count, (at, name) in enumerate(places, 1):
            kill_tasks(at, name, 10 * count)
        for count, (at, name) in enumerate(places, 1):
            until(lambda: sum(told(at, name)) == 10 * count, timeout=60)
            assert {event["metadata"]["namespace"] for event in about(at, name)} == {at.namespace}
        kept = {(at.namespace, name): remains(at, name) for at, name in places[1:]}
        here.apply(here.queue("mail", deletionPolicy="Purge"))
        until(lambda: here.get("taskqueue", "mail")["metadata"].get("finalizers"))
        here.kubectl("delete", "taskqueue,workerpool,providerquota", "mail", "--wait=false")
        until(lambda: here.get("taskqueue", "mail") is None and here.get("deployment", "mail") is None, timeout=60)
        assert remains(here, "mail") == {}
        kubectl("delete", "namespace", other, "--wait=false")
        until(lambda: not kubectl("get", "namespace", other, "--ignore-not-found").strip(), timeout=120)
        assert {(at.namespace, name): remains(at, name) for at, name in places[1:]} == kept
        assert here.replicas("b-mail") is not None
        here.wait_condition("workerpool", "b-mail", "SignalFresh", "True")
    finally:
        kubectl("delete", "namespace", other, "--wait=false", "--ignore-not-found")
        there.close()
