"""A pool's size follows its work (O10 to O17); the real controller manager makes the pods, the test plays the workers."""

import pytest

from fixtures.stage import until
from poolkeeper.store import Settle, calls


@pytest.fixture
def mail(stage, operator):
    """One queue and one pool, in force, at zero."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    return stage


def writes_of_replicas(audit, mark, namespace, pool):
    return [
        write.body["spec"]["replicas"]
        for write in audit.since(mark, namespace=namespace)
        if write.resource == "deployments" and write.name == pool and "replicas" in (write.body.get("spec") or {})
    ]


def test_a_burst_into_an_empty_pool_is_one_write(mail, audit):
    """From zero to what the work asks for in one step (O13, F21), with the reason as Event and in status (O11)."""
    mark = audit.mark()
    mail.submit("mail", 40)
    until(lambda: mail.replicas("mail"), what="replicas")
    until(lambda: len(mail.pods("mail")) == mail.replicas("mail"), what="pods")
    assert writes_of_replicas(audit, mark, mail.namespace, "mail") == [10]
    status = until(lambda: mail.status("workerpool", "mail").get("decisions") and mail.get("workerpool", "mail"))
    assert status["status"]["decisions"][0]["applied"] == 10
    assert "scaling.max is 10" in status["status"]["decisions"][0]["sentence"]
    assert status["status"]["wanted"]["limitedBy"] == "Maximum"
    event = until(lambda: mail.events("Scaled"))
    assert event[0]["message"] == status["status"]["decisions"][0]["sentence"]


def test_a_task_in_an_empty_pool_wakes_it(mail):
    """The store's wake-up brings the next reading forward: the pod does not wait for the tick (O10, F20)."""
    mail.apply(mail.db(tickInterval="1m"))
    mail.wait_condition("database", "main", "Ready", "True")
    until(lambda: mail.status("database", "main").get("observedGeneration", 0) >= 2)
    until(lambda: _still(mail), timeout=5)
    mail.submit("mail")
    until(lambda: mail.pods("mail"), timeout=5, what="a pod long before the tick")


def _still(stage):
    return stage.replicas("mail") == 0


def test_of_two_pools_of_equal_depth_the_older_work_gets_more(stage, operator):
    """Size follows the age of the oldest runnable task, not the length of the queue (O12)."""
    scaling = {"targetAge": "1m", "max": 40}
    stage.apply(stage.db(), stage.queue("old"), stage.queue("young"))
    for pool in ("old", "young"):
        stage.wait_condition("taskqueue", pool, "Ready", "True")
    stage.submit("old", 30)
    stage.move_clock(90)
    stage.submit("young", 30)
    stage.apply(stage.pool("old", scaling=scaling), stage.pool("young", scaling=scaling))
    until(lambda: stage.replicas("old") == 30, what="work that is late is started at once")
    until(lambda: stage.replicas("young"), what="the young one wakes")
    assert stage.replicas("young") < 30


@pytest.mark.wide
def test_a_queue_that_gives_nothing_of_what_is_ready_is_named(mail):
    """O11, O12: at its own limit, or paused; else a pool that does not grow beside tasks that wait would look well."""
    mail.apply(mail.queue("mail", concurrency={"max": 1}, visibilityTimeout="10m"))
    mail.submit("mail", 3)
    pod = until(lambda: mail.pods("mail"), what="a pod")[0]
    session = mail.session(pod, "mail", "mail")
    assert len(until(lambda: mail.run(calls.turn(session, 5, 0, [], 1)).claimed)) == 1
    condition = mail.wait_condition("workerpool", "mail", "ScalingActive", "True", "QueueHeld")
    assert 'queue "mail" runs as many tasks as its concurrency.max allows (1)' in condition["message"]
    until(lambda: "concurrency.max of 1 is reached" in _said(mail), what="the queue says so too")
    mail.apply(mail.queue("mail", paused=True))
    until(lambda: "paused: nothing is claimed" in _said(mail))
    until(lambda: 'queue "mail" is paused' in _scaling(mail), what="the pool names it")


def _said(stage):
    conditions = stage.status("taskqueue", "mail")["conditions"]
    return next(condition["message"] for condition in conditions if condition["type"] == "Ready")


def _scaling(stage):
    conditions = stage.status("workerpool", "mail")["conditions"]
    return next(condition["message"] for condition in conditions if condition["type"] == "ScalingActive")


