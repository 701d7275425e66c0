"""Ordering keys are of one queue, also where the hashes of two keys are equal; and a look that has been made is not made again (Q9, Q14)."""

from collections import Counter
from typing import Any

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, Crowd
from store.walks import FEW, Walks

KEY = 7
TABLES = ("ready", "later", "suspect", "lease", "dead")


def one_key(walks: Walks) -> dict[int, list[Any]]:
    """Every queue has the same key, free, with the same tasks behind it; answers them, queue by queue, in their order."""
    for table in TABLES:
        walks.owner.execute(f"UPDATE poolkeeper.{table} SET gate = NULL WHERE gate IS NOT NULL")
    walks.owner.execute(f"UPDATE poolkeeper.ordered SET gate = {KEY}")
    walks.owner.execute(
        "DELETE FROM poolkeeper.gate_due; DELETE FROM poolkeeper.opening; UPDATE poolkeeper.queue SET lanes_kept = true"
    )
    walks.owner.execute(
        f"INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT q.id, {KEY} FROM poolkeeper.queue AS q, generate_series(1, 2)"
    )
    rows = walks.scene.rows("SELECT * FROM poolkeeper.ordered ORDER BY place")
    found: dict[int, list[Any]] = {queue_id: [] for queue_id in walks.queue_ids.values()}
    for row in rows:
        found[row.queue_id].append(row)
    assert all(len(each) > 1 for each in found.values())
    return found


def due(walks: Walks) -> Counter[tuple[Any, ...]]:
    return Counter(walks.answers("SELECT queue_id, gate FROM poolkeeper.gate_due"))


def open_(walks: Walks, *queues: int) -> tuple[Any, ...]:
    ((n, busy, more),) = walks.answers("SELECT * FROM poolkeeper.open_gates(%s, %s)", list(queues), FEW)
    return n, busy, more


def test_a_gate_lets_through_its_own_queues_first(walks: Walks) -> None:
    """Q9: of the same key elsewhere nothing moves, and the reasons to look there stay."""
    tasks = one_key(walks)
    for done, queue in enumerate((PLAIN, LIMITED, BOUNDED), 1):
        home = walks.queue_ids[queue]
        walks.owner.execute("UPDATE poolkeeper.ready SET gate = NULL")
        heads = walks.answers(
            "SELECT task_id, gate, free, cardinality(due) FROM poolkeeper.key_heads(%s, %s)", home, FEW
        )
        assert heads == [(tasks[home][0].task_id, KEY, True, 2)]
        assert open_(walks, home) == (1, False, False)
        left = {
            row.task_id for row in walks.scene.rows("SELECT task_id FROM poolkeeper.ordered WHERE queue_id = %s", home)
        }
        assert left == {row.task_id for row in tasks[home][1:]}
        assert sum(due(walks).values()) == 2 * (len(tasks) - done)
        assert due(walks)[home, KEY] == 0
        assert (home, tasks[home][0].lane) in set(walks.answers("SELECT queue_id, lane FROM poolkeeper.opening"))
    assert len(walks.answers("SELECT * FROM poolkeeper.opening")) == 3
    # the key is taken now: looked at once, not again
    walks.owner.execute(
        "UPDATE poolkeeper.ready SET gate = %s WHERE task_id = %s", [KEY, tasks[walks.queue_ids[PLAIN]][0].task_id]
    )
    walks.owner.execute("UPDATE poolkeeper.queue SET ordering = 'block'")
    home = walks.queue_ids[PLAIN]
    walks.owner.execute("INSERT INTO poolkeeper.gate_due (queue_id, gate) VALUES (%s, %s)", [home, KEY])
    assert open_(walks, home) == (0, False, False)
    assert due(walks)[home, KEY] == 0


