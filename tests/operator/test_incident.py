"""A provider slows down and refuses: retries do not multiply, no pods are added into it, and nobody has to do anything (O15, Q40).

The incident that founded this: latency rises, calls time out, retries multiply, the queue grows older, an autoscaler adds
workers, the provider refuses more. Operator, worker processes and provider are real, and the provider's own log is the judge.
"""

import threading
import time
from contextlib import contextmanager

import pytest
from examples.demo.model import Log

from fixtures.calls import Calls, Patient
from fixtures.puppets import puppets
from fixtures.stage import until
from poolkeeper.store import calls

pytestmark = [pytest.mark.wide, pytest.mark.timeout(400)]

QUOTA = 6
LEFT = 2
"""Calls at once that the provider takes during its trouble."""
LASTS = 20.0


class Counted(Log):
    """A log that knows how many calls are in flight."""

    in_flight = 0

    def began(self, call):
        self.in_flight += 1
        return super().began(call)

    def ended(self, number, what):
        self.in_flight -= 1
        super().ended(number, what)


class Troubled(Patient):
    """Takes `room` calls at once and refuses the others; in trouble each takes longer than its caller waits."""

    log: Counted
    room = QUOTA
    slow: float | None = None

    def admits(self, call):
        if self.slow is not None:
            call["seconds"] = self.slow
        return self.log.in_flight < self.room


@pytest.fixture
def provider(tmp_path):
    with served(tmp_path / "provider.log") as made:
        yield made


@contextmanager
def served(path):
    path.touch()
    with Troubled(("127.0.0.1", 0), Counted(path), per_second=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server, Calls(f"http://127.0.0.1:{server.server_address[1]}/", path)
        finally:
            server.shutdown()
            thread.join()


def asked(seen, since, until_=float("inf")):
    """Calls that reached the provider in a window, let in or refused."""
    return sum(line["what"] in {"began", "refused"} and since <= line["at"] < until_ for line in seen.lines())


def left(stage):
    (queue,) = stage.run(calls.stats(cluster=None)).queues
    return queue.ready + queue.scheduled + queue.waiting + queue.leased + queue.running


def effective(stage):
    return (stage.status("providerquota", "api").get("effective") or {}).get("concurrentCalls")


def sizes(audit, mark, namespace):
    writes = audit.since(mark, namespace=namespace)
    bodies = [w.body for w in writes if w.resource == "deployments" and w.body]
    return [body["spec"]["replicas"] for body in bodies if "replicas" in body.get("spec", {})]


def test_a_provider_in_trouble_is_not_made_worse(stage, start_operator, provider, audit, tmp_path):
    """No amplification: fewer calls than before reach it, sizes do not rise, and after it all work is done without a hand."""
    server, seen = provider
    start_operator().wait_ready()
    retry = {"maxDeliveries": 100, "backoff": {"initial": "1s", "max": "2s"}}
    quota = stage.quota("api", QUOTA, adaptive={"recoverPercentPerMinute": 100, "floorPercent": 30}, reservePercent=0)
    providers = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
    scaling = {"max": 30, "targetAge": "2s", "down": {"window": "5m", "maxStepPods": 1}, "toZeroAfter": "30s"}
    stage.apply(stage.db(), stage.queue("mail", **retry), quota)
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.apply(stage.pool("mail", app="stepper:app", providers=providers, scaling=scaling))
    with puppets(stage, tmp_path, {"MODEL_URL": seen.url}):
        tasks = [{"type": "stepper.asks", "payload": 0.4}] * 400
        ids = [verdict.task_id for verdict in stage.run(calls.submit_many(f"{stage.namespace}/mail", tasks))]
        until(lambda: seen.most_in_flight() == QUOTA, timeout=90, what="all of the quota is used")
        well = time.time()
        time.sleep(5)
        usual = asked(seen, well) / (time.time() - well)

        mark, trouble = audit.mark(), time.time()
        server.room, server.slow = LEFT, 5.0
        stage.wait_condition("providerquota", "api", "Throttled", "True", "TooManyRequests", timeout=60)
        time.sleep(LASTS)
        over = time.time()
        assert effective(stage) <= QUOTA // 2
        assert asked(seen, over - LASTS, over) / LASTS < usual, "retries multiplied"
        assert max(sizes(audit, mark, stage.namespace), default=0) <= QUOTA, (
            "pods were added into the provider's trouble"
        )
        assert "429 from api" in stage.condition("workerpool", "mail", "QuotaLimited")["message"]
        assert asked(seen, trouble, over) > 0

        server.room, server.slow = QUOTA, None
        healed = time.time()
        stage.wait_condition("providerquota", "api", "Throttled", "False", "NotThrottled", timeout=120)
        until(lambda: effective(stage) == QUOTA, timeout=60, what="all of it is in force again")
        until(lambda: seen.most_in_flight(healed) == QUOTA or not left(stage), timeout=60)
        until(lambda: not left(stage), timeout=120, what="everything ends")
    assert {stage.run(calls.task(each)).state for each in ids} == {"succeeded"}
    assert seen.most_in_flight() == QUOTA, "never more than the quota"
    assert set(seen.answered().values()) == {1}
    assert sum(seen.answered().values()) == len(ids)
