"""Every function of the contract with every kind of argument that makes no sense (C46, C52, C54, contract 9).

Functions, their arguments and the words that they read out of JSON come from the catalog, so that a new function is
tried without a change here. What a word of an argument means when it makes sense is in `Stand.sense`; a name that is not there
gets a value of its type. Acceptable answers: rows whose code is one of `poolkeeper.code`; an error of class PK with a
hint; an error of Postgres's own for a value that is none of the declared type.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from poolkeeper.codes import ALREADY_DONE, IN_TRANSACTION, Code
from poolkeeper.store import Claimed, Settle, calls
from store.scene import KINDS, Scene

NIL = "00000000-0000-0000-0000-000000000000"
LONG = 1_000_000
"""Characters of a long text."""
SHORT = 20_000
"""Characters of the longest value that is tried in the short form."""

_FUNCTIONS = """
    SELECT p.oid, p.proname AS name, p.prosrc AS source, p.pronargdefaults AS defaults,
           coalesce(p.proargnames[:p.pronargs], '{}') AS names,
           ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS u (t, n) ORDER BY n) AS types,
           ARRAY(SELECT k FROM unnest(%s::text[]) AS k WHERE has_function_privilege('poolkeeper_' || k, p.oid, 'EXECUTE')) AS kinds
    FROM pg_proc AS p WHERE p.pronamespace = 'poolkeeper'::regnamespace ORDER BY p.proname
"""


@dataclass(frozen=True)
class Function:
    """A function that somebody may call."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    words: frozenset[str]
    """What it and the functions that it calls read out of JSON."""

    @property
    def statement(self) -> sql.Composed:
        """The call; each value is a text that the server reads as the declared type."""
        given = [sql.SQL("%s::text::{}").format(sql.SQL(kind)) for _, kind in self.arguments]
        return sql.SQL("SELECT * FROM poolkeeper.{}({})").format(sql.Identifier(self.name), sql.SQL(", ").join(given))


def functions(scene: Scene) -> list[Function]:
    """All that is granted to a group."""
    rows = scene.rows(_FUNCTIONS, list(KINDS))
    sources: dict[str, str] = {}
    for row in rows:
        sources[row.name] = sources.get(row.name, "") + row.source
    return [
        Function(r.name, tuple(zip(r.names, r.types, strict=True)), tuple(r.kinds), _words(r.name, sources))
        for r in rows
        if r.kinds
    ]


def _words(name: str, sources: dict[str, str]) -> frozenset[str]:
    seen, todo, found = {name}, [name], set[str]()
    while todo:
        source = sources.get(todo.pop(), "")
        found.update(re.findall(r"(?:->>?|\?) '(\w+)'", source))
        for columns in re.findall(r"jsonb_to_recordset\(\w+\) AS \w* ?\(([^)]*)\)", source):
            found.update(column.split()[0] for column in columns.split(", "))
        found.update(re.findall(r"poolkeeper\.seconds\(_spec, '(\w+)'", source))
        called = set(re.findall(r"poolkeeper\.(\w+)\(", source)) - seen
        seen |= called
        todo += sorted(called)
    return frozenset(found)


_TEXTS = [
    "", " ", "a", "A", "-1", "0", "NaN", "null", "{}", "[]", "/", "a/b", "a/b/c", "default/q", "default/nowhere", "*", "%", "..", "$1", "\\", "'",
    "a'; DROP TABLE poolkeeper.task; --", "pkt_", "pkt_AAAAAAAAAAAAAAAAAAAAAA", "\n", "\x01", "\u202e", "\ufeff", "e\u0301", "\N{FACE WITH TEARS OF JOY}",
    "x" * 201, "x" * 3000, "x" * LONG,
]  # fmt: skip
_WHOLE = ["0", "1", "-1", "7", "100", "32767", "32768", "10001"]
_REAL = ["0", "-0", "1", "-1", "1e-300", "1e15", "-1e15", "1e308", "-1e308", "Infinity", "-Infinity", "NaN"]
_JSON = [
    "null", "true", "0", "-1", "1.5", "1e400", "-1e400", "1e-400", "99999999999999999999", '""', '"x"', '"NaN"', '"Infinity"', '"-1"', '"true"', '"\\u202e"',
    "[]", "[[]]", "[null]", "[1]", '["x"]', "{}", "[{}]", '{"x": 1}', '[{"x": 1}]', '{"": {"": []}}',
    "[" * 127 + "]" * 127, "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, json.dumps("x" * LONG), json.dumps(["x"] * 20_000),
    json.dumps({str(n): n for n in range(10_000)}), "9" * 5000, '"' + NIL + '"', '"2147483648"', '"1e400"',
]  # fmt: skip

