"""The database of a command: --dsn, else POOLKEEPER_DSN_FILE, else POOLKEEPER_DSN; and who is asking."""

import contextlib
import getpass
import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poolkeeper import interrupts
from poolkeeper.store import Call, calls, connect, run
from poolkeeper.store.migrate import check_version
from poolkeeper.worker.settings import find_dsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

T = TypeVar("T")

dsn = click.option("--dsn", default=None, help="The database; default POOLKEEPER_DSN_FILE or POOLKEEPER_DSN.")
version = click.option(
    "--version", type=int, default=None, help="The state_version that was seen; refused if the task has changed since."
)
why = click.option("--why", required=True, help="The reason, kept in the history of the task.")


@contextlib.contextmanager
def connected(given: str | None, *, any_schema: bool = False) -> "Iterator[psycopg.Connection[Any]]":
    """Connect for one command, to a schema that this program works with; raises Misconfigured and Unavailable."""
    conn = connect(find_dsn(os.environ, given).read(), name="poolkeeper cli")
    interrupts.begun()
    try:
        if not any_schema:
            check_version(run(conn, calls.installation()).schema_version)
        yield conn
    finally:
        conn.close()


def ask(given: str | None, call: Call[T]) -> T:
    """Run one call on a connection of its own."""
    with connected(given) as conn:
        return run(conn, call)


def who() -> str:
    """Return who asks, for the history: the user of the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
