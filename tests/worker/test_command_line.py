"""Contract 2, A4: the verbs on a real database, as a person types them."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fixtures.postgres import Database
from fixtures.workers import Stage, eventually
from poolkeeper.cli import run

QUEUE = """
apiVersion: poolkeeper.dev/v1alpha1
kind: TaskQueue
metadata: {name: mail, namespace: team-a}
spec: {databaseRef: {name: main}, maxDeliveries: 1, deadLetter: {owner: me, runbookURL: "https://example.com"}}
---
apiVersion: poolkeeper.dev/v1alpha1
kind: ProviderQuota
metadata: {name: other}
"""


class Terminal:
    """One program after the other on one database."""

    def __init__(self, dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("POOLKEEPER_DSN_FILE", raising=False)
        monkeypatch.setenv("POOLKEEPER_DSN", dsn)
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code, self._capsys.readouterr()
        out, self.error = self._capsys.readouterr()
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--output", "json"))


@pytest.fixture
def terminal(database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(database.dsn, capsys, monkeypatch)


def test_a_queue_is_applied_listed_paused_and_resumed(terminal: Terminal, tmp_path: Path) -> None:
    """Contract 16: without Kubernetes, from the file that kubectl takes; the same again changes nothing."""
    file = tmp_path / "queue.yaml"
    file.write_text(QUEUE)
    assert terminal.json("queue", "apply", str(file)) == [
        {"queue": "team-a/mail", "policy_version": 1, "changed": True}
    ]
    assert terminal.json("queue", "apply", str(file))[0]["changed"] is False
    terminal("queue", "pause", "team-a/mail")
    assert terminal.json("queue", "list")[0]["paused"] is True
    terminal("submit", "team-a/mail", "mail.send", code=4)
    assert terminal.error.startswith("error: queue_paused: ")
    terminal("queue", "resume", "team-a/mail")
    terminal("submit", "team-a/mail", "mail.send")
    assert "team-a/mail" in terminal("queue", "list")
    terminal("queue", "pause", "nowhere", code=3)
    assert terminal.error.startswith("error: unknown_queue: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod", "holds no TaskQueue"),
        ("kind: TaskQueue\nspec: {}", "no metadata.name"),
        ("kind: TaskQueue\nmetadata: {name: x}\nspec: {maxDeliverys: 3}", "spec.maxDeliverys: there is no such field"),
        ("a: [", "no YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_as_a_whole(terminal: Terminal, tmp_path: Path, text: str, words: str) -> None:
    """Contract 2: exit code 2, and nothing of the file is applied."""
    file = tmp_path / "queue.yaml"
    file.write_text(f"{QUEUE}\n---\n{text}" if "kind: TaskQueue" in text else text)
    terminal("queue", "apply", str(file), code=2)
    assert words in terminal.error
    assert terminal.json("queue", "list") == []


def test_a_task_from_submit_to_discard(stage: Stage, terminal: Terminal) -> None:
    """A4, Q29: shown, dead-lettered, requeued with a reason, dead again, discarded; the timeline tells all of it."""
    stage.apply(max_deliveries=1)
    stage.worker().ready()
    task = terminal.json("submit", "q", "t.raises", '"error"', "--key", "k1")["task_id"]
    assert terminal("submit", "q", "t.raises", '"error"', "--key", "k1").strip() == task
    eventually(lambda: terminal.json("task", "show", task)["state"] == "dead", "the task is dead")
    assert [letter["task_id"] for letter in terminal.json("dlq", "list", "--queue", "q")] == [task]
    assert task in terminal("dlq", "list")
    assert "last_error        RuntimeError: " in terminal("task", "show", task)
    terminal("dlq", "requeue", task, "--why", "mended")
    eventually(lambda: terminal.json("task", "show", task)["state"] == "dead", "the task is dead again")
    assert "canceled" in terminal("dlq", "discard", task, "--why", "hopeless")
    terminal("dlq", "discard", task, "--why", "twice", code=4)
    assert terminal.error.startswith("error: not_dead: ")
    history = terminal.json("task", "timeline", task)
    assert [row["what"] for row in history if row["actor"]] == ["requeued", "discarded"]
    assert "RuntimeError" in terminal("task", "timeline", task)


def test_dead_letters_by_a_filter(stage: Stage, terminal: Terminal) -> None:
    """Q29, contract 2: a dry run says how many and shows some; doing it goes oldest first, with who and why."""
    stage.apply(max_deliveries=1)
    stage.worker().ready()
    tasks = [terminal.json("submit", "q", "t.raises", '"error"')["task_id"] for _ in range(3)]
    eventually(lambda: len(terminal.json("dlq", "list")) == 3, "all are dead")
    found = terminal.json("dlq", "requeue", "--queue", "q", "--error-class", "RuntimeError", "--dry-run")
    assert (found["matching"], sorted(one["task_id"] for one in found["first"])) == (3, sorted(tasks))
    assert "2 dead letters match" in terminal("dlq", "discard", "--queue", "q", "--limit", "2", "--dry-run")
    assert "no dead letter matches" in terminal("dlq", "discard", "--queue", "q", "--type", "t.other", "--why", "x")
    assert len(terminal.json("dlq", "list")) == 3
    done = terminal.json("dlq", "discard", "--queue", "q", "--limit", "2", "--why", "hopeless")
    assert done["discarded"] == 2
    (left,) = set(tasks) - set(done["task_ids"])
    history = terminal.json("task", "timeline", done["task_ids"][0])
    assert (history[-1]["what"], history[-1]["reason"]) == ("discarded", "hopeless")
    terminal("dlq", "discard", "--queue", "nowhere", "--why", "x", code=3)
    assert terminal.error.startswith("error: unknown_queue: ")
    seen = terminal.json("task", "show", left)["state_version"]
    terminal("dlq", "discard", left, "--version", str(seen - 1), "--why", "x", code=4)
    assert terminal.error.startswith("error: stale_version: ")
    assert "1 discarded" in terminal("dlq", "discard", "--queue", "q", "--before", "2100-01-01", "--why", "x")
    assert terminal.json("dlq", "list") == []


def test_what_is_not_there_exits_with_3(terminal: Terminal) -> None:
    """Contract 2."""
    nobody = "01a22861-70de-79ba-acfa-13b3cdac6ae6"
    for arguments in (
        ("task", "show"),
        ("task", "timeline"),
        ("task", "cancel", "--why", "x"),
        ("task", "requeue", "--why", "x"),
    ):
        terminal(*arguments[:2], nobody, *arguments[2:], code=3)
        assert terminal.error.startswith("error: unknown_task: ")


def test_a_waiting_task_is_canceled_at_once(stage: Stage, terminal: Terminal) -> None:
    """Q39: with who and why in its history."""
    task = terminal("submit", "q", "t.count", "--delay", "1h").strip()
    terminal("task", "cancel", task, "--why", "a mistake")
    row = terminal.json("task", "timeline", task)[-1]
    assert (row["state"], row["reason"]) == ("canceled", "a mistake")
    assert row["actor"]


def test_migrations_are_printed_checked_and_applied(
    empty_database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 18: an empty database is too old and the message names the command; what is printed is what is run."""
    terminal = Terminal(empty_database.dsn, capsys, monkeypatch)
    terminal("migrate", "--check", code=5)
    assert terminal.error.startswith("error: schema_too_old: ")
    assert "poolkeeper migrate --apply" in terminal.error
    printed = terminal("migrate", "--print")
    assert "CREATE TABLE poolkeeper.task" in printed
    terminal("migrate", "--check", code=5)
    terminal("migrate", "--apply")
    assert "works with it" in terminal("migrate", "--check")
    assert terminal("migrate", "--print").strip() == ""
    assert "up to date" in terminal("migrate", "--apply")


