"""A pytest plugin that collects the store's tests once and runs some of them in a forked process for each guard taken out.

Guarantees: a child starts with every module imported and every test collected, and has a template database of its own on the
shared server; it ends at the first red test. What a test reaches is asked of the server (`track_functions`), not guessed.
"""

import inspect
import json
import math
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from mutate.guards import Guard
from poolkeeper.errors import PoolkeeperError

KILLED, SURVIVED, REFUSED, HUNG = "killed", "survived", "refused by Postgres", "killed (hung)"
WORD = re.compile(r"[a-z]{3,}")
OWN = frozenset({"database", "make_database", "empty_database"})
"""Fixtures whose databases are gone when the test is over: what it reached is not known, and it comes last."""
ANY = "*"
LAST, SLOW = 1000.0, 2.0
_CODES = {0: SURVIVED, 1: KILLED, 2: REFUSED}
LEFT_OUT = 5  # tests that may be red with every guard in place, on a machine that is busy otherwise
LIMIT = 240.0  # seconds for one guard; who is not through by then hangs


@dataclass(frozen=True)
class Verdict:
    """What became of one guard: how it ended, by which test, after how many seconds and tests."""

    guard: Guard
    ended: str
    test: str
    seconds: float
    tests: int


class Loop:
    """The plugin. `choose` gives the guards to take out, `tell` hears of each verdict."""

    def __init__(
        self,
        sources: dict[str, str],
        chosen: Sequence[Guard],
        folder: Path,
        tell: Callable[[Verdict], None],
        *,
        together: int = 2,
        seconds: float = float("inf"),
        patience: float = float("inf"),
    ) -> None:
        self._sources = sources
        self._chosen = chosen
        self._folder = folder
        self._tell = tell
        self._together = together
        self._seconds = seconds
        self._patience = patience
        self._killers: dict[str, list[str]] = {}
        self.verdicts: list[Verdict] = []
        self.left_out: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        reach = self._reach(session)
        waiting, running = list(reversed(self._chosen)), dict[int, tuple[Guard, int, float]]()
        self._likeness = Likeness({item.nodeid: _source(item) for item in session.items})
        end = time.monotonic() + self._seconds
        while waiting or running:
            if time.monotonic() > end:
                waiting.clear()
            while waiting and len(running) < self._together:
                guard = waiting.pop()
                items = self._order(session.items, guard, reach)
                running[self._start(session, guard, items)] = guard, len(items), time.monotonic()
            pid, status = self._wait(running)
            guard, count, began = running.pop(pid)
            self._judge(pid, status, guard, count, time.monotonic() - began)
        return True

    # ---- what reaches what -----------------------------------------------------------------------------------------

    def _reach(self, session: pytest.Session) -> dict[str, dict[str, float]]:
        """Function -> tests that reach it, each with its seconds, in a run with every guard; a test that is red then judges none."""
        pid = os.fork()
        if pid == 0:
            self._child(session, session.items, self._folder / "reach.json")
        os.waitpid(pid, 0)
        told = json.loads((self._folder / "reach.json").read_text())
        self.left_out = told["red"]
        if len(self.left_out) > LEFT_OUT:
            raise session.Interrupted(f"the tests are not green as they are: {self.left_out}")
        found: dict[str, dict[str, float]] = {}
        for test, (seconds, functions) in told["reached"].items():
            for function in functions:
                found.setdefault(function, {})[test] = seconds
        return found

    def _order(
        self, items: Sequence[pytest.Item], guard: Guard, reach: dict[str, dict[str, float]]
    ) -> list[pytest.Item]:
        """The tests that could see it, as many as patience allows: those that saw another one of the same function first, then
        those that speak most of what it speaks of.
        """
        tests = self._reaching(guard, reach)
        killers = self._killers.get(guard.inside, [])
        rank = {test: place for place, test in enumerate(reversed(killers))}
        near = self._likeness.to(guard.text, bodies(self._sources).get(guard.inside, ""))
        chosen = sorted(
            (item for item in items if item.nodeid in tests),
            key=lambda item: (rank.get(item.nodeid, len(rank)), tests[item.nodeid] >= LAST, -near(item.nodeid)),
        )
        spent = 0.0
        for place, item in enumerate(chosen):
            spent += min(tests[item.nodeid], SLOW)
            if spent > self._patience:
                return chosen[: place + 1]
        return chosen

    def _reaching(self, guard: Guard, reach: dict[str, dict[str, float]]) -> dict[str, float]:
        """Of a function that the server inlines, and of a table: the tests that reach whatever mentions it."""
        last = dict.fromkeys(reach.get(ANY, {}), LAST)
        if guard.inside in reach:
            return {**last, **reach[guard.inside]}
        found: dict[str, float] = last
        for function, text in bodies(self._sources).items():
            if function != guard.inside and f"poolkeeper.{guard.inside}" in text:
                found |= reach.get(function) or {}
        if len(found) > len(last):
            return found
        return {test: seconds for tests in reach.values() for test, seconds in tests.items()}

    # ---- one child -------------------------------------------------------------------------------------------------

    def _start(self, session: pytest.Session, guard: Guard, items: Sequence[pytest.Item]) -> int:
        pid = os.fork()
        if pid == 0:
            self._child(session, items, None, guard)
        return pid

    def _child(
        self, session: pytest.Session, items: Sequence[pytest.Item], reach: Path | None, guard: Guard | None = None
    ) -> None:
        """Run the tests and end the process: 0 green, 1 red, 2 the mutated text was refused."""
        log = os.open(self._folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        watch = Watch(reach)
        session.config.pluginmanager.register(watch)
        code = 1
        try:
            with mutated(guard):
                for item, after in zip(items, [*items[1:], None], strict=True):
                    watch.begin(item)
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    watch.end(item)
                    if watch.red and reach is None:
                        break
            code = 1 if watch.red else 0
            if reach is not None:
                reach.write_text(json.dumps({"reached": watch.reached, "red": watch.all_red}))
            (self._folder / f"{os.getpid()}.txt").write_text(watch.red)
            session._setupstate.teardown_exact(None)  # noqa: SLF001 - the fixtures of the run; pytest does the same in its own loop
        except NoMutant as error:
            (self._folder / f"{os.getpid()}.txt").write_text(str(error))
            code = 2
        except BaseException as error:  # noqa: BLE001 - a teardown that a mutant broke
            (self._folder / f"{os.getpid()}.txt").write_text(watch.red or repr(error))
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _wait(self, running: dict[int, tuple[Guard, int, float]]) -> tuple[int, int]:
        while True:
            for pid, (_, _, began) in running.items():
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    return pid, status
                if time.monotonic() - began > LIMIT:
                    os.kill(pid, signal.SIGKILL)
                    return os.waitpid(pid, 0)
            time.sleep(0.02)

    def _judge(self, pid: int, status: int, guard: Guard, count: int, seconds: float) -> None:
        code = os.waitstatus_to_exitcode(status)
        ended = _CODES.get(code, HUNG)
        test = self._told(pid)
        if ended == KILLED:
            known = self._killers.setdefault(guard.inside, [])
            known[:] = [*(each for each in known if each != test), test]
        verdict = Verdict(guard, ended, test, seconds, count)
        self.verdicts.append(verdict)
        self._tell(verdict)
        for end in ("txt", "log"):
            (self._folder / f"{pid}.{end}").unlink(missing_ok=True)

    def _told(self, pid: int) -> str:
        told = self._folder / f"{pid}.txt"
        return told.read_text() if told.exists() else ""


class Likeness:
    """How much a test's text speaks of what a function's speaks of: the words that both have, rare ones counting more."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._words = {test: set(WORD.findall(text.lower())) for test, text in texts.items()}
        counts = Counter(word for words in self._words.values() for word in words)
        self._weight = {word: math.log(len(texts) / count) for word, count in counts.items()}

    def to(self, text: str, around: str) -> Callable[[str], float]:
        """A test's likeness to a guard: to its own text first, to the function around it second."""
        own, more = set(WORD.findall(text.lower())), set(WORD.findall(around.lower()))

        def likeness(test: str) -> float:
            words = self._words[test]
            return sum(self._weight[word] * (3 if word in own else 1) for word in (own | more) & words)

        return likeness


def _source(item: pytest.Item) -> str:
    """A test's own text and name."""
    try:
        return f"{item.nodeid} {inspect.getsource(getattr(item, 'obj', None))}"  # type: ignore[arg-type]
    except (OSError, TypeError):
        return item.nodeid


class NoMutant(Exception):
    """Postgres does not take the mutated text: nothing to test."""


class Watch:
    """In a child: which test was red, and, where asked, which functions each test reached."""

    def __init__(self, reach: Path | None) -> None:
        self.red = ""
        self.all_red: list[str] = []
        self.reached: dict[str, tuple[float, list[str]]] = {}
        self._asks = reach is not None
        self._began = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test."""
        if report.failed:
            self.red = self.red or report.nodeid
            self.all_red.append(report.nodeid)

    def begin(self, item: pytest.Item) -> None:
        """Before a test."""
        self._began = time.monotonic()
        if self._asks and "stage" in getattr(item, "fixturenames", ()):
            with _databases() as databases:
                for conn in databases:
                    conn.execute("SELECT pg_stat_reset()")

    def end(self, item: pytest.Item) -> None:
        """After a test: its connections are closed, and what they called is told when they end."""
        if not self._asks:
            return
        seconds = time.monotonic() - self._began
        found: set[str] = set()
        with _databases() as databases:
            for conn in databases:
                called = "SELECT funcname FROM pg_stat_user_functions WHERE schemaname = 'poolkeeper' AND calls > 0"
                found |= {name for (name,) in conn.execute(called)}
        if item.nodeid not in self.all_red and (found or not OWN.isdisjoint(getattr(item, "fixturenames", ()))):
            self.reached[item.nodeid] = seconds, sorted(found) or [ANY]


@contextmanager
def _databases() -> Iterator[Iterable[psycopg.Connection]]:
    """Connections to the tests' databases, once nobody else is connected."""
    dsn = os.environ["POOLKEEPER_TEST_DSN"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        for _ in range(100):
            busy = "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE 'pk_test_%' AND backend_type = 'client backend'"
            if conn.execute(busy).fetchone() == (0,):
                break
            time.sleep(0.01)
        names = [name for (name,) in conn.execute("SELECT datname FROM pg_database WHERE datname LIKE 'pk_test_%'")]
    made = [psycopg.connect(make_conninfo(dsn, dbname=name), autocommit=True) for name in names]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def bodies(sources: dict[str, str]) -> dict[str, str]:
    """Function -> its text."""
    found: dict[str, str] = {}
    for text in sources.values():
        for part in text.split("CREATE OR REPLACE FUNCTION poolkeeper.")[1:]:
            found[part.split("(", 1)[0]] = part
    return found


@contextmanager
def mutated(guard: Guard | None) -> Iterator[None]:
    """Have the tests' databases cloned from a template without the guard, and leave alone what controls would take out of that very text."""
    from fixtures import postgres  # after pytest has set its paths
    from poolkeeper.store import migrate, statements
    from store.scene import Scene

    without = Scene.without

    def changed(path: str) -> str:
        text = statements.sql_file(path)
        return guard.without(text) if guard is not None and path.endswith(f"/{guard.file}") else text

    def control(self: Scene, function: str, old: str, new: str) -> Any:
        """A control takes out what is gone here already: it sees what it wants to see, and judges nothing."""
        gone = old not in self.value("SELECT pg_get_functiondef(%s::regprocedure)", function)
        return nullcontext() if gone else without(self, function, old, new)

    @contextmanager
    def template(dsn: str, pod_host: str | None = None) -> Iterator[Callable[[], Any]]:
        made = postgres.create(dsn, f"pk_mutant_{os.getpid()}")
        try:
            with made.connect() as conn, mock.patch.object(migrate, "sql_file", changed):
                try:
                    migrate.apply(conn, say=lambda *_: None)
                except (psycopg.Error, PoolkeeperError) as error:
                    raise NoMutant(str(error)) from error
            yield lambda: postgres.create(dsn, f"pk_test_{os.urandom(4).hex()}", made.name, pod_host)
        finally:
            made.drop()

    with mock.patch.object(postgres, "migrated_template", template), mock.patch.object(Scene, "without", control):
        yield
