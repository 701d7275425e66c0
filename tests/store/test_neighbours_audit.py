"""The audit names what is broken and nothing beside it, page by page, in a crowd that is whole (Q61)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fixtures.neighbours import BOUNDED, HOUR, LIMITED, PLAIN, Crowd
from poolkeeper.audit import Audit
from poolkeeper.store import Settle, calls, run

PLACES = ("ready", "later", "suspect", "lease", "dead")
COUNTERS = ("spent", "failures", "expiries", "hand_backs", "snoozes", "delivery")
ONE_PLACE = "every task is in exactly one place"
BODY = "nothing is placed without its body"
ERASED = "nothing was erased of a task that has not ended"
TOKEN = "no token repeats"
NUMBERS = "deliveries of a task are numbered without gaps"
TIMES = "each ended delivery has an outcome, a next state and times in order"
GAPLESS = "state versions are gapless"
REPLAY = "history replays to the present state"
ARROWS = "only the arrows of the state machine were taken"
SUMS = "counters add up to the history since the last requeue"
REASON = "a dead letter has a reason that the list explains"
CURSOR = "an ended task keeps no cursor"
GATE = "a task carries the gate of its ordering key wherever it is"
ALONE = "of an ordering key at most one task is under way"
LOOKS = "where an ordering key is free and a task waits for it, somebody will look"
LANE = "a lane that could be served is open where tenants are bounded"


class Auditor:
    """Breaks something in a transaction that is given up afterwards, and hears what the audit says, page by page."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.owner = crowd.scene.owner
        self.ids = [row.id for row in crowd.scene.rows("SELECT id FROM poolkeeper.task ORDER BY id")]

    def says(self, *breaks: str, page: int = 40, **values: Any) -> Counter[tuple[str, UUID]]:
        found: Counter[tuple[str, UUID]] = Counter()
        with self.owner.transaction(force_rollback=True):
            for each in breaks:
                self.owner.execute(each, values or None)
            for start in range(0, len(self.ids), page):
                found.update(
                    self.owner.execute(
                        "SELECT * FROM poolkeeper.broken_invariants(%s)", [self.ids[start : start + page]]
                    ).fetchall()
                )
        return found

    def demand(self, wanted: Sequence[str], task: UUID, *breaks: str, **values: Any) -> None:
        """Of this task these, perhaps more; of no other anything; and each once, whatever the pages."""
        found = self.says(*breaks, task=task, **values)
        assert {invariant for invariant, _ in found} >= set(wanted), (breaks, found)
        assert {each for _, each in found} == {task}, (breaks, found)
        assert set(found.values()) == {1}, (breaks, found)


def one_in(crowd: Crowd, place: str, queue: str = PLAIN) -> UUID:
    """A task of a queue in a place."""
    found: UUID = crowd.scene.value(
        f"SELECT task_id FROM poolkeeper.{place} WHERE queue_id = %s ORDER BY gate NULLS FIRST, task_id LIMIT 1",
        crowd.queue_ids[queue],
    )
    return found


