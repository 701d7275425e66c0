"""`poolkeeper pool explain`: the recorded reasons as sentences (O11, P8)."""

from poolkeeper_operator.poolview import explanation, overview


def pool(**status):
    return {
        "metadata": {"namespace": "team-a", "name": "agents"},
        "spec": {"concurrency": 4, "scaling": {"max": 20}},
        "status": status,
    }


def test_it_tells_how_the_pool_came_to_its_size():
    """First to last, and what holds it now."""
    decisions = [
        {"time": "2026-11-29T16:05:00Z", "sentence": "from 9 to 6 pods: nothing waits"},
        {"time": "2026-11-29T16:00:00Z", "sentence": "from 0 to 9 pods: 40 tasks can run"},
    ]
    wanted = {"replicas": 9, "limited": 6, "limitedBy": "ProviderQuota", "applied": 6, "rateLimitedBy": "None"}
    text = "\n".join(explanation(pool(replicas=6, wanted=wanted, decisions=decisions)))
    assert text.index("from 0 to 9") < text.index("from 9 to 6")
    assert "Its work asks for 9 pods; ProviderQuota leaves 6 of them; 6 are asked of the Deployment." in text


def test_it_names_what_is_in_the_way():
    """Conditions that are not as they should be, with their messages."""
    conditions = [
        {"type": "Ready", "status": "False", "reason": "QueueMissing", "message": 'there is no queue "x"; apply it'},
        {"type": "SignalFresh", "status": "True", "reason": "Reading", "message": "read at every tick"},
    ]
    text = "\n".join(explanation(pool(conditions=conditions)))
    assert 'Ready=False (QueueMissing): there is no queue "x"; apply it' in text
    assert "SignalFresh" not in text


def test_it_tells_of_tasks_that_nobody_can_run():
    """C06: why it does not grow for them, though it is sized as it should be."""
    sentence = "tasks of type mail.new wait in its queues, and no worker of any pool can run them"
    told = {"type": "ScalingActive", "status": "True", "reason": "NoCapableWorker", "message": sentence}
    for text in (explanation(pool(conditions=[told])), overview(pool(conditions=[told]))):
        assert f"  ScalingActive=True (NoCapableWorker): {sentence}" in text


def test_it_tells_of_a_queue_that_gives_nothing():
    """Else a pool at zero beside tasks that wait looks well."""
    sentence = 'queue "mail" is paused: what waits there asks for no pods'
    told = {"type": "ScalingActive", "status": "True", "reason": "QueueHeld", "message": sentence}
    assert f"  ScalingActive=True (QueueHeld): {sentence}" in "\n".join(explanation(pool(conditions=[told])))


def test_a_pool_that_nobody_looked_at_says_so():
    """Rather than pretending that it is at zero for a reason."""
    assert "The operator has not looked at it yet" in "\n".join(explanation(pool()))


def test_the_overview_has_size_slots_and_grace():
    """What an on-call person asks first."""
    grace = {"applied": "90s", "needed": "84s", "samples": 41, "censored": 0}
    text = "\n".join(overview(pool(replicas=6, readyReplicas=5, busySlots=21, grace=grace)))
    for part in ("6 (5 ready)", "21 busy of 4 per pod", "90s applied", "limits 0 to 20"):
        assert part in text
