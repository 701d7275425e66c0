"""Contract 2: what people do to commands: nonsense as arguments and files, Ctrl-C at any moment, a full disk, a reader that goes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from fixtures.badinput import HOSTILE, NO_JSON, QUEUES
from fixtures.workers import Stage, eventually
from poolkeeper.cli import run

INTERRUPTED = 130


@pytest.fixture(autouse=True)
def _database(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POOLKEEPER_DSN_FILE", raising=False)
    monkeypatch.setenv("POOLKEEPER_DSN", stage.dsn)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "poolkeeper", *arguments]


def test_a_payload_that_is_no_json_or_cannot_be_kept_is_refused_with_its_place(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """C52: as an argument, exit 2 for no JSON, 4 for what nothing could hold; one line, and nothing stored."""
    for name, (text, code, words) in NO_JSON.items():
        assert run(["submit", "q", "t.count", "--", text]) == code, name
        said = capsys.readouterr().err
        assert words in said, name
        assert "Traceback" not in said
    assert stage.states() == {}


@pytest.mark.parametrize("name", ["NaN", "5,000 digits", "100,000 levels", "half"])
def test_the_same_from_standard_input(stage: Stage, name: str) -> None:
    """C52: as a program pipes it."""
    text, code, words = NO_JSON[name]
    done = subprocess.run(
        command("submit", "q", "t.count", "-"), input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert stage.states() == {}


def test_bytes_that_are_no_text_are_refused_wherever_they_come_from(stage: Stage, tmp_path: Path) -> None:
    """C52, C54: standard input, arguments, files; a line and no traceback."""
    bad = b"\xff\xfe"
    piped = subprocess.run(command("submit", "q", "t.count", "-"), input=bad, capture_output=True, check=False)
    assert piped.returncode == 2
    for arguments, code in (
        (("submit", "q", b"t\xff"), 4),
        (("submit", b"q\xff", "t.count"), 4),
        (("submit", "q", "t.count", b'"\xff"'), 4),
        (("submit", "q", "t.count", "--tenant", bad), 4),
        (("submit", "q", "t.count", "--key", bad), 4),
        (("queue", "pause", bad), 4),
    ):
        done = subprocess.run([*command(), *arguments], capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith(b"error: ")
        assert b"Traceback" not in done.stderr
    (tmp_path / "q.yaml").write_bytes(b"kind: TaskQueue\nmetadata: {name: \xff}\n")
    applied = subprocess.run(command("queue", "apply", str(tmp_path / "q.yaml")), capture_output=True, check=False)
    assert (applied.returncode, applied.stderr[:24]) == (2, b"error: setting_invalid: ")
    assert stage.states() == {}


def test_hostile_names_as_arguments(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """C54: as queue they are unknown, as tenant and key refused or kept; the terminal is never written to by them."""
    for name, (text, allowed) in HOSTILE.items():
        assert run(["submit", "--", text or "x/", "t.count"]) == 3, name
        assert run(["submit", "q", "t.count", f"--tenant={text}"]) == (0 if "tenant" in allowed else 4), name
        assert run(["submit", "q", "t.count", f"--key={text}"]) == (0 if "key" in allowed else 4), name
        said = capsys.readouterr().err
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert "Traceback" not in said
    assert run(["dlq", "list", "--queue", HOSTILE["quote"][0]]) == 0
    with psycopg.connect(stage.dsn) as conn:
        assert conn.execute("SELECT count(*) FROM poolkeeper.queue").fetchone() == (1,)


def test_hostile_names_of_queues_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C54, contract 10: refused with the bound before anything is applied; the good ones work."""
    for name, (text, good) in QUEUES.items():
        for field in ("name", "namespace"):
            metadata = {"name": "other", "namespace": "team", field: text}
            (tmp_path / "q.yaml").write_text(json.dumps({"kind": "TaskQueue", "metadata": metadata, "spec": {}}))
            assert run(["queue", "apply", str(tmp_path / "q.yaml")]) == (0 if good else 2), name
            said = capsys.readouterr().err
            assert good or "no DNS label" in said, said


