"""C58, contract 2: a DSN that leads nowhere, in every way: the code, the remedy, and the password in no output."""

import asyncio
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures import guarded
from fixtures.badinput import AWKWARD, TELLTALES, UNREADABLE_DSNS, wrong_dsns
from fixtures.guarded import LOGIN, silent, tell
from fixtures.postgres import Database
from fixtures.workers import Stage, eventually
from lab.postgres import Server
from poolkeeper import AsyncClient, Client, PoolkeeperError
from poolkeeper.cli import run
from poolkeeper.codes import Code
from poolkeeper.errors import CLASSES

PROBE = ("queue", "list")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with guarded.guarded_server() as made:
        yield made


@pytest.fixture
def stage(server: Server, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(server.dsn("app"), tmp_path)
    made.apply()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POOLKEEPER_DSN", "POOLKEEPER_DSN_FILE", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("form", ["url", "pairs", "file", "two hosts"])
def test_an_awkward_password_works_when_it_is_written_as_it_must_be(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, form: str
) -> None:
    """C58: percent-encoded in a URL, quoted in pairs; from a file with a new line at its end; behind a host that is away."""
    url = f"postgresql://{LOGIN}:{quote(AWKWARD, safe='')}@127.0.0.1:{server.port}/app"
    match form:
        case "url":
            monkeypatch.setenv("POOLKEEPER_DSN", url)
        case "pairs":
            monkeypatch.setenv("POOLKEEPER_DSN", guarded.dsn(server))
        case "file":
            (tmp_path / "dsn").write_text(f"{url}\n")
            monkeypatch.setenv("POOLKEEPER_DSN_FILE", str(tmp_path / "dsn"))
        case _:
            two = make_conninfo(guarded.dsn(server), host="127.0.0.1,127.0.0.1", port=f"{free_port},{server.port}")
            monkeypatch.setenv("POOLKEEPER_DSN", two)
    assert run([*PROBE]) == 0


@pytest.mark.parametrize("way", ["--dsn", "variable", "file"])
@pytest.mark.parametrize("name", UNREADABLE_DSNS)
def test_a_dsn_that_cannot_be_read_is_refused_and_not_repeated(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2, C58: dsn_invalid, exit 2, the place where it stands, how it is written."""
    dsn = UNREADABLE_DSNS[name]
    if way == "variable":
        monkeypatch.setenv("POOLKEEPER_DSN", dsn)
    if way == "file":
        (tmp_path / "dsn").write_text(dsn)
        monkeypatch.setenv("POOLKEEPER_DSN_FILE", str(tmp_path / "dsn"))
    assert run([*PROBE, *(["--dsn", dsn] if way == "--dsn" else [])]) == 2
    out, said = capsys.readouterr()
    silent(out, said)
    place = {"--dsn": "--dsn ", "variable": "POOLKEEPER_DSN ", "file": f'POOLKEEPER_DSN_FILE "{tmp_path}/dsn" '}[way]
    assert said.startswith(f"error: dsn_invalid: {place}")
    assert said.count("\n") == 1
    assert any(remedy in said for remedy in ("write postgresql://", "are written as %XX"))


@pytest.mark.parametrize("name", UNREADABLE_DSNS)
async def test_a_program_that_logs_the_error_with_its_traceback_logs_no_password(name: str) -> None:
    """C58: libpq's own words quote what it could not read; they are in no chain of causes."""
    dsn = UNREADABLE_DSNS[name]
    with pytest.raises(PoolkeeperError) as sync, Client(dsn=dsn) as client:
        client.submit("q", "a.b")
    with pytest.raises(PoolkeeperError) as other:
        await AsyncClient(dsn=dsn).submit("q", "a.b")
    for raised in (sync.value, other.value):
        assert raised.code == Code.DSN_INVALID
        assert not [part for part in TELLTALES if part in _libraries_words(raised)]


def _libraries_words(error: BaseException) -> str:
    """The messages of an error and of all that led to it, which every logger prints; not the source lines of this file."""
    lines = traceback.format_exception(error)
    return "".join(line for line in lines if not line.startswith("  File"))


@pytest.mark.parametrize("name", wrong_dsns("host=x", 1))
def test_a_dsn_that_leads_nowhere_says_why(
    server: Server, free_port: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2, C58: what cannot be reached, was refused, is not there or makes no sense are told apart; sync and async."""
    dsn, code, remedy = wrong_dsns(guarded.dsn(server), free_port)[name]
    exit_code = run([*PROBE, "--dsn", dsn])
    out, said = capsys.readouterr()
    silent(out, said)
    told = Code(said.removeprefix("error: ").partition(":")[0])
    assert said.count("\n") == 1
    assert exit_code == CLASSES[told].exit_code
    assert told == code, said
    assert remedy in said
    assert 'database "' in said
    with pytest.raises(PoolkeeperError) as other:
        asyncio.run(AsyncClient(dsn=dsn).submit("q", "a.b"))
    assert other.value.code == code, other.value
    silent(str(other.value))


@pytest.mark.parametrize("bound", [f"ROLE {LOGIN} CONNECTION LIMIT", "DATABASE app CONNECTION LIMIT"])
def test_a_database_without_a_connection_left_is_told_from_one_that_refuses(
    server: Server, bound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: connections_exhausted, exit 5, and it is well once there is room."""
    tell(server.dsn(), f"ALTER {bound} 0")
    assert run([*PROBE, "--dsn", guarded.dsn(server)]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: connections_exhausted: ")
    assert "takes no more connections; raise its limit" in said
    tell(server.dsn(), f"ALTER {bound} -1")
    assert run([*PROBE, "--dsn", guarded.dsn(server)]) == 0


def test_a_login_that_may_not_connect_is_told_so(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: role_not_allowed, exit 4; not that the database is not there."""
    tell(server.dsn(), "CREATE DATABASE closed", "REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    assert run([*PROBE, "--dsn", make_conninfo(guarded.dsn(server), dbname="closed")]) == 4
    assert "error: role_not_allowed: " in capsys.readouterr().err


def test_a_file_that_is_no_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: exit 2 and no traceback, for a folder, for bytes, for nothing."""
    for content, code in ((None, "dsn_missing"), (b"\xff\xfep@ss", "dsn_missing"), (b" \n", "dsn_missing")):
        file = tmp_path / "dsn"
        if content is None:
            monkeypatch.setenv("POOLKEEPER_DSN_FILE", str(tmp_path))
        else:
            file.write_bytes(content)
            monkeypatch.setenv("POOLKEEPER_DSN_FILE", str(file))
        assert run([*PROBE]) == 2
        said = capsys.readouterr().err
        silent(said)
        assert said.startswith(f"error: {code}: POOLKEEPER_DSN_FILE ")
    assert run([*PROBE, "--dsn", ""]) == 2
    assert capsys.readouterr().err.startswith("error: dsn_missing: --dsn is empty")


def test_a_worker_with_a_wrong_password_waits_and_works_once_it_is_right(
    server: Server, stage: Stage, tmp_path: Path
) -> None:
    """C58: says what was refused, never the password; a rotation loses no running task and needs no restart."""
    file = tmp_path / "dsn"
    file.write_text(guarded.dsn(server, "not " + AWKWARD))
    worker = stage.worker({"POOLKEEPER_DSN_FILE": str(file), "POOLKEEPER_DSN": ""})
    eventually(lambda: "the database refused the login" in worker.log, "the worker says what was refused")
    file.write_text(guarded.dsn(server) + "\n")
    running = stage.submit("t.hold", "go")
    stage.note("in", running)
    try:
        guarded.set_password(server, AWKWARD + "2")
        _cut_off(server)
        eventually(lambda: worker.log.count("the database refused the login") > 1, "the rotated password is refused")
        file.write_text(guarded.dsn(server, AWKWARD + "2") + "\n")
        stage.release("go")
        assert stage.ends(running).state == "succeeded"
        assert stage.deliveries(running) == ["succeeded"]
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        silent(worker.log)
    finally:
        guarded.set_password(server, AWKWARD)


def _cut_off(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [LOGIN])


def test_a_read_only_database_refuses_and_is_waited_for(
    server: Server, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: database_read_only, exit 5, nothing stored; a worker waits, and works once it is the primary again."""
    tell(server.dsn(), f"ALTER ROLE {LOGIN} SET default_transaction_read_only = on")
    try:
        worker = stage.worker({"POOLKEEPER_DSN": guarded.dsn(server)})
        eventually(lambda: "the database is read-only" in worker.log, "the worker says why it waits")
        assert run(["submit", "q", "t.count", "1", "--key", "once", "--dsn", guarded.dsn(server)]) == 5
        said = capsys.readouterr().err
        assert said.startswith("error: database_read_only: ")
        assert "point the DSN at the primary" in said
    finally:
        tell(server.dsn(), f"ALTER ROLE {LOGIN} SET default_transaction_read_only = off")
    assert run(["submit", "q", "t.count", "1", "--key", "once", "--dsn", guarded.dsn(server)]) == 0
    assert len(capsys.readouterr().out.strip()) == 36
    eventually(lambda: stage.notes("done"), "the worker works")


def test_a_lock_that_is_held_for_too_long_is_told_as_such(
    server: Server, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract 2: database_busy, exit 5: it can be tried again."""
    tell(server.dsn(), f"ALTER ROLE {LOGIN} SET lock_timeout = '50ms'")
    try:
        with psycopg.connect(server.dsn("app")) as owner:
            owner.execute("LOCK TABLE poolkeeper.task IN ACCESS EXCLUSIVE MODE")
            assert run(["submit", "q", "t.count", "--dsn", guarded.dsn(server)]) == 5
        said = capsys.readouterr().err
        assert said.startswith("error: database_busy: another session holds a lock for too long; try again")
    finally:
        tell(server.dsn(), f"ALTER ROLE {LOGIN} RESET lock_timeout")
    assert "ready" not in stage.states()


@pytest.mark.parametrize(
    ("statement", "code", "remedy"),
    [
        ("INSERT INTO poolkeeper.migration (version, name, checksum) VALUES (999, '0999_x.sql', 'x')",
         "schema_too_new", "upgrade poolkeeper"),
        ("DELETE FROM poolkeeper.migration", "schema_too_old", "poolkeeper migrate --apply"),
        ("DROP SCHEMA poolkeeper CASCADE", "schema_too_old", "poolkeeper migrate --apply"),
    ],
    ids=["too new", "too old", "not migrated"],
)  # fmt: skip
def test_a_schema_of_another_version_is_refused_before_anything_is_done(
    empty_database: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    statement: str,
    code: str,
    remedy: str,
) -> None:
    """Contract 2, 18: exit 5 and the command; a worker says the same, waits, and drains when told."""
    dsn = empty_database.dsn
    assert run(["migrate", "--apply", "--dsn", dsn]) == 0
    made = Stage(dsn, tmp_path)
    made.apply()
    tell(dsn, statement)
    capsys.readouterr()
    for arguments in (("submit", "q", "a.b"), ("queue", "list"), ("dlq", "list"), ("migrate", "--check")):
        assert run([*arguments, "--dsn", dsn]) == 5
        said = capsys.readouterr().err
        assert said.startswith(f"error: {code}: ")
        assert remedy in said
    worker = made.worker()
    try:
        eventually(lambda: remedy in worker.log, "the worker names the command")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert "Traceback" not in worker.log
    finally:
        made.close()


def test_a_connection_that_is_cut_in_the_middle_of_a_command_is_unreachable(server: Server, stage: Stage) -> None:
    """Contract 2: exit 5 and one line; nothing of the command was stored."""
    with psycopg.connect(server.dsn("app")) as owner:
        owner.execute("LOCK TABLE poolkeeper.task IN ACCESS EXCLUSIVE MODE")
        command = [sys.executable, "-m", "poolkeeper", "submit", "q", "t.count", "--dsn", guarded.dsn(server)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
            _await_blocked(server)
            _cut_off(server)
            said = started.communicate(timeout=60)[1]
    assert started.returncode == 5
    assert said.startswith("error: database_unreachable: ")
    silent(said)
    assert "ready" not in stage.states()


def _await_blocked(server: Server) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND wait_event_type = 'Lock'"

    def blocked() -> bool:
        with psycopg.connect(server.dsn()) as conn:
            return conn.execute(query, [LOGIN]).fetchone() == (1,)

    eventually(blocked, "the command waits for a lock")
