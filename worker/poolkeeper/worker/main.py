"""The program behind `poolkeeper worker`: settings, log, application, event loop, exit code."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence

from poolkeeper.worker import logs
from poolkeeper.worker.load import load_app
from poolkeeper.worker.process import Worker
from poolkeeper.worker.settings import read_settings


def main(
    app: str | None = None, *, queues: Sequence[str] = (), concurrency: int | None = None, dsn: str | None = None
) -> int:
    """Run a worker until it is told to stop; return the exit code. Raises Misconfigured before anything starts."""
    settings = read_settings(app=app, queues=queues, concurrency=concurrency, dsn=dsn)
    logs.set_up(os.environ)
    handlers = load_app(settings.app)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def work() -> tuple[int, bool]:
        worker = Worker(handlers, settings)
        code = await worker.run()
        return code, bool(worker.left)

    code, left = loop.run_until_complete(work())
    if left:  # a handler that does not end must not keep the process: its lease has gone back
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    for number in (signal.SIGTERM, signal.SIGINT):  # it has drained: its exit code stands
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    gc.freeze()  # else the interpreter looks at every object once more, seconds of a busy node that the grace does not have
    return code