def test_what_is_old_goes_when_asked(terminal: Terminal, tmp_path: Path, database: Database) -> None:
    """Q52: without an operator and without workers; the count of each kind."""
    file = tmp_path / "queue.yaml"
    file.write_text(QUEUE)
    terminal("queue", "apply", str(file))
    task_id = terminal("submit", "team-a/mail", "mail.send").split()[0]
    terminal("task", "cancel", task_id, "--why", "x")
    assert set(terminal.json("maintain").values()) == {0}
    with database.connect() as conn:  # the test's own way through time
        conn.execute("UPDATE poolkeeper.event SET at = at - interval '40 days'")
        conn.execute("UPDATE poolkeeper.queue SET retention_events = '1 us'")
    assert terminal.json("maintain")["tasks"] == 1
    terminal("task", "show", task_id, code=3)
    assert "ended tasks removed" in terminal("maintain")


def lines(file: Path, *tasks: Any) -> str:
    file.write_text("".join(f"{task if isinstance(task, str) else json.dumps(task)}\n" for task in tasks))
    return str(file)


def test_a_file_of_tasks_is_submitted_in_pages(stage: Stage, terminal: Terminal, tmp_path: Path) -> None:
    """Q5, Q6: more than one page; repeated it is known by its keys, and nothing is there twice."""
    tasks = [{"payload": n, "key": f"k{n}"} for n in range(10_001)]
    file = lines(tmp_path / "tasks.jsonl", *tasks[:5000], "", *tasks[5000:])
    assert terminal("submit", "q", "t.count", "--file", file) == ""
    assert terminal.error == "10001 created, 0 known by their keys, 0 refused\n"
    said = terminal("submit", "q", "t.count", "--file", file, "--output", "json").splitlines()
    assert terminal.error == "0 created, 10001 known by their keys, 0 refused\n"
    assert {json.loads(line)["created"] for line in said} == {False}
    assert stage.states() == {"ready": 10_001}


