"""A stage for the store's tests: a queue, submitters, workers and people, each with the rights of its own role.

Every call goes through `poolkeeper.store` as a login that has EXECUTE only. Time moves by `advance`, never by waiting.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from fixtures.postgres import Database
from poolkeeper.store import Call, Claimed, Session, Settle, SettleVerdict, TurnAnswer, Verdict, calls, connect, run

T = TypeVar("T")
_KEPT = ("instance", "code", "reason", "migration", "functions", "clock_offset", "contact")
_GROWING = """
    SELECT format('TRUNCATE %%s RESTART IDENTITY', string_agg(c.oid::regclass::text, ', ')) FROM pg_class AS c
    WHERE c.relnamespace = 'poolkeeper'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> ALL (%s)
"""
_QUICKLY = """
    DO $$ DECLARE _name regclass; BEGIN
        SET LOCAL session_replication_role = replica;  -- no foreign key is asked: everything goes
        FOR _name IN SELECT c.oid FROM pg_class AS c
            WHERE c.relnamespace = 'poolkeeper'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND c.relname <> ALL (string_to_array('<kept>', ' ')) LOOP
            EXECUTE format('DELETE FROM %s', _name);
        END LOOP;
        PERFORM setval(d.objid::regclass, 1, false) FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.refobjid
        WHERE d.deptype = 'i' AND c.relnamespace = 'poolkeeper'::regnamespace AND d.classid = 'pg_class'::regclass
          AND EXISTS (SELECT FROM pg_class AS s WHERE s.oid = d.objid AND s.relkind = 'S');
    END $$;
"""
_SIZE = "SELECT sum(pg_relation_size(c.oid)) FROM pg_class AS c WHERE c.relnamespace = 'poolkeeper'::regnamespace AND c.relkind IN ('r', 'i')"
KINDS = ("submitter", "worker", "operator", "reader", "person")

_MOVABLE_CLOCK = """
    CREATE TABLE IF NOT EXISTS poolkeeper.clock_offset (by interval NOT NULL);
    TRUNCATE poolkeeper.clock_offset;
    INSERT INTO poolkeeper.clock_offset VALUES ('0');
    CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp() + (SELECT o.by FROM poolkeeper.clock_offset AS o)';
"""


class Scene:
    """One database with its actors."""

    lasts = True
    """Whether a database serves many tests: then it is emptied without a trace, which costs ten times as much."""

    def __init__(self, database: Database, stack: ExitStack) -> None:
        self.database = database
        self._stack = stack
        self._actors: dict[str, psycopg.Connection] = {}
        self.owner = stack.enter_context(database.connect())
        self.owner.execute("SET jit = off")  # our own big looks are not worth compiling
        self.owner.execute(_MOVABLE_CLOCK)

    def clear(self) -> None:
        """Take away what an earlier test left, apart from what the installation itself consists of."""
        if self.lasts or self.value(_SIZE) > 4_000_000:
            self.owner.execute(self.value(_GROWING, list(_KEPT)))
        else:
            self.owner.execute(_QUICKLY.replace("<kept>", " ".join(_KEPT)))
        self.owner.execute(
            "UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock(), gap_from = NULL, gap_to = NULL, whole = false, proven = false"
        )
        for kind in set(self.database._logins) & set(KINDS):
            self.allow(self.database.login(kind))

    # actors

    def allow(self, login: str, **limits: Any) -> None:
        """Give a login a row in the access table; without limits it may see everything."""
        row = {"pool": None, "queues": None, "tenants": None, "tenants_except": None, **limits}
        self.owner.execute(
            "INSERT INTO poolkeeper.access (role, pool, queues, tenants, tenants_except) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (role) DO UPDATE SET pool = EXCLUDED.pool, queues = EXCLUDED.queues, tenants = EXCLUDED.tenants,"
            " tenants_except = EXCLUDED.tenants_except",
            [login, *row.values()],
        )

    def connect(self, kind: str, *, autocommit: bool = True) -> psycopg.Connection:
        """A new connection of a login that is a member of one group role and may see everything, unless said otherwise."""
        if kind in KINDS and kind not in self.database._logins:
            self._make_login(kind)
        dsn = self.database.dsn_as(kind)
        return self._stack.enter_context(connect(dsn, autocommit=autocommit))

    def _make_login(self, kind: str) -> None:
        """The same login as the database's own, on the connection that is open anyway: connecting is what costs here."""
        login = f"{self.database.name}_{kind}"
        self.owner.execute(
            sql.SQL("CREATE ROLE {login} LOGIN PASSWORD 'test'; GRANT {group} TO {login}").format(
                login=sql.Identifier(login), group=sql.Identifier(f"poolkeeper_{kind}")
            )
        )
        self.database._logins[kind] = login
        self.allow(login)

    def actor(self, kind: str) -> psycopg.Connection:
        """The connection of a kind of login, kept for the test."""
        if kind not in self._actors:
            self._actors[kind] = self.connect(kind)
        return self._actors[kind]

    def ask(self, kind: str, call: Call[T]) -> T:
        """Run a call as one kind of login."""
        return run(self.actor(kind), call)

    # the stage

    def queue(self, name: str = "q", **policy: Any) -> int:
        """Apply a policy in the store's own words; answers the queue's id."""
        applied = self.ask("operator", calls.apply_policy("local", "default", "default", name, policy, who="test"))
        assert applied.code is None
        return applied.queue_id

    def submit(self, type: str = "a.b", payload: Any = 1, *, queue: str = "q", **wishes: Any) -> UUID:  # noqa: A002
        """Submit one task that must be accepted."""
        verdict = self.verdict(type, payload, queue=queue, **wishes)
        assert verdict.code is None, verdict
        assert verdict.task_id is not None
        return verdict.task_id

    def verdict(self, type: str = "a.b", payload: Any = 1, *, queue: str = "q", **wishes: Any) -> Verdict:  # noqa: A002
        """Submit one task."""
        return self.ask("submitter", calls.submit(queue, type, payload, **wishes))

    def submit_many(self, count: int, *, queue: str = "q", type: str = "a.b", **wishes: Any) -> list[UUID]:  # noqa: A002
        """Submit many alike."""
        tasks = [{"type": type, "payload": n, **wishes} for n in range(count)]
        verdicts = self.ask("submitter", calls.submit_many(queue, tasks))
        assert all(v.code is None for v in verdicts)
        return [v.task_id for v in verdicts if v.task_id]

    def worker(
        self,
        *,
        pool: str = "local/p",
        queues: Sequence[str] = ("q",),
        types: Sequence[str] = ("a.b",),
        concurrency: int = 10,
        conn: psycopg.Connection | None = None,
        **info: Any,
    ) -> "Worker":
        """Register a worker process."""
        conn = conn or self.actor("worker")
        call = calls.register_session(pool, queues, types, concurrency=concurrency, info={"build": "b1", **info})
        return Worker(conn, run(conn, call))

    def advance(self, seconds: float) -> None:
        """Time passes, and the store can be reached all the while, as by an operator that sweeps (Q23)."""
        self.jump(seconds)
        self.owner.execute("UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock()")

    def jump(self, seconds: float) -> None:
        """The database's clock is moved, or nobody can reach it for so long."""
        self.owner.execute("UPDATE poolkeeper.clock_offset SET by = by + make_interval(secs => %s)", [seconds])

    def sweep(self) -> int:
        """What the operator's tick does."""
        return self.ask("operator", calls.sweep())

    # looking

    def rows(self, query: str, *params: Any) -> list[Any]:
        """Look at the tables as their owner."""
        return self.owner.cursor(row_factory=namedtuple_row).execute(query, params).fetchall()

    def value(self, query: str, *params: Any) -> Any:
        """The one value of the one row."""
        return self.rows(query, *params)[0][0]

    def state(self, task_id: UUID) -> str:
        """Present state of a task."""
        view = self.ask("reader", calls.task(task_id))
        assert view is not None
        return view.state

    def counters(self, task_id: UUID) -> dict[str, int]:
        """The numbers that travel with the task, wherever it is."""
        names = ("delivery", "state_version", "spent", "failures", "expiries", "hand_backs", "snoozes", "waits")
        places = ("ready", "later", "suspect", "lease", "dead")
        chosen = ", ".join(names)
        found = self.rows(
            " UNION ALL ".join(f"SELECT {chosen} FROM poolkeeper.{place} WHERE task_id = %s" for place in places),
            *[task_id] * len(places),
        )
        assert len(found) == 1, f"task is in {len(found)} places"
        return dict(found[0]._asdict())

    @contextmanager
    def without(self, function: str, old: str, new: str) -> Iterator[None]:
        """A function with one part of its text changed: shows that a test sees the guard, or shortens a bound."""
        text = self.value("SELECT pg_get_functiondef(%s::regprocedure)", function)
        assert old in text, f"{function} has no {old!r} any more"
        self.owner.execute(text.replace(old, new))
        try:
            yield
        finally:
            self.owner.execute(text)


