"""Names, wishes and results that nobody should send: refused with a code each, or kept whole (C52, C54, contract 9, 10)."""

import json
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from fixtures.badinput import FORMS, HOSTILE, LONGEST, QUEUES, UNSENDABLE, WISHES
from poolkeeper import Client, PoolkeeperError, Refused
from poolkeeper.codes import Code
from poolkeeper.policy import read_policy
from poolkeeper.store import calls, run
from store.scene import Scene, Worker


def submit(scene: Scene, **task: Any) -> Any:
    """The verdict of SQL alone, as a submitter in another language gets it."""
    tasks = [{"type": "a.b", "payload": 1, **task}]
    conn = scene.actor("submitter")
    row = conn.execute("SELECT code, task_id FROM poolkeeper.submit_many('q', %s::jsonb)", [Json(tasks)]).fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize("form", FORMS)
def test_a_hostile_name_is_refused_by_its_code_or_works_whole(scene: Scene, form: str) -> None:
    """C54, contract 10: submitted, claimed, dead-lettered, listed, submitted again; nothing else is touched."""
    other = scene.submit("o.o")
    for name, (text, allowed) in HOSTILE.items():
        if form in allowed.split():
            _works(scene, form, text)
        else:
            assert submit(scene, **{form: text}) == (f"{form}_invalid", None), name
    accepted = sum(form in allowed.split() for _, allowed in HOSTILE.values())
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 1 + accepted
    assert scene.state(other) == "ready"


def _works(scene: Scene, form: str, text: str) -> None:
    code, task_id = submit(scene, **{form: text})
    assert code is None, text
    worker = scene.worker(types=[text if form == "type" else "a.b"])
    delivery = worker.take()
    assert delivery.task_id == task_id
    if form != "key":
        assert getattr(delivery, form) == text
    worker.settle(delivery, "dead", error_class="X", error="x")
    assert scene.ask("person", calls.dead_letters())[0].task_id == task_id
    if form == "key":
        assert submit(scene, key=text) == (None, task_id)
        assert submit(scene, key=text, payload=2) == ("key_conflict", None)


@pytest.mark.parametrize("form", FORMS)
def test_a_name_at_its_bound_passes_and_one_above_does_not(scene: Scene, form: str) -> None:
    """Contract 10: the bound counts characters."""
    assert submit(scene, **{form: "x" * LONGEST[form]})[0] is None
    assert submit(scene, **{form: "x" * (LONGEST[form] + 1)})[0] == f"{form}_invalid"


@pytest.mark.parametrize("form", ["tenant", "key"])
def test_names_are_compared_as_bytes(scene: Scene, form: str) -> None:
    """C54: composed and decomposed, upper and lower case, and what differs only behind byte 63 stay apart."""
    pairs = [("\u00e9", "e\u0301"), ("Default", "default"), ("x" * 63 + "a", "x" * 63 + "b"), ("a", "a ")]
    for pair in pairs:
        found = {submit(scene, **{"key": "k", form: text})[1] for text in pair}
        assert len(found - {None}) == 2, pair


def test_a_wish_that_makes_no_sense_is_refused_by_its_code(scene: Scene) -> None:
    """Contract 9: a row and no error; its neighbours in the batch are accepted, and nothing is stored for it."""
    conn = scene.actor("submitter")
    for wish, (task, code) in WISHES.items():
        before = scene.value("SELECT count(*) FROM poolkeeper.task")
        tasks = [{"type": "a.b", "payload": n, **(task if n == 1 else {})} for n in range(3)]
        rows = conn.execute("SELECT code FROM poolkeeper.submit_many('q', %s::jsonb)", [Json(tasks)]).fetchall()
        assert rows == [(None,), (code,), (None,)], wish
        assert scene.value("SELECT count(*) FROM poolkeeper.task") == before + (2 if code else 3), wish
    scene.sweep()
    assert scene.ask("operator", calls.stats(cluster=None)).queues


def test_no_setting_of_the_session_loosens_the_grammar_of_names(scene: Scene) -> None:
    """C54: with backslashes read as escapes, patterns would be others: a type could hold anything, a tenant hide itself."""
    conn = scene.connect("submitter")
    conn.execute("SET standard_conforming_strings = off")
    query = "SELECT code FROM poolkeeper.submit('q', %s, '1', %s::jsonb)"
    for type_, tenant, code in [
        ("a!b", "acme", "type_invalid"),
        ("a.b", "ac\u200bme", "tenant_invalid"),
        ("a.b", "ac\nme", "tenant_invalid"),
        ("a.b", "u200B-F", None),
    ]:
        assert conn.execute(query, [type_, Json({"tenant": tenant})]).fetchone() == (code,), (type_, tenant)