def test_idle_goes_first_and_the_last_pod_after_its_window(mail):
    """Scale-down takes idle pods, though the busy ones are the newest; with nothing left to do it goes to zero (O14, O17)."""
    mail.submit("mail", 3)
    until(lambda: mail.replicas("mail") == 3 and len(mail.pods("mail")) == 3)
    pods = sorted(mail.pods("mail"), key=lambda pod: pod["metadata"]["name"])
    sessions = [mail.session(pod, "mail", "mail") for pod in pods]
    held = []
    for session in sessions:
        answer = mail.run(calls.turn(session, 1, 0, [], 1))
        held.append(answer.claimed[0])
    for index in (0, 1):  # two finish, the third works on
        done = Settle(task_id=held[index].task_id, token=held[index].token, outcome="succeeded")
        mail.run(calls.turn(sessions[index], 2, 1, [done], 0))
    busy = pods[2]["metadata"]["name"]
    until(lambda: mail.replicas("mail") == 1, timeout=40, what="one busy pod stays")
    assert [pod["metadata"]["name"] for pod in until(lambda: _one(mail))] == [busy]
    done = Settle(task_id=held[2].task_id, token=held[2].token, outcome="succeeded")
    mail.run(calls.turn(sessions[2], 2, 1, [done], 0))
    until(lambda: mail.replicas("mail") == 0, timeout=40, what="zero after toZeroAfter")


def _one(stage):
    pods = stage.pods("mail")
    return pods if len(pods) == 1 else None


def test_scale_answers_and_a_foreign_writer_is_named(mail):
    """/scale of the WorkerPool answers (O3); whoever writes the Deployment's replicas is overruled and named (O19)."""
    until(lambda: mail.get("workerpool", "mail")["spec"].get("replicas") is not None)
    assert mail.kubectl("get", "--raw", _scale(mail)).count('"selector":"poolkeeper.dev/pool=mail"') == 1
    mail.kubectl("scale", "deployment/mail", "--replicas=4")
    condition = mail.wait_condition("workerpool", "mail", "ScalingActive", "True", "ForeignWriter")
    assert "kubectl" in condition["message"]
    until(lambda: mail.replicas("mail") == 0, what="the foreign value is taken back")
    mail.kubectl("scale", "workerpool/mail", "--replicas=5")
    until(
        lambda: (
            mail.condition("workerpool", "mail", "ScalingActive")["reason"] in {"ForeignWriter", "ReplicasNotObeyed"}
        )
    )
    assert mail.replicas("mail") == 0


def _scale(stage):
    return f"/apis/poolkeeper.dev/v1alpha1/namespaces/{stage.namespace}/workerpools/mail/scale"


def test_pods_that_cannot_start_stop_growth_and_say_why(mail, operator):
    """Unschedulable pods are not answered with more of them, and the cause stands in the condition, in one line (O16)."""
    mail.submit("mail")
    until(lambda: mail.pods("mail"))
    condition = mail.wait_condition("workerpool", "mail", "Ready", "False", "PodsCannotStart")
    assert "1 of 1 pods cannot start: Unschedulable: " in condition["message"]
    mail.submit("mail", 20)
    until(lambda: operator.metric("poolkeeper_pool_wanted_pods", pool="mail") > 1, what="more is wanted")
    assert operator.metric("poolkeeper_pool_limited_pods", pool="mail") == 1
    assert mail.replicas("mail") == 1
    for pod in mail.pods("mail"):
        mail.session(pod, "mail", "mail")
    until(lambda: mail.replicas("mail") == 10, what="once they work it grows again without a hand")


@pytest.mark.wide
def test_a_restarted_operator_writes_nothing(stage, start_operator, audit):
    """An operator that starts over a converged namespace changes nothing, not even a status (O5, O28)."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": 2}))
    until(lambda: stage.replicas("mail") == 2)
    # a change that is not urgent may be written half a minute later (O2): wait for the last one that comes
    until(lambda: "2 of 2 pods cannot start" in _ready(stage), timeout=60, what="both pods are judged")
    until(lambda: not stage.quiet(audit, 3.0), timeout=60, what="converged")
    first.stop()
    mark = audit.mark()
    before = stage.status("workerpool", "mail")
    start_operator().wait_ready()
    stage.quiet(audit, 5.0)
    assert stage.status("workerpool", "mail") == before
    written = [w for w in audit.since(mark, namespace=stage.namespace) if w.resource != "leases"]
    assert [w for w in written if "controller" not in w.user] == []


def _ready(stage):
    return (stage.condition("workerpool", "mail", "Ready") or {}).get("message", "")
