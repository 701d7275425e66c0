"""Which tests reach which function of the store, and how long each takes: asked of the server once, then kept by checksum.

Guarantees: what is kept of a test module is used again only while its own text and that of what all store tests stand on are the
same; what a function calls now and did not then is reached by whoever reached it. A module with a red test is not kept.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lab import postgres
from lab.cache import key
from mutate.guards import Guard

ANY = "*"
"""Of a test whose databases told nothing: it could reach anything."""
LAST = 1000.0
ASKED = b"servers of a test's own as well"
"""How it was asked: what was learned otherwise is not used."""
CONSTRAINTS = frozenset({"check", "unique", "foreign key"})
_CALLED = "SELECT funcname FROM pg_stat_user_functions WHERE schemaname = 'poolkeeper' AND calls > 0"
_MENTION = re.compile(r"poolkeeper\.(\w+)")


def bodies(sources: Mapping[str, str]) -> dict[str, str]:
    """Function -> its text."""
    found: dict[str, str] = {}
    for text in sources.values():
        for part in text.split("CREATE OR REPLACE FUNCTION poolkeeper.")[1:]:
            found[part.split("(", 1)[0]] = part
    return found


class Reach:
    """What is known of the tests of a run."""

    def __init__(self, folder: Path, sources: Mapping[str, str]) -> None:
        self._folder = folder
        self._bodies = bodies(sources)
        self._calls = {function: sorted(set(_MENTION.findall(text))) for function, text in self._bodies.items()}
        self._tests: dict[str, tuple[float, list[str]]] = {}
        self._named: dict[str, set[str]] = {}

    def known(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Read what is kept; answers the tests of which nothing is."""
        unknown = []
        for path, tests in _by_module(items).items():
            kept = self._kept(path)
            if kept.exists():
                told: dict[str, Any] = json.loads(kept.read_text())
                for test, (seconds, names) in told["tests"].items():
                    self._tests[test] = seconds, self._and_new(names, told["calls"])
            else:
                unknown += tests
        return unknown

    def learn(
        self, items: Sequence[pytest.Item], told: Mapping[str, tuple[float, list[str]]], red: Iterable[str]
    ) -> None:
        """What a run with every guard in place has shown."""
        self._tests |= told
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, tests in _by_module(items).items():
            mine = {test.nodeid: told[test.nodeid] for test in tests if test.nodeid in told}
            if not any(name.split("::")[0] == tests[0].nodeid.split("::")[0] for name in red):
                self._kept(path).write_text(json.dumps({"calls": self._calls_of(mine), "tests": mine}))

    def _and_new(self, names: Sequence[str], calls: Mapping[str, Sequence[str]]) -> list[str]:
        """These functions, and what those of them that have changed call by now."""
        found, queue = set(names), list(names)
        while queue:
            name = queue.pop()
            more = set(self._calls.get(name, ())) - set(calls.get(name, ())) - found
            found |= more
            queue += more
        return sorted(found)

    def _calls_of(self, tests: Mapping[str, tuple[float, list[str]]]) -> dict[str, list[str]]:
        """What each function that these reached calls now."""
        reached = {function for _, functions in tests.values() for function in functions}
        return {function: self._calls[function] for function in sorted(reached) if function in self._calls}

    def raises(self, test: str, source: str) -> None:
        """What the server does not count is reached all the same: a function that a test calls by its name, which may be inlined, and
        where a call ends by an error all that the test names, or every function where it goes through them all.
        """
        if test not in self._tests:
            return
        for name in set(_MENTION.findall(source)):
            self._named.setdefault(name, set()).add(test)
        words = set(re.findall(r"\w+", source))
        if not words & {"raises", "Error"}:
            return
        queue = list(self._calls if "functions" in words else words & self._calls.keys())
        found = set(queue)
        while queue:
            more = {name for name in self._calls[queue.pop()] if name in self._calls} - found
            found |= more
            queue += more
        seconds, names = self._tests[test]
        self._tests[test] = seconds, sorted({*names, *found})

    def naming(self, function: str) -> set[str]:
        """The tests that call a function by its name."""
        return self._named.get(function, set())

    def seconds(self, test: str) -> float:
        """How long a test takes."""
        return self._tests[test][0]

    def of(self, guard: Guard) -> dict[str, float]:
        """The tests that could see it, each with its seconds. Of a function that the server may inline, here and not there: those as well
        that reach whatever mentions it; of a table's constraint: all, since whoever asks the catalog names none.
        """
        if guard.kind in CONSTRAINTS:
            return {test: seconds for test, (seconds, _) in self._tests.items()}
        reach: dict[str, dict[str, float]] = {}
        for test, (seconds, functions) in self._tests.items():
            for function in functions:
                reach.setdefault(function, {})[test] = seconds
        found = dict.fromkeys(reach.get(ANY, {}), LAST)
        found |= {test: self.seconds(test) for test in self.naming(guard.inside)}
        last = len(found)
        found |= reach.get(guard.inside, {})
        if guard.inside not in reach or self._inlined(guard.inside):
            for function in self._mention(guard.inside):
                found |= reach.get(function, {})
        if len(found) > last:
            return found
        return {test: seconds for tests in reach.values() for test, seconds in tests.items()}

    def _inlined(self, function: str) -> bool:
        """Whether calls of it may be counted as none."""
        return "LANGUAGE sql" in self._bodies.get(function, "")

    def _mention(self, inside: str) -> set[str]:
        """What calls a function, and what calls that where it may be inlined as well."""
        found, queue = set[str](), [inside]
        while queue:
            mention = re.compile(rf"poolkeeper\.{queue.pop()}\b")
            more = {name for name, text in self._bodies.items() if mention.search(text)} - found - {inside}
            found |= more
            queue += [name for name in more if self._inlined(name)]
        return found

    def _kept(self, path: Path) -> Path:
        texts = [each.read_bytes() for each in (path, path.parent / "scene.py") if each.exists()] + [ASKED]
        return self._folder / f"{path.stem}-{key(texts)}.json"


