"""Where the program `poolkeeper` begins, and `python -m poolkeeper`.

Guarantees: Ctrl-C ends a command with exit code 130 and no traceback, at whatever moment it comes; SIGTERM ends it also
where it is the first process of a container, to which the kernel's own default does not apply. Both from the first line
on, before anything that takes time is imported; commands that have something to finish set their own.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
TERMINATED = 143


def main() -> None:
    """Run the program; what the console script calls."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    from poolkeeper.cli import run

    signal.signal(signal.SIGINT, _interrupt)
    code = run(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):  # it is done: its exit code stands
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let the command clean up; whoever presses again does not want to wait for that."""
    del number, frame
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
