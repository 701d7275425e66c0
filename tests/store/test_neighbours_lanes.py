"""Lanes of queues that bound their tenants: rooms, openings and limiters are of one lane of one queue, also where lanes collide (Q12, Q14)."""

import json
from collections import Counter
from typing import Any

from fixtures.neighbours import BOUNDED, PLAIN
from store.walks import FEW, LEAST, TENANTS, Walks

RULES = (
    "DELETE FROM poolkeeper.tenant_rule;"
    "INSERT INTO poolkeeper.tenant_rule (queue_id, tenant, lane, max_running, suspended) SELECT q.id, x.t, poolkeeper.lane_key(0, x.t),"
    " CASE WHEN (q.id + x.n) %% 3 > 0 THEN 1 + (q.id + x.n) %% 7 END, (q.id + x.n) %% 3 = 0"
    " FROM poolkeeper.queue AS q, unnest(%s::text[]) WITH ORDINALITY AS x (t, n)"
)
"""Of each queue and tenant something else; the last tenant has no rule."""

MANY = ("a.b", "a.c", "f.g")


def ruled(walks: Walks) -> dict[tuple[int, int], int]:
    """(queue, lane) -> how many more may run, counted by hand."""
    rules, change = RULES.split(";")
    walks.owner.execute(rules)
    walks.owner.execute(change, [list(TENANTS[:3])])
    walks.owner.execute(
        "UPDATE poolkeeper.queue SET per_tenant_max = 5 + id, lanes_kept = id % 2 = 0, part_paused = true; DELETE FROM poolkeeper.lane"
    )
    held = Counter(walks.answers("SELECT queue_id, lane FROM poolkeeper.lease"))
    found = {}
    for queue_id in walks.queue_ids.values():
        for n, lane in enumerate(walks.lanes(), 1):
            kind = (queue_id + n) % 3
            most = 5 + queue_id if n == len(TENANTS) else 0 if kind == 0 else 1 + (queue_id + n) % 7
            suspended = n < len(TENANTS) and kind == 0
            found[queue_id, lane] = 0 if suspended else max(0, most - held[queue_id, lane])
    return found


def openings(walks: Walks) -> Counter[tuple[Any, ...]]:
    return Counter(walks.answers("SELECT queue_id, lane FROM poolkeeper.opening"))


def test_room_is_of_one_lane_of_one_queue(walks: Walks) -> None:
    """Q12: by its tenant's rule there, else the queue's, less what runs there."""
    for (queue_id, lane), room in ruled(walks).items():
        assert walks.answers("SELECT poolkeeper.lane_room(%s, %s)", queue_id, lane) == [(room,)]
    walks.owner.execute("UPDATE poolkeeper.queue SET per_tenant_max = NULL WHERE id = %s", [walks.queue_ids[PLAIN]])
    free = walks.answers("SELECT poolkeeper.lane_room(%s, %s)", walks.queue_ids[PLAIN], walks.lanes()[-1])
    assert free == [(2**31 - 1,)]


def test_who_is_suspended_or_stopped_is_so_in_one_queue(walks: Walks) -> None:
    """Q16, O1: by name where a name is known, by lane and type else; and only while the queue says that some are."""
    ruled(walks)
    types = walks.types("a.b", "a.c")
    walks.owner.execute(
        "UPDATE poolkeeper.queue SET paused_type_keys = %s WHERE id = %s", [types[:1], walks.queue_ids[PLAIN]]
    )
    for queue_id in walks.queue_ids.values():
        for n, (tenant, lane) in enumerate(zip(TENANTS, walks.lanes(), strict=True), 1):
            suspended = n < len(TENANTS) and (queue_id + n) % 3 == 0
            assert walks.answers("SELECT poolkeeper.suspends(%s, %s)", queue_id, tenant) == [(suspended,)]
            for key in types:
                paused = queue_id == walks.queue_ids[PLAIN] and key == types[0]
                code = "queue_paused" if paused else "tenant_suspended" if suspended else None
                assert walks.answers("SELECT poolkeeper.stopped(%s, %s, %s)", queue_id, lane, key) == [(code,)]
    walks.owner.execute("UPDATE poolkeeper.queue SET part_paused = false, paused = id = %s", [walks.queue_ids[BOUNDED]])
    for queue_id in walks.queue_ids.values():
        code = "queue_paused" if queue_id == walks.queue_ids[BOUNDED] else None
        assert walks.answers("SELECT poolkeeper.stopped(%s, %s, %s)", queue_id, walks.lanes()[0], types[1]) == [(code,)]