def test_a_key_with_nothing_behind_it_is_looked_at_once(walks: Walks) -> None:
    """Q14: a reason that moved nothing goes as well; one of a task that somebody has in hand stays."""
    tasks = one_key(walks)
    home = walks.queue_ids[PLAIN]
    walks.owner.execute("UPDATE poolkeeper.gate_due SET gate = 99 WHERE queue_id = %s", [home])
    assert open_(walks, home) == (0, False, False)
    assert due(walks)[home, 99] == 0
    assert len(walks.answers("SELECT 1 FROM poolkeeper.ordered WHERE queue_id = %s", home)) == len(tasks[home])


def test_what_is_scheduled_opens_no_lane(walks: Walks) -> None:
    """Q12, Q14: nor does a letter that goes back behind its key; what is claimable opens its own."""
    tasks = one_key(walks)
    home = walks.queue_ids[BOUNDED]
    walks.owner.execute("UPDATE poolkeeper.ordered SET due_at = poolkeeper.clock() + interval '1 h'")
    assert open_(walks, home) == (1, False, False)
    assert walks.answers("SELECT * FROM poolkeeper.opening") == []
    assert len(walks.answers("SELECT 1 FROM poolkeeper.later WHERE task_id = %s", tasks[home][0].task_id)) == 1
    letters = walks.scene.rows("SELECT * FROM poolkeeper.dead WHERE queue_id = %s ORDER BY task_id", home)
    for gate, lanes in ((KEY, []), (None, [(home, letters[0].lane)])):
        walks.owner.execute("UPDATE poolkeeper.dead SET gate = %s WHERE task_id = %s", [gate, letters[0].task_id])
        walks.owner.execute("UPDATE poolkeeper.task SET ordering_no = 1 WHERE id = %s", [letters[0].task_id])
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "SELECT poolkeeper.put_back(ARRAY(SELECT d FROM poolkeeper.dead AS d WHERE d.task_id = %s), poolkeeper.clock())",
                [letters[0].task_id],
            )
            assert walks.answers("SELECT queue_id, lane FROM poolkeeper.opening") == lanes
            place = "ordered" if gate else "ready"
            assert len(walks.answers(f"SELECT 1 FROM poolkeeper.{place} WHERE task_id = %s", letters[0].task_id)) == 1


def test_a_new_policy_looks_at_the_keys_of_its_own_letters(walks: Walks) -> None:
    """Q9: each once."""
    one_key(walks)
    home = walks.queue_ids[PLAIN]
    walks.owner.execute(f"DELETE FROM poolkeeper.gate_due; UPDATE poolkeeper.dead SET gate = {KEY} + queue_id")
    walks.answers("SELECT poolkeeper.reorder(%s)", home)
    assert due(walks) == {(home, KEY + home): 1}


def test_a_letter_blocks_those_behind_it_only(walks: Walks) -> None:
    """Q9: what came before it goes on."""
    tasks = one_key(walks)
    home = walks.queue_ids[PLAIN]
    letter = walks.scene.rows("SELECT task_id FROM poolkeeper.dead WHERE queue_id = %s", home)[0].task_id
    walks.owner.execute("UPDATE poolkeeper.dead SET gate = %s WHERE task_id = %s", [KEY, letter])
    walks.owner.execute("UPDATE poolkeeper.queue SET ordering = 'block'")
    for no, free in ((tasks[home][0].place - 1, False), (tasks[home][0].place + 1, True)):
        walks.owner.execute("UPDATE poolkeeper.task SET ordering_no = %s WHERE id = %s", [no, letter])
        told = walks.answers("SELECT task_id, free FROM poolkeeper.key_heads(%s, %s)", home, FEW)
        assert told == [(tasks[home][0].task_id, free)]


