"""Reports of handlers about providers, on their way to the store (Q40).

Guarantees: what cannot be told does not fail the handler, and does not keep it for longer than `WITHIN`; the log says so once a
minute for each provider. A delivery that is over hears it, as at every call of its context.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from poolkeeper.codes import Code
from poolkeeper.context import Context
from poolkeeper.errors import CLASSES, LeaseLost, PoolkeeperError
from poolkeeper.provider import Report
from poolkeeper.store import Call, calls

_log = logging.getLogger("poolkeeper.worker")

WITHIN = 5.0
"""Seconds that a handler waits for its report to be taken."""

SAY_AGAIN = 60.0
"""Seconds between two log lines about one provider."""


MOST_SAID = 1000

_LOST = {code for code, kind in CLASSES.items() if kind is LeaseLost} | {Code.UNKNOWN_TASK}


Send = Callable[[Call[Any]], Awaitable[Any]]
"""How calls reach the store."""


class Reports:
    """Tells the store for all deliveries of one worker."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._said: dict[str, float] = {}
        self._sending: set[asyncio.Task[Any]] = set()

    async def tell(self, ctx: Context, token: str, report: Report) -> bool:
        """Send one report; return whether the store took it. Raises LeaseLost."""
        sending = asyncio.get_running_loop().create_task(
            self._answer(calls.report_provider(ctx.task_id, token, report))
        )
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        # shielded: a cancelled handler must not cut off the statement that others wait behind
        done, _ = await asyncio.shield(asyncio.wait([sending], timeout=WITHIN))
        code = sending.result() if done else Code.DATABASE_UNREACHABLE
        if code is None:
            return True
        if code in _LOST:
            lost = LeaseLost(Code(code), f"task {ctx.task_id}: {code}")
            ctx.halt(lost)
            raise lost
        self._say(report, code)
        return False

    async def _answer(self, call: Call[Any]) -> str | None:
        try:
            code: str | None = (await self._send(call)).code
        except (PoolkeeperError, psycopg.Error, OSError) as error:
            return str(getattr(error, "code", Code.DATABASE_UNREACHABLE))
        return code

    def _say(self, report: Report, code: str) -> None:
        now = time.monotonic()
        if now - self._said.get(report.name, -SAY_AGAIN) < SAY_AGAIN:
            return
        if len(self._said) >= MOST_SAID:
            self._said.clear()
        self._said[report.name] = now
        remedy = (
            "add it to spec.providers of the WorkerPool"
            if code == Code.UNKNOWN_PROVIDER
            else "the next report is sent again"
        )
        _log.warning(
            'provider "%s": a report (status %s) was not taken: %s; %s', report.name, report.status, code, remedy
        )