def test_a_refused_wish_leaves_the_callers_transaction_usable(scene: Scene) -> None:
    """Q4, Q7: what was done before it in that transaction stands."""
    conn = scene.connect("submitter", autocommit=False)
    first = run(conn, calls.submit("q", "a.b", 1))
    row = conn.execute("SELECT code FROM poolkeeper.submit('q', 'A', '1', '{\"run_at\": \"soon\"}')").fetchone()
    assert row == ("option_invalid",)
    conn.commit()
    assert first.task_id is not None
    assert scene.state(first.task_id) == "ready"


def test_a_key_that_was_used_finds_its_task_whatever_is_wished_now(scene: Scene) -> None:
    """Q6: a repeat of what was accepted, in a batch with nonsense, is that task."""
    first = scene.submit(key="k")
    tasks = [{"type": "a.b", "payload": 1, "key": "k"}, {"type": "a.b", "delay": "x"}]
    rows = scene.actor("submitter").execute(
        "SELECT code, task_id, created FROM poolkeeper.submit_many('q', %s::jsonb)", [Json(tasks)]
    )
    assert rows.fetchall() == [(None, first, False), ("option_invalid", None, False)]


@pytest.mark.parametrize("form", [*FORMS, "traceparent"])
def test_what_no_statement_can_carry_is_refused_before_it_is_sent(scene: Scene, form: str) -> None:
    """C52: with the code of the name, not with the driver's error."""
    client = Client(scene.actor("submitter"))
    code = "option_invalid" if form == "traceparent" else f"{form}_invalid"
    for text in UNSENDABLE.values():
        wishes: Any = {"type": "a.b", form: text}
        batch: Any = [{"type": "a.b", "payload": 1}, {"payload": 1, **wishes}]
        with pytest.raises(PoolkeeperError) as refused:
            client.submit("q", payload=1, **wishes)
        assert refused.value.code == code
        with pytest.raises(PoolkeeperError, match=r"tasks\[1\]") as refused:
            client.submit_many("q", batch)
        assert refused.value.code == code
        with pytest.raises(PoolkeeperError) as refused:
            client.submit(text, "a.b")
        assert refused.value.code == Code.OPTION_INVALID


def test_the_client_names_what_was_refused_and_the_remedy(scene: Scene) -> None:
    """Quality 2: the value, bounded and without anything that moves a terminal."""
    client = Client(scene.actor("submitter"))
    for wishes, words in (
        ({"type": "Not A Type"}, r"type 'Not A Type': type_invalid; a type is words of a-z"),
        ({"tenant": "a\x1b[31m"}, r"tenant 'a\\x1b\[31m': tenant_invalid; a tenant is 1 to 200"),
        ({"key": "x" * 300}, r"key 'x{79}: key_invalid; a key is 1 to 200"),
        (
            {"max_deliveries": 0},
            'queue "default/q" refused max_deliveries 0: option_invalid; max_deliveries is at least 1',
        ),
        (
            {"delay": "10s", "priority": 1},
            "delay is '10s'; a duration is a timedelta or seconds",
        ),
        ({"priority": 10**5000}, "priority is an integer beyond"),
        ({"labels": {"a": "x" * 5000}}, "labels .*labels_invalid; labels are texts by name"),
    ):
        given: Any = {"type": "a.b", **wishes}
        with pytest.raises(Refused, match=words):
            client.submit("q", **given)


@pytest.mark.parametrize(
    "task_id",
    ["", "x", "a\x00b", "\ud800", "9" * 10_000, 5, -1.5, None, b"x", [], {}, float("nan")],
    ids=lambda t: ascii(t)[:12],
)
def test_an_id_that_is_none_is_refused_before_it_is_sent(scene: Scene, task_id: Any) -> None:
    """C52, Q51: by our code, and the caller's transaction stays usable."""
    client = Client(scene.connect("person", autocommit=False))
    for attempt in (lambda: client.get(task_id), lambda: client.cancel(task_id, who="a", why="b")):
        with pytest.raises(Refused, match="is no UUID") as refused:
            attempt()
        assert refused.value.code is Code.OPTION_INVALID
    real = scene.submit()
    assert client.get(str(real)).id == real  # type: ignore[arg-type]  # as it stands in a log


def test_a_queue_is_named_as_kubernetes_names_things(bare_scene: Scene) -> None:
    """Contract 10, 11: by SQL too, for its namespace too; the refusal is a row."""
    policy = read_policy({}, what="q").to_store()
    for name, (text, good) in QUEUES.items():
        for namespace, queue in ((text, "q"), ("default", text)):
            applied = bare_scene.ask("operator", calls.apply_policy("local", "u", namespace, queue, policy, who="test"))
            assert applied.code == (None if good else "name_invalid"), name
        assert bare_scene.verdict(queue=f"x{text}").code is Code.UNKNOWN_QUEUE
    assert bare_scene.value("SELECT count(*) FROM poolkeeper.queue") == 2 * sum(good for _, good in QUEUES.values())