def test_a_queue_keeps_its_list_if_a_tenant_of_its_is_bounded(walks: Walks) -> None:
    """Q12: by its own policy, whatever others say; and its rules are replaced whole, no other's."""
    ruled(walks)
    before = set(walks.answers("SELECT queue_id, tenant FROM poolkeeper.tenant_rule"))
    home = walks.queue_ids[PLAIN]
    policies: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False),
        ({"per_tenant_max": 3}, True),
        ({"tenants": [{"name": "n", "weight": 2}]}, False),
        ({"tenants": [{"name": "n", "max_running": 2}, {"name": "m"}]}, True),
        ({"suspended_tenants": ["s", "s"], "tenants": [{"name": "n", "weight": 2}]}, True),
        ({"suspended_tenants": ["n"], "tenants": [{"name": "n", "weight": 2}]}, True),
    )
    for spec, keeps in policies:
        assert walks.answers("SELECT poolkeeper.set_tenant_rules(%s, %s)", home, json.dumps(spec)) == [(keeps,)]
        weights = {tenant["name"]: tenant.get("weight", 1) for tenant in spec.get("tenants", [])}
        suspended = set(spec.get("suspended_tenants", []))
        rules = walks.answers("SELECT queue_id, tenant, suspended, weight FROM poolkeeper.tenant_rule")
        mine = sorted(row[1:] for row in rules if row[0] == home)
        assert mine == sorted((name, name in suspended, weights.get(name, 1)) for name in weights.keys() | suspended)
        assert {row[:2] for row in rules if row[0] != home} == {each for each in before if each[0] != home}


def test_what_begins_to_be_counted_is_of_one_queue(walks: Walks) -> None:
    """Q12: its leases are marked, its lanes with work opened; another one's are not."""
    home = walks.queue_ids[PLAIN]
    walks.owner.execute(
        "UPDATE poolkeeper.lease SET counted = started_at IS NULL AND queue_id % 2 = 1; DELETE FROM poolkeeper.opening"
    )
    walks.owner.execute("UPDATE poolkeeper.lease SET counted = false WHERE queue_id <> %s", [home])
    marked = set(walks.answers("SELECT ctid, task_id FROM poolkeeper.lease WHERE counted"))
    assert marked
    walks.answers("SELECT poolkeeper.count_running(%s)", home)
    assert marked < set(walks.answers("SELECT ctid, task_id FROM poolkeeper.lease WHERE counted"))
    assert walks.answers("SELECT DISTINCT queue_id FROM poolkeeper.lease WHERE counted") == [(home,)]
    assert walks.answers("SELECT 1 FROM poolkeeper.lease WHERE queue_id = %s AND NOT counted", home) == []
    walks.answers("SELECT poolkeeper.open_all_lanes(%s)", home)
    assert openings(walks) == {(home, row.lane): 1 for row in walks.ready(PLAIN)}


def test_a_sweep_opens_what_has_work_and_room(walks: Walks) -> None:
    """Q12, Q14: of queues that keep their list, what is not open; once."""
    room = ruled(walks)
    kept = {queue_id for queue_id in walks.queue_ids.values() if queue_id % 2 == 0}
    work = set(walks.answers("SELECT DISTINCT queue_id, lane FROM poolkeeper.ready"))
    walks.owner.execute("DELETE FROM poolkeeper.opening")
    wanted = {(queue_id, lane) for queue_id, lane in work if queue_id in kept and room[queue_id, lane] > 0}
    assert wanted < {each for each in work if each[0] in kept}
    assert walks.answers("SELECT poolkeeper.sweep_lanes(%s)", FEW) == [(len(wanted),)]
    assert openings(walks) == dict.fromkeys(wanted, 1)
    assert walks.answers("SELECT poolkeeper.sweep_lanes(%s)", FEW) == [(0,)]
    gone = min(wanted)
    walks.owner.execute("DELETE FROM poolkeeper.opening WHERE (queue_id, lane) = (%s, %s)", gone)
    walks.owner.execute(
        "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT q.id, %s FROM poolkeeper.queue AS q WHERE q.id <> %s",
        [gone[1], gone[0]],
    )
    assert walks.answers("SELECT poolkeeper.sweep_lanes(%s)", FEW) == [(1,)]
    walks.owner.execute("UPDATE poolkeeper.queue SET lanes_kept = false; DELETE FROM poolkeeper.opening")
    assert walks.answers("SELECT poolkeeper.sweep_lanes(%s)", FEW) == [(0,)]


