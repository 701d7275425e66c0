"""What somebody else changes while a call waits for it is what the call goes by: nothing is decided on an old look (Q1, Q24, O1, O9, O24, O29)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from fixtures.neighbours import BOUNDED, PLAIN, Crowd
from poolkeeper.errors import Conflict
from poolkeeper.store import Call, calls, run
from store.scene import await_blocked, meanwhile

OWNER = ("local", "default", "default")
WHO: dict[str, Any] = {"who": "ann", "why": "x"}


@dataclass(frozen=True)
class Case:
    """What is done beforehand to `crowd`, by whom and how it is called, the change that comes first, and what is told then."""

    kind: str
    begin: Callable[[Crowd], Call[Any]]
    change: str
    told: Callable[[Crowd, Any], bool]


def _term(crowd: Crowd) -> UUID:
    term: UUID = crowd.scene.ask("operator", calls.lead("local", "default", lease="default/l", epoch=1, holder="me"))
    return term


def _led(crowd: Crowd) -> Call[Any]:
    _term(crowd)
    return calls.lead("local", "default", lease="default/l", epoch=2, holder="you")


def _running(crowd: Crowd) -> Call[Any]:
    crowd.take(crowd.worker, PLAIN)
    return calls.cancel(
        crowd.scene.value(
            "SELECT l.task_id FROM poolkeeper.lease AS l JOIN poolkeeper.task AS t ON t.id = l.task_id WHERE t.tenant = 'one'"
        ),
        **WHO,
    )


def _held(crowd: Crowd) -> Call[Any]:
    crowd.scene.owner.execute("UPDATE poolkeeper.contact SET held_since = poolkeeper.clock(), held_why = 'older_copy'")
    return calls.accept_installation("ann", "x")


def _canceled_once(crowd: Crowd, _: Any) -> bool:
    by = crowd.scene.value(
        "SELECT l.cancel_by FROM poolkeeper.lease AS l JOIN poolkeeper.task AS t ON t.id = l.task_id WHERE t.tenant = 'one'"
    )
    return by == "bob" and crowd.scene.rows("SELECT 1 FROM poolkeeper.event WHERE kind = 'cancel_requested'") == []


ADOPTED = "UPDATE poolkeeper.queue SET cluster = 'c9' WHERE name = 'plain' AND namespace = 'default'"
CASES = {
    "a batch of letters": Case(
        "operator",
        lambda crowd: calls.dead_batch(crowd.queue_ids[PLAIN]),
        "UPDATE poolkeeper.queue_count SET dead_batch = 7",
        lambda _, batch: batch.number == 8,
    ),
    "a policy": Case(
        "operator",
        lambda _: calls.apply_policy(*OWNER, PLAIN, {"paused": True}, who="ann"),
        ADOPTED,
        lambda _, applied: applied.code == "queue_owned",
    ),
    "a purge": Case(
        "operator",
        lambda _: calls.purge(*OWNER, PLAIN, who="ann"),
        ADOPTED,
        lambda _, page: page.code == "queue_owned",
    ),
    "a cancel": Case("person", _running, "UPDATE poolkeeper.lease SET cancel_by = 'bob'", _canceled_once),
    "an acceptance": Case(
        "person",
        _held,
        "UPDATE poolkeeper.contact SET held_since = NULL, held_why = NULL",
        lambda _, accepted: accepted is False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_goes_by_what_is_there_when_it_gets_it(crowd: Crowd, name: str) -> None:
    """Q1, Q24, O1, O9, O24: a number given twice, a policy of another's, a cancel told twice would be the end of an old look."""
    case, scene = CASES[name], crowd.scene
    call = case.begin(crowd)
    with scene.connect("owner", autocommit=False) as first:
        first.execute(case.change)
        with meanwhile(lambda: run(scene.actor(case.kind), call)) as later:
            await_blocked(scene)
            first.commit()
        assert case.told(crowd, later.result())


def _refused(crowd: Crowd, call: Call[Any]) -> None:
    with pytest.raises(Conflict):
        run(crowd.scene.actor("operator"), call)


