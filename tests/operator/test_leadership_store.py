"""Installations that meet in one store: the term decides, they do not fight, and a mistake is named (O29)."""

import signal

import pytest

from fixtures.letters import kill_tasks, told
from fixtures.stage import Stage, until
from poolkeeper.codes import Code
from poolkeeper.errors import Conflict
from poolkeeper.store import calls

pytestmark = [pytest.mark.timeout(300), pytest.mark.wide]
PATIENCE = 60.0


def said(operator, what):
    return [line for line in operator.lines() if what in line.get("message", "")]


def leaders(stage):
    with stage.database.connect() as conn:
        rows = conn.execute("SELECT namespace, lease, holder FROM poolkeeper.leader ORDER BY namespace").fetchall()
    return {namespace: (lease, holder) for namespace, lease, holder in rows}


def events(stage, reason):
    return [event["message"] for event in stage.events(reason)]


def test_two_installations_share_a_database(stage, start_operator, make_namespace, kubectl):
    """O29: each keeps its own namespace, under a Lease of its own, and neither touches nor hinders the other."""
    other = Stage(kubectl, make_namespace(), stage.database)
    other.apply(other.secret())
    both = (stage, other)
    operators = [start_operator("--namespace", each.namespace).wait_ready() for each in both]
    for each in both:
        each.apply(each.db(), each.queue("mail"), each.pool("mail"))
    for each in both:
        each.wait_condition("workerpool", "mail", "SignalFresh", "True", timeout=PATIENCE)
        each.submit("mail", 2)
    for each in both:
        until(lambda: each.replicas("mail") == 2, timeout=PATIENCE)
    kept = leaders(stage)
    assert {namespace: lease for namespace, (lease, _) in kept.items()} == {
        each.namespace: f"{each.namespace}/poolkeeper-operator" for each in both
    }
    for operator in operators:
        assert said(operator, "kept by") == []
        assert operator.process.poll() is None
    other.close()


def test_two_operators_without_a_common_lease_do_not_fight(stage, start_operator, audit):
    """O29: the second says who keeps the namespace and what to do, once, and writes nothing else; when the first ends it takes over."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True", timeout=PATIENCE)
    second = start_operator("--namespace", stage.namespace, "--lease", "by-mistake").wait_ready()
    warned = until(lambda: events(stage, "KeptElsewhere"), timeout=PATIENCE)
    for part in (f'namespace "{stage.namespace}"', f"{stage.namespace}/poolkeeper-operator", "watchNamespaces"):
        assert part in warned[0]
    assert said(second, warned[0])
    assert second.metric("poolkeeper_operator_contested_databases") == 1
    assert stage.condition("database", "main", "Ready")["status"] == "True"
    mark = audit.mark()
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3, timeout=PATIENCE)
    sizes = [w for w in audit.since(mark, namespace=stage.namespace) if w.resource == "deployments"]
    assert [w.body["spec"]["replicas"] for w in sizes if "replicas" in w.body.get("spec", {})] == [3]
    assert len(events(stage, "KeptElsewhere")) == 1
    assert first.stop() == 0
    stage.apply(stage.pool("late", "mail"))
    until(lambda: stage.replicas("late"), timeout=2 * PATIENCE)
    assert leaders(stage)[stage.namespace][0] == f"{stage.namespace}/by-mistake"
    assert second.metric("poolkeeper_operator_contested_databases") == 0


def test_dead_letters_are_told_once_across_a_take_over(stage, start_operator):
    """O24, O29: whatever the frozen leader was about to tell or to mark, each letter is in one Event, and its term is over."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "SignalFresh", "True", timeout=PATIENCE)
    until(lambda: leaders(stage))
    term = _term(stage)
    start_operator()
    kill_tasks(stage, "mail", 3)
    first.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: _term(stage) != term, timeout=PATIENCE)
        kill_tasks(stage, "mail", 2)
        until(lambda: sum(told(stage, "mail")) == 5, timeout=2 * PATIENCE)
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(PATIENCE) == 0
    kill_tasks(stage, "mail", 1)
    until(lambda: sum(told(stage, "mail")) == 6, timeout=2 * PATIENCE)
    assert sum(told(stage, "mail")) == 6
    with pytest.raises(Conflict) as refused:
        stage.run(calls.set_pool(f"{stage.namespace}/mail", max_running=0, term=term))
    assert refused.value.code is Code.NOT_LEADING


def _term(stage):
    with stage.database.connect() as conn:
        row = conn.execute("SELECT term FROM poolkeeper.leader WHERE namespace = %s", [stage.namespace]).fetchone()
    assert row
    return row[0]