def test_lanes_without_work_or_room_are_shut(walks: Walks) -> None:
    """Q14: of one queue those that were named; the others are told in their order, one reason left of each."""
    room = ruled(walks)
    for queue_id in walks.queue_ids.values():
        walks.owner.execute("DELETE FROM poolkeeper.opening")
        walks.owner.execute(
            "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT q.id, l FROM poolkeeper.queue AS q,"
            " unnest(%s::bigint[]) WITH ORDINALITY AS x (l, n), generate_series(1, 1 + (q.id + x.n) %% 2)",
            [[*walks.lanes(), 7]],
        )
        walks.owner.execute(
            "UPDATE poolkeeper.ready SET queue_id = 99 WHERE queue_id = %s AND lane = %s", [queue_id, walks.lanes()[-1]]
        )
        before = openings(walks)
        numbers = walks.answers("SELECT queue_id, lane, no FROM poolkeeper.opening")
        work = {row.lane for row in walks.scene.rows("SELECT lane FROM poolkeeper.ready WHERE queue_id = %s", queue_id)}
        asked = [*reversed(walks.lanes()), 7]
        open_ = [lane for lane in asked if lane in work and room[queue_id, lane] > 0]
        assert 0 < len(open_) < len(asked)
        assert walks.answers("SELECT poolkeeper.shut_lanes(%s, %s)", queue_id, asked) == [(open_,)]
        after = {each: n for each, n in before.items() if each[0] != queue_id} | {(queue_id, lane): 1 for lane in open_}
        assert openings(walks) == after
        stayed = {row for row in numbers if row[0] != queue_id or (row[1] in open_ and before[row[:2]] == 1)}
        left = set(walks.answers("SELECT queue_id, lane, no FROM poolkeeper.opening"))
        assert {row for row in left if row in numbers} == stayed


def test_limiters_are_made_and_taken_lane_by_lane(walks: Walks) -> None:
    """Q12: those that are named of one queue, in their order, as many as are asked for, and none twice."""
    ruled(walks)
    home, lanes = walks.queue_ids[BOUNDED], [*reversed(walks.lanes()), 7]
    walks.owner.execute(
        "INSERT INTO poolkeeper.lane SELECT q.id, l FROM poolkeeper.queue AS q, unnest(%s::bigint[]) AS l WHERE q.id <> %s",
        [[*lanes, 9], home],
    )
    others = set(walks.answers("SELECT * FROM poolkeeper.lane"))
    walks.answers("SELECT poolkeeper.make_lanes(%s, %s)", home, [9])
    for most in (2, FEW):
        assert walks.answers("SELECT poolkeeper.take_lanes(%s, %s, %s)", home, lanes, most) == [(lanes[:most],)]
    assert set(walks.answers("SELECT * FROM poolkeeper.lane")) == others | {(home, lane) for lane in (*lanes, 9)}
    assert walks.answers("SELECT current_setting('lock_timeout')") == [("0",)]


