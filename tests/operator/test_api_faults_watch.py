"""A watch that breaks, lies, falls silent or is refused costs time, not correctness, and never a busy loop (O30).

The operator is a real process; a proxy between it and the real API server does the harm.
"""

import urllib.error

import pytest

from fixtures import apifaults as af
from fixtures.faulty import grows, strikes
from fixtures.stage import until

BUSY = 4.0  # seconds in which requests are counted
FEW = 30  # of one kind in that time: a busy loop makes hundreds

OPENINGS = [
    pytest.param(
        {"gone": af.Answer(410), "forbidden": af.Answer(403), "cut-clean": af.Cut(40, clean=True)}, id="usual"
    ),
    pytest.param(
        {"gone-event": af.ErrorEvent(410), "error-event": af.ErrorEvent(500), "unavailable": af.Answer(503)},
        id="server",
        marks=pytest.mark.deep,
    ),
    pytest.param(
        {"not-found": af.Answer(404), "reset": af.Reset(), "cut": af.Cut(40), "stalled": af.Stall()},
        id="network",
        marks=pytest.mark.deep,
    ),
]
EVENTS = {
    "dropped": (af.Drop(), 2),
    "twice": (af.Twice(), None),
    "overtaken": (af.Late(1.0), None),
}


def made_and_sized(stage, operator, name):
    """What the operator only knows from its watches happens: a new pool is found, sized, and forgotten when it is gone."""
    until(lambda: stage.get("deployment", name), timeout=90, what=f"{name} is found")
    grows(stage, name)
    stage.kubectl("delete", "workerpool", name, "--wait=false")
    until(lambda: not operator.knows(name), timeout=90, what=f"{name} is forgotten")


@pytest.mark.wide
@pytest.mark.parametrize("faults", OPENINGS)
def test_a_watch_that_cannot_be_opened_is_opened_later(stage, hasty, proxy, faults):
    """410 as answer and as event, other errors, lost rights, cuts, silence: the pool made meanwhile is found; no busy loop."""
    for name, does in faults.items():
        with proxy.fault(does, verb="watch", resource="workerpools,deployments", sever=True) as fault:
            strikes(lambda: fault.hits, name)
            stage.apply(stage.queue(name), stage.pool(name))
            asked = hasty.asks(BUSY, resource="workerpools")
            assert asked < FEW, f"{name}: {asked} requests in {BUSY} s"
            hasty.another_grows(stage)
        made_and_sized(stage, hasty, name)
        assert hasty.process.poll() is None, name


@pytest.mark.wide
def test_events_that_are_cut_doubled_or_overtaken_change_nothing(stage, faulty, proxy):
    """Each event is taken once, and an older one never undoes a newer one."""
    for name, (does, count) in EVENTS.items():
        with proxy.fault(does, verb="watch", resource="workerpools,deployments,pods", count=count) as fault:
            stage.apply(stage.queue(name), stage.pool(name))
            strikes(lambda: fault.hits, name)
            made_and_sized(stage, faulty, name)
        until(lambda: stage.get("deployment", name) is None, timeout=60)
        assert not faulty.knows(name)


def test_a_right_to_watch_that_is_taken_away_is_named(stage, faulty, proxy):
    """In the log, with verb and place, at the first refusal and once; not a hang (O31)."""
    with proxy.fault(af.Answer(403, "no"), verb="watch", resource="pods", sever=True) as fault:
        strikes(lambda: fault.hits, "the refusal")
        until(lambda: faulty.said("right_missing: watch"), timeout=10)
        strikes(lambda: fault.hits > 2, "the refusal again")
        told = faulty.said("right_missing: watch")
    assert len(told) == 1
    assert f"namespaces/{stage.namespace}/pods" in told[0]
    until(lambda: faulty.said(f'watch.back: pods in namespace "{stage.namespace}"'), timeout=60)


