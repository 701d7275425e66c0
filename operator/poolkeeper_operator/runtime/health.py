"""/livez, /readyz and /metrics on a thread of their own, so that they answer while the event loop is stuck.

Alive means: every loop went round within its allowance, and the last complete re-list is recent (O30); never merely
that HTTP answers. Ready means: the checks at start passed and the first list is in; a standby is ready too, and says so.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured

HIGHEST_PORT = 65535


class Loops:
    """When each loop last went round, against how long it may take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}
        self._guard = threading.Lock()
        self.ready: str | None = "starting"  # why not ready; None once ready
        self.role = "standby"  # or "leader"

    def ticked(self, loop: str, allowance: float) -> None:
        """`loop` went round now and must do so again within `allowance` seconds."""
        with self._guard:
            self._seen[loop] = (self._clock(), allowance)

    def ended(self, loop: str) -> None:
        """`loop` is over by intention and no longer watched."""
        with self._guard:
            self._seen.pop(loop, None)

    def late(self) -> list[str]:
        """A line for each loop that is overdue."""
        now = self._clock()
        with self._guard:
            seen = sorted(self._seen.items())
        return [
            f"{loop}: last went round {now - at:.0f} s ago, allowed are {allowance:.0f} s"
            for loop, (at, allowance) in seen
            if now - at > allowance
        ]


class HealthServer:
    """Serves until closed; `port` is the one bound, also when 0 was asked for."""

    def __init__(self, address: str, loops: Loops, registry: CollectorRegistry = REGISTRY) -> None:
        host, port = _host_and_port(address)
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(loops, registry))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "no host can be named so"
            text = f"POOLKEEPER_HTTP_ADDR {host[:80]}:{port} cannot be used: {why}; choose another port, or 0 for a free one"
            raise Misconfigured(Code.SETTING_INVALID, text) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is bound."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > HIGHEST_PORT:
        text = f'POOLKEEPER_HTTP_ADDR is "{address[:80]}"; expected host:port, such as 0.0.0.0:8080'
        raise Misconfigured(Code.SETTING_INVALID, text)
    return host.strip("[]") or "127.0.0.1", int(port)


def _handler(loops: Loops, registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/livez":
                late = loops.late()
                self._say(HTTPStatus.SERVICE_UNAVAILABLE if late else HTTPStatus.OK, late)
            elif self.path == "/readyz":
                why = loops.ready
                self._say(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, [why] if why else [])
            elif self.path == "/metrics":
                self._send(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"/livez /readyz /metrics\n")

        def _say(self, status: HTTPStatus, reasons: list[str]) -> None:
            body = json.dumps({"ok": not reasons, "role": loops.role, "reasons": reasons}).encode() + b"\n"
            self._send(status, "application/json", body)

        def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
            """Probes are not news."""

    return Handler
