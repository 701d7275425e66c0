"""What a worker's login tries against what is not its own, each time beside a claim and a settle that it may do (Q51, Q17)."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, meanwhile, seconds

DENIED = {
    "tables": "SELECT * FROM poolkeeper.lease",
    "payloads": "SELECT payload FROM poolkeeper.task",
    "system columns": "SELECT ctid, xmin FROM poolkeeper.session",
    "views": "SELECT * FROM poolkeeper.tasks",
    "sequences": "SELECT last_value FROM poolkeeper.ready_seq",
    "locking a table": "DO $$ BEGIN LOCK TABLE poolkeeper.queue IN ACCESS SHARE MODE; END $$",
    "locking a row": "SELECT FROM poolkeeper.queue FOR UPDATE",
    "truncating": "TRUNCATE poolkeeper.event",
    "a block": "DO $$ BEGIN DELETE FROM poolkeeper.task; END $$",
    "an inner function": "SELECT poolkeeper.end_deliveries('{}', now())",
    "making a function in the schema": "CREATE FUNCTION poolkeeper.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "replacing the clock": "CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    "making a table in public": "CREATE TABLE public.task (x int)",
    "a trigger": "CREATE TRIGGER t BEFORE INSERT ON poolkeeper.task FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "another group": "SET ROLE poolkeeper_operator",
    "the owner": "SET SESSION AUTHORIZATION postgres",
    "triggers off": "SET session_replication_role = replica",
    "a program": "COPY (SELECT 1) TO PROGRAM 'true'",
    "a file": "COPY (SELECT 1) TO '/tmp/never'",
    "reading a file": "SELECT pg_read_file('PG_VERSION')",
    "granting itself": "GRANT SELECT ON poolkeeper.task TO PUBLIC",
    "access": "UPDATE poolkeeper.access SET queues = NULL",
    "an operator's call": "SELECT * FROM poolkeeper.stats(NULL)",
    "the limit of its pool": "SELECT poolkeeper.set_pool('team/a', NULL)",
    "another kind of login": "ALTER ROLE poolkeeper_worker SUPERUSER",
}  # fmt: skip

SETTINGS = (
    "row_security = off", "enable_indexscan = off", "enable_seqscan = off", "plan_cache_mode = force_custom_plan", "synchronous_commit = off",
    "DateStyle = 'German, DMY'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Kathmandu'", "standard_conforming_strings = off",
    "bytea_output = 'escape'", "extra_float_digits = -15", "work_mem = '64kB'", "lock_timeout = '1ms'", "xmloption = document",
)  # fmt: skip


@pytest.fixture
def mallory(scene: Scene) -> Iterator[psycopg.Connection]:
    """A worker's login of pool team/a and queue q, with the row that says so."""
    conn = scene.connect("worker")
    scene.queue("secret")
    scene.allow(scene.database.login("worker"), pool="team/a", queues=["default/q"])
    yield conn
    scene.allow(scene.database.login("worker"))


@pytest.fixture
def victim(scene: Scene, mallory: psycopg.Connection) -> tuple[Worker, Claimed]:
    """A delivery of a queue that is not the attacker's, held by the owner's own login."""
    scene.submit(queue="secret", tenant="other", payload="precious")
    held = scene.worker(queues=["secret"], pool="team/b", conn=scene.owner)
    assert not mallory.closed
    return held, held.take()


def works(scene: Scene, conn: psycopg.Connection) -> None:
    """The legitimate thing, by the same login on the same connection."""
    scene.submit()
    worker = scene.worker(pool="team/a", conn=conn)
    delivery = worker.take()
    assert worker.succeed(delivery, {"at": 1.5}).code is None
    assert scene.state(delivery.task_id) == "succeeded"


@pytest.mark.usefixtures("victim")
def test_nothing_but_the_functions_is_open_to_it(scene: Scene, mallory: psycopg.Connection) -> None:
    """Q51: tables, other groups, files, programs, the schema itself; and no text of an answer tells what is in there."""
    for words, statement in DENIED.items():
        with pytest.raises(psycopg.Error) as refused:
            mallory.execute(statement.encode())
        assert refused.value.sqlstate in {"42501", "22023"}, (words, refused.value)
        assert "precious" not in str(refused.value), words
    works(scene, mallory)


def test_a_foreign_delivery_is_answered_like_one_that_never_was(
    scene: Scene, mallory: psycopg.Connection, victim: tuple[Worker, Claimed]
) -> None:
    """Q51, Q17: with a guessed token, by every call that takes a task; and its worker goes on."""
    owner, delivery = victim
    mine = scene.worker(pool="team/a", conn=mallory)
    said = []
    for task_id in (delivery.task_id, uuid4()):
        settled = mine.turn([Settle(task_id, "pkt_AAAAAAAAAAAAAAAAAAAAAA", "failed")]).verdicts[0]
        saved = run(mallory, calls.checkpoint(task_id, "pkt_AAAAAAAAAAAAAAAAAAAAAA", 1, sequence=1))
        extended = run(mallory, calls.extend(task_id, "pkt_AAAAAAAAAAAAAAAAAAAAAA", seconds(60)))
        seen = run(mallory, calls.task(task_id)), run(mallory, calls.timeline(task_id))
        said.append((settled.code, settled.state, saved.code, extended.code, seen, len(mine.renew(task_id).lost)))
    assert said[0] == said[1]
    assert owner.succeed(delivery).code is None
    works(scene, mallory)


