"""The walks of a claim, which leap from lane to lane, see what a plain look sees, also where lanes of queues and tenants collide (Q11-Q14).

A lane is a hash of its queue and its tenant. Here those of all queues are the same, so that a look which forgets to say whose
lane it means finds its neighbours'.
"""

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, QUEUES
from store.walks import FEW, LEAST, TENANTS, Walks, places

KINDS = [(queue, again) for queue in QUEUES for again in (False, True)]


def test_heads_are_the_first_of_each_kind(walks: Walks) -> None:
    """Q11: of one queue, of first deliveries or of retries, behind a lane."""
    for queue, again in KINDS:
        queue_id = walks.queue_ids[queue]
        rows = walks.ready(queue, again=again)
        assert len({row.lane for row in rows}) > 2
        for after in places([row.lane for row in rows]):
            wanted: dict[tuple[int, ...], Any] = {}
            for row in rows:
                if row.lane > after:
                    wanted.setdefault((row.lane, row.type_key, row.priority), (row.seq, row.task_id, row.ready_at))
            told = walks.answers("SELECT * FROM poolkeeper.heads(%s, %s, %s, %s)", queue_id, again, after, FEW)
            assert told == [(*kind, *first) for kind, first in wanted.items()]
            assert walks.answers("SELECT * FROM poolkeeper.heads(%s, %s, %s, 2)", queue_id, again, after) == told[:2]


def test_a_walk_for_own_types_finds_each_once(walks: Walks) -> None:
    """Q11: what it can run, of lanes that it takes; of others it sees one for each gap between its types, and no more."""
    served = [walks.types(*names) for names in (("a.b",), ("a.c", "d.e"), ("a.b", "f.g", "x.y"), ("no.such",))]
    for keys, (queue, again) in [(keys, kind) for keys in served for kind in KINDS[:4]]:
        queue_id = walks.queue_ids[queue]
        rows = walks.ready(queue, again=again)
        lanes = places([row.lane for row in rows])[1:-1]
        ends = places([*lanes, lanes[0] - 1])
        for after, until in [(after, until) for after in ends for until in ends if after < until]:
            for besides in ([], lanes[1:2], lanes):
                told = walks.answers(
                    "SELECT * FROM poolkeeper.own_heads(%s, %s, %s, %s, %s, %s, %s)",
                    *(queue_id, again, keys, besides, after, until, FEW),
                )
                mine = [row for row in told if row[1] in keys and row[0] not in besides]
                inside = [row for row in rows if after < row.lane <= until]
                heads: dict[tuple[int, int, int], int] = {}
                for r in inside:
                    if r.type_key in keys and r.lane not in besides:
                        kind = (r.lane, r.type_key, r.priority)
                        heads[kind] = min(r.seq, heads.get(kind, r.seq))
                assert mine == sorted((*kind, seq) for kind, seq in heads.items())
                assert len(told) == len(set(told))
                assert {row[0] for row in told} <= {row.lane for row in inside}
                seen_in: dict[int, int] = defaultdict(int)
                for lane, type_key, _, _ in told:
                    seen_in[lane] += lane in besides or type_key not in keys
                assert all(seen <= (1 if lane in besides else len(keys) + 1) for lane, seen in seen_in.items())
        for lane in lanes:
            told = walks.answers(
                "SELECT * FROM poolkeeper.heads_of_lane(%s, %s, %s, %s, %s)", queue_id, again, lane, keys, FEW
            )
            here = sorted((r.type_key, r.priority, r.seq) for r in rows if r.lane == lane and r.type_key in keys)
            assert told == [row for n, row in enumerate(here) if row[:2] != here[n - 1][:2] or n == 0]


