"""Calls in flight at the provider never pass its quota, by the provider's own log, whatever happens to pools and quota (O15, P7, C26).

Real worker processes under a real controller manager; a real node's part is in tests/cluster/test_deploys_quota.py.
"""

import time

import pytest

from fixtures.calls import model_server
from fixtures.puppets import puppets
from fixtures.stage import until
from poolkeeper.store import calls

pytestmark = pytest.mark.wide

QUOTA = 7
POOLS = ("light", "middle", "heavy")


@pytest.fixture
def model(tmp_path):
    with model_server(tmp_path / "model.log") as served:
        yield served


@pytest.fixture
def workers(stage, model, tmp_path):
    """Workers for the pods of the namespace; that all of them leave well is part of every test."""
    with puppets(stage, tmp_path, {"MODEL_URL": model.url}) as made:
        yield made
    ill = [worker for worker in made.workers.values() if not worker.left_well]
    assert not ill, {worker.log_file.name: (worker.process.returncode, worker.log[-600:]) for worker in ill}


def caps(stage):
    found = {p.pool.partition("/")[2]: p for p in stage.run(calls.stats(cluster=None)).pools}
    return {name: found[name].max_running for name in POOLS if name in found}


def running(stage):
    return sum(pool.running for pool in stage.run(calls.stats(cluster=None)).pools)


def submit(stage, pool, count, *, steps=2, seconds=0.4):
    tasks = [{"type": "stepper.work", "payload": {"steps": steps, "seconds": seconds}}] * count
    return [verdict.task_id for verdict in stage.run(calls.submit_many(f"{stage.namespace}/{pool}", tasks))]


class Fed:
    """Conditions that are awaited while every queue has work."""

    def __init__(self, stage):
        self.stage, self.ids, self.pools = stage, [], POOLS

    def until(self, check, what="", timeout=60):
        def look():
            self.top_up()
            return check()

        return until(look, timeout=timeout, what=what)

    def top_up(self):
        ready = {queue.name: queue.ready for queue in self.stage.run(calls.stats(cluster=None)).queues}
        for name in self.pools:
            if ready.get(name, 0) < 15:
                self.ids += submit(self.stage, name, 15)


def states(stage, ids):
    return [stage.run(calls.task(each)).state for each in ids]


def pool_of(stage, name, **spec):
    providers = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
    scaling = {"max": QUOTA, "down": {"window": "30s", "maxStepPods": 100}, "toZeroAfter": "30s"}
    settings = {"app": "stepper:app", "concurrency": 2, "providers": providers, "rollout": {"maxSurge": 3}}
    return stage.pool(name, scaling=scaling, **{**settings, **spec})


@pytest.mark.timeout(300)
def test_calls_never_pass_the_quota_whatever_happens_to_pools_and_quota(stage, model, start_operator, workers):
    """Weights 1:2:3 on an odd quota; a pool deleted and made again, a rollout with surge, the quota lowered, suspended, deleted."""
    start_operator().wait_ready()
    weights = {"pools": [{"namespace": stage.namespace, "name": n, "weight": w} for w, n in enumerate(POOLS, 1)]}

    def quota(limit, **spec):
        return stage.quota("api", limit, shares=weights, **spec)

    stage.apply(stage.db(), *(stage.queue(name) for name in POOLS), quota(QUOTA))
    for name in POOLS:
        stage.wait_condition("taskqueue", name, "Ready", "True")
    stage.apply(*(pool_of(stage, name) for name in POOLS))
    fed = Fed(stage)

    fed.until(lambda: caps(stage) == {"light": 1, "middle": 2, "heavy": 4}, what="by weight, all of it")
    fed.until(lambda: model.in_flight() == QUOTA, what="all of the quota is used")

    # a rollout: new pods surge while those of the old template drain
    stage.apply(
        pool_of(stage, "heavy", template={"image": "localhost/demo:2", "resources": {"requests": {"cpu": "1000"}}})
    )
    fed.until(
        lambda: (
            len(of_image(stage, "heavy", "localhost/demo:2")) >= 2 and not of_image(stage, "heavy", "localhost/demo:1")
        ),
    )

    # a pool goes: what it holds counts until its last call has ended, then the others have its share; and it comes again
    stage.kubectl("delete", "workerpool", "middle", "--wait=true")
    fed.until(lambda: caps(stage) == {"light": 2, "middle": 0, "heavy": 5}, what="its share goes to the others")
    stage.apply(pool_of(stage, "middle"))
    fed.until(lambda: caps(stage) == {"light": 1, "middle": 2, "heavy": 4}, what="it has its share again")

    # lowered while seven run: what runs ends by itself
    fed.until(lambda: model.in_flight() == QUOTA)
    stage.apply(quota(3))
    fed.until(lambda: sum(caps(stage).values()) <= 3 and running(stage) <= 3, what="three at most")
    lowered = time.time()
    fed.until(lambda: model.began(lowered) >= 12, what="work goes on")
    assert model.most_in_flight(lowered) <= 3
    assert all(count >= 0 for count in caps(stage).values())

    stage.apply(quota(QUOTA, suspended=True))
    until(lambda: set(caps(stage).values()) == {0} and running(stage) == 0, timeout=60, what="nothing starts")
    closed = time.time()
    stage.kubectl("delete", "providerquota", "api")
    stage.wait_condition("workerpool", "heavy", "Ready", "False", "QuotaMissing", timeout=60)
    assert set(caps(stage).values()) == {0}
    assert model.began(closed) == 0, "neither suspended nor gone means unlimited"

    stage.apply(quota(QUOTA))
    until(lambda: not left(stage), timeout=120, what="everything ends")
    assert set(states(stage, fed.ids)) == {"succeeded"}
    assert model.most_in_flight() == QUOTA, "all of it was used, and never more"
    assert model.cut_off() == 0, "what ran was never killed"
    assert max(model.answered().values()) == 1
    assert sum(model.answered().values()) == 2 * len(fed.ids)


def left(stage):
    return sum(
        q.ready + q.scheduled + q.waiting + q.leased + q.running for q in stage.run(calls.stats(cluster=None)).queues
    )


def of_image(stage, pool, image):
    return [pod for pod in stage.pods(pool) if pod["spec"]["containers"][0]["image"] == image]


@pytest.mark.timeout(180)
def test_the_pods_of_an_orphaned_pool_are_closed(stage, model, start_operator, workers):
    """`kubectl delete --cascade=orphan` leaves the Deployment; its workers would call beside those that now have its share."""
    start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("light"), stage.queue("heavy"), stage.quota("api", 3))
    for name in ("light", "heavy"):
        stage.wait_condition("taskqueue", name, "Ready", "True")
    stage.apply(pool_of(stage, "light"))
    ids = submit(stage, "light", 60)
    until(lambda: model.in_flight() == 3, timeout=60)
    stage.kubectl("delete", "workerpool", "light", "--cascade=orphan")
    more = submit(stage, "heavy", 20)
    stage.apply(pool_of(stage, "heavy"))
    until(lambda: set(states(stage, more)) == {"succeeded"}, timeout=90, what="the other pool has the quota")
    assert stage.pods("light"), "nobody deleted its pods"
    assert caps(stage)["light"] == 0
    assert model.most_in_flight() == 3
    stage.apply(pool_of(stage, "light"))  # adopted again
    until(lambda: set(states(stage, ids)) == {"succeeded"}, timeout=90)
    assert model.most_in_flight() == 3