def test_another_logins_session_is_no_use_to_it(
    scene: Scene, mallory: psycopg.Connection, victim: tuple[Worker, Claimed]
) -> None:
    """Q17, Q51: not with its id and not with its secret: the login that registered it is a part of it."""
    owner, delivery = victim
    mine = scene.worker(pool="team/a", conn=mallory)
    for session, secret in (
        (owner.session.id, owner.session.secret),
        (owner.session.id, mine.session.secret),
        (mine.session.id, owner.session.secret),
        (UUID(int=0), mine.session.secret),
    ):
        with pytest.raises(psycopg.Error) as refused:
            mallory.execute("SELECT * FROM poolkeeper.end_session(%s, %s)", [session, secret])
        assert (refused.value.sqlstate, refused.value.diag.message_primary) == ("PK401", "unknown session")
    assert owner.succeed(delivery).code is None
    works(scene, mallory)


def test_no_setting_of_the_session_changes_what_the_functions_do(scene: Scene, mallory: psycopg.Connection) -> None:
    """Q51: planner, formats, time zones, durability; objects of its own that have the names of ours."""
    for setting in SETTINGS:
        mallory.execute(f"SET {setting}".encode())
        works(scene, mallory)
    mallory.execute("CREATE TEMP TABLE lease AS SELECT 1 AS task_id")
    mallory.execute("CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::bytea $$")
    mallory.execute("SET search_path = pg_temp, public, pg_catalog")
    works(scene, mallory)


@pytest.mark.usefixtures("victim")
def test_a_limit_that_it_keeps_locked_is_passed_over_and_the_owner_sees_who_holds_it(
    scene: Scene, mallory: psycopg.Connection
) -> None:
    """Q51, Q12: nobody waits for it; what it keeps from others of that queue ends with its transaction."""
    scene.queue(concurrency_max=10)
    scene.submit_many(2)
    other = scene.worker(pool="team/b", queues=["q", "secret"], conn=scene.owner)
    with scene.connect("worker", autocommit=False) as held:
        mine = scene.worker(pool="team/a", conn=held)
        held.commit()
        mine.claim(1)
        answer = other.turn(want=5)
        assert (answer.claimed, answer.come_again <= seconds(1)) == ([], True)
        login = scene.value(
            "SELECT usename FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        )
        assert login == scene.database.login("worker")
        held.rollback()
    assert len(other.claim(5)) == 2
    works(scene, mallory)


BUSY = {"idle": "SELECT 1", "busy": "SELECT pg_sleep(600)"}


def ends(conn: psycopg.Connection, statement: str) -> bool:
    """Whether the connection ends at it."""
    try:
        conn.execute(statement.encode())
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("limit", [{"concurrency_max": 10}, {"per_tenant_max": 5}, {"pool": 5}], ids=str)
@pytest.mark.parametrize("manner", BUSY)
def test_who_keeps_a_limit_from_others_is_ended(
    scene: Scene, mallory: psycopg.Connection, limit: dict[str, int], manner: str
) -> None:
    """Q51, Q12: by the upkeep, after a minute, idle or busy, also where it takes back the time-out that the claim set; nobody else is."""
    policy: dict[str, Any] = {name: value for name, value in limit.items() if name != "pool"}
    scene.queue(**policy)
    scene.submit_many(2)
    with scene.connect("submitter", autocommit=False) as honest, scene.connect("worker", autocommit=False) as held:
        run(honest, calls.submit("q", "a.b", 1))
        mine = scene.worker(pool="team/a", conn=held)
        held.commit()
        scene.owner.execute("UPDATE poolkeeper.pool SET max_running = %s WHERE name = 'team/a'", [limit.get("pool")])
        mine.claim(1)
        assert held.execute("SELECT current_setting('idle_in_transaction_session_timeout')").fetchone() == ("1min",)
        held.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        assert scene.ask("operator", calls.maintain()).holders == 0
        with meanwhile(partial(ends, held, BUSY[manner])):
            scene.owner.execute(
                "SELECT pg_sleep(0.1)"
            )  # either kind: the transaction is a millisecond old, and it is in it
            with scene.without("poolkeeper.maintain(integer)", "interval '1 minute'", "interval '1 ms'"):
                assert scene.ask("operator", calls.maintain()).holders == 1
        assert ends(held, "SELECT 1")
        honest.commit()
    assert len(scene.worker(pool="team/b", queues=["q"], conn=scene.owner).claim(5)) == 3
    works(scene, mallory)


@pytest.mark.usefixtures("victim")
def test_what_it_leaves_open_is_waited_for_by_nobody(scene: Scene, mallory: psycopg.Connection) -> None:
    """Q51: claims and settles of a transaction that never ends: others of the queue claim, and the operator reads and sweeps."""
    scene.submit_many(3)
    other = scene.worker(pool="team/b", conn=scene.owner)
    scene.owner.execute("SET lock_timeout = '20s'")
    with scene.connect("worker", autocommit=False) as held:
        mine = scene.worker(pool="team/a", conn=held)
        held.commit()
        mine.claim(1)
        assert len(other.claim(5)) == 2
        scene.sweep()
        assert scene.ask("operator", calls.stats(cluster=None)).queues
        held.rollback()
    assert len(other.claim(5)) == 1
    works(scene, mallory)