class Worker:
    """A worker process as the store sees it: one session, turns in order."""

    def __init__(self, conn: psycopg.Connection, session: Session) -> None:
        self.conn = conn
        self.session = session
        self.turn_no = 0
        self.received = 0

    def turn(self, settles: Sequence[Settle] = (), want: int = 0, *, lost: bool = False, **how: Any) -> TurnAnswer:
        """One turn; `lost`: its answer never arrives."""
        self.turn_no += 1
        answer = run(self.conn, calls.turn(self.session, self.turn_no, self.received, settles, want, **how))
        if not lost:
            self.received = self.turn_no
        return answer

    def claim(self, want: int = 1, **how: Any) -> list[Claimed]:
        """Claim up to so many."""
        return self.turn(want=want, **how).claimed

    def take(self) -> Claimed:
        """Claim exactly one."""
        (one,) = self.claim(1)
        return one

    def alone(self) -> Claimed:
        """Claim a suspect, isolated."""
        (one,) = self.claim(1, isolated=True)
        assert one.suspect
        return one

    def settle(self, delivery: Claimed, outcome: str, **more: Any) -> SettleVerdict:
        """Settle one delivery."""
        (verdict,) = self.turn([Settle(delivery.task_id, delivery.token, outcome, **more)]).verdicts
        return verdict

    def succeed(self, delivery: Claimed, result: Any = None) -> SettleVerdict:
        return self.settle(delivery, "succeeded", result=result)

    def fail(self, delivery: Claimed, error: str = "boom", **more: Any) -> SettleVerdict:
        return self.settle(delivery, "failed", error_class="ValueError", error=error, **more)

    def renew(self, *held: UUID) -> Any:
        return run(self.conn, calls.renew(self.session, self.received, held))

    def end(self) -> int:
        return run(self.conn, calls.end_session(self.session))


def seconds(number: float) -> timedelta:
    """A duration."""
    return timedelta(seconds=number)


@contextmanager
def meanwhile(work: Callable[[], T]) -> Iterator[Future[T]]:
    """Run something in a thread of its own; its result is taken, or its error raised, at the end of the block."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield future
        future.result(30)


def await_blocked(scene: Scene, count: int = 1) -> None:
    """Return once so many connections to this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(30_000):
        if scene.value(query) >= count:
            return
    raise AssertionError("nobody waits for a lock")