def test_each_break_is_told_of_its_own_task(crowd: Crowd) -> None:
    """Q61: in each place, each counter and each row of history, of one among many."""
    audit = Auditor(crowd)
    assert audit.says() == {}
    assert audit.says(page=1000) == {}
    for place in (*PLACES, "ordered"):
        task = one_in(crowd, place)
        audit.demand([ONE_PLACE, REPLAY], task, f"DELETE FROM poolkeeper.{place} WHERE task_id = %(task)s")
        audit.demand([BODY], task, "DELETE FROM poolkeeper.task WHERE id = %(task)s")
        for what in ("payload", "result"):
            audit.demand([ERASED], task, f"UPDATE poolkeeper.task SET {what}_erased_at = now() WHERE id = %(task)s")
        audit.demand([GATE], task, f"UPDATE poolkeeper.{place} SET gate = 7 WHERE task_id = %(task)s")
        audit.demand(
            [GAPLESS if place == "lease" else REPLAY],
            task,
            f"UPDATE poolkeeper.{place} SET state_version = state_version + 1 WHERE task_id = %(task)s",
        )
        for counter in COUNTERS if place != "ordered" else ("delivery",):
            audit.demand(
                [SUMS], task, f"UPDATE poolkeeper.{place} SET {counter} = {counter} + 1 WHERE task_id = %(task)s"
            )
    ended = crowd.scene.value(
        "SELECT task_id FROM poolkeeper.delivery WHERE queue_id = %s AND next_state = 'succeeded' LIMIT 1",
        crowd.queue_ids[PLAIN],
    )
    audit.demand(
        [CURSOR], ended, "INSERT INTO poolkeeper.checkpoint SELECT %(task)s, 1, 1, 1, '1', now() ON CONFLICT DO NOTHING"
    )
    for change, wanted in (
        ("delivery = 2", NUMBERS),
        ("ended_at = claimed_at - interval '1 s'", TIMES),
        ("started_at = claimed_at - interval '1 s'", TIMES),
        ("next_state = 'nowhere'", TIMES),
        ("state_version = state_version + 1", GAPLESS),
        ("next_state = 'dead'", ONE_PLACE),
        ("started_at = NULL", ARROWS),
    ):
        audit.demand([wanted], ended, f"UPDATE poolkeeper.delivery SET {change} WHERE task_id = %(task)s")
    audit.demand(
        [ONE_PLACE],
        ended,
        "INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) SELECT %(task)s, 1, now(), 'canceled', 4",
    )
    letter = one_in(crowd, "dead")
    audit.demand(
        [REASON],
        letter,
        "ALTER TABLE poolkeeper.dead DROP CONSTRAINT dead_reason_fkey",
        "UPDATE poolkeeper.dead SET reason = 'bad luck' WHERE task_id = %(task)s",
    )
    audit.demand(
        [SUMS],
        letter,
        "INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) SELECT %(task)s, 1, now(), 'requeued', 4",
    )


def test_one_token_of_two_is_told_once(crowd: Crowd) -> None:
    """Q61: within a page, of two ended deliveries, or of one that runs."""
    audit = Auditor(crowd)
    two = crowd.scene.rows("SELECT task_id FROM poolkeeper.delivery ORDER BY task_id LIMIT 2")
    one, running = two[0].task_id, one_in(crowd, "lease")
    again = "UPDATE poolkeeper.delivery SET token_hash = (SELECT token_hash FROM poolkeeper.{} WHERE task_id = %(other)s) WHERE task_id = %(task)s"
    for table, other in (("delivery", two[1].task_id), ("lease", running)):
        found = audit.says(again.format(table), page=10_000, task=one, other=other)
        assert found == {(TOKEN, min(one, other)): 1}
        assert audit.says(again.format(table), page=1, task=one, other=other) == {}


def test_two_of_a_key_are_both_told(crowd: Crowd) -> None:
    """Q9, Q61: in whichever two places."""
    audit = Auditor(crowd)
    places = ("ready", "later", "suspect", "lease")
    for one in places:
        for other in places:
            if one == other:
                continue
            tasks = {one_in(crowd, one), one_in(crowd, other)}
            found = audit.says(
                *(f"UPDATE poolkeeper.{place} SET gate = 7 WHERE task_id = ANY (%(tasks)s)" for place in (one, other)),
                tasks=list(tasks),
            )
            assert {task for invariant, task in found if invariant == ALONE} == tasks
            assert {task for invariant, task in found if invariant == GATE} == tasks
            assert set(found.values()) == {1}


