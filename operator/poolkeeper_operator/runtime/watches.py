"""What kopf's lists and watches get to see of the API server: nothing that could end, mislead or stall them.

Guarantees: one that is refused, broken or lost is tried again for ever, ever more slowly, and not before the API server's own
Retry-After; an answer or event that kopf would die of becomes the one after which it lists anew; a line cut in two is no
event; each refusal is said once, with what is missing. A watch that has fallen silent shows in /livez (O30), provided that
the API server was ever heard to send bookmarks. Not guaranteed: that nothing vanished in a gap; `gap` is called for that.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from kubernetes.aio.client import Configuration

from poolkeeper_operator.runtime.failures import message_of, retry_after
from poolkeeper_operator.runtime.health import Loops
from poolkeeper_operator.runtime.kinds import OPTIONAL, WATCHED
from poolkeeper_operator.runtime.login import bearer, connection

log = logging.getLogger(__name__)
FIRST, LONGEST = 0.2, 10.0  # seconds between two tries
SHORT = 10.0  # seconds; a watch that ends sooner counts as failed
SILENT = 240.0  # seconds without a bookmark, which come every minute: the watch is dead
NEVER = float("inf")
GONE = b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}'
OK, OK_BELOW, FORBIDDEN, NOT_FOUND, EXPIRED = 200, 400, 403, 404, 410
DISCOVERY = "the API server's kinds"


class Stream:
    """The lists and watches of one kind in one place: when they may be tried again, and what was said of them."""

    def __init__(self, what: str, loops: Loops) -> None:
        self.what = what
        self.listed = False
        self._loops = loops
        self._failures = 0
        self._opened = 0.0
        self._not_before = 0.0
        self._said = ""

    async def turn(self) -> None:
        """Wait until it may be tried again."""
        await asyncio.sleep(max(0.0, self._not_before - _now()))

    def opened(self) -> None:
        """An answer came that may be used."""
        self._opened = _now()
        if self._said:
            log.info("watch.back: %s", self.what)
        self._said = ""

    def ended(self) -> None:
        """A watch is over; one that was soon over is not repeated at once."""
        self._failures = self._failures + 1 if _now() - self._opened < SHORT else 0
        self._delay(0.0)

    def failed(self, why: str, at_least: float = 0.0) -> None:
        """It was refused, or nobody answered; said when it is news."""
        self._failures += 1
        self._delay(at_least)
        if why != self._said:
            log.error("watch.refused: %s: %s", self.what, why)
        self._said = why

    def alive(self, allowance: float) -> None:
        """Something was heard, be it a refusal: silence is what is wrong."""
        self._loops.ticked(f"watch {self.what}", allowance)

    def _delay(self, at_least: float) -> None:
        backoff = min(LONGEST, FIRST * 2.0 ** min(self._failures - 1, 30)) if self._failures else 0.0
        self._not_before = _now() + max(at_least, backoff * random.uniform(0.5, 1.0))  # noqa: S311 - spreads operators


class Watches:
    """A middleware of kopf's HTTP session; see the module."""

    def __init__(self, settings: Configuration, loops: Loops, gap: Callable[[], None]) -> None:
        self._settings = settings
        self._loops = loops
        self._gap = gap
        self._streams: dict[str, Stream] = {}
        self._allowance = NEVER  # until a bookmark shows that the API server sends them

    async def login(self) -> kopf.AiohttpSession:
        """A session for kopf; it closes it."""
        info = connection(self._settings)
        connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
        return kopf.AiohttpSession(
            server=info.server, aiohttp_session=aiohttp.ClientSession(connector=connector, middlewares=(self,))
        )

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Let kopf have an answer that it can use, however long that takes."""
        path = request.url.path
        stream, watching = self._stream(path), "watch" in request.url.query
        while True:
            await stream.turn()
            token = await bearer(self._settings)
            if token:
                request.headers["Authorization"] = token
            try:
                answer = await handler(request)
                body = b"" if watching and answer.status < OK_BELOW else await answer.read()
            except (aiohttp.ClientError, OSError) as error:  # time-outs included
                stream.failed(f"no answer: {error or type(error).__name__}")
                self._lost(stream)
                continue
            if watching and answer.status == EXPIRED:
                answer.status = OK
                return self._open(stream, answer, GONE)
            why = _refusal(path, stream, watching, answer.status, body)
            if why is not None:
                stream.failed(why, retry_after(answer.headers))
                self._lost(stream)
            elif watching:
                return self._open(stream, answer)
            else:
                self._listed(stream)
                return answer

    def _open(self, stream: Stream, answer: ClientResponse, instead: bytes | None = None) -> ClientResponse:
        stream.opened()
        answer.content = Told(answer.content, self._heard, stream, instead)  # type: ignore[assignment]  # does what it did
        return answer

    def _listed(self, stream: Stream) -> None:
        stream.opened()
        if stream.what == DISCOVERY:
            return
        stream.alive(self._allowance)
        if stream.listed:  # kopf lists again after a gap, and does not compare
            self._gap()
        stream.listed = True

    def _lost(self, stream: Stream) -> None:
        if stream.what != DISCOVERY:
            stream.alive(self._allowance)
            self._gap()  # look by lists of our own meanwhile

    def _heard(self, stream: Stream, bookmark: bool) -> None:
        if bookmark and self._allowance == NEVER:
            self._allowance = SILENT
            for known in self._streams.values():
                if known.listed:
                    known.alive(SILENT)
        stream.alive(self._allowance)

    def _stream(self, path: str) -> Stream:
        what = _what(path)
        if what not in self._streams:
            self._streams[what] = Stream(what, self._loops)
        return self._streams[what]


class Told:
    """The body of a watch by whole lines, with no error in it but the one that kopf can handle; else as it is."""

    def __init__(
        self,
        content: aiohttp.StreamReader,
        heard: Callable[[Stream, bool], None],
        stream: Stream,
        instead: bytes | None,
    ) -> None:
        self._content = content
        self._heard = heard
        self._stream = stream
        self._instead = instead  # one line, in place of all

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """What kopf asks of a body."""
        rest = b""
        try:
            if self._instead is not None:
                yield self._instead + b"\n"
                return
            async for data in self._content.iter_chunked(size):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield self._judged(line) + b"\n"
        except (aiohttp.ClientError, OSError) as error:
            log.debug("watch.dropped: %s: %s", self._stream.what, error)
        finally:
            self._stream.ended()

    def _judged(self, line: bytes) -> bytes:
        kind = line[:40]  # the API server writes {"type":"…","object":…}
        if b'"ERROR"' not in kind:
            self._heard(self._stream, b'"BOOKMARK"' in kind)
            return line
        try:
            told = json.loads(line)["object"]
            code, why = told.get("code"), told.get("message", "")
        except (ValueError, KeyError, AttributeError):
            code, why = None, line[:200].decode(errors="replace")
        if code != EXPIRED:
            log.warning("watch.error: %s: %s %s", self._stream.what, code, why)
        return GONE


def _what(path: str) -> str:
    """Which list or watch a path is: in words, and as a key."""
    for resource in (*WATCHED, *OPTIONAL):
        if path == resource.path(None):
            return f"{resource.plural} in all namespaces"
        head, _, tail = path.rpartition("/")
        if tail == resource.plural and head.startswith(resource.path(None).removesuffix(tail) + "namespaces/"):
            return f'{resource.plural} in namespace "{head.rpartition("/")[2]}"'
    return DISCOVERY


def _refusal(path: str, stream: Stream, watching: bool, status: int, body: bytes) -> str | None:
    """Why an answer cannot be used; None if it can. That a group of kinds is not there, kopf can hear."""
    if status == FORBIDDEN:
        verb = "watch" if watching else "list"
        return f"right_missing: {verb} {path}: {message_of(body)}; add it to the operator's role"
    if status >= OK_BELOW and not (status == NOT_FOUND and stream.what == DISCOVERY):
        return f"{status} {message_of(body)}"
    if not watching and not _whole(body):
        return "the answer is not whole"
    return None


def _whole(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _now() -> float:
    return asyncio.get_running_loop().time()
