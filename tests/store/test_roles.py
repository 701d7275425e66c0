"""Isolation by the database: who may call what, and what a login's row lets it see (Q51, P10)."""

from typing import Any
from uuid import UUID

import psycopg
import pytest

from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden, NotFound
from poolkeeper.provider import reported
from poolkeeper.store import Settle, calls, run
from store.scene import KINDS, Scene, seconds

NOBODY = UUID(int=0)

MAY: dict[str, set[str]] = {
    "submit": {"submitter", "worker", "person"},
    "register_session": {"worker"},
    "turn": {"worker"},
    "renew": {"worker"},
    "checkpoint": {"worker"},
    "extend": {"worker"},
    "end_session": {"worker"},
    "report_drain": {"worker"},
    "report_provider": {"worker"},
    "sweep": {"worker", "operator", "person"},
    "task": set(KINDS),
    "timeline": set(KINDS),
    "dead_letters": set(KINDS),
    "queues": set(KINDS),
    "decisions": set(KINDS),
    "installation": set(KINDS),
    "cancel": {"submitter", "person"},
    "requeue": {"person"},
    "discard": {"person"},
    "pause": {"person"},
    "apply_policy": {"operator", "person"},
    "stats": {"operator"},
    "set_pool": {"operator"},
    "set_providers": {"operator"},
    "mark_sessions": {"operator"},
    "tell_grace": {"operator"},
    **{
        name: {"operator"}
        for name in (
            "report_crashes",
            "keep_post",
            "posts",
            "post_taken",
            "set_pool_login",
            "pool_logins",
            "retire_pool_login",
        )
    },
    "record_decision": {"operator"},
    "dead_batch": {"operator"},
    "dead_batch_announced": {"operator"},
    "purge": {"operator"},
    "maintain": {"worker", "operator", "person"},
    "audit_tasks": {"operator", "reader", "person"},
    "audit_keys": {"operator", "reader", "person"},
    "audit_counts": {"operator", "reader", "person"},
    "doctor": {"operator", "reader", "person"},
    "lead": {"operator"},
    "resign": {"operator"},
    "accept_installation": {"person"},
    "set_schedule": {"submitter", "worker", "person"},
    "remove_schedule": {"submitter", "person"},
    "pause_schedule": {"submitter", "person"},
    "run_schedule": {"submitter", "person"},
    "schedules": set(KINDS),
    "due_schedules": {"worker", "operator"},
    "fire_schedules": {"worker", "operator"},
}


def every_call(session: Any) -> dict[str, Any]:
    """One call of each kind that harms nothing."""
    return {
        "submit": calls.submit("q", "a.b", 1),
        "register_session": calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={}),
        "turn": calls.turn(session, 1, 0, [], 0),
        "renew": calls.renew(session, 0, []),
        "checkpoint": calls.checkpoint(NOBODY, "pkt_x", 1, sequence=1),
        "extend": calls.extend(NOBODY, "pkt_x", seconds(1)),
        "end_session": calls.end_session(session),
        "report_drain": calls.report_drain(session, {"duration_seconds": 1.0}), "report_provider": calls.report_provider(NOBODY, "pkt_x", reported("api", 200)),
        "sweep": calls.sweep(),
        "task": calls.task(NOBODY),
        "timeline": calls.timeline(NOBODY),
        "dead_letters": calls.dead_letters(),
        "queues": calls.queues(),
        "decisions": calls.decisions("local/p"),
        "installation": calls.installation(),
        "cancel": calls.cancel(NOBODY, who="a", why="b"),
        "requeue": calls.requeue(NOBODY, who="a", why="b"),
        "discard": calls.discard(NOBODY, who="a", why="b"),
        "pause": calls.pause("q", False, who="a"),
        "apply_policy": calls.apply_policy("local", "default", "default", "q", {}, who="a"),
        "stats": calls.stats(cluster="local"),
        "set_pool": calls.set_pool("local/p", max_running=None), "set_providers": calls.set_providers("local/p", []),
        "mark_sessions": calls.mark_sessions("local/p", [], draining=True), "tell_grace": calls.tell_grace("local/p", {}),
        "report_crashes": calls.report_crashes("local/p", []),
        "set_pool_login": calls.set_pool_login("local/p", "a", None, queues=["local/q"]),
        "pool_logins": calls.pool_logins("local"), "retire_pool_login": calls.retire_pool_login("local/p", "a"),
        "keep_post": calls.keep_post(0, 1, {}), "posts": calls.posts(0), "post_taken": calls.post_taken(0, 1),
        "record_decision": calls.record_decision("local/p", {}),
        "dead_batch": calls.dead_batch(0),
        "dead_batch_announced": calls.dead_batch_announced(0, 1),
        "purge": calls.purge("local", "default", "default", "nobody", who="a"),
        "maintain": calls.maintain(),
        "audit_tasks": calls.audit_tasks(), "audit_keys": calls.audit_keys(), "audit_counts": calls.audit_counts({}),
        "doctor": calls.doctor(),
        "accept_installation": calls.accept_installation("ann", "x"),
        "lead": calls.lead("local", "nobody", lease="a/b", epoch=1, holder="a"),
        "resign": calls.resign(NOBODY),
        "set_schedule": calls.set_schedule("q", "s", cron="* * * * *", zone="UTC", catch_up="skip", catch_up_limit=1, task={"type": "a.b"}, who="a"),
        "remove_schedule": calls.remove_schedule("q", "nobody"), "pause_schedule": calls.pause_schedule("q", "nobody", True),
        "run_schedule": calls.run_schedule("q", "nobody"),
        "schedules": calls.schedules(), "due_schedules": calls.due_schedules(["q"]),
        "fire_schedules": calls.fire_schedules([]),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "nobody"])