VALUES: dict[str, list[str | None]] = {
    "text": [None, *_TEXTS],
    "name": [None, *_TEXTS[:-1]],
    "boolean": [None, "t", "f"],
    "smallint": [None, *_WHOLE[:-2], "-32768"],
    "integer": [None, *_WHOLE, "2147483647", "-2147483648"],
    "bigint": [None, *_WHOLE, "2147483648", "9223372036854775807", "-9223372036854775808", "9223372036854775806"],
    "double precision": [None, *_REAL],
    "numeric": [None, *_REAL, "1e1000", "-1e1000"],
    "uuid": [None, NIL, "ffffffff-ffff-ffff-ffff-ffffffffffff", str(uuid4())],
    "interval": [None, "0", "1 s", "-1 s", "100 years", "-100 years", "178000000 years", "-178000000 years", "infinity", "-infinity"],
    "timestamp with time zone": [None, "now", "epoch", "infinity", "-infinity", "294276-12-31", "4714-11-24 BC"],
    "text[]": [None, "{}", "{NULL}", '{""}', "{a,NULL}", "{{a,b},{c,d}}", "[5:6]={a,b}", "{" + ",".join(["a"] * 20_000) + "}", '{"' + "x" * LONG + '"}'],
    "uuid[]": [None, "{}", "{NULL}", f"{{{NIL},{NIL}}}", f"{{{{{NIL}}}}}", "{" + ",".join([NIL] * 20_000) + "}"],
    "double precision[]": [None, "{}", "{NULL}", "{NaN}", "{Infinity}", "{-Infinity}", "{1e308}", "{-1e308}", "{-1}", "{{1,2},{3,4}}"],
    "jsonb": [None, *_JSON],
}  # fmt: skip
"""What is tried for an argument of a type."""

_TELLING = ["null", "-1", "1e400", '"x"', '"NaN"', "[{}]", "[" * 3000 + "]" * 3000]
"""Of JSON, what is tried for each word that a function reads, in the short form."""


_THERE = """
    SELECT EXISTS (SELECT FROM poolkeeper.lease WHERE task_id = %s AND session_id = %s AND token_hash = poolkeeper.token_hash(%s)),
           EXISTS (SELECT FROM poolkeeper.dead WHERE task_id = %s), EXISTS (SELECT FROM poolkeeper.ready WHERE task_id = %s),
           EXISTS (SELECT FROM poolkeeper.session WHERE id = %s AND ended_at IS NULL)
"""


