"""The history tells everything, once and in order, and replays to the present state (Q1, Q2, Q3)."""

import random
import threading
import time
from typing import Any

import pytest

from poolkeeper.codes import Code, Reason
from poolkeeper.errors import CLASSES
from poolkeeper.store import calls, run
from store.scene import Scene, seconds

ARROWS = {
    None: {"ready", "scheduled"},
    "scheduled": {"ready", "canceled", "dead"},
    "waiting": {"ready", "canceled", "dead"},
    "ready": {"leased", "running", "canceled", "dead"},
    "leased": {"running", "ready", "canceled", "dead"},
    "running": {"ready", "scheduled", "waiting", "succeeded", "failed", "canceled", "dead"},
    "dead": {"ready", "canceled"},
}


def replay(rows: list[Any]) -> tuple[str | None, int]:
    """Fold a timeline; every step must be an arrow of the state machine and raise the version by one."""
    state, version = None, 0
    for row in rows:
        if row.state is None:
            assert row.state_version == version  # an event beside the states
            continue
        assert row.state in ARROWS[state], (state, row)
        assert row.state_version == version + 1
        state, version = row.state, row.state_version
    return state, version


def test_a_life_with_everything_in_it(scene: Scene) -> None:
    """Q2: accepted, started, ended with cause and build, woke, requeued, in order, with who and why."""
    task_id = scene.submit(delay=seconds(5), max_deliveries=2)
    worker = scene.worker(build="3fa9")
    scene.advance(6)
    scene.sweep()
    worker.fail(worker.take(), "first", retry_after=seconds(1))
    scene.advance(2)
    worker.settle(worker.take(), "snoozed", retry_after=seconds(1))
    scene.advance(2)
    worker.fail(worker.take(), "second")
    scene.ask("person", calls.requeue(task_id, who="ann", why="mended"))
    worker.succeed(worker.take())
    rows = scene.ask("reader", calls.timeline(task_id))
    assert [(r.what, r.delivery, r.outcome, r.state) for r in rows] == [
        ("accepted", None, None, "scheduled"),
        ("woke", None, None, "ready"),
        ("started", 1, None, "running"),
        ("ended", 1, "failed", "scheduled"),
        ("woke", None, None, "ready"),
        ("started", 2, None, "running"),
        ("ended", 2, "snoozed", "waiting"),
        ("woke", None, None, "ready"),
        ("started", 3, None, "running"),
        ("ended", 3, "failed", "dead"),
        ("requeued", None, None, "ready"),
        ("started", 4, None, "running"),
        ("ended", 4, "succeeded", "succeeded"),
    ]
    assert [r.error for r in rows if r.error] == ["first", "second"]
    assert {r.build for r in rows if r.what == "ended"} == {"3fa9"}
    assert {r.session_id for r in rows if r.delivery} == {worker.session.id}
    assert [r.at for r in rows] == sorted(r.at for r in rows)
    assert replay(rows) == ("succeeded", 13)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_replay_to_the_present_state(scene: Scene, seed: int) -> None:
    """Q2: whatever happened, the fold of each timeline is what the task is now."""
    rng = random.Random(seed)
    scene.queue(max_hand_backs=2, max_snoozes=2, visibility_timeout_seconds=10)
    ids = [
        scene.submit(
            delay=rng.choice([None, seconds(3)]),
            max_age=rng.choice([None, seconds(300)]),
            max_deliveries=rng.choice([1, 3]),
        )
        for _ in range(12)
    ]
    worker = scene.worker()
    outcomes = ["succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled"]
    for _ in range(14):
        scene.advance(rng.choice([0, 1, 5, 12]))
        if rng.random() < 0.8:
            worker.renew()
        answer = worker.turn(want=rng.randint(0, 3), sweep=rng.random() < 0.5, lost=rng.random() < 0.2)
        claimed = answer.claimed or (worker.claim(1, isolated=True) if answer.isolate else [])
        for delivery in claimed:
            if rng.random() < 0.7:
                worker.settle(delivery, rng.choice(outcomes), retry_after=rng.choice([None, seconds(0)]))
        verb = rng.choice([calls.cancel, calls.requeue, calls.requeue, calls.discard])
        scene.ask("person", verb(rng.choice(ids), who="ann", why="x"))
    for task_id in ids:
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert replay(scene.ask("reader", calls.timeline(task_id))) == (view.state, view.state_version)


def test_history_holds_no_user_content(scene: Scene) -> None:
    """Q2: no payload, result or checkpoint in what is exported."""
    columns = {
        r[0]
        for r in scene.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'poolkeeper' AND table_name = 'history'"
        )
    }
    assert not columns & {"payload", "result", "checkpoint", "labels"}


def test_rows_for_exporters_can_be_read_in_commit_safe_order(scene: Scene) -> None:
    """Contract 8: a rising number and the transaction, below the oldest running one."""
    scene.submit()
    worker = scene.worker()
    worker.fail(worker.take(), retry_after=seconds(0))
    worker.renew()
    worker.succeed(worker.take())
    rows = scene.rows(
        "SELECT no, tx FROM poolkeeper.delivery UNION ALL SELECT no, tx FROM poolkeeper.event ORDER BY no"
    )
    assert len(rows) == 3
    assert len({r.no for r in rows}) == 3
    assert [int(r.tx) for r in rows] == sorted(int(r.tx) for r in rows)


