"""A pytest plugin that collects the store's tests once and runs some of them in a forked process for each guard taken out.

Guarantees: a child starts with every module imported and every test collected, and has databases of its own on the
shared server; it ends at the first red test. The test that was red for a guard the last time is tried first.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutate.guards import Guard
from mutate.mutant import NoMutant, Stage, base, mutated
from mutate.reach import LAST, Reach, Watch, bodies

KILLED, SURVIVED, REFUSED, HUNG = "killed", "survived", "refused by Postgres", "killed (hung)"
WORD = re.compile(r"[a-z]{3,}")
OWN = frozenset({"database", "make_database", "empty_database"})
"""Fixtures whose databases are gone when the test is over: they tell what was reached when they go, or it is not known."""
STAGES = frozenset({"crowd", "walks"})
SLOW = 1.0
ALSO = {
    "lock": "held waits nobody",
    "skip locked": "held waits nobody",
    "demand": "sense sentence durably known",
    "check": "checkviolation constraint refusal",
    "unique": "uniqueviolation key",
    "foreign key": "foreignkeyviolation constraint refusal",
}
"""Words of tests that look for such guards, which say them otherwise."""
WHOSE = re.compile(r"\w_id\b|\bid\b|token_hash")
_CODES = {0: SURVIVED, 1: KILLED, 2: REFUSED}
LEFT_OUT = 5  # tests that may be red with every guard in place, on a machine that is busy otherwise
LIMIT = 240.0  # seconds for one guard; who is not through by then hangs
_RED_NODE = re.compile(r"[^\n]*::[^\n]*")


@dataclass(frozen=True)
class Verdict:
    """What became of one guard: how it ended, by which test, after how many seconds and tests."""

    guard: Guard
    ended: str
    test: str
    seconds: float
    tests: int


@dataclass(frozen=True)
class Bounds:
    """How many guards at once, begun for how many seconds, and how many seconds of tests for each."""

    together: int = 2
    seconds: float = float("inf")
    patience: float = float("inf")


class Loop:
    """The plugin. `kept` is a folder for what the next run can use; `tell` hears of each verdict."""

    def __init__(
        self,
        sources: dict[str, str],
        chosen: Sequence[Guard],
        folder: Path,
        kept: Path,
        tell: Callable[[Verdict], None],
        bounds: Bounds,
    ) -> None:
        self._bodies = bodies(sources)
        self._chosen = chosen
        self._folder = folder
        self._tell = tell
        self._bounds = bounds
        self._reach = Reach(kept, sources)
        self._last = kept / "killers.json"
        self._killer = last_killers(kept)
        self._killers: dict[str, Counter[str]] = {}
        self._whole = ""
        self.verdicts: list[Verdict] = []
        self.left_out: list[str] = []
        self.stopped = ""
        """Why no guard was tried."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        if session.testsfailed:
            raise self._stop(session, "they cannot be collected")
        with base(os.environ["POOLKEEPER_TEST_DSN"]) as self._whole:
            self._look(session)
            texts = {item.nodeid: _source(item) for item in session.items}
            for test, text in texts.items():
                self._reach.raises(test, text)
            self._likeness = Likeness(texts)
            for guard in self._chosen:
                if self._killer.get(guard.name):
                    self._killers.setdefault(guard.inside, Counter())[self._killer[guard.name]] += 1
            self._all(session)
        return True

    def _stop(self, session: pytest.Session, why: str) -> BaseException:
        self.stopped = why
        return session.Interrupted(why)

    def _all(self, session: pytest.Session) -> None:
        waiting, running = list(reversed(self._chosen)), dict[int, tuple[Guard, int, float]]()
        stages = [Stage(os.environ["POOLKEEPER_TEST_DSN"], self._whole) for _ in range(self._bounds.together)]
        used: dict[int, Stage] = {}
        end = time.monotonic() + self._bounds.seconds
        while waiting or running:
            if time.monotonic() > end:
                waiting.clear()
            while waiting and len(running) < self._bounds.together:
                guard = waiting.pop()
                items = self._order(session.items, guard)
                stage = stages.pop()
                if not stage.LEAVES_MORE.match(guard.file):
                    stage.database()  # here, that the child's is not the only one that knows it
                pid = self._start(session, guard, items, stage)
                running[pid], used[pid] = (guard, len(items), time.monotonic()), stage
            if running:
                pid, status = self._wait(running)
                guard, count, began = running.pop(pid)
                self._judge(pid, status, guard, count, time.monotonic() - began)
                stages.append(used.pop(pid))
                stages[-1].put_back(guard, whole=self.verdicts[-1].ended == HUNG)
        for stage in stages:
            stage.drop()

    # ---- which tests, in which order -------------------------------------------------------------------------------

    def _look(self, session: pytest.Session) -> None:
        """Run those tests of which it is not known what they reach, with every guard; one that is red then judges none."""
        unknown = self._reach.known(session.items)
        if not unknown:
            return
        told = self._folder / "reach.json"
        pid = os.fork()
        if pid == 0:
            self._child(session, unknown, told)
        os.waitpid(pid, 0)
        found = json.loads(told.read_text())
        self.left_out = found["red"]
        if len(self.left_out) > LEFT_OUT:
            raise self._stop(session, f"they are not green as they are: {', '.join(self.left_out)}")
        self._reach.learn(unknown, found["reached"], self.left_out)

    def _order(self, items: Sequence[pytest.Item], guard: Guard) -> list[pytest.Item]:
        """The tests that could see it, as many as patience allows: the one that did the last time, then those that call the function
        by its name, that speak most of what it speaks of, and that have seen others of the same function, for their seconds.
        """
        tests = self._reach.of(guard)
        mine, killers = self._killer.get(guard.name), self._killers.get(guard.inside, Counter())
        near = self._likeness.to(
            f"{guard.text} {guard.answer} {ALSO.get(guard.kind, '')}", self._bodies.get(guard.inside, "")
        )
        rows = 3 if WHOSE.search(guard.text) else 1  # neighbours compare whole rows
        named = self._reach.naming(guard.inside)

        def place(item: pytest.Item) -> tuple[bool, float]:
            test, dear = item.nodeid, math.sqrt(0.3 + tests[item.nodeid])
            known = 1 + 0.2 * min(5, killers[test]) + rows * (not STAGES.isdisjoint(getattr(item, "fixturenames", ())))
            known *= 3 if test in named else 1  # it asks nothing else
            return test != mine, -near(test) / dear * known / (3 if tests[test] >= LAST else 1)

        chosen = sorted((item for item in items if item.nodeid in tests), key=place)
        spent = 0.0
        for at, item in enumerate(chosen):
            spent += min(tests[item.nodeid], SLOW)
            if spent > self._bounds.patience:
                return chosen[: at + 1]
        return chosen

    # ---- one child -------------------------------------------------------------------------------------------------

    def _start(self, session: pytest.Session, guard: Guard, items: Sequence[pytest.Item], stage: Stage) -> int:
        pid = os.fork()
        if pid == 0:
            self._child(session, items, None, guard, stage)
        return pid

    def _child(
        self,
        session: pytest.Session,
        items: Sequence[pytest.Item],
        reach: Path | None,
        guard: Guard | None = None,
        stage: Stage | None = None,
    ) -> None:
        """Run the tests and end the process: 0 green, 1 red, 2 the mutated text was refused."""
        log = os.open(self._folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        watch = Watch(asks=reach is not None)
        session.config.pluginmanager.register(watch)
        code = 1
        said = self._folder / f"{os.getpid()}.txt"
        try:
            with ExitStack() as stack:
                kept = None if guard is None or Stage.LEAVES_MORE.match(guard.file) else stage
                stack.enter_context(mutated(guard, self._whole, kept))
                if reach is not None:
                    stack.enter_context(watch.at_drops())
                for item, after in zip(items, [*items[1:], None], strict=True):
                    watch.begin(item)
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    watch.end(item, OWN)
                    if watch.red and reach is None:
                        break
                code = 1 if watch.red else 0
                if reach is not None:
                    reach.write_text(json.dumps({"reached": watch.reached, "red": watch.all_red}))
                said.write_text(watch.red)
                session._setupstate.teardown_exact(None)  # noqa: SLF001 - the fixtures of the run; pytest does the same in its own loop
        except NoMutant as error:
            said.write_text(str(error))
            code = 2
        except BaseException as error:  # noqa: BLE001 - a teardown that a mutant broke
            said.write_text(watch.red or repr(error))
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
        if ended == KILLED and _RED_NODE.fullmatch(test):
            self._killers.setdefault(guard.inside, Counter())[test] += 1
        self._killer[guard.name] = test if ended != SURVIVED else ""
        self._last.parent.mkdir(parents=True, exist_ok=True)
        self._last.write_text(json.dumps(self._killer, indent=0))
        verdict = Verdict(guard, ended, test, seconds, count)
        self.verdicts.append(verdict)
        self._tell(verdict)
        for end in ("txt", "log"):
            (self._folder / f"{pid}.{end}").unlink(missing_ok=True)

    def _told(self, pid: int) -> str:
        told = self._folder / f"{pid}.txt"
        return told.read_text() if told.exists() else ""


def last_killers(kept: Path) -> dict[str, str]:
    """Guard -> the test that was red without it the last time; none: empty."""
    last = kept / "killers.json"
    found: dict[str, str] = json.loads(last.read_text()) if last.exists() else {}
    return found


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