def _by_module(items: Sequence[pytest.Item]) -> dict[Path, list[pytest.Item]]:
    found: dict[Path, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(item.path, []).append(item)
    return found


class Watch:
    """In a child: which test was red, and, where asked, which functions each test reached."""

    def __init__(self, *, asks: bool) -> None:
        self.red = ""
        self.all_red: list[str] = []
        self.reached: dict[str, tuple[float, list[str]]] = {}
        self._asks = asks
        self._began = 0.0
        self._dropped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test."""
        if report.failed:
            self.red = self.red or report.nodeid
            self.all_red.append(report.nodeid)

    @contextmanager
    def at_drops(self) -> Iterator[None]:
        """A database that a test made for itself, on a server of its own too, tells what was called in it before it goes."""
        from fixtures.postgres import Database  # after pytest has set its paths

        drop = Database.drop

        def told(database: Database) -> None:
            try:
                with database.connect() as conn:
                    _alone(conn, database.name)
                    self._dropped |= {name for (name,) in conn.execute(_CALLED)}
            except psycopg.Error:
                pass  # it was never made, or the test has taken away what is asked: it tells nothing
            drop(database)

        with mock.patch.object(Database, "drop", told), mock.patch.dict(postgres.SETTINGS, track_functions="all"):
            yield

    def begin(self, item: pytest.Item) -> None:
        """Before a test."""
        self._began = time.monotonic()
        self._dropped.clear()
        if self._asks and "stage" in getattr(item, "fixturenames", ()):
            with _databases() as databases:
                for conn in databases:
                    conn.execute("SELECT pg_stat_reset()")

    def end(self, item: pytest.Item, own: frozenset[str]) -> None:
        """After a test: its connections are closed, and what they called is told when they end."""
        if not self._asks:
            return
        seconds = time.monotonic() - self._began
        found = set(self._dropped)
        with _databases() as databases:
            for conn in databases:
                found |= {name for (name,) in conn.execute(_CALLED)}
        if item.nodeid not in self.all_red and (found or not own.isdisjoint(getattr(item, "fixturenames", ()))):
            self.reached[item.nodeid] = seconds, sorted(found) or [ANY]


def _alone(conn: psycopg.Connection[Any], databases: str) -> None:
    """Wait, a second at most, until nobody else is connected to these: a session tells what it called when it ends."""
    busy = "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE %s AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    for _ in range(100):
        if conn.execute(busy, [databases]).fetchone() == (0,):
            return
        time.sleep(0.01)


@contextmanager
def _databases() -> Iterator[Iterable[psycopg.Connection[Any]]]:
    """Connections to the tests' databases, once nobody else is connected."""
    dsn = os.environ["POOLKEEPER_TEST_DSN"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        _alone(conn, "pk_test_%")
        names = [name for (name,) in conn.execute("SELECT datname FROM pg_database WHERE datname LIKE 'pk_test_%'")]
    made = [psycopg.connect(make_conninfo(dsn, dbname=name), autocommit=True) for name in names]
    try:
        yield made
    finally:
        for each in made:
            each.close()
