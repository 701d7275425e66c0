"""Pods that are ended with less grace than they were promised: it reaches the worker through the store (O20). Real workers; nodes as objects."""

import json
from functools import partial

import psycopg
import pytest

from fixtures.calls import model_server
from fixtures.puppets import puppets
from fixtures.stage import until
from poolkeeper.store import calls

SLOTS = 4
PROMISED = "2m"


@pytest.fixture
def work(stage, start_operator, nodes, tmp_path):
    """Two workers with leases of a quarter of an hour, so that nothing but word from the operator hurries them, each on a node."""
    start_operator("--namespace", stage.namespace, "--node-grace", "example.com/class=spot:8s").wait_ready()
    nodes.make("a", labels={"example.com/class": "spot"})
    nodes.make("b")
    pool = {"app": "stepper:app", "concurrency": SLOTS, "drain": {"minGrace": PROMISED, "maxGrace": PROMISED}}
    stage.apply(
        stage.db(),
        stage.queue("mail", visibilityTimeout="15m"),
        stage.pool("mail", scaling={"min": 2, "max": 2}, **pool),
    )
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    with model_server(tmp_path / "model.log") as model, puppets(stage, tmp_path, {"MODEL_URL": model.url}) as workers:
        pods = nodes.bind_each("mail", "a", "b")
        tasks = [{"type": "stepper.work", "payload": {"steps": 100, "seconds": 0.5}} for _ in range(2 * SLOTS)]
        stage.run(calls.submit_many(f"{stage.namespace}/mail", tasks))
        until(lambda: model.in_flight() == 2 * SLOTS, timeout=90, what="both are full")
        yield stage, pods[0], workers


@pytest.mark.parametrize("seconds", [8, pytest.param(4, marks=pytest.mark.wide)])
def test_a_short_grace_is_heard_in_time(work, seconds):
    """O20: a person, or whoever evicts, gives less than the template says, and than one renewal takes; the worker leaves well."""
    stage, pod, workers = work
    stage.kubectl("delete", "pod", pod["metadata"]["name"], f"--grace-period={seconds}", "--wait=false")
    left_well(stage, pod, workers)


@pytest.mark.wide
def test_an_eviction_with_a_grace_of_its_own_is_heard_in_time(work):
    """O20: as a node drain with --grace-period asks for."""
    stage, pod, workers = work
    meta = pod["metadata"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": stage.namespace},
        "deleteOptions": {"gracePeriodSeconds": 8},
    }
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{meta['name']}/eviction"
    until(
        lambda: "Success" in stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), check=False)
    )
    left_well(stage, pod, workers)


@pytest.mark.wide
def test_a_node_that_shuts_down_gives_what_is_said_of_it(work, nodes):
    """O20, O22: a kubelet that shuts down deletes no pod; how much it gives is known by what whoever runs the nodes said."""
    stage, pod, workers = work
    nodes.shut_down("a")
    workers.shut_down(pod, 8)
    left_well(stage, pod, workers)


@pytest.mark.wide
def test_a_grace_that_becomes_shorter_still_is_told_again(work):
    """O20: a drain gives a minute, and then somebody has less patience."""
    stage, pod, workers = work
    for seconds in (60, 8):
        stage.kubectl("delete", "pod", pod["metadata"]["name"], f"--grace-period={seconds}", "--wait=false")
        until(partial(told, stage, pod, seconds), what=f"{seconds} s are told")
    assert workers.workers[pod["metadata"]["uid"]].wait(60) == 0


def told(stage, pod, seconds):
    """Whether the store says that this pod has so many seconds."""
    query = "SELECT extract(epoch FROM grace)::integer FROM poolkeeper.session WHERE info ->> 'pod_uid' = %s"
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        return conn.execute(query, [pod["metadata"]["uid"]]).fetchone() == (seconds,)


def left_well(stage, pod, workers):
    worker = workers.workers[pod["metadata"]["uid"]]
    assert worker.wait(60) == 0, "not killed: it handed back and ended"
    assert pod["metadata"]["uid"] not in workers.killed
    until(partial(ends, stage, {"handed_back": SLOTS}), what="its tasks went back, none was left to its lease")


def ends(stage, wanted):
    """Whether the deliveries that ended did so like this; those of the other worker go on."""
    with psycopg.connect(stage.database.dsn, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT outcome, count(*) FROM poolkeeper.delivery WHERE outcome IS NOT NULL GROUP BY outcome"
        )
        return dict(rows.fetchall()) == wanted