def test_lanes_are_walked_one_by_one(walks: Walks) -> None:
    """Q12: those with work, and those that are open; of one queue, between two places."""
    for queue, queue_id in walks.queue_ids.items():
        lanes = sorted({row.lane for row in walks.ready(queue)})
        opened = sorted(
            {lane for (lane,) in walks.answers("SELECT lane FROM poolkeeper.opening WHERE queue_id = %s", queue_id)}
        )
        assert opened
        for after in places(lanes):
            behind = [(lane,) for lane in lanes if lane > after]
            assert walks.answers("SELECT poolkeeper.next_lane(%s, %s)", queue_id, after) == [
                behind[0] if behind else (None,)
            ]
            for most in (FEW, 1):
                assert (
                    walks.answers("SELECT * FROM poolkeeper.lanes_with_work(%s, %s, %s)", queue_id, after, most)
                    == behind[:most]
                )
            for until in places(lanes):
                between = [(lane,) for lane in opened if after < lane <= until]
                for most in (FEW, 1):
                    told = walks.answers(
                        "SELECT * FROM poolkeeper.opened(%s, %s, %s, %s)", queue_id, after, until, most
                    )
                    assert told == between[:most]
    only = "SELECT poolkeeper.next_lane(%s, %s)"
    for again in (False, True):  # of either kind alone
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute("DELETE FROM poolkeeper.ready WHERE again <> %s", [again])
            for queue, queue_id in walks.queue_ids.items():
                first, second = sorted({row.lane for row in walks.ready(queue)})[:2]
                assert walks.answers(only, queue_id, LEAST) == [(first,)]
                with walks.owner.transaction(force_rollback=True):  # others still have work in it
                    walks.owner.execute(
                        "DELETE FROM poolkeeper.ready WHERE queue_id = %s AND lane = %s", [queue_id, first]
                    )
                    assert walks.answers(only, queue_id, LEAST) == [(second,)]


def test_shares_are_dealt_by_what_is_there(walks: Walks) -> None:
    """Q13: counted lane by lane, type by type and priority by priority, of one queue; what is too old takes nobody's place."""
    now = walks.scene.value("SELECT poolkeeper.clock()")
    for queue, queue_id in walks.queue_ids.items():
        there: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in walks.ready(queue):
            there[row.lane, row.type_key, row.priority, row.again] += row.expires_at is None or row.expires_at > now
        shares = "(SELECT array_agg(DISTINCT ROW(r.lane, r.type_key, r.priority, 900, 1, r.again, 0)::poolkeeper.share) FROM poolkeeper.ready AS r WHERE r.queue_id = q.id)"
        told = walks.answers(
            f"SELECT s.lane, s.type_key, s.priority, s.again, s.n FROM poolkeeper.queue AS q CROSS JOIN LATERAL poolkeeper.deal(q, 900, %s, {shares}, %s, 0) AS d"
            " CROSS JOIN LATERAL unnest(d._shares) AS s WHERE q.id = %s",
            *(now, LEAST, queue_id),
        )
        assert {row[:4]: row[4] for row in told} == {kind: n for kind, n in there.items() if n}
        assert len(told) == len({row[:4] for row in told})
        few = walks.answers(
            f"SELECT s.lane, sum(s.n)::integer FROM poolkeeper.queue AS q CROSS JOIN LATERAL poolkeeper.deal(q, 900, %s, {shares.replace('900', '2')}, %s, 0) AS d"
            " CROSS JOIN LATERAL unnest(d._shares) AS s WHERE q.id = %s GROUP BY s.lane",
            *(now, LEAST, queue_id),
        )
        assert dict(few) == {lane: min(2, sum(n for kind, n in there.items() if kind[0] == lane)) for lane, *_ in there}


