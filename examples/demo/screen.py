"""What the viewer sees: sentences with the time, the commands a user would type, a line of state, a chart at the end.

Works without a terminal too: nothing is overwritten, every line stays. `chart` and `state` are pure.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text


@dataclass(frozen=True)
class Sample:
    """How things stood at one moment; `at` in seconds since the demo began."""

    at: float
    wanted: int
    ready: int
    pods: int
    waiting: int
    running: int
    alone: int
    dead: int
    ended: int
    submitted: int


class Screen:
    """Prints, from several threads, whole lines."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.spent: list[tuple[str, float]] = []
        self._console = Console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the story; its time is told at the end."""
        before = self.elapsed
        try:
            yield
        finally:
            self.spent.append((name, self.elapsed - before))

    def say(self, text: str) -> None:
        """A sentence of the narrator."""
        self._print(Text(f"{_clock(self.elapsed)}  ", "dim") + Text(text, "bold"))

    def state(self, sample: Sample) -> None:
        """One line on how things stand."""
        self._print(Text(f"{_clock(self.elapsed)}  ", "dim") + Text(state(sample), "cyan"))

    def shows(self, command: str, output: str) -> None:
        """A command that a user would type, and its answer."""
        self._print(Text(f"       $ {command}", "green"))
        self.lines(output.rstrip().splitlines())

    def lines(self, lines: Sequence[str]) -> None:
        """Lines as they are, indented."""
        self._print(Text("\n".join(f"         {line}".rstrip() for line in lines)))

    def plain(self, line: str = "") -> None:
        """One line as it is."""
        self._print(Text(line))

    def _print(self, text: Text) -> None:
        with self._lock:
            self._console.print(text)


def state(sample: Sample) -> str:
    """`pods ■■□ 2 of 3   waiting 12  running 4  ended 30 of 46`."""
    pods = "■" * sample.ready + "□" * (max(sample.pods, sample.wanted) - sample.ready)
    alone = f"  to run alone {sample.alone}" if sample.alone else ""
    dead = f"  dead {sample.dead}" if sample.dead else ""
    return (
        f"pods {pods:8} {sample.ready} of {sample.wanted}   waiting {sample.waiting:3}  running {sample.running:2}  "
        f"ended {sample.ended} of {sample.submitted}{alone}{dead}"
    )


def chart(samples: Sequence[Sample], width: int = 72) -> list[str]:
    """Pods over time, one column per moment: █ ready, ░ there but not ready (starting or leaving)."""
    if not samples:
        return ["no samples"]
    columns = [_at(samples, samples[0].at + (samples[-1].at - samples[0].at) * x / (width - 1)) for x in range(width)]
    top = max(1, *(max(each.pods, each.ready) for each in columns))
    rows = [
        f"{level:2} |" + "".join("█" if each.ready >= level else "░" if each.pods >= level else " " for each in columns)
        for level in range(top, 0, -1)
    ]
    ends = f"{_clock(samples[0].at)}{_clock(samples[-1].at):>{width - 5}}"
    return [*(row.rstrip() for row in rows), f" 0 +{'-' * width}", f"    {ends}"]


def _at(samples: Sequence[Sample], moment: float) -> Sample:
    return min(samples, key=lambda each: abs(each.at - moment))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}".rjust(5)
