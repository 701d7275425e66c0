"""What becomes of a queue's tasks when its TaskQueue is deleted: `deletionPolicy` (O9, contract 11)."""

import re
import shlex

import pytest

from fixtures.letters import kill_tasks
from fixtures.remains import database_away, finalizers, remains, strays
from fixtures.stage import until
from poolkeeper.store import calls


def with_tasks(stage, name, **spec):
    """A queue with ready tasks, a key and a dead letter."""
    stage.apply(stage.db(), stage.queue(name, **spec))
    stage.wait_condition("taskqueue", name, "SignalFresh", "True")
    if spec.get("deletionPolicy") == "Purge":
        assert finalizers(stage.get("taskqueue", name)) == ["poolkeeper.dev/purge"]
    else:
        assert finalizers(stage.get("taskqueue", name)) == []
    kill_tasks(stage, name, 1)
    stage.submit(name, 3)
    stage.submit(name, 1, key="once")
    return remains(stage, name)


def delete(stage, *what):
    stage.kubectl("delete", *what, "--wait=false")


def gone(stage, kind, name):
    return stage.get(kind, name) is None


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_the_policy_decides_what_becomes_of_the_tasks(stage, operator, policy):
    """Retain: they wait for a TaskQueue of that name in that namespace, which says that it found them. Purge: none is left."""
    before = with_tasks(stage, "mail", deletionPolicy=policy)
    neighbour = with_tasks(stage, "other")
    delete(stage, "taskqueue", "mail")
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=60)
    after = remains(stage, "mail")
    assert after == (before if policy == "Retain" else {})
    assert strays(stage) == 0
    assert remains(stage, "other") == neighbour
    until(lambda: operator.metric("poolkeeper_queue_dead_letters", queue="mail") == 0, what="its series went along")
    stage.apply(stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    found = [event["message"] for event in stage.events("Inherited")]
    if policy == "Retain":
        assert remains(stage, "mail")["queue"] == before["queue"]
        assert remains(stage, "mail")["ready"] == 4
        assert found == ["found the tasks of this name that were there before: ready 4, dead 1"]
    else:
        assert remains(stage, "mail").keys() == {"queue", "policy"}
        assert found == []


def test_many_tasks_are_purged_page_by_page(stage, operator):
    """More than one pass removes; nothing is accepted meanwhile; its end is told."""
    with_tasks(stage, "mail", deletionPolicy="Purge")
    for _ in range(6):
        stage.submit("mail", 5_000)
    delete(stage, "taskqueue", "mail")
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=120)
    assert (remains(stage, "mail"), strays(stage)) == ({}, 0)
    (told,) = stage.events("Deleted")
    assert "30005 tasks removed" in told["message"]


def test_purge_waits_for_the_operator(stage, start_operator):
    """Deleted while no operator is there: the object stays until one has removed the tasks."""
    first = start_operator().wait_ready()
    before = with_tasks(stage, "mail", deletionPolicy="Purge")
    first.stop()
    delete(stage, "taskqueue", "mail")
    assert "deletionTimestamp" in stage.get("taskqueue", "mail")["metadata"]
    assert remains(stage, "mail") == before
    start_operator().wait_ready()
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=90)
    assert (remains(stage, "mail"), strays(stage)) == ({}, 0)


@pytest.mark.wide
def test_killed_in_the_middle_of_a_purge(stage, start_operator):
    """The next operator begins anew, and it ends the same."""
    first = start_operator().wait_ready()
    with_tasks(stage, "mail", deletionPolicy="Purge")
    for _ in range(6):
        stage.submit("mail", 5_000)
    count = remains(stage, "mail")["task"]
    delete(stage, "taskqueue", "mail")
    until(lambda: remains(stage, "mail").get("task", 0) < count)
    first.stop(9)
    start_operator().wait_ready()
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=120)
    assert (remains(stage, "mail"), strays(stage)) == ({}, 0)


