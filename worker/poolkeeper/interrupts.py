"""What the program `poolkeeper` does at Ctrl-C and SIGTERM, until a command sets handlers of its own.

Guarantees: exit code 130 and no traceback at whatever moment. At once while nothing is begun: an exception would be lost
in a callback of the import system. Once there is a connection, by an exception, so that the statement in progress is taken
back; whoever presses again, and what has not ended after `LONGEST` seconds, ends at once. Libraries never install these.
"""

import os
import signal
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143
LONGEST = 5
"""Seconds that taking back may last."""


def install() -> None:
    """End at once from now on: as the first process of a container too, to which the kernel's own default does not apply."""
    signal.signal(signal.SIGINT, at_once)
    signal.signal(signal.SIGTERM, terminated)


def begun() -> None:
    """There is something to take back from now on; does nothing where `install` was not called."""
    if signal.getsignal(signal.SIGINT) is at_once:
        signal.signal(signal.SIGINT, _gently)


def over() -> None:
    """The command is done: its exit code stands."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def at_once(number: int, frame: FrameType | None) -> None:
    """End without another word."""
    del number, frame
    os._exit(INTERRUPTED)


def terminated(number: int, frame: FrameType | None) -> None:
    """End as the default of SIGTERM would."""
    del number, frame
    os._exit(TERMINATED)


def _gently(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.signal(signal.SIGINT, at_once)
    signal.signal(signal.SIGALRM, at_once)
    signal.alarm(LONGEST)
    raise KeyboardInterrupt