def test_only_gates_with_something_due_are_asked_for(walks: Walks) -> None:
    """Q9, Q14: whoever holds another one makes nobody come again."""
    one_key(walks)
    home, other = walks.queue_ids[PLAIN], walks.queue_ids[LIMITED]
    walks.owner.execute("DELETE FROM poolkeeper.gate_due WHERE queue_id = %s", [other])
    with walks.scene.connect("owner", autocommit=False) as holds:
        holds.execute(
            "SELECT 1 FROM poolkeeper.gate WHERE queue_id IN (%s, %s) FOR NO KEY UPDATE",
            [other, walks.queue_ids[BOUNDED]],
        )
        assert open_(walks, home, other) == (1, False, False)
        assert open_(walks, walks.queue_ids[BOUNDED]) == (0, True, False)
        holds.rollback()


def test_an_old_look_lets_nothing_through(crowd: Crowd) -> None:
    """Q9: in a transaction that sees what was."""
    scene = crowd.scene
    conn = scene.connect("owner", autocommit=False)
    scene.submit(queue=PLAIN, ordering_key="fresh")
    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    look = "SELECT n, busy FROM poolkeeper.open_gates(%s, 10)"
    assert conn.execute(look, [[crowd.queue_ids[PLAIN]]]).fetchone() == (0, False)
    conn.rollback()
    assert conn.execute(look, [[crowd.queue_ids[PLAIN]]]).fetchone() == (1, False)
    conn.rollback()


def test_figures_count_a_key_by_its_head(walks: Walks) -> None:
    """O12: one that could go is ready though nobody let it through yet; not where the key is taken, scheduled or of nothing."""
    tasks = one_key(walks)
    ask = "SELECT poolkeeper.queue_stats(q, poolkeeper.clock(), NULL, NULL, NULL, NULL) FROM poolkeeper.queue AS q WHERE q.id = %s"
    for home, mine in tasks.items():
        for change, free, scheduled in (
            ("SELECT 1", 1, 0),
            ("UPDATE poolkeeper.gate_due SET gate = 99", 0, 0),
            (f"UPDATE poolkeeper.suspect SET gate = {KEY}", 0, 0),
            ("UPDATE poolkeeper.ordered SET due_at = poolkeeper.clock() + interval '1 h'", 0, len(mine)),
        ):
            with walks.owner.transaction(force_rollback=True):
                walks.owner.execute(change)
                ((told,),) = walks.answers(ask, home)
                walks.owner.execute("DELETE FROM poolkeeper.ordered; DELETE FROM poolkeeper.gate_due")
                ((without,),) = walks.answers(ask, home)
            assert told["ready"] - without["ready"] == free, change
            assert told["scheduled"] - without["scheduled"] == scheduled, change
            assert told["ordering"] == (0 if scheduled else len(mine) - free), change


def test_the_audit_looks_at_keys_and_lanes_queue_by_queue(walks: Walks) -> None:
    """Q9, Q12, Q61: nobody's reason to look elsewhere stands for one that is missing here."""
    tasks = one_key(walks)
    ids = [task for (task,) in walks.answers("SELECT id FROM poolkeeper.task")]

    def told(invariant: str) -> set[Any]:
        return {
            task
            for name, task in walks.answers("SELECT * FROM poolkeeper.broken_invariants(%s)", ids)
            if name.startswith(invariant)
        }

    walks.owner.execute(
        "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT DISTINCT r.queue_id, r.lane FROM poolkeeper.ready AS r"
    )
    looks, lanes = "where an ordering key is free", "a lane that could be served"
    assert (told(looks), told(lanes)) == (set(), set())
    for queue in (PLAIN, BOUNDED):
        home = walks.queue_ids[queue]
        ready = walks.ready(queue)
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute("DELETE FROM poolkeeper.gate_due WHERE queue_id = %s", [home])
            walks.owner.execute(
                "INSERT INTO poolkeeper.gate_due (queue_id, gate) VALUES (%s, 99)", [home]
            )  # of another key
            walks.owner.execute(
                "DELETE FROM poolkeeper.opening WHERE queue_id = %s AND lane = %s", [home, ready[0].lane]
            )
            assert told(looks) == {tasks[home][0].task_id}
            assert told(lanes) == {min(row.task_id for row in ready if row.lane == ready[0].lane)}
