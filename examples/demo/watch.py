"""Looks at pods and tasks once a second while the story goes on: for the line of state, and for the chart at the end.

Guarantees that a look that fails is left out, never guessed. Nothing is judged from what it sees: `verify` does that.
"""

import threading
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls, connect, run

from .scene import NAMESPACE, Scene
from .screen import Sample, Screen

EVERY = 1.0
SAID_EVERY = 3  # looks


class Watch:
    """Samples in the background from entering to leaving; `now` waits for the next one."""

    def __init__(self, scene: Scene, screen: Screen, pool: str, submitted: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self._scene, self._screen, self._pool, self._submitted = scene, screen, pool, submitted
        self._stop = threading.Event()
        self._fresh = threading.Condition()
        self._thread = threading.Thread(target=self._look_for_ever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until(self, holds: Callable[[Sample], bool], timeout: float) -> bool:
        """Wait for a sample of which this is true; False when none came in time."""
        with self._fresh:
            return self._fresh.wait_for(lambda: bool(self.samples) and holds(self.samples[-1]), timeout)

    def _look_for_ever(self) -> None:
        with connect(self._scene.owner_dsn) as conn:
            while not self._stop.wait(EVERY):
                with suppress(OSError, urllib.error.URLError, PoolkeeperError):
                    self._add(self._look(conn))

    def _add(self, sample: Sample) -> None:
        with self._fresh:
            self.samples.append(sample)
            self._fresh.notify_all()
        if len(self.samples) % SAID_EVERY == 1:
            self._screen.state(sample)

    def _look(self, conn: Any) -> Sample:
        wanted = self._scene.api(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{self._pool}")["spec"]["replicas"]
        query = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=poolkeeper.dev/pool%3D{self._pool}"
        pods = self._scene.api(query)["items"]
        submitted = self._submitted()
        queue = next(each for each in run(conn, calls.queues()) if each.name == self._pool)
        waiting = queue.ready + queue.scheduled + queue.waiting
        running = queue.running + queue.leased
        return Sample(
            at=self._screen.elapsed,
            wanted=wanted,
            ready=sum(_ready(pod) for pod in pods),
            pods=len(pods),
            waiting=waiting,
            running=running,
            alone=queue.suspects,
            dead=queue.dead,
            ended=max(0, submitted - waiting - running - queue.suspects),
            submitted=submitted,
        )


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    leaving = "deletionTimestamp" in pod["metadata"]
    return not leaving and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