def test_purge_waits_for_the_database(stage, operator):
    """Away: the condition says what is the matter; back: it goes on by itself."""
    with_tasks(stage, "mail", deletionPolicy="Purge")
    with database_away(stage):
        delete(stage, "taskqueue", "mail")
        stage.wait_condition("taskqueue", "mail", "Stalled", "True", "PurgeBlocked", timeout=60)
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=60)
    assert (remains(stage, "mail"), strays(stage)) == ({}, 0)


@pytest.mark.parametrize("missing", ["connections", "database", "secret"])
def test_the_way_out_that_the_condition_names_works(stage, operator, missing):
    """The database is gone for good: the command in the message, as it stands, ends the waiting; the tasks stay."""
    before = with_tasks(stage, "mail", deletionPolicy="Purge")
    with database_away(stage):
        if missing != "connections":
            delete(stage, *(("database", "main") if missing == "database" else ("secret", "pk-main")))
        delete(stage, "taskqueue", "mail")
        said = stage.wait_condition("taskqueue", "mail", "Stalled", "True", "PurgeBlocked", timeout=60)["message"]
        (command,) = re.findall(r"kubectl (.*)$", said)
        stage.kubectl(*shlex.split(command))
        until(lambda: gone(stage, "taskqueue", "mail"), timeout=60)
    assert remains(stage, "mail") == before


def test_the_way_out_without_an_operator(stage, start_operator):
    """How-to: the finalizer is taken away by hand."""
    operator = start_operator().wait_ready()
    before = with_tasks(stage, "mail", deletionPolicy="Purge")
    operator.stop()
    delete(stage, "taskqueue", "mail")
    stage.kubectl("patch", "taskqueue", "mail", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert gone(stage, "taskqueue", "mail")
    assert remains(stage, "mail") == before


def test_the_finalizer_follows_the_policy_and_leaves_those_of_others(stage, operator):
    """None but where Purge asks for one."""
    with_tasks(stage, "mail")
    stage.kubectl(
        "patch", "taskqueue", "mail", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/theirs"]}}'
    )
    stage.apply(stage.queue("mail", deletionPolicy="Purge"))
    until(lambda: finalizers(stage.get("taskqueue", "mail")) == ["example.com/theirs", "poolkeeper.dev/purge"])
    stage.apply(stage.queue("mail", deletionPolicy="Retain"))
    until(lambda: finalizers(stage.get("taskqueue", "mail")) == ["example.com/theirs"])
    before = remains(stage, "mail")
    delete(stage, "taskqueue", "mail")
    assert not gone(stage, "taskqueue", "mail")
    stage.kubectl("patch", "taskqueue", "mail", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    until(lambda: gone(stage, "taskqueue", "mail"))
    assert remains(stage, "mail") == before


def test_a_finalizer_of_the_users_own_manifest_is_given_back_too(stage, operator):
    """So that Purge holds from the first moment on, also while no operator is there."""
    queue = stage.queue("mail", deletionPolicy="Purge")
    queue["metadata"]["finalizers"] = ["poolkeeper.dev/purge"]
    stage.apply(stage.db(), queue)
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    stage.submit("mail", 2)
    delete(stage, "taskqueue", "mail")
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=60)
    assert remains(stage, "mail") == {}


def test_a_queue_of_another_owner_is_never_purged(stage, operator):
    """It never was ours: the TaskQueue goes, the other cluster's tasks stay."""
    call = calls.apply_policy("another-cluster", "its-uid", stage.namespace, "mail", {}, who="the other")
    assert stage.run(call).code is None
    stage.submit("mail", 3)
    before = remains(stage, "mail")
    stage.apply(stage.db(), stage.queue("mail", deletionPolicy="Purge"))
    stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned")
    delete(stage, "taskqueue", "mail")
    until(lambda: gone(stage, "taskqueue", "mail"), timeout=60)
    assert remains(stage, "mail") == before
    assert stage.run(calls.submit(f"{stage.namespace}/mail", "demo.echo", 1)).code is None