@pytest.mark.parametrize(("table", "column", "enum"), [("code", "code", Code), ("reason", "reason", Reason)])
def test_the_lists_of_codes_and_reasons_are_the_same_in_sql_and_python(
    scene: Scene, table: str, column: str, enum: Any
) -> None:
    """Contract 6, Q3: one list."""
    rows = scene.rows(f"SELECT {column} AS name, sentence FROM poolkeeper.{table}")
    assert {r.name for r in rows} == {str(member) for member in enum}
    assert all(r.sentence for r in rows)


def test_each_codes_class_is_the_exceptions(scene: Scene) -> None:
    """Contract 2: the class in SQL is the one that Python raises."""
    rows = scene.rows("SELECT code, class AS kind FROM poolkeeper.code")
    assert {r.code: r.kind for r in rows} == {str(code): kind.__name__ for code, kind in CLASSES.items()}


def test_every_reason_has_an_action(scene: Scene) -> None:
    """Q3: a sentence and what to do."""
    assert scene.rows("SELECT reason FROM poolkeeper.reason WHERE action = ''") == []


@pytest.mark.usefixtures("this_month_again")
def test_months_get_partitions_ahead_and_rows_find_their_place(scene: Scene) -> None:
    """Contract 8: this month and the next two, made once; deliveries land in their month's."""
    assert scene.ask("operator", calls.maintain()).made == 0
    names = {
        r[0]
        for r in scene.rows(
            "SELECT relname FROM pg_class WHERE relname ~ '^(delivery|event)_standard_[0-9]{6}$' AND relkind = 'r'"
        )
    }
    # on the last day of a month others went into the next one by some hours, and the stage is shared: there may be more
    assert names >= {
        f"{kind}_standard_{scene.value('SELECT to_char(date_trunc(%s, now()) + make_interval(months => %s), %s)', 'month', n, 'YYYYMM')}"
        for kind in ("delivery", "event")
        for n in range(3)
    }
    scene.submit()
    worker = scene.worker()
    worker.succeed(worker.take())
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery_standard_rest") == 0
    scene.advance(40 * 86400)
    assert scene.ask("operator", calls.maintain()).made >= 2


@pytest.mark.usefixtures("this_month_again")
def test_a_month_that_has_rows_without_a_partition_of_its_own_is_left_to_the_rest(scene: Scene) -> None:
    """Contract 8: a task of a month for which nobody had made one stays where it is, and the upkeep goes on."""
    scene.submit()
    worker = scene.worker()
    worker.succeed(worker.take())
    first = (
        "poolkeeper.id_floor((date_trunc('month', now() AT TIME ZONE 'UTC') + interval '5 months') AT TIME ZONE 'UTC')"
    )
    scene.owner.execute(
        f"INSERT INTO poolkeeper.delivery SELECT (jsonb_populate_record(d, jsonb_build_object('task_id', {first}))).* FROM poolkeeper.delivery AS d"
    )
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery_standard_rest") == 1
    month = scene.value("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '5 months', 'YYYYMM')")
    scene.advance(120 * 86400)
    assert scene.ask("operator", calls.maintain()).made >= 2
    there = [
        scene.value("SELECT to_regclass(%s)::text", f"poolkeeper.{t}_standard_{month}") for t in ("event", "delivery")
    ]
    assert there == [f"poolkeeper.event_standard_{month}", None]
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery_standard_rest") == 1
    scene.owner.execute("DELETE FROM poolkeeper.delivery_standard_rest")


@pytest.mark.usefixtures("this_month_again")
def test_a_month_that_gets_a_row_while_the_upkeep_waits_for_it_stays(scene: Scene) -> None:
    """Contract 8: whoever writes into a month that has passed holds it up for a moment, and keeps it."""
    scene.submit()
    worker = scene.worker()
    worker.succeed(worker.take())
    month = scene.value("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')")
    table = f"delivery_standard_{month}"
    first = "poolkeeper.id_floor(date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')"
    keeping = f"CREATE TEMP TABLE kept AS SELECT (jsonb_populate_record(d, jsonb_build_object('task_id', {first}))).* FROM poolkeeper.delivery AS d"
    scene.owner.execute(keeping)
    scene.owner.execute("DELETE FROM poolkeeper.delivery")
    scene.owner.execute("DELETE FROM poolkeeper.event")
    scene.owner.execute("DELETE FROM poolkeeper.task")
    scene.advance(70 * 86400)
    conn = scene.connect("operator")
    upkeep = threading.Thread(target=lambda: run(conn, calls.maintain()))
    with scene.owner.transaction():
        scene.owner.execute("INSERT INTO poolkeeper.delivery SELECT * FROM kept")
        upkeep.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
        while upkeep.is_alive() and not scene.value(waits, conn.info.backend_pid):
            time.sleep(0.001)
    upkeep.join(60)
    assert scene.value("SELECT to_regclass(%s)::text", f"poolkeeper.{table}") == f"poolkeeper.{table}"
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery") == 1
    scene.owner.execute("DELETE FROM poolkeeper.delivery")
