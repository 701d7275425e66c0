"""The tests' databases without one guard.

Guarantees: a guard of a function is taken out of a stage that is kept, and put back afterwards, or out of a clone of one template,
migrated once for all guards; a guard of a table needs a template of its own. What a test migrates by itself, on whatever server, lacks it as well.
A control of the tests' own, which takes out what is gone here already, judges nothing.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import psycopg
from psycopg.conninfo import conninfo_to_dict
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
        _replaced(self._made, guard, statements.sql_file)

    def drop(self) -> None:
        """Remove it."""
        if self._made is not None:
            self._made.drop()
            self._made = None


@contextmanager
def mutated(guard: Guard | None, whole: str, stage: Stage | None = None) -> Iterator[None]:
    """Have the tests' databases without the guard: clones of `whole`, their stage `stage`, and whatever a test migrates by itself, on any server.

    Raises
    ------
    NoMutant
        Before any test: Postgres does not take the text without the guard.
    """
    from fixtures import postgres  # after pytest has set its paths
    from store.scene import Scene

    without, template = Scene.without, postgres.migrated_template

    def control(self: Scene, function: str, old: str, new: str) -> Any:
        """A control takes out what is gone here already: it sees what it wants to see, and judges nothing."""
        gone = old not in self.value("SELECT pg_get_functiondef(%s::regprocedure)", function)
        return nullcontext() if gone else without(self, function, old, new)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Scene, "without", control))
        stack.enter_context(mock.patch.object(Scene, "lasts", new=False))
        if guard is not None:
            stack.enter_context(mock.patch.object(migrate, "sql_file", texts_without(guard)))
        ours = os.environ["POOLKEEPER_TEST_DSN"]
        clone = stack.enter_context(_clones(ours, guard, whole, stage))

        def templates(dsn: str, pod_host: str | None = None) -> AbstractContextManager[Callable[[], Any]]:
            """Of another server than ours: migrated there, as ever."""
            return nullcontext(clone) if _place(dsn) == _place(ours) else template(dsn, pod_host)

        stack.enter_context(mock.patch.object(postgres, "migrated_template", templates))
        yield


def texts_without(guard: Guard) -> Callable[[str], str]:
    """What is to be read in place of `sql_file`: the store's texts, that of the guard's file without it."""

    def read(path: str) -> str:
        text = statements.sql_file(path)
        return guard.without(text) if path.endswith(f"/{guard.file}") else text

    return read


@contextmanager
def _clones(dsn: str, guard: Guard | None, whole: str, stage: Stage | None) -> Iterator[Callable[[], Any]]:
    """Makes clones without the guard; the first is the stage, where there is one that lasts. A template of their own unless a
    stage shows by itself that Postgres takes the text.
    """
    from fixtures import postgres

    def new(template: str) -> Any:
        return postgres.create(dsn, f"pk_test_{os.urandom(4).hex()}", template)

    if guard is None:
        yield lambda: new(whole)
    elif stage is not None:
        kept, drop = _replaced(stage.database(), guard, texts_without(guard)), postgres.Database.drop

        def clone() -> Any:
            return _replaced(new(whole), guard, texts_without(guard))

        clone.kept = lambda: kept  # type: ignore[attr-defined]
        with mock.patch.object(postgres.Database, "drop", lambda each: None if each is kept else drop(each)):
            yield clone
    else:
        made = postgres.create(dsn, f"pk_mutant_{os.getpid()}", "template1" if _of_a_table(guard) else whole)
        try:
            if _of_a_table(guard):
                _migrate(made)
            else:
                _replaced(made, guard, texts_without(guard))
            yield lambda: new(made.name)
        finally:
            made.drop()


def _of_a_table(guard: Guard) -> bool:
    return guard.file not in statements.sql_names("functions")


def _place(dsn: str) -> tuple[Any, Any]:
    found = conninfo_to_dict(dsn)
    return found.get("host"), found.get("port")


def _replaced(database: Any, guard: Guard, read: Callable[[str], str]) -> Any:
    """The functions of the guard's file as they are read now, and taken for up to date."""
    with database.connect() as conn:
        try:
            conn.execute(SQL(read(f"functions/{guard.file}")))
        except psycopg.Error as error:
            raise NoMutant(str(error)) from error
        conn.execute("UPDATE poolkeeper.functions SET checksum = %s", [migrate.functions().checksum])
    return database


def _migrate(database: Any) -> None:
    """Everything from the start, as it reads now."""
    with database.connect() as conn:
        try:
            migrate.apply(conn, say=lambda *_: None)
        except (psycopg.Error, PoolkeeperError) as error:
            raise NoMutant(str(error)) from error
