"""The worker's HTTP port: /livez, /readyz, /metrics (Q49).

Guarantees: /livez fails only when the claim loop or the renewal thread has not completed a round for a bound, where a
round that failed on the database counts; /readyz turns well after the first round and stays so under load, outage and
drain. Metrics are read from plain counters when they are asked for; working costs nothing for them.
"""

import contextlib
import http.server
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

_log = logging.getLogger("poolkeeper.worker")

BOUND = 120.0
"""Seconds without a round after which a loop counts as stuck; handlers that block the event loop for less are unwise, not dead."""

WAKE = 2.0
"""Seconds to wait for the server's thread to end."""


class Watched(Protocol):
    """What the port reports about; the worker."""

    slots: Any
    turns: Any
    renewal: Any
    pulse: Any


class Health:
    """The HTTP server, in a thread of its own."""

    def __init__(self, host: str, port: int, worker: Watched) -> None:
        self._worker = worker
        handler = type("Handler", (_Handler,), {"health": self})
        try:
            self._server = http.server.ThreadingHTTPServer((host, port), handler)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "no host can be named so"
            raise Misconfigured(
                Code.SETTING_INVALID,
                f"POOLKEEPER_HTTP_ADDR {host[:80]}:{port} cannot be used: {why}; choose another port, or 0 for a free one",
            ) from error
        self._server.daemon_threads = True
        self._over = False
        self._thread = threading.Thread(target=self._serve, name="poolkeeper-http", daemon=True)
        self.address = f"{self._server.server_address[0]!s}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()
        _log.info("listening: http://%s/livez /readyz /metrics", self.address)

    def stop(self) -> None:
        """Close the port."""
        self._over = True
        host, _, port = self.address.rpartition(":")
        local = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
        with contextlib.suppress(OSError), socket.create_connection((local, int(port)), WAKE):
            pass  # wakes the thread, which waits for a request
        self._thread.join(WAKE)
        self._server.server_close()

    def _serve(self) -> None:
        """Wait for requests, for any time: `serve_forever` would wake an idle process twice a second."""
        while not self._over:
            self._server.handle_request()

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a path."""
        match path.partition("?")[0]:
            case "/livez":
                return _verdict(self._stuck())
            case "/readyz":
                ready = self._worker.turns.first_round.is_set()
                return _verdict("" if ready else "the first turn is not done: the database was not reached yet")
            case "/metrics":
                return self._metrics()
            case _:
                return 404, "text/plain", b"here are /livez, /readyz and /metrics\n"

    def _stuck(self) -> str:
        now = time.monotonic()
        for name, loop in (("claim loop", self._worker.turns), ("renewal thread", self._worker.renewal)):
            if loop is self._worker.renewal and not loop.is_alive():
                if loop.ident is None:
                    continue  # not registered yet: the claim loop's rounds tell
                return "the renewal thread has ended"
            if now - loop.round_at > BOUND:
                return f"the {name} has not completed a round for {now - loop.round_at:.0f} s"
        return ""

    def _metrics(self) -> tuple[int, str, bytes]:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        registry = CollectorRegistry()
        registry.register(_Collector(self._worker))
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


class _Collector:
    def __init__(self, worker: Watched) -> None:
        self._worker = worker

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        slots, turns, renewal = self._worker.slots, self._worker.turns, self._worker.renewal
        settles = CounterMetricFamily(
            "poolkeeper_worker_settles", "Deliveries ended here, by outcome.", labels=["outcome"]
        )
        for ending, count in dict(slots.endings).items():
            settles.add_metric([ending], count)
        yield settles
        yield CounterMetricFamily("poolkeeper_worker_claims", "Deliveries claimed.", value=turns.claimed)
        yield CounterMetricFamily("poolkeeper_worker_turns", "Round trips of the claim loop.", value=turns.number)
        yield CounterMetricFamily(
            "poolkeeper_worker_busy_seconds",
            "Seconds that slots spent on deliveries that ended.",
            value=slots.busy_seconds,
        )
        yield GaugeMetricFamily("poolkeeper_worker_slots", "Slots of this worker.", value=slots.capacity)
        yield GaugeMetricFamily(
            "poolkeeper_worker_busy_slots", "Slots with a delivery in them.", value=len(slots.running)
        )
        yield GaugeMetricFamily(
            "poolkeeper_worker_renewal_age_seconds",
            "Seconds since a renewal was answered.",
            value=renewal.age(),
        )
        yield GaugeMetricFamily(
            "poolkeeper_worker_round_age_seconds",
            "Seconds since the claim loop completed a round.",
            value=time.monotonic() - turns.round_at,
        )
        yield GaugeMetricFamily(
            "poolkeeper_worker_longest_stall_seconds",
            "Longest time that user code kept the event loop from running.",
            value=self._worker.pulse.longest_stall,
        )


class _Handler(http.server.BaseHTTPRequestHandler):
    health: Health

    def do_GET(self) -> None:
        status, kind, body = self.health.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name of the base class)
        _log.debug(format, *args)


def _verdict(problem: str) -> tuple[int, str, bytes]:
    return (503, "text/plain", f"{problem}\n".encode()) if problem else (200, "text/plain", b"ok\n")
