"""Q50: the pytest plugin that the wheel brings: found by pytest, free of cost where it is not used, clear about what is missing."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from poolkeeper.testing.database import url

ONE_TEST = """
from poolkeeper import Poolkeeper

app = Poolkeeper()
app.task("a.b")(lambda n: n)

def test_one(poolkeeper_kit):
    kit = poolkeeper_kit(app)
    assert kit.run("a.b", 1).result == 1
    print("on", kit.on)
"""


def run_pytest(folder: Path, *arguments: str, **env: str) -> str:
    """Pytest as a user runs it, in a project of the user's own."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("POOLKEEPER_", "PYTEST_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-p",
        "no:hypothesispytest",
        "--rootdir",
        str(folder),
        *arguments,
    ]
    done = subprocess.run(command, cwd=folder, env={**given, **env}, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_pytest_finds_it_by_its_entry_point() -> None:
    """Q50: `pip install poolkeeper` is all."""
    (found,) = entry_points(group="pytest11", name="poolkeeper")
    assert found.value == "poolkeeper.pytest_plugin"


def test_who_does_not_use_it_pays_nothing() -> None:
    """Q50: pytest imports the plugin in every project; nothing comes with it."""
    code = "import sys, pytest; before = set(sys.modules); import poolkeeper.pytest_plugin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"poolkeeper", "poolkeeper.pytest_plugin"}


def test_tests_run_in_this_process_unless_asked(tmp_path: Path) -> None:
    """Q50: no database is looked for; a place that is none is refused."""
    (tmp_path / "test_it.py").write_text(ONE_TEST)
    assert "on process" in run_pytest(tmp_path, "-s", POOLKEEPER_TEST_PG="/nowhere/bin")
    (tmp_path / "pytest.ini").write_text("[pytest]\npoolkeeper_on = everywhere\n")
    assert "poolkeeper_on is process, postgres or both, not 'everywhere'" in run_pytest(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "env", "told"),
    [
        ((), {"POOLKEEPER_TEST_PG": "9"}, "no Postgres 9 here (found: "),
        pytest.param(
            (), {"POOLKEEPER_TEST_PG": "/nowhere/bin"}, "no postgres in that folder; name", marks=pytest.mark.wide
        ),
        pytest.param(
            ("--poolkeeper-dsn", "postgresql://nobody@127.0.0.1:1/x"),
            {},
            'database "x" at 127.0.0.1:1: it cannot be reached',
            marks=pytest.mark.wide,
        ),
    ],
)
def test_a_postgres_that_is_missing_is_told(
    tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], told: str
) -> None:
    """Q50: an error with the remedy, never a skip."""
    (tmp_path / "test_it.py").write_text(ONE_TEST)
    said = run_pytest(tmp_path, "--poolkeeper-on=both", *arguments, **env)
    assert told in said
    assert "1 passed, 1 error" in said
    assert "test_one[postgres]" in said


@pytest.mark.parametrize(
    ("dsn", "wanted"),
    [
        ("host=h port=5433 user=u dbname=a", "postgresql://u@h:5433/b"),
        ("postgresql://u:p%40%2F@h/a?sslmode=require", "postgresql://u:p%40%2F@h/b?sslmode=require"),
        ("host=/run/pg user=u", "postgresql://u@/b?host=%2Frun%2Fpg"),
        ("host=::1 options='-c a=b'", "postgresql://[::1]/b?options=-c%20a%3Db"),
        ("host=h,k port=1,2", "postgresql:///b?host=h%2Ck&port=1%2C2"),
    ],
)
def test_databases_of_tests_are_named_by_urls(dsn: str, wanted: str) -> None:
    """Q50: as SQLAlchemy and Django's readers of URLs take them; libpq reads the same from both."""
    made = url(dsn, dbname="b")
    assert conninfo_to_dict(made) == {**conninfo_to_dict(dsn), "dbname": "b"}
    assert made == wanted