def test_each_group_may_call_what_it_is_for_and_nothing_else(scene: Scene, kind: str) -> None:
    """Q51: by EXECUTE alone; each call that one group is refused another one makes in the same test."""
    session = scene.worker().session
    conn = scene.connect(kind)
    for name, call in every_call(session).items():
        if kind in MAY[name]:
            run(conn, call)
        else:
            with pytest.raises(Forbidden) as caught:
                run(conn, call)
            assert caught.value.code is Code.ROLE_NOT_ALLOWED
    elsewhere = {"submit_many", "listen", "backend", "only_look", "succeed"}  # the last one: test_own_transaction
    assert set(every_call(session)) == set(MAY) == set(calls.__all__) - elsewhere


@pytest.mark.parametrize("kind", [*KINDS, "nobody"])
def test_no_table_view_sequence_or_inner_function_is_open(scene: Scene, kind: str) -> None:
    """Q51: whoever has a login reads and writes through the functions or not at all."""
    conn = scene.connect(kind)
    for statement in (
        "SELECT * FROM poolkeeper.task",
        "SELECT * FROM poolkeeper.history",
        "SELECT * FROM poolkeeper.tasks",
        "SELECT * FROM poolkeeper.instance",
        "SELECT * FROM poolkeeper.access",
        "SELECT nextval('poolkeeper.ready_seq')",
        "DELETE FROM poolkeeper.lease",
        "INSERT INTO poolkeeper.access (role) VALUES (session_user)",
        "CREATE TABLE poolkeeper.mine (x int)",
        "SELECT poolkeeper.payload_digest('1')",
        "SELECT poolkeeper.present_state('00000000-0000-0000-0000-000000000000')",
        "SELECT poolkeeper.end_deliveries('{}', now())",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_login_without_a_row_has_no_rights(scene: Scene, kind: str) -> None:
    """Q51: membership of a group is not enough; the remedy is named."""
    session = scene.worker().session
    conn = scene.connect(kind)
    scene.owner.execute("DELETE FROM poolkeeper.access WHERE role = %s", [scene.database.login(kind)])
    for name, call in every_call(session).items():
        if kind in MAY[name] and name != "installation":
            with pytest.raises(Forbidden, match=r"poolkeeper\.access"):
                run(conn, call)


def test_identity_is_the_login_not_what_it_says(scene: Scene) -> None:
    """Q51: SET ROLE and SET SESSION AUTHORIZATION of what it may become change nothing."""
    conn = scene.connect("submitter")
    scene.allow(scene.database.login("submitter"), tenants=["acme"])
    conn.execute("SET ROLE poolkeeper_submitter")
    assert run(conn, calls.submit("q", "a.b", 1, tenant="other")).code is Code.ROLE_NOT_ALLOWED
    assert run(conn, calls.submit("q", "a.b", 1, tenant="acme")).code is None


def test_temporary_objects_do_not_capture_the_functions(scene: Scene) -> None:
    """Q51: search_path is pinned, so a caller's own tables and operators are not seen by them."""
    conn = scene.connect("submitter")
    conn.execute("CREATE TEMP TABLE queue AS SELECT 1 AS id")
    conn.execute("CREATE FUNCTION pg_temp.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'captured' $$")
    conn.execute("SET search_path = pg_temp, pg_catalog")
    assert run(conn, calls.submit("q", "a.b", 1)).code is None


class TestQueuesAndPools:
    """A login whose row names queues or a pool has no others."""

    def test_a_foreign_queue_is_unknown(self, scene: Scene) -> None:
        """Q51: the same answer as for one that is not there."""
        scene.queue("secret")
        scene.actor("submitter")
        scene.allow(scene.database.login("submitter"), queues=["default/q"])
        assert scene.verdict(queue="secret").code is Code.UNKNOWN_QUEUE
        assert scene.verdict(queue="q").code is None

    def test_foreign_queues_are_not_listed(self, scene: Scene) -> None:
        """Q51: neither for readers nor in an operator's statistics."""
        scene.queue("secret")
        for kind in ("reader", "operator"):
            scene.actor(kind)
            scene.allow(scene.database.login(kind), queues=["default/q"])
        assert [q.name for q in scene.ask("reader", calls.queues())] == ["q"]
        assert [q.name for q in scene.ask("operator", calls.stats(cluster="local")).queues] == ["q"]

    def test_tasks_of_a_foreign_queue_are_not_there(self, scene: Scene) -> None:
        """Q51: whatever tenant they belong to."""
        scene.queue("secret")
        task_id = scene.submit(queue="secret")
        scene.actor("reader")
        scene.allow(scene.database.login("reader"), queues=["default/q"])
        assert scene.ask("reader", calls.task(task_id)) is None

    def test_policies_and_pauses_of_foreign_queues_are_refused(self, scene: Scene) -> None:
        """Q51: a person of one team does not pause another's queue."""
        scene.queue("secret")
        for kind in ("operator", "person"):
            scene.actor(kind)
            scene.allow(scene.database.login(kind), queues=["default/q"])
        with pytest.raises(Forbidden):
            scene.ask("operator", calls.apply_policy("local", "default", "default", "secret", {}, who="eve"))
        with pytest.raises(NotFound):
            scene.ask("person", calls.pause("secret", True, who="eve"))
        assert scene.ask("person", calls.pause("q", True, who="ann")) == 2

    def test_dead_letters_of_foreign_queues_are_not_announced(self, scene: Scene) -> None:
        """Q51: an operator of some queues gets no batch of others, and cannot confirm one."""
        queue_id = scene.queue("secret")
        scene.submit(queue="secret", max_deliveries=1)
        worker = scene.worker(queues=["secret"])
        worker.fail(worker.take())
        scene.allow(scene.database.login("operator"), queues=["default/q"])
        assert scene.ask("operator", calls.dead_batch(queue_id)) is None
        assert scene.ask("operator", calls.dead_batch_announced(queue_id, 1)) is False
        scene.allow(scene.database.login("operator"))
        batch = scene.ask("operator", calls.dead_batch(queue_id))
        assert batch is not None
        assert batch.number == 1

    def test_a_worker_serves_its_own_pool_and_queues_alone(self, scene: Scene) -> None:
        """Q51: it cannot register for others, nor lift its pool's limit."""
        scene.queue("secret")
        scene.actor("worker")
        scene.allow(scene.database.login("worker"), pool="team/a", queues=["default/q"])
        for pool, queue in (("team/b", "q"), ("team/a", "secret"), ("team/a", "not-there-yet")):
            with pytest.raises(Forbidden):
                scene.worker(pool=pool, queues=[queue])
        assert scene.worker(pool="team/a", queues=["q"]).claim(1) == []

    def test_a_worker_whose_row_is_gone_is_out(self, scene: Scene) -> None:
        """Q51: sessions do not outlive the right that they were made with."""
        scene.submit()
        worker = scene.worker()
        scene.owner.execute("DELETE FROM poolkeeper.access WHERE role = %s", [scene.database.login("worker")])
        for attempt in (lambda: worker.claim(1), worker.renew, worker.end):
            with pytest.raises(Forbidden):
                attempt()

    def test_a_worker_does_not_learn_of_foreign_tasks(self, scene: Scene) -> None:
        """Q51: a settle with the id of a task that it may not see hears unknown_task; of its own, stale_token."""
        scene.queue("secret")
        foreign, own = scene.submit(queue="secret"), scene.submit()
        scene.actor("worker")
        scene.allow(scene.database.login("worker"), queues=["default/q"])
        worker = scene.worker()
        codes = [v.code for v in worker.turn([Settle(t, "pkt_x", "failed") for t in (foreign, own)]).verdicts]
        assert codes == ["unknown_task", "stale_token"]


def test_an_unprivileged_owner_has_the_whole_installation(empty_database: Any) -> None:
    """Contract 18: no superuser is needed: a database owner without CREATEROLE migrates where the groups exist, and works."""
    from poolkeeper.store import migrate

    owner = empty_database.login("nobody")
    with empty_database.connect() as conn:
        conn.execute(f'ALTER DATABASE "{empty_database.name}" OWNER TO "{owner}"')
        for group in KINDS:
            if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [f"poolkeeper_{group}"]).fetchone():
                conn.execute(f"CREATE ROLE poolkeeper_{group} NOLOGIN")
    with psycopg.connect(empty_database.dsn_as("nobody"), autocommit=True) as conn:
        assert migrate.apply(conn, say=lambda _: None) > 0
        assert run(conn, calls.apply_policy("local", "default", "default", "q", {}, who="o")).code is None
        assert run(conn, calls.submit("q", "a.b", 1)).code is None
        session = run(conn, calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={}))
        (delivery,) = run(conn, calls.turn(session, 1, 0, [], 1)).claimed
        settle = Settle(delivery.task_id, delivery.token, "succeeded")
        assert run(conn, calls.turn(session, 2, 1, [settle], 0, sweep=True)).verdicts[0].code is None
    with empty_database.connect() as conn:
        conn.execute(f'ALTER DATABASE "{empty_database.name}" OWNER TO CURRENT_USER')
        conn.execute(f'REASSIGN OWNED BY "{owner}" TO CURRENT_USER')
        conn.execute(f'DROP OWNED BY "{owner}"')
