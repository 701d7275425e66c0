"""Each dead letter is announced once, whatever happens to the operator or to the Event, and readably (O24, field case C40)."""

import json
import unicodedata

import pytest

from fixtures import apifaults as af
from fixtures.letters import about, kill_tasks, told
from fixtures.stage import until

pytestmark = pytest.mark.wide

EVENTS = {"verb": "create", "resource": "events"}


@pytest.fixture
def start(proxy, stage, start_operator):
    """Start an operator behind the proxy."""
    return lambda: start_operator("--namespace", stage.namespace, kubeconfig=proxy.kubeconfig).wait_ready()


def numbered(stage):
    """How many dead letters are in a batch that is not confirmed."""
    with stage.database.connect() as conn:
        return conn.execute("SELECT count(*) FROM poolkeeper.dead WHERE batch < 0").fetchone()[0]


def waits_for_a_lock(stage):
    """The connections that do."""
    with stage.database.connect() as conn:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return [pid for (pid,) in conn.execute(query).fetchall()]


def settled(stage):
    """Everything that died is in a confirmed batch."""
    with stage.database.connect() as conn:
        query = "SELECT count(*) FROM poolkeeper.dead WHERE batch IS NULL OR batch < 0"
        return conn.execute(query).fetchone()[0] == 0


def test_killed_between_the_number_and_the_event(stage, start, proxy):
    """The batch has its number, nobody heard of it: the next operator announces it, once."""
    first = start()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    with proxy.fault(af.Silent(), **EVENTS):
        kill_tasks(stage, "mail", 3)
        until(lambda: numbered(stage) == 3)
        first.stop(9)
    assert about(stage, "mail") == []
    start()
    until(lambda: settled(stage), timeout=90)
    assert told(stage, "mail") == [3]


def test_killed_between_the_event_and_the_mark(stage, start, proxy):
    """The Event is there, the mark is not: the next operator repeats its name, is refused, and marks."""
    first = start()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    with stage.database.connect() as holder:
        with proxy.fault(af.Silent(), **EVENTS):
            kill_tasks(stage, "mail", 3)
            until(lambda: numbered(stage) == 3)
            holder.execute("BEGIN")
            holder.execute("SELECT FROM poolkeeper.dead FOR UPDATE")
        until(lambda: about(stage, "mail") and waits_for_a_lock(stage), timeout=60)
        first.stop(9)
        for pid in waits_for_a_lock(stage):  # what the dead process had sent already must not be done after all
            holder.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        holder.execute("ROLLBACK")
    assert numbered(stage) == 3
    kill_tasks(stage, "mail", 2)
    asked = proxy.count(**EVENTS)
    start()
    until(lambda: settled(stage), timeout=90)
    assert told(stage, "mail") == [2, 3]
    assert proxy.count(**EVENTS) >= asked + 2


def test_what_died_while_no_operator_was_there_is_announced_and_idle_restarts_announce_nothing(stage, start, proxy):
    """C40: stopped, five more dead, started; then three restarts without anything new."""
    first = start()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    kill_tasks(stage, "mail", 1)
    until(lambda: settled(stage), timeout=60)
    first.stop()
    kill_tasks(stage, "mail", 5)
    second = start()
    until(lambda: settled(stage), timeout=90)
    assert told(stage, "mail") == [1, 5]
    second.stop()
    asked = proxy.count(**EVENTS)
    for _ in range(3):
        idle = start()
        until(lambda: idle.metric("poolkeeper_queue_dead_letters", queue="mail") == 6, timeout=60)
        idle.stop()
    assert told(stage, "mail") == [1, 5]
    assert proxy.count(**EVENTS) == asked


def test_an_event_that_is_refused_for_good_stops_nothing(stage, start, proxy):
    """Events may be lost: condition, figure and metric tell all the same, and the next batch is announced."""
    operator = start()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    with proxy.fault(af.Answer(422), **EVENTS):
        kill_tasks(stage, "mail", 2)
        stage.wait_condition("taskqueue", "mail", "DeadLetters", "True")
        until(lambda: settled(stage), timeout=60)
        until(lambda: operator.metric("poolkeeper_queue_dead_letters", queue="mail") == 2)
        assert stage.status("taskqueue", "mail")["deadLetters"]["total"] == 2
    kill_tasks(stage, "mail", 3)
    until(lambda: about(stage, "mail"), timeout=60)
    assert told(stage, "mail") == [3]


