"""Low-water marks are of one kind of one queue, whatever lies beside it, and give nothing that a walk would not (Q11, Q13, Q14, ADR 0028)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from fixtures.neighbours import PLAIN, Crowd
from store.walks import TYPES, Walks

SHARES = "ARRAY(SELECT ROW((f ->> 0)::bigint, (f ->> 1)::bigint, (f ->> 2)::smallint, 0, 1, (f ->> 3)::boolean, (f ->> 4)::bigint)::poolkeeper.share FROM jsonb_array_elements(%s::jsonb) AS f)"
NOW = "'2026-11-30 12:00+00'::timestamptz"
FOREVER = 2**62


def kind(row: Any) -> list[Any]:
    return [row.lane, row.type_key, row.priority, row.again]


def floors(rows: Iterable[Any]) -> str:
    """The marks as a worker brings them along."""
    return (
        "[" + ", ".join(f"[{lane}, {key}, {p}, {str(again).lower()}, {at}]" for lane, key, p, again, at in rows) + "]"
    )


def test_a_mark_is_raised_to_the_next_of_its_kind(walks: Walks) -> None:
    """Q14: of its queue, lane, type, priority and deliveries, above where it was; where there is none, it stays."""
    ask = f"SELECT f.floor FROM poolkeeper.raised(%s, ROW(now(), true, {SHARES})::poolkeeper.marks) AS m, unnest(m.floors) WITH ORDINALITY AS f ORDER BY f.ordinality"
    everywhere = {tuple(kind(row)) for queue in walks.queue_ids for row in walks.ready(queue)}
    for queue, queue_id in walks.queue_ids.items():
        rows = walks.ready(queue)
        seqs = sorted(row.seq for row in rows)
        asked = [(*each, at) for each in sorted(everywhere) for at in (0, *seqs, FOREVER)]
        told = walks.answers(ask, queue_id, floors(asked))
        above = [
            min((row.seq - 1 for row in rows if kind(row) == each and row.seq > at), default=at) for *each, at in asked
        ]
        assert told == [(at,) for at in above]


def test_marks_are_taken_for_what_is_asked(walks: Walks) -> None:
    """Q11, Q13: of the types that the session runs, retries or first deliveries or both; alone only where one is left."""
    rows = walks.ready(PLAIN)
    every = sorted({tuple(kind(row)) for row in rows})
    ask = f"SELECT s.lane, s.type_key, s.priority, s.again, s.floor, s.n, m._alone, m._more FROM poolkeeper.marked_shares({SHARES}, %s, %s, 7, 5) AS m, unnest(m._shares) AS s ORDER BY 1, 2, 3, 4"
    for again in (True, False, None):
        for names in (["a.b"], ["a.c", "f.g"], list(TYPES), ["no.such"]):
            keys = walks.types(*names)
            wanted = [each for each in every if again in {None, each[3]} and each[1] in keys]
            told = walks.answers(ask, floors((*each, n) for n, each in enumerate(every)), again, keys)
            assert told == [(*each, every.index(each), 7, len(wanted) == 1, False) for each in wanted]
    lonely = [row for row in every if row[3]][:1]
    (one,) = walks.answers(ask, floors((*each, 1) for each in lonely), None, [lonely[0][1]])
    assert one[6]


@pytest.mark.parametrize(
    ("said", "there"),
    [
        ({}, True),
        ({"until": -1}, True),  # over: the session walks, and its marks are told anew
        ({"until": 59}, True),
        ({"until": 61}, False),
        ({"until": None}, False),
        ({"retries": None}, False),
        ({"retries": "no word"}, False),
        ({"floors": [[1, 2]]}, True),
        ({"floors": 3}, False),
    ],
)
def test_marks_are_read_where_they_can_be(walks: Walks, said: Mapping[str, Any], there: bool) -> None:
    """Q14, Q54: for a minute ahead at most, and with a word on retries; of the queue that is asked for and no other."""
    mine, other = walks.queue_ids[PLAIN], max(walks.queue_ids.values())
    told = {"until": 30, "retries": False, "floors": [[1, 2, 3, True, 4]], **said}
    if isinstance(told["until"], int):
        told["until"] += int(walks.answers(f"SELECT extract(epoch FROM {NOW})")[0][0])
    cursor = json.dumps({f"{mine}m": told})
    ask = f"SELECT (m).until IS NOT NULL, (m).retries, cardinality((m).floors) FROM (SELECT poolkeeper.marks_of(%s::jsonb, %s, {NOW}) AS m) AS x"
    assert walks.answers(ask, cursor, mine) == [(True, False, 1) if there else (False, None, None)]
    assert walks.answers(ask, cursor, other) == [(False, None, None)]


@pytest.mark.parametrize(
    ("seen", "passed", "marked"),
    [(0, 9000, False), (1, 1080, True), (1, 1079, False), (200, 9000, True), (201, 9000, False)],
)
def test_marks_are_left_by_a_walk_that_passed_much(walks: Walks, seen: int, passed: int, marked: bool) -> None:
    """ADR 0028: a thousand entries, and eight for each task that was wanted; of 200 kinds, which a session can carry."""
    many = f"ARRAY(SELECT ROW(n, 1, 1, 0, 1, false, 0)::poolkeeper.share FROM generate_series(1, {seen}) AS n)"
    ask = f"SELECT cardinality((poolkeeper.first_marks(%s, {many}, false, %s, '0', 10, {NOW})).floors)"
    assert walks.answers(ask, walks.queue_ids[PLAIN], passed) == [(seen if marked else None,)]


@pytest.mark.parametrize(
    ("passed", "spent", "seconds"), [(2000, 0, 0.02), (2000, 0.3, 3), (2000, 5, 10), (9_000_000, 0, 10)]
)
def test_marks_last_by_what_was_read_and_how_long_that_took(
    walks: Walks, passed: int, spent: float, seconds: float
) -> None:
    """ADR 0028: so that a slow machine walks as seldom as a fast one; ten seconds at most."""
    one = "ARRAY[ROW(1, 1, 1, 0, 1, false, 0)::poolkeeper.share]"
    ask = f"SELECT extract(epoch FROM (poolkeeper.first_marks(%s, {one}, false, %s, make_interval(secs => %s), 10, {NOW})).until - {NOW})::float"
    assert walks.answers(ask, walks.queue_ids[PLAIN], passed, spent) == [(seconds,)]


def test_what_lies_below_a_mark_takes_nobodys_place(walks: Walks) -> None:
    """Q13, Q14: shares are dealt and granted of what lies above it, so that no room is kept for what is not given."""
    queue_id = walks.queue_ids[PLAIN]
    walks.owner.execute("UPDATE poolkeeper.ready SET expires_at = NULL")
    there: dict[tuple[Any, ...], list[int]] = {}
    for row in walks.ready(PLAIN):
        there.setdefault(tuple(kind(row)), []).append(row.seq)
    marked = {each: seqs[0] - n % 2 for n, (each, seqs) in enumerate(there.items())}
    above = {each: found for each, seqs in there.items() if (found := [seq for seq in seqs if seq > marked[each]])}
    assert 2 < len(above) < len(there)
    shares = (
        "ARRAY(SELECT ROW(s.lane, s.type_key, s.priority, 900, 1, s.again, s.floor)::poolkeeper.share FROM unnest("
        + SHARES
        + ") AS s)"
    )
    marks = floors((*each, at) for each, at in marked.items())
    dealt = walks.answers(
        f"SELECT s.lane, s.type_key, s.priority, s.again, s.n FROM poolkeeper.queue AS q, poolkeeper.deal(q, 900, {NOW}, {shares}, 0, 0) AS d, unnest(d._shares) AS s WHERE q.id = %s",
        *(marks, queue_id),
    )
    assert {row[:4]: row[4] for row in dealt} == {each: len(seqs) for each, seqs in above.items()}
    granted = walks.answers(
        f"SELECT a.task_id FROM poolkeeper.queue AS q, poolkeeper.session AS s, poolkeeper.grant_shares(q, s, 99, {shares}, 900, {NOW}) AS a WHERE q.id = %s AND s.id = %s",
        *(marks, queue_id, walks.worker.session.id),
    )
    seqs = walks.answers("SELECT seq FROM poolkeeper.lease WHERE turn = 99")
    assert sorted(seq for (seq,) in seqs) == sorted(seq for each in above.values() for seq in each)
    assert len(granted) == len(seqs)


def test_whatever_its_marks_say_a_session_gets_what_it_runs(crowd: Crowd) -> None:
    """Q11, O5: nothing of another type, or of a type that is paused by now."""
    scene, queue_id = crowd.scene, crowd.queue_ids[PLAIN]
    for type_ in ("a.b", "a.c", "x.y"):
        scene.submit(type_, queue=PLAIN)
    there = scene.rows(
        "SELECT DISTINCT lane, type_key, priority, again FROM poolkeeper.ready WHERE queue_id = %s", queue_id
    )
    told: Any = {
        "until": scene.value("SELECT extract(epoch FROM poolkeeper.clock())::float8") + 30,
        "retries": True,
        "floors": json.loads(floors((*kind(row), 0) for row in there)),
    }
    scene.queue(PLAIN, paused_task_types=["a.c"])
    worker = scene.worker(pool="local/marks", queues=[PLAIN], types=("a.b", "a.c"))
    worker.session.cursor.update({f"{queue_id}m": told})
    assert {claimed.type for claimed in worker.claim(50)} == {"a.b"}
    scene.queue(PLAIN)
    worker.session.cursor.update({f"{queue_id}m": told})
    assert {claimed.type for claimed in worker.claim(50)} == {"a.c"}