def test_weights_are_of_the_own_queue(walks: Walks) -> None:
    """Q13: of its lanes, whatever the same lane weighs elsewhere."""
    rules = "INSERT INTO poolkeeper.tenant_rule (queue_id, tenant, lane, weight) SELECT q.id, x.t, poolkeeper.lane_key(0, x.t), q.id * 10 + x.n FROM poolkeeper.queue AS q, unnest(%s::text[]) WITH ORDINALITY AS x (t, n)"
    walks.owner.execute("DELETE FROM poolkeeper.tenant_rule")
    walks.owner.execute(rules, [list(TENANTS[:3])])
    for queue_id in walks.queue_ids.values():
        told = walks.answers(
            "SELECT s.weight FROM unnest(poolkeeper.weigh(%s, ARRAY(SELECT ROW(poolkeeper.lane_key(0, t), 1, 1, 1, 1, false, 0)::poolkeeper.share FROM unnest(%s::text[]) AS t))) AS s",
            *(queue_id, list(TENANTS)),
        )
        assert told == [(queue_id * 10 + 1,), (queue_id * 10 + 2,), (queue_id * 10 + 3,), (1,)]


def test_what_is_granted_is_what_was_dealt(walks: Walks) -> None:
    """Q10, Q51: of its queue, kind and tenant, by name where lanes collide, and not too old; with its own checkpoint and body."""
    limits: tuple[tuple[list[str] | None, list[str] | None], ...] = (
        (None, None),
        (["t1"], None),
        (None, ["t1", "t3"]),
        (["t1", "t2"], ["t2"]),
    )
    walks.owner.execute("UPDATE poolkeeper.ready SET lane = 7 WHERE lane <> poolkeeper.lane_key(0, 't4')")
    walks.owner.execute(
        "INSERT INTO poolkeeper.checkpoint SELECT r.task_id, 1, 1, 1, to_jsonb(r.task_id), now() FROM poolkeeper.ready AS r WHERE r.seq % 2 = 0 ON CONFLICT DO NOTHING;"
        "UPDATE poolkeeper.ready SET delivery = 1 WHERE seq % 4 < 2"
    )
    saved = dict(walks.answers("SELECT task_id, value FROM poolkeeper.checkpoint"))
    tenant = dict(walks.answers("SELECT id, tenant FROM poolkeeper.task"))
    kinds = [
        (queue, kind)
        for queue in (PLAIN, BOUNDED, LIMITED)
        for kind in {_kind(row): row for row in walks.ready(queue)}.values()
    ]
    for n, (queue, kind) in enumerate(kinds):
        tenants, besides = limits[n % len(limits)] if n % 2 else (None, None)
        rows = walks.ready(queue)
        wanted = {
            row.task_id: (
                tenant[row.task_id],
                saved.get(row.task_id) if row.delivery else None,
                row.delivery > 0 and row.task_id in saved,
            )
            for row in rows
            if _kind(row) == _kind(kind)
            and (row.expires_at is None or row.expires_at - row.ready_at > timedelta(hours=3))
            and (tenants is None or tenant[row.task_id] in tenants)
            and (besides is None or tenant[row.task_id] not in besides)
        }
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "UPDATE poolkeeper.session SET tenants = %s, tenants_except = %s WHERE id = %s",
                [tenants, besides, walks.worker.session.id],
            )
            told = walks.answers(
                "SELECT a.task_id, a.tenant, a.checkpoint FROM poolkeeper.queue AS q, poolkeeper.session AS s"
                " CROSS JOIN LATERAL poolkeeper.grant_shares(q, s, 99, ARRAY[ROW(%s, %s, %s, 900, 1, %s, 0)::poolkeeper.share], 900, poolkeeper.clock()) AS a"
                " WHERE q.id = %s AND s.id = %s",
                *(*_kind(kind), walks.queue_ids[queue], walks.worker.session.id),
            )
            marked = dict(
                walks.answers(
                    "SELECT task_id, checkpointed FROM poolkeeper.lease WHERE turn = 99 AND session_id = %s",
                    walks.worker.session.id,
                )
            )
        assert {row[0]: (*row[1:], marked[row[0]]) for row in told} == wanted


def _kind(row: Any) -> tuple[Any, ...]:
    return row.lane, row.type_key, row.priority, row.again