def test_open_lanes_are_offered_with_their_room(walks: Walks) -> None:
    """Q12: what is open, takes its turn and has work of the session's types; of both kinds or one; in two parts round the lanes."""
    room = ruled(walks)
    walks.owner.execute("UPDATE poolkeeper.ready SET spent = 0, failures = 0 WHERE lane = %s", [walks.lanes()[0]])
    ask = (
        "SELECT s._shares IS NULL, ARRAY(SELECT (u.lane, u.type_key, u.priority, u.again, u.n)::text FROM unnest(s._shares) AS u), s._more, s._after, s._busy, s._alone"
        " FROM poolkeeper.queue AS q CROSS JOIN LATERAL poolkeeper.open_shares(q, %s, %s, %s, %s, %s, %s) AS s WHERE q.id = %s"
    )
    for queue, queue_id in walks.queue_ids.items():
        walks.owner.execute("DELETE FROM poolkeeper.opening")
        walks.owner.execute(
            "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT q.id, l FROM poolkeeper.queue AS q, unnest(%s::bigint[]) AS l WHERE (q.id = %s) = (l <> %s)",
            [walks.lanes(), queue_id, walks.lanes()[1]],
        )
        opened = [lane for lane in sorted(walks.lanes()) if lane != walks.lanes()[1]]
        for again, names in ((None, MANY), (False, MANY), (True, MANY), (None, ("d.e",))):
            keys = walks.types(*names)
            for only, besides in ((None, []), (walks.lanes()[:3], []), (None, walks.lanes()[2:3])):
                for after in (LEAST, opened[0], opened[1]):
                    with walks.owner.transaction(force_rollback=True):
                        ((none, shares, more, then, busy, _),) = walks.answers(
                            ask, again, keys, only, besides, 900, after, queue_id
                        )
                        taken = {
                            lane
                            for (lane,) in walks.answers(
                                "SELECT lane FROM poolkeeper.lane WHERE queue_id = %s", queue_id
                            )
                        }
                    wanted = {
                        f"({r.lane},{r.type_key},{r.priority},{'t' if r.again else 'f'},{min(900, room[queue_id, r.lane])})"
                        for r in walks.ready(queue, again=again)
                        if r.lane in opened
                        and r.lane not in besides
                        and (only is None or r.lane in only)
                        and r.type_key in keys
                        and room[queue_id, r.lane] > 0
                    }
                    assert set(shares) == wanted, (queue, again, only, besides, after)
                    assert len(shares) == len(wanted)
                    assert taken == {int(share[1:].split(",")[0]) for share in wanted}
                    assert (none, more, then, busy) == (not wanted, False, after, False)


def test_suspects_have_room_by_their_own_lanes(walks: Walks) -> None:
    """Q12, Q27: of each lane as many as it has room for, the likeliest innocent first; where no list is kept all of them."""
    room = ruled(walks)
    walks.owner.execute(
        "INSERT INTO poolkeeper.suspect (task_id, queue_id, priority, lane, type_key, seq, ready_at, misses)"
        " SELECT r.task_id, r.queue_id, r.priority, r.lane, r.type_key, r.seq, r.ready_at, r.seq % 3 FROM poolkeeper.ready AS r;"
        "DELETE FROM poolkeeper.ready"
    )
    rows = walks.scene.rows("SELECT * FROM poolkeeper.suspect ORDER BY misses, seq")
    asked = [row for n, row in enumerate(rows) if n % 5]
    wanted, taken = set(), Counter[tuple[int, int]]()
    for row in asked:
        taken[row.queue_id, row.lane] += 1
        if row.queue_id % 2 or taken[row.queue_id, row.lane] <= room[row.queue_id, row.lane]:
            wanted.add(row.task_id)
    assert len(wanted) < len(asked)
    ((told,),) = walks.answers("SELECT poolkeeper.suspects_with_room(%s)", [row.task_id for row in asked])
    assert set(told) == wanted
    assert len(told) == len(wanted)


def test_limiters_and_openings_that_nobody_needs_go(walks: Walks) -> None:
    """Q14: openings of queues that keep no list or are gone; limiters of lanes where nothing runs or is open; as many as are asked for."""
    ruled(walks)
    held = set(walks.answers("SELECT queue_id, lane FROM poolkeeper.lease"))
    kept = {queue_id for queue_id in walks.queue_ids.values() if queue_id % 2 == 0}
    idle = [11, 12, -13]
    walks.owner.execute("DELETE FROM poolkeeper.opening")
    walks.owner.execute(
        "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT u, l FROM unnest(%s::integer[]) AS u, unnest(%s::bigint[]) AS l",
        [[*walks.queue_ids.values(), 99], idle[1:]],
    )
    walks.owner.execute(
        "INSERT INTO poolkeeper.lane SELECT u, l FROM unnest(%s::integer[]) AS u, unnest(%s::bigint[]) AS l",
        [[*walks.queue_ids.values(), 99], [*walks.lanes(), *idle]],
    )
    there = set(walks.answers("SELECT * FROM poolkeeper.lane"))
    walks.answers("SELECT poolkeeper.forget_lanes(1)")
    assert len(there) - walks.answers("SELECT count(*) FROM poolkeeper.lane")[0][0] <= 1
    for _ in range(200):
        walks.answers("SELECT poolkeeper.forget_lanes(%s)", FEW)
        left = set(walks.answers("SELECT * FROM poolkeeper.lane"))
        assert {each for each in there if each in held or (each[0] in kept and each[1] in idle[1:])} <= left
        if all(each in held or (each[0] in kept and each[1] in idle[1:]) for each in left):
            break
    else:
        raise AssertionError("limiters that nobody needs stay")
    assert openings(walks) == {(queue_id, lane): 1 for queue_id in kept for lane in idle[1:]}