def test_what_is_deleted_in_a_gap_of_the_watch_is_noticed(stage, faulty, proxy):
    """The watch is away, then told that its version is gone; nobody says what was deleted meanwhile (kopf-and-style 1.2, 1)."""
    stage.apply(stage.queue("gap"), stage.pool("gap"), stage.db("spare"))
    until(lambda: faulty.knows("gap"), timeout=60)
    stage.wait_condition("database", "spare", "Ready", "True")
    everything = "workerpools,deployments,databases"
    with proxy.fault(af.Answer(503), verb="watch,list", resource=everything, sever=True) as fault:
        strikes(lambda: fault.hits, "the gap")
        stage.kubectl("delete", "workerpool/gap", "database/spare")
        until(lambda: stage.get("deployment", "gap") is None, timeout=60)
    with proxy.fault(af.ErrorEvent(410), verb="watch", resource=everything, count=3, sever=True):
        until(lambda: not faulty.knows("gap"), timeout=60, what="the pool is forgotten")
    until(lambda: connections(stage) == 2, timeout=60, what="the deleted Database is no longer read")


def connections(stage):
    with stage.database.connect() as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
        return conn.execute(query, ["poolkeeper operator%"]).fetchone()[0]


def test_a_deployment_whose_end_nobody_told_is_made_again(stage, hasty, proxy):
    """A swallowed DELETED of a child: found by the next list, or at once when something is to be written to it."""
    with proxy.fault(af.Swallow("DELETED"), verb="watch", resource="deployments") as fault:
        old = stage.get("deployment", "other")["metadata"]["uid"]
        stage.kubectl("delete", "deployment", "other")
        strikes(lambda: fault.hits, "the loss")
        stage.submit("other", 2)
        until(lambda: stage.replicas("other") == 2, timeout=60)
    assert stage.get("deployment", "other")["metadata"]["uid"] != old


def test_a_pool_whose_end_nobody_told_is_not_kept_alive(stage, hasty, proxy, audit):
    """A swallowed DELETED of the pool itself: no fight with the garbage collector over its children, then it is forgotten."""
    stage.apply(stage.queue("late"), stage.pool("late"))
    until(lambda: hasty.knows("late"), timeout=60)
    stage.submit("late", 1)
    until(lambda: stage.replicas("late") == 1, timeout=60)
    with proxy.fault(af.Swallow("DELETED"), verb="watch", resource="workerpools") as fault:
        mark = audit.mark()
        stage.kubectl("delete", "workerpool", "late")
        strikes(lambda: fault.hits, "the loss")
        until(lambda: stage.get("deployment", "late") is None, timeout=60)
        until(lambda: not hasty.knows("late"), timeout=60, what="the pool is forgotten")
    made = [w for w in audit.since(mark, namespace=stage.namespace) if w.verb in {"create", "patch"}]
    children = [w for w in made if w.resource == "deployments" and w.name == "late" and "controller" not in w.user]
    assert len(children) <= 1, children


def livez(operator):
    try:
        return operator.fetch("/livez")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.wide
def test_a_watch_that_fell_silent_is_not_alive(stage, hasty, proxy):
    """Open and nothing sent, bookmarks included: /livez names it, and is good again when it speaks (O30)."""
    until(lambda: proxy.watching("pods"), timeout=60)
    with proxy.fault(af.Stall(), verb="watch", resource="pods", sever=True) as fault:
        strikes(lambda: fault.hits, "the silence")
        dead = until(lambda: (said := livez(hasty))[0] == 503 and said[1], timeout=90)
        assert f'watch pods in namespace \\"{stage.namespace}\\"' in dead
        assert "workerpools" not in dead
    until(lambda: livez(hasty)[0] == 200, timeout=60)


@pytest.mark.wide
def test_a_watcher_that_ends_takes_the_process_along(stage, faulty, proxy):
    """What is no event ends kopf's watcher; the process does not live on without it, and its exit code says so (O30)."""
    with proxy.fault(af.Garbled(), verb="watch", resource="workerpools"):
        stage.apply(stage.pool("new"))
        until(lambda: faulty.process.poll() is not None, timeout=60, what="the process ends")
    assert faulty.process.poll() not in {0, None}


def test_a_deleted_child_comes_back(stage, faulty):
    """Whatever a person removes of a pool's children is made again at once, not at the next list (O5)."""
    for kind in ("deployment", "serviceaccount", "pdb"):
        old = until(lambda: stage.get(kind, "other"), timeout=60)["metadata"]["uid"]
        stage.kubectl("delete", kind, "other")
        until(
            lambda: (new := stage.get(kind, "other")) and new["metadata"]["uid"] != old,
            timeout=60,
            what=f"the {kind} is back",
        )