def test_lines_say_what_they_wish_and_options_fill_in(stage: Stage, terminal: Terminal, tmp_path: Path) -> None:
    """Q9: each line its own; refusals are told with their lines, and end the command with 4."""
    file = lines(
        tmp_path / "tasks.jsonl",
        {"type": "a.b", "tenant": "acme", "delay": "1h", "payload": {"x": 1}},
        {"payload": 2, "run_at": "2030-01-31T08:00:00+01:00"},
        {"type": "NO WORD"},
        {"priority": 9},
    )
    said = terminal("submit", "q", "c.d", "--priority", "2", "--file", file, "--output", "json", code=4).splitlines()
    assert terminal.error.splitlines() == [
        "line 3: type_invalid",
        "3 created, 0 known by their keys, 1 refused: 1 type_invalid",
    ]
    views = [stage.view(UUID(json.loads(said[n])["task_id"])) for n in (0, 1, 3)]
    assert [(v.type, v.tenant, v.priority, v.state) for v in views] == [
        ("a.b", "acme", 2, "scheduled"), ("c.d", "default", 2, "scheduled"), ("c.d", "default", 9, "ready")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is no task"),
        ("[1]", "it must be an object"),
        ('{"type": "a.b", "paylod": 1}', "there is no field paylod"),
        ("{}", "it has no type"),
        ('{"type": "a.b", "delay": "soon"}', "line 2 is no task"),
    ],
)
def test_a_line_that_is_no_task_is_named_and_nothing_is_sent(
    stage: Stage, terminal: Terminal, tmp_path: Path, line: str, why: str
) -> None:
    """C54: a misspelt wish is not left out."""
    file = lines(tmp_path / "tasks.jsonl", {"type": "a.b"}, line)
    terminal("submit", "q", "--file", file, code=2)
    assert why in terminal.error
    assert stage.states() == {}
    terminal("submit", "q", code=2)
    assert "--file" in terminal.error
