"""What every call demands before it does anything: a caller that is known, a durable commit, arguments that make sense (Q4, Q51, contract 9)."""

from typing import Any

import psycopg
import pytest

from poolkeeper.store import calls, run
from store.fuzzing import Function, Stand, attempts, functions
from store.scene import Scene

DURABLE: dict[str, dict[str, str]] = {
    "accept_installation": {}, "apply_policy": {}, "cancel": {}, "discard": {}, "discard_matching": {}, "end_session": {},
    "fire_schedules": {"plans": "[]"}, "lead": {}, "maintain": {}, "pause_queue": {}, "pause_schedule": {"tenant": "default"}, "purge": {},
    "remove_schedule": {}, "requeue": {}, "requeue_matching": {}, "run_schedule": {"tenant": "default"},
    "set_schedule": {"schedule": '{"cron": "0 0 1 1 *"}', "task": '{"type": "a.b", "payload": 1}'},
    "submit": {}, "submit_many": {}, "succeed": {}, "sweep": {}, "turn": {},
}  # fmt: skip
"""Functions whose answer says that something is kept, with what a plain call of them needs."""

_LONG = "x" * 201
_MANY = "{" + ",".join(["x"] * 1001) + "}"
MISUSE: list[tuple[str, str, dict[str, str | None]]] = [
    ("register_session", "no session for pool", {"pool": ""}),
    ("register_session", "no session for pool", {"concurrency": "0"}),
    ("register_session", "no session for pool", {"concurrency": "10001"}),
    ("register_session", "for these queues", {"queues": "{NULL}"}),
    ("register_session", "for these queues", {"queues": _MANY}),
    ("register_session", "for these types", {"types": "{NULL}"}),
    ("register_session", "for these types", {"types": _MANY}),
    ("register_session", "with this info", {"info": "[]"}),
    ("renew", "stats cannot be read", {"stats": "[]"}),
    ("renew", "stats cannot be read", {"stats": '{"finished": -1}'}),
    ("report_drain", "report cannot be read", {"report": "{}"}),
    ("checkpoint", "a checkpoint has", {"sequence": None}),
    ("turn", "no turn", {"turn": "-1"}),
    ("turn", "no turn", {"received": None}),
    ("sweep", "since the last sweep", {"since": "-1"}),
    ("report_provider", "a provider's name", {"name": "", "status": "ok"}),
    ("report_provider", "a provider cannot answer", {"status": "600"}),
    ("report_provider", "retry_after cannot be", {"status": "ok", "retry_after": "-1"}),
    ("report_provider", "used of the provider", {"status": "ok", "used": "[]"}),
    ("report_provider", "used of the provider", {"status": "ok", "used": '{"tokens": -1}'}),
    ("set_providers", "a pool's name", {"pool": _LONG, "providers": "[]"}),
    ("set_providers", "provider", {"providers": "[{}]"}),
    ("set_pool", "a pool's name", {"pool": ""}),
    ("set_pool", "a pool's name", {"pool": "team/\x07"}),
    ("set_pool", "cannot run at most", {"max_running": "-1"}),
    ("record_decision", "a pool's name", {"pool": ""}),
    ("record_decision", "a decision cannot be", {"decision": "[]"}),
    ("tell_grace", "a grace period cannot be", {"pod_uids": "{x}", "seconds": "{-1}"}),
    ("report_crashes", "these crashes cannot be", {"pod_uids": "{x}"}),
    ("lead", "a cluster", {"cluster": ""}),
    ("lead", "a namespace", {"namespace": ""}),
    ("lead", "nobody leads by", {"epoch": "-1"}),
    ("lead", "nobody leads by", {"holder": ""}),
    ("apply_policy", "a cluster", {"cluster": ""}),
    ("apply_policy", "a namespace's UID", {"namespace_uid": ""}),
    ("apply_policy", "who applies", {"who": ""}),
    ("apply_policy", "the policy of queue", {"spec": "[]"}),
    ("pause_schedule", "is paused or it is not", {"paused": None}),
    ("due_schedules", "too many queues", {"queues": "{" + ",".join(["q"] * 10_001) + "}"}),
    ("fire_schedules", "too many plans", {"plans": "[" + ",".join(["{}"] * 1001) + "]"}),
    ("keep_post", "no news of a batch", {"number": "0"}),
    ("keep_post", "no news of a batch", {"news": "[]"}),
]  # fmt: skip
"""A function, what its refusal says, and the arguments that make no sense."""