def test_the_stage_has_something_to_confuse(walks: Walks) -> None:
    """In each queue the same lanes, in several of which there are retries and first deliveries of the same types."""
    lanes = [{row.lane for row in walks.ready(queue)} for queue in QUEUES]
    assert all(each == lanes[0] for each in lanes)
    for queue in QUEUES:
        kinds = [{(row.lane, row.type_key) for row in walks.ready(queue, again=again)} for again in (False, True)]
        assert kinds[0] & kinds[1]


def test_what_waits_is_counted_queue_by_queue_and_lane_by_lane(walks: Walks) -> None:
    """Q7: up to a bound and no further, wherever it waits; and so it is noted for those who have half of what they may."""
    places_ = ("ready", "later", "suspect", "ordered")
    rows = [row for table in places_ for row in walks.scene.rows(f"SELECT queue_id, lane FROM poolkeeper.{table}")]
    in_queue = Counter(row.queue_id for row in rows)
    in_lane = Counter((row.queue_id, row.lane) for row in rows)
    ready = Counter((row.queue_id, row.lane) for row in walks.scene.rows("SELECT queue_id, lane FROM poolkeeper.ready"))
    for queue_id, n in in_queue.items():
        for most in (1, n - 3, n, n + 1, FEW):
            assert walks.answers("SELECT poolkeeper.count_waiting(%s, %s)", queue_id, most) == [(min(n, most),)]
    for (queue_id, lane), n in in_lane.items():
        for most in (1, n, n + 1, FEW):
            told = walks.answers("SELECT poolkeeper.count_waiting_of(%s, %s, %s, 900, 0)", queue_id, lane, most)
            assert told == [(min(n, most),)]
        # no further than the first of those that are not ready: what was counted last is the least then
        short = walks.answers("SELECT poolkeeper.count_waiting_of(%s, %s, %s, 1, 77)", queue_id, lane, FEW)
        assert short == [(77,)]
        assert (
            walks.answers("SELECT poolkeeper.count_waiting_of(%s, %s, %s, 1, 0)", queue_id, lane, FEW)[0][0]
            >= ready[queue_id, lane]
        )
    bounds = dict(zip(sorted(in_queue), (20, 40, 12, 30), strict=True))
    home, other = walks.queue_ids[PLAIN], walks.queue_ids[LIMITED]
    walks.owner.execute(
        "UPDATE poolkeeper.queue SET max_waiting = 30, max_waiting_per_tenant = NULL, tenant_max_waiting = '{}'"
    )
    for queue_id, bound in bounds.items():
        walks.owner.execute("UPDATE poolkeeper.queue SET max_waiting_per_tenant = %s WHERE id = %s", [bound, queue_id])
    walks.owner.execute("UPDATE poolkeeper.queue SET max_waiting = NULL WHERE id = %s", [other])
    walks.owner.execute(
        "INSERT INTO poolkeeper.backlog SELECT q.id, 5, poolkeeper.clock() - interval '1 h', '0' FROM poolkeeper.queue AS q"
        " ON CONFLICT (queue_id) DO UPDATE SET waiting = 5, counted_at = EXCLUDED.counted_at;"
        "DELETE FROM poolkeeper.backlog_lane; INSERT INTO poolkeeper.backlog_lane SELECT q.id, 5, 5 FROM poolkeeper.queue AS q"
    )
    for asked in ([home], None):
        walks.answers("SELECT poolkeeper.fold_backlog(%s)", asked)
        done = [home] if asked else list(bounds)
        counted = dict(walks.answers("SELECT queue_id, waiting FROM poolkeeper.backlog"))
        assert counted == {q: (0 if q == other else min(in_queue[q], 30)) if q in done else 5 for q in bounds}
        noted = {(q, lane): n for q, lane, n in walks.answers("SELECT * FROM poolkeeper.backlog_lane")}
        wanted = {(q, lane): n for (q, lane), n in in_lane.items() if q in done and 2 * n >= bounds[q]}
        assert noted == wanted | {(q, 5): 5 for q in bounds if q not in done}
    assert 2 < len(wanted) < len(in_lane)
    # what was counted just now is not counted again, and a lane of which the count is the same is not written again
    rows_ = "SELECT ctid, * FROM poolkeeper.backlog_lane ORDER BY queue_id, lane"
    before = walks.answers(rows_)
    walks.owner.execute(
        "UPDATE poolkeeper.backlog SET counted_at = poolkeeper.clock() - interval '1 h' WHERE queue_id <> %s", [home]
    )
    walks.owner.execute(
        "UPDATE poolkeeper.backlog SET waiting = 6, counted_at = poolkeeper.clock(), took = '1 s' WHERE queue_id = %s",
        [home],
    )
    walks.answers("SELECT poolkeeper.fold_backlog(NULL)")
    assert walks.answers(rows_) == before
    again = dict(walks.answers("SELECT queue_id, waiting FROM poolkeeper.backlog"))
    assert again == {q: 6 if q == home else n for q, n in counted.items()}


