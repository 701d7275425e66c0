"""The same transitions through `psql` alone, as roles with EXECUTE only: the guarantees are the store's (quality 6)."""

from typing import Any

import pytest

from store.psql import Psql, PsqlError
from store.scene import Scene

TURN = (
    "SELECT * FROM poolkeeper.turn(:'session', :'secret', :turn, :received, :'settles'::jsonb, :want, :sweep::boolean,"
    " :isolated::boolean)"
)


class Clerk:
    """A worker made of psql calls."""

    def __init__(self, psql: Psql) -> None:
        self.psql = psql
        self.turn_no = 0
        made = psql.row(
            "SELECT * FROM poolkeeper.register_session('local/psql', '{q}', '{a.b}', 4, '{\"build\": \"sql\"}')"
        )
        self.session = {"session": made["session"], "secret": made["secret"]}

    def turn(
        self, *settles: dict[str, Any], want: int = 0, sweep: bool = False, isolated: bool = False
    ) -> list[dict[str, Any]]:
        self.turn_no += 1
        return self.psql.rows(
            TURN,
            **self.session,
            turn=self.turn_no,
            received=self.turn_no - 1,
            settles=list(settles),
            want=want,
            sweep=sweep,
            isolated=isolated,
        )

    def take(self, **how: bool) -> dict[str, Any]:
        (row,) = [r for r in self.turn(want=1, **how) if r["kind"] == "claimed"]
        return row

    def settle(self, delivery: dict[str, Any], outcome: str, **more: Any) -> str | None:
        """The code of the verdict; no row means that it succeeded as asked."""
        rows = self.turn({"t": delivery["task_id"], "k": delivery["token"], "o": outcome, **more})
        found = [r for r in rows if r["kind"] == "settled"]
        return found[0]["code"] if found else None

    def renew(self, *held: str) -> list[dict[str, Any]]:
        return self.psql.rows(
            "SELECT * FROM poolkeeper.renew(:'session', :'secret', :received, :'held'::uuid[])",
            **self.session,
            received=self.turn_no,
            held="{" + ",".join(held) + "}",
        )


class Actors:
    """Four logins, each on psql."""

    def __init__(self, scene: Scene) -> None:
        def login(kind: str) -> Psql:
            dsn = scene.database.dsn_as(kind)
            scene.allow(scene.database.login(kind))
            return Psql(dsn)

        self.submitter, self.worker, self.person, self.reader = map(login, ("submitter", "worker", "person", "reader"))

    def submit(self, payload: Any = 1, **options: Any) -> dict[str, Any]:
        return self.submitter.row(
            "SELECT * FROM poolkeeper.submit('q', 'a.b', :'payload'::jsonb, :'options'::jsonb)",
            payload=payload,
            options=options,
        )

    def state(self, task_id: str) -> str:
        return str(self.reader.row("SELECT state FROM poolkeeper.task_view(:'id')", id=task_id)["state"])

    def does(self, verb: str, task_id: str) -> dict[str, Any]:
        return self.person.row(f"SELECT * FROM poolkeeper.{verb}(:'id', 'ann', 'because')", id=task_id)


@pytest.fixture
def actors(scene: Scene) -> Actors:
    return Actors(scene)


def test_submit_claim_checkpoint_settle(actors: Actors) -> None:
    """Q4, Q10, Q18, Q30: the whole good way."""
    task_id = actors.submit({"x": "it's"}, key="k")["task_id"]
    assert actors.submit({"x": "it's"}, key="k")["created"] is False
    assert actors.submit({"x": "other"}, key="k")["code"] == "key_conflict"
    clerk = Clerk(actors.worker)
    delivery = clerk.take()
    assert (delivery["task_id"], delivery["payload"]) == (task_id, {"x": "it's"})
    assert actors.state(task_id) == "running"
    saved = actors.worker.row(
        "SELECT * FROM poolkeeper.checkpoint(:'id', :'token', '{\"page\": 3}', 1)", id=task_id, token=delivery["token"]
    )
    assert saved["code"] is None
    assert [r["kind"] for r in clerk.renew(task_id)] == ["note"]
    assert clerk.settle(delivery, "succeeded", r={"ok": True}) is None
    assert clerk.settle(delivery, "succeeded") == "already_done"
    view = actors.reader.row("SELECT * FROM poolkeeper.task_view(:'id')", id=task_id)
    assert (view["state"], view["result"]) == ("succeeded", {"ok": True})


def test_fail_die_requeue_and_run_again(actors: Actors) -> None:
    """Q27, Q28, Q29: to the dead letter and back, with the checkpoint kept and numbers going on."""
    task_id = actors.submit(max_deliveries=1)["task_id"]
    clerk = Clerk(actors.worker)
    delivery = clerk.take()
    actors.worker.row(
        "SELECT * FROM poolkeeper.checkpoint(:'id', :'token', '7', 1)", id=task_id, token=delivery["token"]
    )
    assert clerk.settle(delivery, "failed", c="ValueError", e="boom") is None
    assert actors.state(task_id) == "dead"
    letter = actors.reader.row("SELECT * FROM poolkeeper.dead_letters()")
    assert (letter["reason"], letter["error"], letter["checkpoint"]) == ("deliveries_exhausted", "boom", 7)
    assert actors.does("requeue", task_id)["state"] == "ready"
    assert actors.does("requeue", task_id)["code"] == "not_dead"
    again = clerk.take()
    assert (again["delivery"], again["spent"], again["checkpoint"]) == (2, 1, 7)
    assert again["token"] != delivery["token"]
    assert clerk.settle(delivery, "succeeded") == "already_done"
    assert clerk.settle(again, "rejected") is None
    assert actors.state(task_id) == "failed"


