"""The work queue's promises (kopf-and-style 1.4), on a real event loop."""

import asyncio

import pytest

from poolkeeper_operator.runtime.workqueue import LONGEST_BACKOFF, Key, WorkQueue, backoff

A = Key("WorkerPool", "ns", "a")
B = Key("WorkerPool", "ns", "b")


async def until(condition, timeout=5.0):
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def queues():
    made = []

    def make(work, **options):
        queue = WorkQueue(work, luck=lambda: 0.0, **options)
        queue.start()
        made.append(queue)
        return queue

    yield make
    for queue in made:
        await queue.drain(1)


async def test_a_burst_of_events_is_one_run(queues):
    """However often a key is added before it runs, it runs once."""
    seen = []

    async def work(key):
        seen.append(key)

    queue = queues(work)
    for _ in range(50):
        queue.add(A)
    await until(lambda: seen and not len(queue))
    assert seen == [A]


async def test_a_key_never_runs_twice_at_a_time_and_runs_again_if_added_meanwhile(queues):
    """A key added while it runs runs once more afterwards, never beside itself."""
    busy, most, runs = 0, 0, 0
    gate = asyncio.Event()

    async def work(_key):
        nonlocal busy, most, runs
        busy += 1
        runs += 1
        most = max(most, busy)
        await gate.wait()
        busy -= 1

    queue = queues(work)
    queue.add(A)
    await until(lambda: busy == 1)
    for _ in range(10):
        queue.add(A)
    gate.set()
    await until(lambda: not len(queue))
    assert (runs, most) == (2, 1)


async def test_no_more_runs_at_once_than_allowed(queues):
    """Bounded parallelism: the rest waits its turn and gets it."""
    busy, most, done = 0, 0, 0

    async def work(_key):
        nonlocal busy, most, done
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.002)
        busy -= 1
        done += 1

    queue = queues(work, parallel=3)
    for number in range(20):
        queue.add(Key("WorkerPool", "ns", str(number)))
    await until(lambda: done == 20)
    assert most == 3


async def test_a_failing_key_backs_off_alone(queues):
    """An error delays its own key, and an ordinary event does not shorten that; other keys are not delayed."""
    tries: list[Key] = []

    async def work(key):
        tries.append(key)
        if key == A:
            raise ValueError

    queue = queues(work)
    queue.add(A)
    await until(lambda: tries.count(A) == 1)
    for _ in range(20):
        queue.add(A)
    queue.add(B)
    await until(lambda: B in tries)
    assert tries.count(A) == 1
    assert queue.failures(A) == 1


async def test_a_changed_spec_is_tried_at_once(queues):
    """`fresh` forgets the failures of a key (its generation changed)."""
    fail = True
    tries = 0

    async def work(_key):
        nonlocal tries
        tries += 1
        if fail:
            raise ValueError

    queue = queues(work)
    queue.add(A)
    await until(lambda: queue.failures(A) == 1)
    fail = False
    queue.add(A, fresh=True)
    await until(lambda: tries == 2)
    await until(lambda: not len(queue))
    assert queue.failures(A) == 0


async def test_a_run_may_ask_to_come_again(queues):
    """The seconds that a run returns are when it runs next, without an event."""
    runs = 0

    async def work(_key):
        nonlocal runs
        runs += 1
        return 0.005 if runs < 3 else None

    queue = queues(work)
    queue.add(A)
    await until(lambda: runs == 3)
    assert not len(queue)


async def test_the_earlier_of_two_wishes_wins(queues):
    """A wish for later never delays one for now."""
    ran = asyncio.Event()

    async def work(_key):
        ran.set()

    queue = queues(work)
    queue.add(A, after=3600)
    queue.add(A)
    await asyncio.wait_for(ran.wait(), 5)


async def test_drain_lets_work_finish_and_cuts_what_is_late():
    """Drain waits for running keys, starts no new ones, and cancels what passes its budget."""
    cut = False

    async def work(key):
        nonlocal cut
        try:
            await asyncio.sleep(0.01 if key == A else 3600)
        except asyncio.CancelledError:
            cut = True
            raise

    queue = WorkQueue(work)
    queue.start()
    queue.add(A)
    await until(lambda: queue.last_turn is not None and not queue._due)
    assert await queue.drain(5)
    late = WorkQueue(work)
    late.start()
    late.add(B)
    await until(lambda: late._running)
    assert not await late.drain(0.01)
    assert cut


@pytest.mark.parametrize(("failures", "low", "high"), [(1, 0.25, 0.5), (2, 0.5, 1.0), (5, 4.0, 8.0), (99, 30, 60)])
def test_back_off_doubles_up_to_a_minute(failures, low, high):
    """Back-off is exponential from half a second, spread over its upper half, and bounded."""
    assert backoff(failures, 0.0) == low
    assert low <= backoff(failures, 0.999) < high <= LONGEST_BACKOFF
