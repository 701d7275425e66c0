"""`python -m demo`: the story from an empty machine to a verdict. Exit code 0 only if everything happened.

DEMO_BREAK=kill|poison|quota|drain leaves out one cause; the verdict must then be no.
"""

import argparse
import os
import signal
import sys
from types import FrameType

from lab.errors import LabError

from .scene import Scene
from .screen import Screen
from .story import CAUSES, Story

USAGE, INTERRUPTED = 2, 130
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Tell the story."""
    argparse.ArgumentParser(prog="demo", description=__doc__).parse_args()
    broken = os.environ.get("DEMO_BREAK") or None
    if broken not in {None, *CAUSES}:
        print(f"demo: DEMO_BREAK={broken}: unknown; it is one of {', '.join(CAUSES)}, or absent", file=sys.stderr)
        return USAGE
    for number in ENDS:
        signal.signal(number, _interrupt)
    screen = Screen()
    try:
        well = _show(screen, broken)
    except LabError as error:
        screen.plain(f"demo: {error}")
        return USAGE
    except KeyboardInterrupt:
        screen.plain("demo: interrupted; everything it started is down")
        return INTERRUPTED
    _times(screen)
    screen.plain(f"demo: {'all of it happened' if well else 'NOT all of it happened, see above'}")
    return 0 if well else 1


def _show(screen: Screen, broken: str | None) -> bool:
    with Scene(lambda line: screen.plain(f"       … {line}")) as scene:
        try:
            screen.say(
                "Poolkeeper's main job, on a real Kubernetes and a real Postgres: about two minutes from here, once the tools are built."
            )
            with screen.phase("tools and images"):
                archives = scene.build()
            with screen.phase("cluster"):
                screen.say("A Kubernetes cluster with a real node comes up on this machine.")
                scene.start_cluster(archives)
            with screen.phase("operator and database"):
                screen.say("Postgres starts; `helm install poolkeeper charts/poolkeeper` brings the operator.")
                scene.start_platform()
            story = Story(scene, screen, broken)
            with screen.phase("apply"):
                story.apply()
            story.tell()
            with screen.phase("explain and verify"):
                story.explain()
                return story.verified()
        finally:
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)  # cleaning up is not to be interrupted


def _times(screen: Screen) -> None:
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in screen.spent)
    told = sum(seconds for _, seconds in screen.spent)
    screen.plain(f"time: {spent}, cleaning up {screen.elapsed - told:.0f} s; in all {screen.elapsed:.0f} s")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