def test_a_term_that_ends_while_a_write_waits_is_over(crowd: Crowd) -> None:
    """O29: neither the old leader's write nor another one's registration goes by the term that was."""
    scene = crowd.scene
    for deed in ("lead", "set_pool"):  # each raises
        scene.owner.execute("DELETE FROM poolkeeper.leader WHERE cluster = 'local'")
        term = _term(crowd)
        call: Call[Any] = calls.lead("local", "default", lease="default/l", epoch=2, holder="you")
        if deed == "set_pool":
            call = calls.set_pool("default/p", max_running=3, term=term)
        with scene.connect("owner", autocommit=False) as first:
            first.execute(
                "UPDATE poolkeeper.leader SET term = gen_random_uuid(), epoch = 9, holder = 'new' WHERE cluster = 'local'"
            )
            with meanwhile(partial(_refused, crowd, call)):
                await_blocked(scene)
                first.commit()
    assert scene.rows("SELECT 1 FROM poolkeeper.pool WHERE name = 'default/p'") == []
    assert scene.value("SELECT holder FROM poolkeeper.leader WHERE cluster = 'local'") == "new"


def test_a_policy_of_keys_waits_for_the_gate(crowd: Crowd) -> None:
    """Q9: whoever lets tasks through now goes by the old policy, whoever comes later by the new one."""
    scene = crowd.scene
    call = calls.apply_policy(*OWNER, BOUNDED, {"ordering": "skip"}, who="ann")
    with scene.connect("owner", autocommit=False) as first:
        first.execute(
            "SELECT 1 FROM poolkeeper.gate WHERE queue_id <> %s FOR NO KEY UPDATE", [crowd.queue_ids[BOUNDED]]
        )
        other = calls.apply_policy(*OWNER, PLAIN, {"ordering": "skip"}, who="ann")
        with meanwhile(lambda: run(scene.actor("operator"), other)):
            await_blocked(scene)
            assert run(scene.connect("operator"), call).changed is True  # nobody holds the gate of that one
            first.rollback()


def test_who_holds_a_lease_for_a_moment_is_waited_for(crowd: Crowd) -> None:
    """Q18, Q30: a sweep or a renewal that has it in hand makes no worker save again; only who holds it for long does."""
    scene = crowd.scene
    one = crowd.take(crowd.worker, PLAIN)
    call = calls.checkpoint(one.task_id, one.token, 1, sequence=1)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(20):  # it waits a fifth of a second, in which we may not come to let it go
        with scene.connect("owner", autocommit=False) as other:
            other.execute("SELECT 1 FROM poolkeeper.lease WHERE task_id = %s FOR UPDATE", [one.task_id])
            with meanwhile(lambda: run(crowd.worker.conn, call)) as saved:
                while not saved.done() and scene.value(waits) == 0:
                    pass
                other.rollback()
        if saved.result().code is None:
            return
    raise AssertionError("nobody is waited for")


def test_who_applies_a_policy_goes_by_the_one_before(crowd: Crowd) -> None:
    """O1: of two who come at once the second one sees whose the queue is by then."""
    scene = crowd.scene
    adopt = calls.apply_policy("c9", "uid9", "default", PLAIN, {"max_waiting": 7}, who="bob", adopt="local/default")
    keep = calls.apply_policy(*OWNER, PLAIN, {"max_waiting": 9}, who="ann")
    two = scene.connect("operator")
    with scene.connect("owner", autocommit=False) as other:
        other.execute("LOCK TABLE poolkeeper.tenant_rule IN SHARE MODE")
        with meanwhile(lambda: run(scene.actor("operator"), adopt)) as first:
            await_blocked(scene)
            with meanwhile(lambda: run(two, keep)) as second:
                await_blocked(scene, 2)
                other.rollback()
    assert (first.result().code, second.result().code) == (None, "queue_owned")
    assert scene.value("SELECT cluster FROM poolkeeper.queue WHERE id = %s", crowd.queue_ids[PLAIN]) == "c9"