@pytest.mark.parametrize(
    "does",
    [
        af.Answer(503),
        af.Answer(403),
        pytest.param(af.Answer(429, retry_after=1), marks=pytest.mark.deep),
        pytest.param(af.Reset(), marks=pytest.mark.deep),
        af.Reset(sent=True),
    ],
    ids=str,
)
def test_an_event_that_cannot_be_posted_now_is_posted_later_and_stops_nothing(stage, start, proxy, does):
    """The reconcile goes on meanwhile; a changed policy is applied; what dies meanwhile is in the next batch."""
    start()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    with proxy.fault(does, **EVENTS):
        kill_tasks(stage, "mail", 2)
        stage.wait_condition("taskqueue", "mail", "DeadLetters", "True")
        until(lambda: proxy.count(**EVENTS) > 0)
        stage.apply(stage.queue("mail", paused=True))
        until(lambda: stage.status("taskqueue", "mail")["policyVersion"] == 2)
        stage.apply(stage.queue("mail"))
        until(lambda: stage.status("taskqueue", "mail")["policyVersion"] == 3)
        assert numbered(stage) == 2
        kill_tasks(stage, "mail", 3)
    until(lambda: settled(stage), timeout=90)
    assert told(stage, "mail") == [2, 3]


FAMILY = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
ERRORS = {
    "ascii": "x" * 20_000,
    "cjk": "誤" * 20_000,
    "emoji": FAMILY * 4_000,
    "lines": "Traceback (most recent call last):\n  File x\r\n\tline\u2028" * 500,
    "control": "".join(map(chr, range(1, 32))) + "\x1b[31mred\x1b[0m \x7f\x9b \u202egnol\u202c" + "x" * 20_000,
    "empty": "",
    "none": None,
}


def test_each_error_text_makes_one_readable_event(stage, operator):
    """C40: id and reason first, bounded, one line, no character cut in two."""
    stage.apply(stage.db(), *(stage.queue(name) for name in ERRORS))
    for name in ERRORS:
        stage.wait_condition("taskqueue", name, "SignalFresh", "True")
    for name, error in ERRORS.items():
        kill_tasks(stage, name, 1, error=error)
    for name, error in ERRORS.items():
        (event,) = until(lambda: about(stage, name), timeout=60)
        (letter,) = stage.run(_letters(stage, name))
        message = event["message"]
        assert message.startswith(f"task {letter.task_id}: permanent_error; 1 dead letter: demo.echo 1")
        assert len(message.encode()) <= 1024
        assert not [c for c in message if unicodedata.category(c) in {"Cc", "Zl", "Zp"} or c in "\u202e\u202c\ufffd"]
        assert f"`poolkeeper task timeline {letter.task_id}`" in message
        assert "owner on-call; runbook https://runbooks.example.com/agents" in message
        said = message.split("error: ")[1].split("; `poolkeeper")[0]
        assert said == "ValueError without a message" if not error else said.endswith("…")
        if name == "emoji":
            assert set(said.removesuffix("…").split(FAMILY)) == {""}
        assert json.dumps(message)


def _letters(stage, queue):
    from poolkeeper.store import calls

    return calls.dead_letters(f"{stage.namespace}/{queue}")


def test_a_flood_is_told_in_few_events_with_the_right_totals(stage, operator):
    """C40: 10,000 of 50 tenants within a minute."""
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True")
    for n in range(50):
        kill_tasks(stage, "mail", 200, tenant=f"tenant-{n}")
    until(lambda: settled(stage), timeout=120)
    counts = told(stage, "mail")
    assert sum(counts) == 10_000
    assert len(counts) <= 10
    assert any("of 50 tenants" in e["message"] or "tenants" in e["message"] for e in about(stage, "mail"))
    until(lambda: stage.status("taskqueue", "mail")["deadLetters"]["total"] == 10_000, timeout=60)
    until(lambda: operator.metric("poolkeeper_queue_dead_letters", queue="mail") == 10_000)
    assert stage.status("taskqueue", "mail")["deadLetters"]["growthPerMinute"] > 0
    stage.move_clock(120)
    until(lambda: stage.status("taskqueue", "mail")["deadLetters"].get("growthPerMinute", 0) == 0, timeout=90)
