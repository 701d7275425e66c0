"""Says how far a long piece of work is: a bar on a terminal, a line every 15 seconds elsewhere.

Does not guess: until a tenth is done it names the time that the work is known to take from nothing.
"""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_EVERY = 15.0


class Meter:
    """Progress of one piece of work, in steps out of a known total.

    Parameters
    ----------
    what: its name for people.
    total: number of steps; 0 while unknown.
    expected: seconds from nothing on two cores.
    """

    def __init__(self, what: str, total: int, expected: float) -> None:
        self._what, self._total, self._expected = what, total, expected
        self._done, self._began, self._said = 0, time.monotonic(), time.monotonic()
        self._bar = _bar() if sys.stderr.isatty() else None
        self._row = self._bar.add_task(what, total=total or None, note="") if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        else:
            print(self.sentence(0.0), file=sys.stderr, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        ended = "done" if kind is None else "stopped"
        spent = span(time.monotonic() - self._began)
        print(f"{self._what}: {ended} after {spent}", file=sys.stderr, flush=True)

    def step(self, done: int) -> None:
        """Note that `done` steps are done by now; cheap, call it often."""
        self._done, now = done, time.monotonic()
        if self._bar and self._row is not None:
            self._bar.update(self._row, completed=done, note=self.sentence(now - self._began, bare=True))
        elif now - self._said >= _EVERY:
            self._said = now
            print(self.sentence(now - self._began), file=sys.stderr, flush=True)

    def sentence(self, elapsed: float, *, bare: bool = False) -> str:
        """Steps, time spent and time to expect, as one line."""
        expect = f"about {span(self._expected)} in all when nothing is cached"
        share = self._done / self._total if self._total else 0.0
        if share > 0.1:  # noqa: PLR2004, RUF100
            expect = f"about {span(elapsed / share - elapsed)} to go"
        said = f"{span(elapsed)} spent, {expect}"
        return said if bare else f"{self._what}: {self._done} of {self._total or '?'} packages, {said}"


def span(seconds: float) -> str:
    """`7:05 min` or `12 s`."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02} min" if whole >= 60 else f"{whole} s"  # noqa: PLR2004, RUF100


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} packages, {task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
