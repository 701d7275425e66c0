"""A model's HTTP API for the example agent: it takes its time, refuses calls beyond its rate, and writes down each call.

Guarantees that its log, one JSON line when a call begins and one when it ends, is written before the caller hears of
either, and that a call whose caller goes away ends in that moment. Knows nothing of Poolkeeper: a witness from outside.
Who was refused and comes back after the time that it was given is let in.
"""

import argparse
import json
import random
import select
import signal
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PER_SECOND = 70  # calls that may begin within any second
BUSY = 0.03  # share of calls that are refused because others use the model too
RETRY_AFTER = 1.0


class Rate:
    """At most `limit` calls begin within `window` seconds, and a share is refused at random; no clock of its own."""

    def __init__(self, limit: int, window: float = 1.0, busy: float = 0.0) -> None:
        self._limit, self._window, self._busy = limit, window, busy
        self._chance = random.Random(7)
        self._began: deque[float] = deque()
        self._promised: set[tuple[str, str]] = set()

    def admits(self, who: tuple[str, str], now: float) -> bool:
        """Whether this call may begin now; one that was told to come back later may, once."""
        while self._began and self._began[0] <= now - self._window:
            self._began.popleft()
        full = len(self._began) >= self._limit or self._chance.random() < self._busy
        if full and who not in self._promised:
            self._promised.add(who)
            return False
        self._promised.discard(who)
        self._began.append(now)
        return True


class Log:
    """The record of calls, a line each, in the order of time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self._calls = 0

    def began(self, call: dict[str, Any]) -> int:
        """Note that a call began; returns its number."""
        with self._lock:
            self._calls += 1
            self._write({"call": self._calls, "what": "began", **call})
            return self._calls

    def ended(self, number: int, what: str) -> None:
        """Note that it was answered or cut off."""
        with self._lock:
            self._write({"call": number, "what": what})

    def refused(self, call: dict[str, Any]) -> None:
        """Note a call that was not let in."""
        with self._lock:
            self._write({"what": "refused", **call})

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps({"at": time.time(), **entry}) + "\n")


class Handler(BaseHTTPRequestHandler):
    """One connection, one call."""

    server: "Server"

    def do_POST(self) -> None:  # the name that http.server asks for
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.server.admits(call):
            self.server.log.refused(call)
            self._answer(429, {"error": "too many requests"}, {"Retry-After": f"{RETRY_AFTER:g}"})
            return
        number = self.server.log.began(call)
        gone, _, _ = select.select([self.connection], [], [], call["seconds"])  # readable: the caller hung up
        self.server.log.ended(number, "cut off" if gone else "answered")
        if not gone:
            self._answer(200, {"answer": f"{call['step']} {number}"}, {})

    def do_GET(self) -> None:
        self._answer(200, {"calls": "POST / with task, step and seconds"}, {})

    def _answer(self, code: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """The log of calls is the log."""


class Server(ThreadingHTTPServer):
    """Listens on one address."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], log: Log, per_second: int) -> None:
        super().__init__(address, Handler)
        self.log = log
        self._rate = Rate(per_second, busy=BUSY)
        self._lock = threading.Lock()

    def admits(self, call: dict[str, Any]) -> bool:
        """Whether the rate has room for this call."""
        with self._lock:
            return self._rate.admits((call["task"], call["step"]), time.monotonic())

    def server_close(self) -> None:
        """Listen no more, and close the log."""
        super().server_close()
        self.log.close()

    def handle_error(self, *_: object) -> None:
        """A caller that goes away while it is answered is nothing to report."""


def main() -> None:
    """Serve until told to stop; the first line on standard output is the URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--per-second", type=int, default=PER_SECOND)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the story, which then ends us
    with Server((asked.host, asked.port), Log(asked.log), asked.per_second) as server:
        print(f"http://{asked.host}:{server.server_address[1]}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