def test_a_key_that_nobody_looks_at_is_told(crowd: Crowd) -> None:
    """Q9, Q61: only where it is free: nothing of it under way, and nothing dead that blocks it; of each key its head alone."""
    scene, worker = crowd.scene, crowd.worker
    heads: dict[tuple[str, str], UUID] = {}
    endings: list[Settle] = []
    for way in ("later", "lease", "suspect", "dead"):
        for queue in (PLAIN, LIMITED):
            delay = HOUR if way == "later" else None
            first, second = (crowd.submit(queue, ordering_key=f"to-{way}", delay=delay) for _ in range(2))
            scene.sweep()
            heads[queue, way] = second
            if way != "later":
                (one,) = [c for c in crowd._until(worker, first, None) if c.task_id == first]
                outcome = "dead" if way == "dead" else "failed"
                endings += [Settle(first, one.token, outcome, error_class="process_died")] if way != "lease" else []
    run(worker.conn, calls.turn(worker.session, worker.turn_no + 1, worker.received, endings, 0))
    for queue in (PLAIN, LIMITED):
        heads[queue, "free"], _ = (crowd.submit(queue, ordering_key="to-free") for _ in range(2))
    audit = Auditor(crowd)
    assert audit.says() == {}
    found = audit.says("DELETE FROM poolkeeper.gate_due")
    free = {heads[PLAIN, "free"], heads[LIMITED, "free"], heads[LIMITED, "dead"]}
    assert found == {(LOOKS, task): 1 for task in free & {task for _, task in found}}
    assert {heads[PLAIN, "free"], heads[LIMITED, "free"]} <= {task for _, task in found}
    younger = "UPDATE poolkeeper.task SET ordering_no = (SELECT o.place + 1 FROM poolkeeper.ordered AS o WHERE o.task_id = %(head)s) WHERE id IN (SELECT d.task_id FROM poolkeeper.dead AS d JOIN poolkeeper.ordered AS o ON o.gate = d.gate WHERE o.task_id = %(head)s)"
    found = audit.says("DELETE FROM poolkeeper.gate_due", younger, head=heads[PLAIN, "dead"])
    assert (LOOKS, heads[PLAIN, "dead"]) in found, "a letter that comes behind it blocks nothing"
    for table, way in (("later", "later"), ("lease", "lease"), ("suspect", "suspect"), ("dead", "dead")):
        gone = f"UPDATE poolkeeper.{table} SET gate = NULL WHERE gate = (SELECT o.gate FROM poolkeeper.ordered AS o WHERE o.task_id = %(head)s)"
        found = audit.says("DELETE FROM poolkeeper.gate_due", gone, head=heads[PLAIN, way])
        looked = {task for invariant, task in found if invariant == LOOKS}
        assert looked - {heads[LIMITED, "dead"]} == {heads[PLAIN, "free"], heads[LIMITED, "free"], heads[PLAIN, way]}, (
            way
        )


def test_a_shut_lane_is_told(crowd: Crowd) -> None:
    """Q12, Q61: each by its first task, only where tenants are bounded and there is room."""
    crowd.scene.sweep()
    audit = Auditor(crowd)
    home = crowd.queue_ids[BOUNDED]
    ready = crowd.scene.rows("SELECT task_id, lane FROM poolkeeper.ready WHERE queue_id = %s ORDER BY task_id", home)
    firsts = {row.lane: row.task_id for row in reversed(ready)}
    assert audit.says("DELETE FROM poolkeeper.opening", page=10_000) == {(LANE, task): 1 for task in firsts.values()}
    lane = ready[0].lane
    found = audit.says("DELETE FROM poolkeeper.opening WHERE lane = %(lane)s", page=10_000, lane=lane)
    assert found == {(LANE, firsts[lane]): 1}
    other = [row.task_id for row in ready if row.lane != lane][:1]
    with audit.owner.transaction(force_rollback=True):  # of what the page does not hold nothing is told
        audit.owner.execute("DELETE FROM poolkeeper.opening")
        told = audit.owner.execute("SELECT * FROM poolkeeper.broken_invariants(%s)", [other]).fetchall()
    assert told == [(LANE, other[0])]
    full = "UPDATE poolkeeper.tenant_rule SET max_running = 0"
    assert audit.says("UPDATE poolkeeper.queue SET per_tenant_max = 0", full, "DELETE FROM poolkeeper.opening") == {}