def test_who_holds_something_is_found_once(walks: Walks) -> None:
    """Q22: each session with a lease, by a probe; and each queue with tasks, with keys to look at, that the caller may see."""
    held = walks.answers(
        "SELECT DISTINCT l.session_id, s.renewed_at FROM poolkeeper.lease AS l JOIN poolkeeper.session AS s ON s.id = l.session_id ORDER BY 1"
    )
    assert len(held) > 2
    assert sorted(walks.answers("SELECT * FROM poolkeeper.holders()")) == held
    ids = sorted(walks.queue_ids.values())
    walks.owner.execute(
        "DELETE FROM poolkeeper.gate_due; INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT q.id, 1 FROM poolkeeper.queue AS q, generate_series(1, 2)"
    )
    due = "SELECT poolkeeper.due_queues(a) FROM (SELECT ROW('x', NULL, %s::text[], NULL, NULL)::poolkeeper.access) AS x (a)"
    assert walks.answers(due, None) == [(ids,)]
    assert walks.answers(due, [f"default/{PLAIN}"]) == [([walks.queue_ids[PLAIN]],)]
    tables = ("ready", "ordered", "gate_due", "later", "suspect", "dead", "lease")
    for table in tables:
        with walks.owner.transaction(force_rollback=True):
            for other in tables:
                if other != table:
                    walks.owner.execute(f"DELETE FROM poolkeeper.{other}")
            for after, then in zip([-1, *ids], [*ids, None], strict=True):
                assert walks.answers("SELECT poolkeeper.next_with_tasks(%s)", after) == [(then,)], table


def test_figures_count_each_kind_in_its_own_lane(walks: Walks) -> None:
    """O10, O12: what is ready by type, in each queue, whatever lies in the same lanes of others; what is due but not moved counts as well."""
    now = walks.scene.value("SELECT poolkeeper.clock()")
    ask = "SELECT poolkeeper.queue_stats(q, %s, NULL, NULL, NULL, NULL) FROM poolkeeper.queue AS q WHERE q.id = %s"
    walks.owner.execute(
        "UPDATE poolkeeper.queue SET lanes_kept = false, retry_share = 100; DELETE FROM poolkeeper.gate_due;"
        "UPDATE poolkeeper.later SET due_at = poolkeeper.clock() - interval '1 s' WHERE task_id IN (SELECT DISTINCT ON (l.queue_id, l.wait_reason IS NULL) l.task_id FROM poolkeeper.later AS l)"
    )
    name = dict(walks.answers("SELECT id, type FROM poolkeeper.task"))
    for queue, queue_id in walks.queue_ids.items():
        ((told,),) = walks.answers(ask, now, queue_id)
        rows = walks.ready(queue)
        places_ = ("later", "suspect", "ordered", "dead", "lease")
        later, suspect, ordered, dead, lease = (
            walks.scene.rows(f"SELECT * FROM poolkeeper.{place} WHERE queue_id = %s", queue_id) for place in places_
        )
        due = [row for row in later if row.due_at <= now]
        assert {row.wait_reason is None for row in due} == {True, False}
        waiting = [row for row in later if row not in due]
        assert told["ready"] == len(rows) + len(suspect) + len(due)
        assert told["scheduled"] == sum(row.wait_reason is None for row in waiting) + sum(
            row.due_at is not None for row in ordered
        )
        assert told["waiting"] == sum(row.wait_reason is not None for row in waiting)
        assert told["ordering"] == sum(row.due_at is None for row in ordered)
        assert (told["dead"], told["running"]) == (len(dead), sum(row.started_at is not None for row in lease))
        assert told["leased"] == sum(row.started_at is None for row in lease)
        assert told["suspects"] == len(suspect)
        by_type: Counter[str] = Counter()
        for each in told["types"]:
            by_type[each["type"]] += each["ready"]
        assert +by_type == Counter(name[row.task_id] for row in rows)
        assert told["next_due"] == pytest.approx(min((row.due_at - now).total_seconds() for row in waiting), abs=1e-3)