def test_expiry_isolation_and_the_late_settle(scene: Scene, actors: Actors) -> None:
    """Q19, Q22, Q27: a silent worker loses its task, which then runs alone."""
    task_id = actors.submit()["task_id"]
    late = Clerk(actors.worker)
    delivery = late.take()
    scene.advance(16)
    assert actors.person.row("SELECT poolkeeper.sweep() AS n")["n"] == 1
    assert late.settle(delivery, "succeeded") == "lease_expired"
    other = Clerk(actors.worker)
    assert [r["extra"]["isolate"] for r in other.turn(want=1) if "isolate" in (r["extra"] or {})] == [True]
    alone = other.take(isolated=True)
    assert (alone["task_id"], alone["suspect"]) == (task_id, True)
    assert other.settle(alone, "handed_back") is None


def test_cancel_snooze_and_discard(actors: Actors) -> None:
    """Q26, Q29, Q39: what people and handlers ask for."""
    task_id = actors.submit()["task_id"]
    clerk = Clerk(actors.worker)
    assert clerk.settle(clerk.take(), "snoozed", a=3600) is None
    assert actors.state(task_id) == "waiting"
    assert actors.does("cancel", task_id)["state"] == "canceled"
    running = actors.submit()["task_id"]
    delivery = clerk.take()
    assert actors.does("cancel", running)["state"] == "running"
    assert [r["code"] for r in clerk.renew(running) if r["kind"] == "task"] == ["canceled"]
    assert clerk.settle(delivery, "canceled") is None
    dead = actors.submit()["task_id"]
    assert clerk.settle(clerk.take(), "dead") is None
    assert actors.does("discard", dead)["state"] == "canceled"


def test_a_lost_answer_comes_back(actors: Actors) -> None:
    """Q10: numbered turns need no language."""
    task_id = actors.submit()["task_id"]
    clerk = Clerk(actors.worker)
    clerk.turn(want=1)
    lost = clerk.turn_no
    clerk.turn_no += 1
    rows = actors.worker.rows(
        TURN, **clerk.session, turn=clerk.turn_no, received=lost - 1, settles=[], want=1, sweep=False, isolated=False
    )
    assert [(r["task_id"], r["delivery"], r["spent"]) for r in rows if r["kind"] == "claimed"] == [(task_id, 2, 1)]


def test_in_a_transaction_of_its_own(actors: Actors) -> None:
    """Q4: rolled back, there was never a task."""
    actors.submitter.tell("BEGIN; SELECT * FROM poolkeeper.submit('q', 'a.b', '1'); ROLLBACK;")
    assert [r for r in Clerk(actors.worker).turn(want=1) if r["kind"] == "claimed"] == []


def test_success_in_a_transaction_of_the_handlers_own(actors: Actors) -> None:
    """Q18, contract 23: by the login of the application, which knows the token; rolled back, it never was."""
    task_id = actors.submit()["task_id"]
    clerk = Clerk(actors.worker)
    token = clerk.take()["token"]
    succeed = "SELECT * FROM poolkeeper.succeed(:'id', :'token', '{\"ok\": 1}');"
    actors.submitter.tell(f"BEGIN; {succeed} ROLLBACK;", id=task_id, token=token)
    assert actors.state(task_id) == "running"
    said = actors.submitter.tell(
        f"BEGIN; CREATE TEMPORARY TABLE business (n int); INSERT INTO business VALUES (1); {succeed} {succeed} COMMIT; {succeed}",
        id=task_id,
        token=token,
    )
    assert said.splitlines() == ["|succeeded", "|succeeded", "already_done|succeeded"]
    view = actors.reader.row("SELECT * FROM poolkeeper.task_view(:'id')", id=task_id)
    assert (view["state"], view["result"]) == ("succeeded", {"ok": 1})
    assert clerk.settle({"task_id": task_id, "token": token}, "failed") == "already_done"
    for login in (actors.reader, actors.person):
        with pytest.raises(PsqlError, match="permission denied"):
            login.tell(succeed, id=task_id, token=token)


def test_serializable_is_refused_with_the_remedy(actors: Actors) -> None:
    """Q12: in psql's own words."""
    clerk = Clerk(actors.worker)
    with pytest.raises(PsqlError, match="READ COMMITTED"):
        actors.worker.tell(
            "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM poolkeeper.turn(:'session', :'secret', 1, 0, '[]', 1); COMMIT;",
            **clerk.session,
        )


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM poolkeeper.task",
        "DELETE FROM poolkeeper.lease",
        "UPDATE poolkeeper.queue SET paused = false",
        "SELECT poolkeeper.requeue(gen_random_uuid(), 'eve', 'x')",
        "SELECT poolkeeper.clock_offset()",
        "SET ROLE poolkeeper_person",
        "SELECT poolkeeper.set_pool('local/psql', NULL)",
    ],
)
def test_a_worker_gets_nowhere_else(actors: Actors, statement: str) -> None:
    """Q51, P10: the same login that works is refused all of this."""
    assert Clerk(actors.worker).turn(want=1)
    with pytest.raises(PsqlError, match=r"permission denied|does not exist"):
        actors.worker.tell(statement + ";")
