"""An application whose handlers call a provider and tell what it answered."""

import asyncio
import json
import os
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from notes import note, released  # type: ignore[import-not-found]  # beside this file

from poolkeeper import Context, Poolkeeper, RetryAfter

app = Poolkeeper()


def ask(task: str, seconds: float) -> tuple[int, str | None]:
    """One call of the provider; its status and its Retry-After."""
    body = json.dumps({"task": task, "step": "0", "seconds": seconds}).encode()
    url = urlsplit(os.environ["MODEL_URL"])
    connection = HTTPConnection(str(url.hostname), url.port, timeout=60)
    try:
        connection.request("POST", "/", body)
        answer = connection.getresponse()
        return answer.status, answer.headers["Retry-After"]
    finally:
        connection.close()


@app.task("t.asks")
async def asks(seconds: float, ctx: Context) -> str:
    """Asks once, reports, and tries again when the provider says so."""
    status, retry_after = await asyncio.to_thread(ask, str(ctx.task_id), seconds)
    taken = await ctx.report_provider("api", status, retry_after=retry_after, used={"requests": 1, "tokens": 100})
    note(ctx, "told", status=status, taken=taken, at=time.time())
    if status == 429:
        raise RetryAfter(float(retry_after or 0))
    return "answered"


@app.task("t.asks_twice")
async def asks_twice(seconds: float, ctx: Context) -> list[int]:
    """Asks twice and tells nothing of it."""
    return [(await asyncio.to_thread(ask, str(ctx.task_id), seconds))[0] for _ in range(2)]


def wrong(ctx: Context) -> list[str]:
    """What a handler is told of arguments that cannot be."""
    said = []
    for arguments in (
        {"name": "", "status": 429},
        {"name": "api", "status": "well"},
        {"name": "api", "status": 429, "retry_after": -1},
    ):
        try:
            ctx.report_provider_sync(**arguments)
        except ValueError as error:
            said.append(str(error))
    return said


@app.task("t.tells_thread")
def tells_thread(payload: Any, ctx: Context) -> list[Any]:
    """Reports from a thread: what is taken, what is not, what cannot be."""
    del payload
    return [ctx.report_provider_sync("api", 200), ctx.report_provider_sync("nobody", 429), wrong(ctx)]


@app.task("t.tells_child", isolation="process")
def tells_child(payload: Any, ctx: Context) -> list[Any]:
    """The same in a process of its own."""
    return [*tells_thread(payload, ctx), os.getpid()]


@app.task("t.tells_child_async", isolation="process")
async def tells_child_async(payload: Any, ctx: Context) -> list[Any]:
    """The same in an event loop there."""
    del payload
    refused = await ctx.report_provider("api", "throttled", retry_after=0.5, used={"tokens": 7})
    return [refused, await ctx.report_provider("nobody", 200)]


@app.task("t.tells_later")
async def tells_later(name: str, ctx: Context) -> list[Any]:
    """Reports when the test lets it."""
    note(ctx, "in")
    while not released(name):
        await asyncio.sleep(0.02)
    return [await ctx.report_provider("api", 429)]