def test_retries_are_there_where_they_are(walks: Walks) -> None:
    """Q13: in one queue, and of no first delivery; and first deliveries are counted further only where it matters."""
    home = walks.queue_ids[PLAIN]
    has, firsts = "SELECT poolkeeper.has_retries(%s)", "SELECT poolkeeper.firsts(%s, %s, %s)"
    for queue, queue_id in walks.queue_ids.items():
        n = len(walks.ready(queue, again=False))
        assert 0 < n < len(walks.ready(queue))
        assert walks.answers(firsts, queue_id, 5000, 20_000) == [(n,)]
        for seen, most in ((4999, 20_000), (6000, 6000), (20_000, 6000)):
            assert walks.answers(firsts, queue_id, seen, most) == [(seen,)]
        assert walks.answers(has, queue_id) == [(True,)]
    walks.owner.execute("DELETE FROM poolkeeper.ready WHERE again AND queue_id = %s", [home])
    assert walks.answers(has, home) == [(False,)]
    walks.owner.execute("UPDATE poolkeeper.ready SET spent = 1, failures = 1 WHERE queue_id = %s", [home])
    assert walks.answers(has, home) == [(True,)]


def test_walks_of_both_kinds_pass_over_no_lane(walks: Walks) -> None:
    """Q13: where one of them did not come to its end, nothing of the other from behind there, round the lanes."""
    home = walks.queue_ids[PLAIN]
    many = "INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, spent, failures) SELECT gen_random_uuid(), %s, 0, l, t, now(), a, a FROM unnest(%s::bigint[]) AS l, generate_series(1, %s) AS t, unnest(%s::integer[]) AS a"
    ask = "SELECT s._more, s._after, ARRAY(SELECT DISTINCT u.lane FROM unnest(s._shares) AS u ORDER BY 1) FROM poolkeeper.mixed_shares(%s, %s, NULL, '{}', 1, %s) AS s"
    walks.owner.execute("DELETE FROM poolkeeper.ready WHERE queue_id = %s", [home])
    walks.owner.execute(many, [home, [10, 20, 30, 40], 3, [1]])
    walks.owner.execute(many, [home, [20], 80, [0]])
    types = list(range(1, 81))
    for after, lanes in ((LEAST, [10, 20]), (9, [10, 20]), (15, [20]), (20, [10, 20, 30, 40]), (35, [10, 20, 40])):
        assert walks.answers(ask, home, types, after) == [(True, after, lanes)], after
    walks.owner.execute("DELETE FROM poolkeeper.ready WHERE queue_id = %s AND type_key > 3", [home])
    assert walks.answers(ask, home, types, 15) == [(False, 15, [10, 20, 30, 40])]
