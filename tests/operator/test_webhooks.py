"""Dead letters reach the webhook of their queue: signed, at least once, by a stable id, whatever it does meanwhile (O24)."""

import signal
from base64 import b64encode

import pytest

from fixtures.letters import about, kill_tasks
from fixtures.receiver import DROPS, HANGS, receiver
from fixtures.stage import until
from poolkeeper.store import calls

KEY = b"a key that both know"


def secret(name="hook", key=KEY):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {"signing-key": b64encode(key).decode()},
    }


def hooked(stage, name, url):
    """A queue whose dead letters are posted there."""
    letter = {"owner": "on-call", "runbookURL": "https://runbooks.example.com/agents"}
    return stage.queue(
        name, deadLetter={**letter, "webhook": {"url": url, "secretRef": {"name": "hook", "key": "signing-key"}}}
    )


def waiting(stage, queue):
    """Batches that the store still has for the webhook."""
    found = stage.run(calls.stats(cluster=None)).queues
    return sum(q.posts for q in found if (q.namespace, q.name) == (stage.namespace, queue))


def test_a_batch_is_posted_until_it_was_taken_as_one_signed_event(stage, operator):
    """O24: CloudEvents 1.0; dropped, refused with 500, then taken: the same id and body each time; no payload, no error's text."""
    with receiver() as hook:
        hook.answers["/pk"] = [DROPS, 500, 204]
        stage.apply(stage.secret(), secret(), stage.db(), hooked(stage, "mail", f"{hook.url}/pk"))
        kill_tasks(stage, "mail", 3, error="card 4111 of ann", payload={"card": "4111"})
        until(lambda: len(hook.at("/pk")) >= 3, what="it is told until it takes it")
        until(lambda: waiting(stage, "mail") == 0, what="nothing is left to tell")
        assert len({each.headers["webhook-id"] for each in hook.got}) == 1
        assert len({each.body for each in hook.got}) == 1
        first = hook.got[0]
        assert all(each.signed_by(KEY) for each in hook.got)
        assert not first.signed_by(b"another")
        event = first.event
        assert (event["specversion"], event["type"]) == ("1.0", "dev.poolkeeper.deadletters")
        assert (event["id"], event["subject"]) == (first.headers["webhook-id"], f"{stage.namespace}/mail")
        assert first.headers["content-type"].startswith("application/cloudevents+json")
        data = event["data"]
        assert (data["count"], data["types"], data["reasons"]) == (3, {"demo.echo": 3}, {"permanent_error": 3})
        assert (data["firstErrorClass"], data["owner"], data["batch"]) == ("ValueError", "on-call", 1)
        assert b"4111" not in first.body
        until(lambda: about(stage, "mail"), what="the Event is posted as well")
        assert operator.metric("poolkeeper_queue_webhook_posts_total", queue="mail", outcome="taken") == 1
        assert operator.metric("poolkeeper_queue_webhook_posts_total", queue="mail", outcome="failed") == 2


@pytest.mark.wide
def test_a_webhook_that_hangs_holds_up_no_other_queue_nor_is_its_news_lost_with_the_operator(stage, start_operator):
    """O24: killed while it waits for the answer; the next operator tells the same event, and the other queue's was told long since."""
    operator = start_operator().wait_ready()
    with receiver() as hook:
        hook.answers["/mail"] = [HANGS]
        stage.apply(
            secret(), stage.db(), hooked(stage, "mail", f"{hook.url}/mail"), hooked(stage, "other", f"{hook.url}/other")
        )
        kill_tasks(stage, "mail", 2)
        until(lambda: hook.at("/mail"), what="it hangs")
        kill_tasks(stage, "other", 1)
        until(lambda: waiting(stage, "other") == 0 and hook.at("/other"), what="the other one is told meanwhile")
        assert waiting(stage, "mail") == 1
        operator.stop(signal.SIGKILL)
        hook.answers["/mail"] = [204]
        hook.let_go.set()
        start_operator().wait_ready()
        until(lambda: waiting(stage, "mail") == 0, what="the next operator tells it")
        assert len({each.headers["webhook-id"] for each in hook.at("/mail")}) == 1
        assert hook.at("/mail")[-1].event["data"]["count"] == 2
        assert len(hook.at("/other")) == 1, "what was taken is not told again"
        kill_tasks(stage, "other", 1)
        until(lambda: len(hook.at("/other")) == 2, what="the next batch is another event")
        assert [each.event["data"]["batch"] for each in hook.at("/other")] == [1, 2]
        assert len({each.event["id"] for each in hook.at("/other")}) == 2


@pytest.mark.wide
def test_a_webhook_that_takes_nothing_is_named_until_it_does(stage, operator):
    """O24, O25: without its Secret, then without a receiver; the condition names each, never the address; then all is told."""
    with receiver() as hook:
        port = int(hook.url.rsplit(":", 1)[1])
    stage.apply(stage.db(), hooked(stage, "mail", f"http://127.0.0.1:{port}/token-in-the-address"))
    kill_tasks(stage, "mail", 1)
    told = stage.wait_condition("taskqueue", "mail", "WebhookFailing", "True", "NotTaken")
    assert 'there is no secret "hook"' in told["message"]
    stage.apply(secret())
    told = until(
        lambda: (
            (found := stage.condition("taskqueue", "mail", "WebhookFailing"))
            and "127.0.0.1 cannot be reached" in found["message"]
            and found
        )
    )
    assert "token-in-the-address" not in str(stage.get("taskqueue", "mail")["status"])
    until(lambda: "WebhookFailing" in stage.status("taskqueue", "mail")["trouble"])
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    with receiver(port) as hook:
        until(lambda: waiting(stage, "mail") == 0, timeout=90, what="it is told")
        assert hook.got[0].signed_by(KEY)
        stage.wait_condition("taskqueue", "mail", "WebhookFailing", "False", "Taken")
    assert not any("token-in-the-address" in str(line) or KEY.decode() in str(line) for line in operator.lines())