@pytest.mark.parametrize(("pool", "slots"), [("", 1), ("a\nb", 1), ("x" * 201, 1), ("local/p", 0), ("local/p", 10_001)])
def test_a_session_is_refused_for_a_pool_that_cannot_be_named(scene: Scene, pool: str, slots: int) -> None:
    """Contract 9: misuse of the worker's program has a SQLSTATE of ours and a hint."""
    call = calls.register_session(pool, ["q"], ["a.b"], concurrency=slots, info={})
    with pytest.raises(psycopg.Error) as misuse:
        run(scene.actor("worker"), call)
    assert misuse.value.sqlstate == "PK400"
    assert "1 to 200 printable characters" in str(misuse.value.diag.message_hint)


def settled(scene: Scene, worker: Worker, result: Any) -> Any:
    delivery = worker.take()
    verdict = worker.succeed(delivery, result)
    return delivery.task_id, verdict


def test_a_result_beyond_the_bound_is_a_dead_letter_and_never_a_success_without_it(scene: Scene) -> None:
    """C52, Q30: at the bound it is kept; one byte above, one delivery, and the letter says what to do."""
    worker = scene.worker()
    scene.submit()
    task_id, verdict = settled(scene, worker, "x" * (1024 * 1024 - 2))
    assert (verdict.code, scene.state(task_id)) == (None, "succeeded")
    scene.submit()
    task_id, verdict = settled(scene, worker, "x" * (1024 * 1024 - 1))
    assert (verdict.code, verdict.state) == (None, "dead")
    (letter,) = scene.ask("person", calls.dead_letters())
    assert (letter.task_id, letter.reason, letter.deliveries) == (task_id, "permanent_error", 1)
    assert "1048577 bytes" in str(letter.error)
    assert "return a reference" in str(letter.error)


@pytest.mark.parametrize("text", ["1e400", "[" * 200 + "]" * 200])
def test_a_result_or_checkpoint_that_a_reader_would_choke_on_is_refused(scene: Scene, text: str) -> None:
    """Q8, C52: of a worker in another language; its neighbours in the turn are settled."""
    worker = scene.worker()
    bad, good = scene.submit(), scene.submit()
    first, second = sorted(worker.claim(2), key=lambda claimed: claimed.task_id != bad)
    row = worker.conn.execute(
        "SELECT code FROM poolkeeper.checkpoint(%s, %s, %s::jsonb, 1)", [bad, first.token, text]
    ).fetchone()
    assert row == ("payload_invalid",)
    settles = json.dumps(
        [{"t": str(bad), "k": first.token, "o": "succeeded", "r": "PLACE"}, {"t": str(good), "k": second.token, "o": "succeeded", "r": 1}]
    ).replace('"PLACE"', text)  # fmt: skip
    worker.conn.execute(
        "SELECT * FROM poolkeeper.turn(%s, %s, 2, 1, %s::jsonb, 0)",
        [worker.session.id, worker.session.secret, settles],
    )
    assert (scene.state(bad), scene.state(good)) == ("dead", "succeeded")
    (letter,) = scene.ask("person", calls.dead_letters())
    assert letter.error_class == "result_invalid"


def test_as_many_snoozes_as_the_policy_may_ask_for_fit_into_their_counter(scene: Scene) -> None:
    """Q28: the highest maxSnoozes is what the counter holds; the policy above it is refused."""
    policy = read_policy({"maxSnoozes": 32766}, what="q").to_store()
    assert scene.ask("operator", calls.apply_policy("local", "default", "default", "q", policy, who="t")).code is None
    with pytest.raises(ValueError, match="maxSnoozes"):
        read_policy({"maxSnoozes": 32767}, what="q")


@pytest.mark.parametrize(
    "spec",
    [
        {"max_snoozes": 32767}, {"max_deliveries": "many"}, {"max_deliveries": 0}, {"task_types": 5}, {"wake_up": "never"},
        {"visibility_timeout_seconds": 0}, {"priority_min": 10**9}, {"backoff_factor_percent": 1}, {"max_payload_bytes": None, "paused": "?"},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_of_nonsense_is_misuse_and_the_one_in_force_stays(scene: Scene, spec: dict[str, Any]) -> None:
    """Contract 9: through SQL alone, where no model has looked at it; a SQLSTATE of ours that names the queue."""
    before = scene.rows("SELECT * FROM poolkeeper.queue")
    with pytest.raises(psycopg.Error, match='policy of queue "default/q"') as misuse:
        scene.queue(**spec)
    assert misuse.value.sqlstate == "PK400"
    assert scene.rows("SELECT * FROM poolkeeper.queue") == before
