"""pgqueuer: fill, or drain, as its documentation does it best (asyncpg, uvloop, batches).

python -m benchmarks.peers.pgqueuer_drain fill DSN COUNT
python -m benchmarks.peers.pgqueuer_drain drain DSN COUNT BATCH     prints seconds from first handler to empty queue
"""

import sys
import time

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode


async def fill(dsn: str, count: int) -> None:
    """Install its schema and enqueue in bulk."""
    conn = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(conn))
    await queries.install()
    for first in range(0, count, 5000):
        some = list(range(first, min(first + 5000, count)))
        await queries.enqueue(["noop"] * len(some), [b'{"n": %d}' % n for n in some], [0] * len(some))
    await conn.close()


async def drain(dsn: str, count: int, batch: int) -> None:
    """Run everything; `mode=drain` ends when the queue is empty and the last status was written."""
    conn = await asyncpg.connect(dsn)
    pgq = PgQueuer(AsyncpgDriver(conn))
    first: list[float] = []
    done = 0

    @pgq.entrypoint("noop")  # type: ignore[untyped-decorator, unused-ignore]
    async def noop(_job: Job) -> None:
        nonlocal done
        if not first:
            first.append(time.monotonic())
        done += 1

    await pgq.run(batch_size=batch, mode=QueueExecutionMode.drain)
    ended = time.monotonic()
    left = await asyncpg.connect(dsn)
    waiting = await left.fetchval("SELECT count(*) FROM pgqueuer")
    succeeded = await left.fetchval("SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")
    assert done == count, (done, count)
    assert waiting == 0, waiting
    print(ended - first[0], succeeded)


if __name__ == "__main__":
    verb, dsn, *numbers = sys.argv[1:]
    uvloop.run(fill(dsn, int(numbers[0])) if verb == "fill" else drain(dsn, int(numbers[0]), int(numbers[1])))
