"""How a worker's container ended reaches the history of the tasks that it ran (O26): pod statuses as a kubelet writes them."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from fixtures.stage import until
from poolkeeper.store import calls


def moment():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tell(stage, pod, **status):
    """No node runs here: the test says what a kubelet would."""
    patch = json.dumps({"status": status})
    stage.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch)


def container(*, state=None, last=None, restarts=0):
    """The status of the worker's container."""
    return {
        "name": "worker", "image": "localhost/demo:1", "imageID": "", "ready": False, "restartCount": restarts, "started": True,
        "state": state or {"running": {"startedAt": moment()}}, "lastState": last or {},
    }  # fmt: skip


def ended(code, reason):
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": moment(), "finishedAt": moment()}}


def running(stage, count=1):
    """A pod of the pool whose session runs tasks; the tasks."""
    pod = until(lambda: stage.pods("mail"), what="a pod")[0]
    tell(stage, pod, phase="Running", containerStatuses=[container()])
    session = stage.session(pod, "mail", "mail", concurrency=count)
    return pod, [each.task_id for each in stage.run(calls.turn(session, 1, 0, [], count)).claimed]


def timeline(stage, task):
    """What `poolkeeper task timeline` prints."""
    command = [sys.executable, "-m", "poolkeeper", "task", "timeline", str(task), "--dsn", stage.database.dsn]
    return subprocess.run(command, capture_output=True, check=True, env=os.environ, text=True).stdout


def errors(stage, task):
    return [row.error for row in stage.run(calls.timeline(task)) if row.error is not None]


def test_an_oom_kill_stands_in_the_history_of_what_it_ended(stage, operator):
    """O26, C08: by the restarted container's last state; the queue's condition names it, a counter counts it, the command prints it."""
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="5s"), stage.pool("mail"))
    stage.submit("mail", 3)
    pod, tasks = running(stage, 3)
    assert len(tasks) == 3
    tell(stage, pod, containerStatuses=[container(last=ended(137, "OOMKilled"), restarts=1)])
    for task in tasks:
        until(lambda: errors(stage, task) == ["OOMKilled (exit 137)"], what="the delivery says how it ended")
    told = stage.wait_condition("taskqueue", "mail", "WorkersDying", "True")
    assert "most of them: OOMKilled (exit 137)" in told["message"]
    assert operator.metric("poolkeeper_pool_crashes_total", pool="mail", cause="OOMKilled") == 1
    assert "OOMKilled (exit 137)" in timeline(stage, tasks[0])


@pytest.mark.wide
def test_an_eviction_is_told_although_the_pod_is_gone(stage, operator):
    """O26: the pod goes in the moment after its status, before any reconcile."""
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="5s"), stage.pool("mail"))
    stage.submit("mail")
    pod, (task,) = running(stage)
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    tell(stage, pod, **evicted, containerStatuses=[container(state=ended(137, "Error"))])
    stage.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
    cause = "Evicted: The node was low on resource: memory. (SIGKILL, exit 137)"
    until(lambda: errors(stage, task) == [cause], what="its pod is gone, its history has why")


@pytest.mark.wide
def test_what_happened_while_no_operator_ran_is_told_by_the_next_one(stage, start_operator):
    """O26, contract 3: the lease has expired by then, so the cause stands behind the delivery, once."""
    operator = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="5s"), stage.pool("mail"))
    stage.submit("mail")
    pod, (second,) = running(stage)
    operator.stop()
    tell(stage, pod, containerStatuses=[container(state=ended(139, "Error"))])
    other = stage.run(
        calls.register_session("local/p", [f"{stage.namespace}/mail"], ["demo.other"], concurrency=1, info={})
    )

    def swept():
        stage.run(calls.renew(other, 0, []))
        stage.run(calls.sweep())
        return any(row.outcome == "expired" for row in stage.run(calls.timeline(second)))

    until(swept, what="another worker sweeps, while nobody knows why it ended")
    assert errors(stage, second) == []
    start_operator().wait_ready()
    until(lambda: errors(stage, second) == ["SIGSEGV (exit 139)"], what="the next operator tells it")
    assert "explained" in timeline(stage, second)
