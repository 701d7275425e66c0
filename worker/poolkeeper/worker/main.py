"""The program behind `poolkeeper worker`: settings, log, application, event loop, exit code."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

from poolkeeper.outcome import describe
from poolkeeper.worker import logs
from poolkeeper.worker.copies import SIGNALS, Original
from poolkeeper.worker.load import load_app
from poolkeeper.worker.process import Worker
from poolkeeper.worker.settings import read_settings

T = TypeVar("T")

_log = logging.getLogger("poolkeeper.worker")


def main(
    app: str | None = None, *, queues: Sequence[str] = (), concurrency: int | None = None, dsn: str | None = None
) -> int:
    """Run a worker until it is told to stop; return the exit code. Raises Misconfigured before anything starts."""
    settings = read_settings(app=app, queues=queues, concurrency=concurrency, dsn=dsn)
    logs.set_up(os.environ)
    handlers = load_app(settings.app)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    original = Original(loop)

    async def work() -> tuple[int, bool, float]:
        worker = Worker(handlers, settings, original)
        code = await worker.run()
        return code, bool(worker.left), worker.leaves_by

    code, left, by = _completed(loop, work(), original)
    if left:  # a handler that does not end must not keep the process: its lease has gone back
        _end(code)
    threading.Thread(target=_end_at, args=(by, code), name="poolkeeper-end", daemon=True).start()
    for number in SIGNALS:  # it has drained: its exit code stands
        signal.signal(number, signal.SIG_IGN)
    loop.run_until_complete(loop.shutdown_asyncgens())  # and no close, which would make them deadly once more
    gc.freeze()  # else the interpreter looks at every object once more, seconds of a busy node that the grace does not have
    return code


def _completed(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], original: Original) -> T:
    """Run `work` to its end, even where user code stops the loop: by SystemExit in a task of its own, or by loop.stop()."""
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except BaseException as error:
            original.end_copy()
            if task.done():
                raise
            _log.warning("a task or callback of a handler stopped the event loop (%s); it goes on", describe(error))


def _end_at(moment: float, code: int) -> None:
    """End when the grace does, whatever threads and event loops of handlers still do."""
    time.sleep(max(0.5, moment - time.monotonic()))
    _log.warning("what a handler left running goes on at the end of the grace; the process ends without it")
    _end(code)


def _end(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
