"""The tests' databases without one guard.

Guarantees: a guard of a function is taken out of a stage that is kept, and put back afterwards, or out of a clone of one template,
migrated once for all guards; a guard of a table needs a template of its own. A control of the tests' own, which takes out what is gone here already, judges nothing.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import psycopg
from psycopg.sql import SQL

from mutate.guards import Guard
from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import migrate, statements


class NoMutant(Exception):
    """Postgres does not take the mutated text: nothing to test."""


@contextmanager
def base(dsn: str) -> Iterator[str]:
    """The name of the template with every guard, and with the neighbours made, so that they are not made anew for each guard."""
    from fixtures import postgres  # after pytest has set its paths
    from fixtures.neighbours import Crowd
    from store.scene import Scene

    made = postgres.create(dsn, f"pk_base_{os.getpid()}")
    try:
        with made.connect() as conn:
            migrate.apply(conn, say=lambda *_: None)
        with ExitStack() as stack:
            scene = Scene(made, stack)
            scene.clear()
            Crowd(scene)
            scene.clear()
            scene.owner.execute(SQL(statements.sql_file("functions/10_clock.sql")))
            scene.owner.execute("DROP TABLE poolkeeper.clock_offset")
        yield made.name
    finally:
        made.drop()


class Stage:
    """A database that lasts for the stages of many guards, one after the other: making and dropping one costs more than most tests."""

    LEAVES_MORE = re.compile(r"^(7|\d{4}_)")
    """Files whose guards leave more behind than rows: months of the history, tables."""

    def __init__(self, dsn: str, whole: str) -> None:
        self._dsn = dsn
        self._whole = whole
        self._made: Any = None

    def database(self) -> Any:
        """It, with all its logins; its users do not drop it."""
        from fixtures import postgres  # after pytest has set its paths

        if self._made is None:
            self._made = postgres.create(self._dsn, f"pk_test_kept_{os.urandom(4).hex()}", self._whole)
            for kind in (*postgres.ROLE_KINDS, "owner", "nobody"):
                self._made.login(kind)
        return self._made

    def put_back(self, guard: Guard, *, whole: bool) -> None:
        """Have the guard in its place again; `whole`: whoever used it did not end by itself, so that a new one is made."""
        if self._made is None:
            return
        if whole or self.LEAVES_MORE.match(guard.file):
            self.drop()
            return
        with self._made.connect() as conn:
            conn.execute(SQL(statements.sql_file(f"functions/{guard.file}")))

    def drop(self) -> None:
        """Remove it."""
        if self._made is not None:
            self._made.drop()
            self._made = None


@contextmanager
def mutated(guard: Guard | None, whole: str, stage: Stage | None = None) -> Iterator[None]:
    """Have the tests' databases cloned from `whole`, the guard taken out of each; their stage is `stage`."""
    from fixtures import postgres  # after pytest has set its paths
    from store.scene import Scene

    without = Scene.without

    def control(self: Scene, function: str, old: str, new: str) -> Any:
        """A control takes out what is gone here already: it sees what it wants to see, and judges nothing."""
        gone = old not in self.value("SELECT pg_get_functiondef(%s::regprocedure)", function)
        return nullcontext() if gone else without(self, function, old, new)

    @contextmanager
    def template(dsn: str, pod_host: str | None = None) -> Iterator[Callable[[], Any]]:
        if guard is None or guard.file in statements.sql_names("functions"):

            def clone() -> Any:
                return _replaced(postgres.create(dsn, f"pk_test_{os.urandom(4).hex()}", whole, pod_host), guard)

            if stage is not None:
                kept = _replaced(stage.database(), guard)
                clone.kept = lambda: kept  # type: ignore[attr-defined]
                drop = postgres.Database.drop
                with mock.patch.object(postgres.Database, "drop", lambda each: None if each is kept else drop(each)):
                    yield clone
            else:
                yield clone
            return
        made = postgres.create(dsn, f"pk_mutant_{os.getpid()}")
        try:
            _migrate(made, guard)
            yield lambda: postgres.create(dsn, f"pk_test_{os.urandom(4).hex()}", made.name, pod_host)
        finally:
            made.drop()

    with (
        mock.patch.object(postgres, "migrated_template", template),
        mock.patch.object(Scene, "without", control),
        mock.patch.object(Scene, "lasts", new=False),
    ):
        yield


def _replaced(database: Any, guard: Guard | None) -> Any:
    """The functions of the guard's file replaced, the one with the guard by one without."""
    if guard is not None:
        with database.connect() as conn:
            try:
                conn.execute(SQL(guard.without(statements.sql_file(f"functions/{guard.file}"))))
            except psycopg.Error as error:
                raise NoMutant(str(error)) from error
    return database


def _migrate(database: Any, guard: Guard) -> None:
    """Everything from the start, the text of one migration without the guard."""

    def changed(path: str) -> str:
        text = statements.sql_file(path)
        return guard.without(text) if path.endswith(f"/{guard.file}") else text

    with database.connect() as conn, mock.patch.object(migrate, "sql_file", changed):
        try:
            migrate.apply(conn, say=lambda *_: None)
        except (psycopg.Error, PoolkeeperError) as error:
            raise NoMutant(str(error)) from error
