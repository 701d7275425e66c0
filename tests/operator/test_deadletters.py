"""Dead letters reach their owner: condition, printer column, one Event per batch (O24); a queue without owner says so."""

import pytest

from fixtures.letters import about, kill_tasks, told
from fixtures.stage import until
from poolkeeper.store import calls


def test_a_dead_letter_is_told_once(stage, operator):
    """Condition, column and one readable Event with type, reason, count, owner and runbook (O24)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    kill_tasks(stage, "mail", 3)
    stage.wait_condition("taskqueue", "mail", "DeadLetters", "True")
    event = until(lambda: about(stage, "mail"))[0]
    for part in ("3 dead letters", "demo.echo 3", "no such user", "on-call", "https://runbooks.example.com/agents"):
        assert part in event["message"]
    assert event["type"] == "Warning"
    until(lambda: stage.status("taskqueue", "mail")["deadLetters"]["total"] == 3)
    assert "3" in stage.kubectl("get", "taskqueue", "mail").splitlines()[1].split()
    until(lambda: stage.condition("workerpool", "mail", "DeadLetters")["status"] == "True", timeout=40)
    kill_tasks(stage, "mail", 1)
    until(lambda: len(about(stage, "mail")) == 2, what="the second batch has an Event of its own")


@pytest.mark.wide
def test_a_batch_is_not_told_twice_by_a_restarted_operator(stage, start_operator):
    """Killed at any moment, the operator that follows repeats at most the same Event name, which is refused (O24)."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    kill_tasks(stage, "mail", 2)
    until(lambda: about(stage, "mail"))
    first.stop(9)
    start_operator().wait_ready()
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    stage.kubectl("annotate", "taskqueue", "mail", "example.com/poke=1")
    kill_tasks(stage, "mail", 1)
    until(lambda: len(about(stage, "mail")) == 2)
    assert told(stage, "mail") == [1, 2]


def test_a_queue_without_an_owner_is_not_ready(stage, operator):
    """Nobody would hear of its dead letters (operator 1); its policy is in force nonetheless."""
    stage.apply(stage.db(), stage.queue("mail", deadLetter={"owner": "on-call"}))
    condition = stage.wait_condition("taskqueue", "mail", "Ready", "False", "NoOwner")
    assert "spec.deadLetter.runbookURL" in condition["message"]
    assert stage.status("taskqueue", "mail")["policyVersion"] == 1


def test_a_changed_policy_is_a_new_version(stage, operator):
    """The policy is one versioned row of the store, and what the store enforces (O1)."""
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    version = stage.status("taskqueue", "mail")["policyVersion"]
    stage.apply(stage.queue("mail", admission={"maxPayloadSize": "16"}))
    until(lambda: stage.status("taskqueue", "mail")["policyVersion"] == version + 1)
    verdict = stage.run(calls.submit(f"{stage.namespace}/mail", "demo.echo", {"text": "x" * 100}))
    assert verdict.code == "payload_too_large"
    stage.apply(stage.queue("mail", paused=True))
    until(lambda: stage.status("taskqueue", "mail")["policyVersion"] == version + 2)
    assert stage.run(calls.submit(f"{stage.namespace}/mail", "demo.echo", 1)).code == "queue_paused"