def test_who_reaches_a_lane(walks: Walks) -> None:
    """Q11: by type, by tenants that it takes or leaves out, and live where that is asked for."""
    ask = "SELECT poolkeeper.reaches(%s::poolkeeper.reach[], 5, 1, %s)"
    for reach, known, live in (
        (None, False, False),
        ('{"(\\"{1,2}\\",,{},t)"}', True, True),
        ('{"(\\"{1,2}\\",,{},f)"}', True, False),
        ('{"(\\"{2,3}\\",,{},t)"}', False, False),
        ('{"(\\"{1,2}\\",\\"{5,6}\\",{},t)"}', True, True),
        ('{"(\\"{1,2}\\",\\"{6,7}\\",{},t)"}', False, False),
        ('{"(\\"{1,2}\\",,\\"{5,6}\\",t)"}', False, False),
        ('{"(\\"{1,2}\\",,\\"{6,7}\\",t)"}', True, True),
        ('{"(\\"{2,3}\\",,{},t)","(\\"{1}\\",,{},f)"}', True, False),
    ):
        assert walks.answers(ask, reach, False) == [(known,)], reach
        assert walks.answers(ask, reach, True) == [(live,)], reach


def test_who_can_run_what_is_said_queue_by_queue(walks: Walks) -> None:
    """Q11: of sessions that are heard of, not drained and not ended, and of each pool's last; whole ones apart from narrow ones."""
    one, two, three, four, five, six = (walks.types(f"type.{n}")[0] for n in range(6))
    home, other = walks.queue_ids[PLAIN], walks.queue_ids[BOUNDED]
    walks.owner.execute(
        "UPDATE poolkeeper.session SET ended_at = now(); UPDATE poolkeeper.pool SET known_queues = NULL, known_keys = NULL, known_types = NULL"
    )
    walks.owner.execute("UPDATE poolkeeper.queue SET visibility_timeout = '60 s' WHERE id = %s", [other])
    new = (
        "INSERT INTO poolkeeper.session (id, secret_hash, pool_id, role, queues, queue_ids, types, type_keys, tenants, tenants_except, concurrency, info, registered_at, renewed_at, ended_at, draining)"
        " SELECT gen_random_uuid(), '', %s, 'r', '{}', %s, '{}', %s, %s, %s, 1, '{}', poolkeeper.clock(), poolkeeper.clock() - make_interval(secs => %s), CASE WHEN %s THEN now() END, %s"
    )
    pool = walks.pool_id()
    for ids, key, tenants, but, silent, ended, draining in (
        ([home], one, None, None, 0, False, False),
        ([home, other], two, None, None, 30, False, False),
        ([other], three, ["t1"], None, 0, False, False),
        ([home], four, None, ["t2"], 0, False, False),
        ([home], five, None, None, 0, True, False),
        ([home], six, None, None, 0, False, True),
    ):
        walks.owner.execute(new, [pool, ids, [key], tenants, but, silent, ended, draining])
    walks.owner.execute(
        "UPDATE poolkeeper.pool SET known_queues = '{default/plain,other/bounded,elsewhere/plain}', known_keys = %s WHERE id = %s",
        [[six], pool],
    )
    told = {
        row[0]: row[1:]
        for row in walks.answers(
            "SELECT queue_id, live, known, array_length(narrow, 1), named FROM poolkeeper.capable(NULL, poolkeeper.clock())"
        )
    }
    assert told == {
        home: ([one], sorted([one, six]), 1, ["t2"]),
        other: ([two], [two], 1, ["t1"]),
    }
    for queue_id, wanted in told.items():
        (alone,) = walks.answers(
            "SELECT live, known, array_length(narrow, 1), named FROM poolkeeper.capable(%s, poolkeeper.clock())",
            queue_id,
        )
        assert alone == wanted