def test_pages_of_orphans_are_looked_at_once(crowd: Crowd) -> None:
    """Q61: rows without a body, in whichever table, are of some page, and of one only."""
    owner = crowd.scene.owner
    total = crowd.scene.value("SELECT count(*) FROM poolkeeper.task")
    keyed = crowd.scene.value("SELECT count(*) FROM poolkeeper.task_key")
    with owner.transaction(force_rollback=True):
        owner.execute("DELETE FROM poolkeeper.task")
        for size in (7, 1000):
            after, looked = UUID(int=0), 0
            for _ in range(total + 2):
                (ids,) = owner.execute("SELECT poolkeeper.audit_page(%s, %s)", [after, size]).fetchone() or ([],)
                if not ids:
                    break
                assert min(ids) > after
                after, looked = max(ids), looked + len(ids)
            assert looked == total
    audit = Audit()
    while not audit.done:
        assert audit.step(owner, page=5) == []
    assert (audit.looked_tasks, audit.looked_keys) == (total, keyed)


def test_what_changes_no_state_breaks_nothing(crowd: Crowd) -> None:
    """Q61: a cancel that was asked for, what woke, what was requeued; nor does a key that knows how its task ended."""
    scene = crowd.scene
    who: dict[str, Any] = {"who": "ann", "why": "x"}
    running = crowd.take(crowd.worker, PLAIN)
    scene.ask("person", calls.cancel(running.task_id, **who))
    scene.ask("person", calls.requeue(one_in(crowd, "dead"), **who))
    scene.owner.execute("UPDATE poolkeeper.later SET due_at = poolkeeper.clock() WHERE spent > 0")
    scene.sweep()
    assert scene.value("SELECT count(DISTINCT kind) FROM poolkeeper.event") >= 3
    assert Auditor(crowd).says() == {}
    broken = "SELECT count(*) FROM poolkeeper.audit_keys(0, 1000) WHERE invariant IS NOT NULL"
    with scene.owner.transaction(force_rollback=True):
        scene.owner.execute(
            "UPDATE poolkeeper.task_key SET task_id = gen_random_uuid(), ended_at = now(), last_state = 'failed'"
        )
        assert scene.value(broken) == 0
        scene.owner.execute("UPDATE poolkeeper.task_key SET ended_at = NULL, last_state = NULL")
        assert scene.value(broken) == 1


def test_a_policy_of_another_queue_excuses_nothing(crowd: Crowd) -> None:
    """Q61: what a hand-back cost is exact where the own policy is still the first."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    one = crowd.take(crowd.worker, PLAIN)
    crowd.worker.settle(one, "handed_back")
    scene.queue(BOUNDED, max_hand_backs=3)
    audit = Auditor(crowd)
    spent = "UPDATE poolkeeper.ready SET spent = spent + 1 WHERE task_id = %(task)s"
    assert audit.says(spent, task=one.task_id) == {(SUMS, one.task_id): 1}
    with scene.owner.transaction(force_rollback=True):
        scene.owner.execute("UPDATE poolkeeper.policy SET applied_at = poolkeeper.clock() WHERE queue_id = %s", [home])
        assert audit.says(spent, task=one.task_id) == {}


def test_pages_hold_what_is_noted_of_tasks_that_are_gone(crowd: Crowd) -> None:
    """Q61: once, behind the last page's end."""
    owner, gone = crowd.scene.owner, UUID(int=7)
    with owner.transaction(force_rollback=True):
        owner.execute(
            "INSERT INTO poolkeeper.retention_note (task_id, kind, queue_id, since) VALUES (%s, 'payload', 1, now())",
            [gone],
        )
        page = "SELECT poolkeeper.audit_page(%s, 1)"
        assert owner.execute(page, [UUID(int=0)]).fetchone() == ([gone],)
        assert owner.execute(page, [gone]).fetchone() != ([gone],)