def plain(stand: Stand, name: str, other: dict[str, Any]) -> tuple[Function, list[str | None]]:
    """A function and values for it that make sense, but for those given."""
    (function,) = (each for each in functions(stand.scene) if each.name == name)
    _, values = next(attempts(stand, function, deep=False))
    names = [argument for argument, _ in function.arguments]
    for argument, value in other.items():
        values[names.index(f"_{argument}")] = value
    return function, values


def test_who_is_not_known_is_refused_by_every_call(bare_scene: Scene) -> None:
    """Q51: a login whose row is gone, whatever groups its role is in; what the installation is called is no secret."""
    stand = Stand(bare_scene)
    answered, refused = set(), {}
    for function in functions(bare_scene):
        conn = bare_scene.actor(function.kinds[0])
        login = bare_scene.database.login(function.kinds[0])
        bare_scene.owner.execute("DELETE FROM poolkeeper.access WHERE role = %s", [login])
        _, values = plain(stand, function.name, {"providers": "[]"} if function.name == "set_providers" else {})
        try:
            conn.execute(function.statement, values)
            answered.add(function.name)
        except psycopg.Error as error:
            refused[function.name] = error.sqlstate
        bare_scene.allow(login)
    assert answered == {"installation"}
    assert set(refused.values()) == {"PK403"}, refused


def test_what_is_kept_is_kept_durably(bare_scene: Scene) -> None:
    """Q4: whatever the caller's connection says, as long as the call's transaction lasts; what is said anew all the time need not be."""
    stand = Stand(bare_scene)
    bare_scene.ask(
        "submitter",
        calls.set_schedule(
            "q",
            "victim",
            cron="0 0 1 1 *",
            zone="UTC",
            catch_up="latest",
            catch_up_limit=1,
            task={"type": "a.b", "payload": 1},
            who="t",
        ),
    )
    found = set()
    for each in functions(bare_scene):
        function, values = plain(stand, each.name, DURABLE.get(each.name, {}))
        conn = bare_scene.connect(function.kinds[0], autocommit=False)
        conn.execute("SET synchronous_commit = off")
        conn.commit()
        try:
            conn.execute(function.statement, values)
            if conn.execute("SHOW synchronous_commit").fetchone() == ("on",):
                found.add(function.name)
        except psycopg.Error:
            assert function.name not in DURABLE
        conn.rollback()
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("off",)
        conn.close()
    assert found == set(DURABLE)


def test_each_page_of_a_purge_is_kept_durably(scene: Scene) -> None:
    """Q4: the first call pauses the queue, and the policy's own demand hides what the later ones ask for."""
    scene.queue(paused=True)
    conn = scene.connect("operator", autocommit=False)
    conn.execute("SET synchronous_commit = off")
    conn.commit()
    assert run(conn, calls.purge("local", "default", "default", "q", who="test")).cursor is not None
    assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    conn.rollback()


def test_a_renewal_that_ends_what_ran_too_long_does_it_durably(scene: Scene) -> None:
    """Q4, Q21: a delivery that ends counts as one that was settled; a renewal that only renews need not."""
    scene.queue(max_run_time_seconds=30)
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    conn = scene.connect("worker", autocommit=False)
    conn.execute("SET synchronous_commit = off")
    conn.commit()
    ended: list[bool] = []
    while not ended or not ended[-1]:
        scene.advance(3)
        lost = run(conn, calls.renew(worker.session, worker.received, [delivery.task_id])).lost
        ended.append(bool(lost))
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("on" if lost else "off",)
        conn.commit()
    assert len(ended) > 1


@pytest.mark.parametrize(
    ("name", "says", "given"),
    MISUSE,
    ids=[f"{name}-{says}-{'-'.join(given)}-{n}" for n, (name, says, given) in enumerate(MISUSE)],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    bare_scene: Scene, name: str, says: str, given: dict[str, str | None]
) -> None:
    """Contract 9: PK400 and a hint, before anything has happened."""
    function, values = plain(Stand(bare_scene), name, given)
    with pytest.raises(psycopg.Error, match=says) as refused:
        bare_scene.actor(function.kinds[0]).execute(function.statement, values)
    assert refused.value.sqlstate == "PK400"
    assert refused.value.diag.message_hint