class Stand:
    """A queue with tasks in each state and a worker that holds some, put up again where a call took something away."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.queue_id = scene.queue("q")
        for name in ("stand", "victim", "foreign"):
            scene.queue(name)
        scene.submit(queue="foreign", tenant="other")
        self.held: list[Claimed] = []
        self.dead: list[str] = []
        self.ready: list[str] = []
        self._stock()

    def put_up(self) -> None:
        """See that everything which `sense` names is there; what was used up makes room for the next of its kind."""
        self.scene.owner.execute("DELETE FROM poolkeeper.leader")
        while True:
            worker, one = self.worker.session.id, self.held[0]
            there = self.scene.owner.execute(
                _THERE, [one.task_id, worker, one.token, self.dead[0], self.ready[0], worker]
            ).fetchone()
            assert there is not None
            if all(there):
                return
            self.held, self.dead, self.ready = (
                self.held[not there[0] :],
                self.dead[not there[1] :],
                self.ready[not there[2] :],
            )
            if not (there[3] and self.held and self.dead and self.ready):
                self._stock()

    def _stock(self) -> None:
        scene = self.scene
        scene.submit_many(60, queue="stand", priority=9)
        self.worker = scene.worker(queues=["stand"], pool="local/stand", concurrency=1000)
        claimed = self.worker.claim(1000)
        self.held, letters = claimed[:30], claimed[30:]
        self.worker.turn([Settle(c.task_id, c.token, "dead", error_class="X", error="x") for c in letters])
        self.dead = [str(c.task_id) for c in letters]
        self.ready = [str(task_id) for task_id in scene.submit_many(30, queue="stand", priority=0)]

    def sense(self, function: Function, name: str, kind: str) -> str | None:
        """A value that makes sense for an argument."""
        one, worker = self.held[0], self.worker
        task_id = {"requeue": self.dead[0], "discard": self.dead[0], "cancel": self.ready[0]}.get(
            function.name, str(one.task_id)
        )
        settle = {"t": str(one.task_id), "k": one.token, "o": "failed", "c": "X", "e": "x", "a": 1}
        known: dict[str, Any] = {
            "_session": worker.session.id, "_secret": worker.session.secret, "_task_id": task_id, "_token": one.token, "_turn": worker.turn_no + 1,
            "_received": worker.turn_no, "_settles": [settle], "_starts": [{"t": str(one.task_id), "k": one.token}], "_want": 0, "_slots": 0,
            "_queue": "q", "_queues": "{q}", "_types": "{a.b}", "_type": "a.b", "_pool": "local/fuzz", "_concurrency": 1, "_payload": 1,
            "_tasks": [{"type": "a.b", "payload": 1}], "_options": {"tenant": "acme"}, "_cluster": "local", "_namespace_uid": "default",
            "_namespace": "default", "_name": "victim", "_spec": {}, "_adopt": None, "_term": None, "_queue_id": self.queue_id, "_cursor": {},
            "_report": {"duration_seconds": 1}, "_decision": {"a": 1}, "_seen_version": None, "_held": "{}", "_lease": "a/b",
            "_epoch": 1, "_info": {"build": "b1"}, "_paused": False,
        }  # fmt: skip
        if name in known:
            value = known[name]
            if value is None or isinstance(value, str):
                return value
            return json.dumps(value) if kind == "jsonb" else str(value)
        return {"jsonb": "{}", "text": "x", "uuid": NIL, "boolean": "f", "interval": "1 s"}.get(
            kind, "{}" if kind.endswith("[]") else "1"
        )

    def work_off(self) -> None:
        """Show that everything can still be worked on: let leases end, run what is ready, and see that nothing is left."""
        scene = self.scene
        scene.owner.execute("UPDATE poolkeeper.pool SET max_running = NULL")
        scene.owner.execute("UPDATE poolkeeper.session SET draining = false")
        scene.owner.execute("DELETE FROM poolkeeper.leader")
        scene.owner.execute("UPDATE poolkeeper.queue SET paused = false")
        for _ in range(4):
            scene.advance(7200)
            scene.sweep()
            types = [t for (t,) in scene.owner.execute("SELECT DISTINCT type FROM poolkeeper.task").fetchall()]
            queues = [
                t for (t,) in scene.owner.execute("SELECT namespace || '/' || name FROM poolkeeper.queue").fetchall()
            ]
            worker = scene.worker(types=types, queues=queues, concurrency=10_000, pool="local/stand")
            for isolated in (True, False):
                while taken := worker.claim(1000, isolated=isolated):
                    settles = [Settle(c.task_id, c.token, "succeeded") for c in taken]
                    assert all(v.code is None for v in worker.turn(settles).verdicts)
            worker.end()
        left = scene.rows(
            "SELECT id, state FROM poolkeeper.tasks WHERE state NOT IN ('succeeded', 'failed', 'canceled', 'dead', 'scheduled')"
        )
        assert left == []
        self.read()

    def read(self) -> None:
        """Nothing that was stored keeps anybody from reading the rest."""
        scene = self.scene
        stats = scene.ask("operator", calls.stats(cluster=None))
        assert {p.pool for p in stats.pools} >= {"local/stand"}
        assert scene.ask("reader", calls.queues())
        scene.ask("reader", calls.dead_letters(limit=10_000))
        scene.ask("reader", calls.decisions("local/fuzz", limit=1000))
        assert scene.value("SELECT count(*) FROM poolkeeper.tasks") == scene.value(
            "SELECT count(*) FROM poolkeeper.task"
        )
        scene.value("SELECT count(*) FROM poolkeeper.history")


def attempts(stand: Stand, function: Function, *, deep: bool) -> Iterator[tuple[str, list[Any]]]:
    """The calls of a function in which one argument makes no sense, each with words about it."""

    def call(changed: int, value: str | None) -> list[Any]:
        return [
            value if place == changed else stand.sense(function, name, kind)
            for place, (name, kind) in enumerate(function.arguments)
        ]

    yield "", call(-1, None)
    for place, (name, kind) in enumerate(function.arguments):
        for value in VALUES.get(kind, [None]):
            if not deep and len(value or "") > SHORT:
                continue
            yield f"{name} = {shown(value)}", call(place, value)
        if kind == "jsonb":
            for word in sorted({*function.words, *([str(stand.queue_id)] if name == "_cursor" else [])}):
                for text in _JSON if deep else _TELLING:
                    whole = json.loads(stand.sense(function, name, kind) or "{}")
                    if isinstance(whole, list) and whole:
                        inner = {**whole[0], word: "PLACE"}
                        value = json.dumps([inner])
                    else:
                        value = json.dumps({**(whole if isinstance(whole, dict) else {}), word: "PLACE"})
                    yield f"{name}.{word} = {shown(text)}", call(place, value.replace('"PLACE"', text))


def shown(value: str | None) -> str:
    """A value in a line."""
    return "NULL" if value is None else ascii(value[:40]) + (f" ({len(value)})" if len(value) > 40 else "")


CODES = {*Code, ALREADY_DONE, IN_TRANSACTION}


def fault(conn: psycopg.Connection[Any], function: Function, values: list[Any]) -> tuple[str | None, bool]:
    """Call it; what is wrong with the answer, or None, and whether the call may have changed anything."""
    try:
        rows = conn.cursor(row_factory=dict_row).execute(function.statement, values).fetchall()
    except psycopg.Error as error:
        state, diag = error.sqlstate or "", error.diag
        if state.startswith("PK"):
            return (None if diag.message_hint else f"{state} {diag.message_primary} without a hint"), False
        ours = "function" in (diag.context or "")  # one of SQL is named without its schema
        if not ours and state.startswith(("22", "54")):
            return None, False  # no value of the declared type: Postgres read it before anything of ours
        return f"{state} {str(diag.message_primary)[:200]} | {(diag.context or '')[:300]}", False
    wrong = [row["code"] for row in rows if row.get("code") is not None and row["code"] not in CODES]
    return (f"code {wrong}" if wrong else None), True