@pytest.mark.parametrize(
    "text",
    [
        "kind: TaskQueue\nmetadata: [a]\nspec: {}",
        "kind: TaskQueue\nmetadata: {name: x}\nspec: text",
        "kind: TaskQueue\nmetadata: {name: 5}\nspec: {}",
        "kind: TaskQueue\nmetadata: {name: x}\nspec: {maxSnoozes: 32767}",
        "kind: TaskQueue\nmetadata: {name: x}\nspec: {maxDeliveries: .nan}",
        "kind: TaskQueue\nmetadata: {name: x}\nspec: {1: 2}",
        "[" * 5000,
        "a: \x00",
        "- - -",
        "",
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Contract 2: setting_invalid, exit 2, one line."""
    (tmp_path / "q.yaml").write_text(text)
    assert run(["queue", "apply", str(tmp_path / "q.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: setting_invalid: ")
    assert "q.yaml" in said
    assert said.count("\n") == 1


def test_numbers_beyond_all_bounds_as_options(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: kept within the policy's range where there is one, refused else."""
    for option, code in (
        ("--priority=99999999999999999999", 0),
        ("--priority=" + "9" * 5000, 2),
        ("--max-deliveries=0", 2),
        ("--max-deliveries=99999999999999999999", 0),
        ("--delay=99999999999h", 2),
        ("--delay=-1s", 2),
        ("--max-age=0s", 4),
    ):
        assert run(["submit", "q", "t.count", option]) == code, (option, capsys.readouterr())
        assert "Traceback" not in capsys.readouterr().err
    assert stage.states() == {"ready": 2}


def test_an_answer_that_nobody_reads_or_that_does_not_fit_is_no_traceback(stage: Stage) -> None:
    """Contract 2: `… | head` and a full disk."""
    for _ in range(3):
        stage.submit("t.count")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command("queue", "list"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: setting_invalid: an input or output cannot be used: No space left on device")
    assert done.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(command("queue", "list"), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (1, "")


def test_what_nobody_thought_of_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: exit 1 and how to see more."""
    monkeypatch.setattr("poolkeeper.cli.queue.ask", lambda *_: 1 / 0)
    assert run(["queue", "list"]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected: ZeroDivisionError: division by zero; with POOLKEEPER_LOG_LEVEL=debug it says where\n"
    )


@contextmanager
def locked(stage: Stage) -> Iterator[None]:
    """While nobody may submit, list or look."""
    with psycopg.connect(stage.dsn) as owner:
        owner.execute("LOCK TABLE poolkeeper.task, poolkeeper.queue IN ACCESS EXCLUSIVE MODE")
        yield


def waiting(stage: Stage) -> bool:
    with psycopg.connect(stage.dsn) as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return conn.execute(query).fetchone() == (1,)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_a_command_that_waits_and_what_it_asked_for(stage: Stage, presses: int) -> None:
    """Contract 2: 130, no traceback, nothing stored, no statement left behind in the database."""
    with locked(stage):
        with subprocess.Popen(command("submit", "q", "t.count"), stderr=subprocess.PIPE, text=True) as started:
            eventually(lambda: waiting(stage), "the command waits for a lock")
            for _ in range(presses):
                started.send_signal(signal.SIGINT)
            said = started.communicate(timeout=60)[1]
        assert started.returncode == INTERRUPTED
        assert said.strip() == ""
        if presses == 1:
            eventually(lambda: not waiting(stage), "the statement is gone")
    assert stage.states() == {}


@pytest.mark.wide
def test_ctrl_c_at_any_moment_of_a_command(stage: Stage) -> None:
    """Contract 2: 130 or already done; a traceback at no moment from the program's first line on."""
    began = time.monotonic()
    subprocess.run(command("queue", "list"), check=True, capture_output=True)
    whole = time.monotonic() - began
    codes = []
    for _ in range(25):
        with subprocess.Popen(
            command("queue", "list"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as started:
            time.sleep(random.uniform(0, whole))  # a random moment is what is wanted
            started.send_signal(signal.SIGINT)
            said = started.communicate(timeout=60)[1]
        codes.append(started.returncode)
        if started.returncode not in {INTERRUPTED, 0} or "Traceback" in said:
            assert before_the_program(said), said
    assert INTERRUPTED in codes


def before_the_program(said: str) -> bool:
    """Whether it was Python itself that was interrupted, before there was a line of ours to hear it."""
    ours = ("poolkeeper/cli", "poolkeeper/store", "poolkeeper/worker", "poolkeeper/client", "\nerror: ")
    return not any(part in f"\n{said}" for part in ours)


@pytest.mark.wide
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_is_told_to_stop_at_any_moment_of_its_start_ends_well(stage: Stage, how: signal.Signals) -> None:
    """Contract 2, Q48: before it has a session there is nothing to drain; from then on it drains."""
    began = time.monotonic()
    worker = stage.worker().ready()
    whole = time.monotonic() - began
    worker.signal(how)
    assert worker.wait() == 0
    for _ in range(10):
        worker = stage.worker()
        time.sleep(random.uniform(0.1, whole))  # a random moment is what is wanted
        worker.signal(how)
        code = worker.wait()
        if code not in {0, INTERRUPTED, 143} or "Traceback" in worker.log:
            assert before_the_program(worker.log), worker.log


def test_a_second_ctrl_c_does_not_cut_a_drain_short(stage: Stage) -> None:
    """Q48: what runs may finish, however often somebody presses."""
    worker = stage.worker().ready()
    task = stage.submit("t.hold", "go")
    stage.note("in", task)
    for _ in range(3):
        worker.signal(signal.SIGINT)
    eventually(lambda: "draining" in worker.log, "the worker drains")
    worker.signal(signal.SIGINT)
    stage.release("go")
    assert worker.wait() == 0
    assert stage.ends(task).state == "succeeded"
    assert stage.deliveries(task) == ["succeeded"]


def test_a_second_worker_on_the_same_port_is_refused_and_the_first_goes_on(stage: Stage) -> None:
    """Contract 2: a second run while one is running."""
    first = stage.worker().ready()
    second = stage.worker({"POOLKEEPER_HTTP_ADDR": first.address()})
    assert second.wait() == 2
    assert "error: setting_invalid: POOLKEEPER_HTTP_ADDR" in second.log
    assert "choose another port" in second.log
    assert stage.ends(stage.submit("t.count")).state == "succeeded"


def test_an_app_that_ends_the_program_at_import_is_refused(stage: Stage, tmp_path: Path) -> None:
    """Contract 2: app_not_importable also for what no `except Exception` sees, and for a type that is registered twice."""
    (tmp_path / "ends.py").write_text("import sys\nsys.exit('no settings')\n")
    (tmp_path / "twice.py").write_text(
        "from poolkeeper import Poolkeeper\napp = Poolkeeper()\n"
        "app.task('a.b')(lambda payload: None)\napp.task('a.b')(lambda payload: None)\n"
    )
    for name, words in (
        ("ends:app", 'error: app_not_importable: application "ends:app": importing it failed: SystemExit: no settings'),
        ("twice:app", 'error: duplicate_type: task type "a.b" has two handlers'),
    ):
        done = subprocess.run(
            command("worker", name, "--queue", "q", "--dsn", stage.dsn),
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
