"""P1, P2, P5 under seeded crashes at every boundary of the protocol: see fixtures/crash. `make crash N=10000` is the long form.

A seed that once failed is kept in KEPT with what it found. That the suite sees faults is shown by guards taken out of the store.
"""

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.crash.bodies import Nursery
from fixtures.crash.campaign import HERE, Reached, carry_out
from fixtures.crash.plan import FAMILIES, PHASES, WORKER_VERBS, Strike, draw
from fixtures.crash.sessions import Frames, Sessions, verb_of
from fixtures.crash.wire import Wire
from lab.postgres import Server
from poolkeeper.store.statements import sql_file

if TYPE_CHECKING:
    import psycopg

SECONDS = float(os.environ.get("POOLKEEPER_CRASH_SECONDS", "100"))

KEPT: dict[int, str] = {
    64: "a server's session that ended, and an outage longer than the lease after it: one fault, one delivery lost"
}


def say(reached: Reached, record: Callable[[str, object], None]) -> None:
    """How far it came belongs to the closing lines of the run."""
    for line in reached.lines()[:2]:
        record("reached", f"crash suite: {line}")


@pytest.mark.wide
@pytest.mark.timeout(SECONDS + 300)
def test_what_was_accepted_survives_crashes_at_every_boundary(
    record_property: Callable[[str, object], None],
) -> None:
    """P1, P2, P5, Q10, Q16, Q18 to Q20, Q22, Q26, Q27, Q30, Q49: the seeds kept, then new ones, as many as the time allows."""
    reached = carry_out(
        list(dict.fromkeys([*KEPT, *range(1, 10_001)])), seconds=SECONDS
    )  # each once: a seed is a queue
    say(reached, record_property)
    assert reached.good, "\n".join(reached.failures())
    assert reached.schedules.total() >= len(KEPT)
    assert reached.real, "no worker process was killed or stopped"


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_a_thousand_schedules_hold(record_property: Callable[[str, object], None]) -> None:
    """The same for seeds that the short form does not come to."""
    reached = carry_out(list(range(20_001, 21_001)))
    say(reached, record_property)
    assert reached.good, "\n".join(reached.failures())
    assert set(reached.schedules) == set(FAMILIES)


GUARDS: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "the token of a settle": (
        "stop",
        [
            ("32_settle.sql", "l.task_id = ANY (_ids) AND l.token_hash = ANY (_hashes)", "l.task_id = ANY (_ids)"),
            ("32_settle.sql", "e.task_id = g.task_id AND e.token_hash = g.token_hash", "e.task_id = g.task_id"),
            ("32_settle.sql", "e.task_id = (g.l).task_id AND e.token_hash = (g.l).token_hash", "e.task_id = (g.l).task_id"),
        ],
    ),
    "what becomes of a lost answer": (
        "wire",
        [
            ("33_turn.sql", "IF _turn > _received + 1 THEN", "IF false THEN"),
            ("34_session.sql", "IF _complete THEN", "IF false THEN"),
        ],
    ),
    "the sweep of leases": ("kill", [("36_sweep.sql", "WHERE poolkeeper.lease_until(h.renewed_at,", "WHERE false AND poolkeeper.lease_until(h.renewed_at,")]),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guard", GUARDS)
def test_the_suite_is_red_without(guard: str, record_property: Callable[[str, object], None]) -> None:
    """Quality 6: each guard is taken out of the store's own functions, and a schedule of few finds it."""
    family, changes = GUARDS[guard]
    reached = carry_out(
        list(range(1, 200)), seconds=300, family=family, bound=10, prepare=without(changes), most_wrong=1
    )
    assert reached.wrong or any("invariant" in line for line in reached.broken), reached.lines()
    seeds = [line["seed"] for line in reached.wrong]
    if seeds:  # and not because the machine is slow: the same ones hold with the guard
        again = carry_out(seeds, family=family, bound=10)
        assert again.good, "\n".join(again.failures())
    record_property("reached", f"crash suite, without {guard}: red after {reached.schedules.total()} schedules")


def without(changes: list[tuple[str, str, str]]) -> Callable[["psycopg.Connection[Any]"], None]:
    """Replace functions by ones that lack a guard."""

    def prepare(conn: "psycopg.Connection[Any]") -> None:
        for file in {file for file, _, _ in changes}:
            text = sql_file(f"functions/{file}")
            for _, guard, instead in (change for change in changes if change[0] == file):
                assert guard in text, f"{file} has no {guard!r} any more"
                text = text.replace(guard, instead)
            conn.execute(text.encode())

    return prepare


def test_a_seed_makes_one_plan_and_seeds_reach_every_boundary() -> None:
    """The crash suite is repeatable, and what it draws from holds all calls of a worker in all phases."""
    assert draw(7) == draw(7)
    plans = [draw(seed) for seed in range(3000)]
    assert {plan.family for plan in plans} == set(FAMILIES)
    drawn = {(strike.verb, strike.phase) for plan in plans for strike in plan.strikes}
    whole = {
        verb for verb in WORKER_VERBS if verb not in {"message", "reply", "connect", "maintain", "listen", "backend"}
    }
    assert {(verb, phase) for verb in whole for phase in PHASES} <= drawn


def test_the_proxy_knows_where_messages_end() -> None:
    """Whatever pieces the bytes come in."""
    startup = b"\0\0\0\x08\0\3\0\0"
    query = b"Q\0\0\0\x0dSELECT 1\0"
    whole = startup + query + query
    for size in (1, 3, 7, len(whole)):
        frames = Frames(startup=True)
        seen: list[tuple[bytes, bytes]] = []
        for at in range(0, len(whole), size):
            seen += frames.feed(whole[at : at + size])
        assert seen == [(b"", startup), (b"Q", query), (b"Q", query)]
    assert verb_of(b"SELECT * FROM poolkeeper.turn($1, $2)") == "turn"
    assert verb_of(b"SELECT pg_backend_pid() AS value") == "backend"
    assert verb_of(b"LISTEN poolkeeper") == "listen"


def test_what_was_lost_to_none_of_the_faults_stands_only_if_it_is_lost_again_alone() -> None:
    """Anything else that is wrong stands at once."""
    lost, other = "task x lost 1 deliveries to 0 faults", "task x was accepted and is lost"
    told = {1: [lost], 2: ["task x lost 2 deliveries to 1 faults", lost], 3: [lost, other], 4: [other]}
    reached = Reached(wrong=[{"seed": seed, "wrong": wrong} for seed, wrong in told.items()])
    assert reached.for_nothing() == [1, 2]
    reached.confirm([1, 2], Reached(wrong=[{"seed": 2, "wrong": [lost]}], broken=[{"error": "x"}]))
    assert [line["seed"] for line in reached.wrong] == [2, 3, 4]
    assert (reached.unexplained, reached.broken, reached.good) == (1, [{"error": "x"}], False)


STARTUP = b"user\0postgres\0database\0postgres\0\0"
QUERY = b"Q\0\0\0\x0dSELECT 1\0"


async def test_a_wire_that_is_frozen_thaws_though_whoever_began_it_is_gone(server: Server) -> None:
    """Else all of its schedule would wait for ever."""

    async def hit(_strike: Strike, _backend: int) -> None:
        return None

    freeze = Strike(on="first", verb="other", nth=1, phase="sent", action="freeze", seconds=0.5)
    sessions = Sessions(server.port)
    wire = await Wire(sessions, [freeze], hit).open()
    async with asyncio.timeout(60):
        for served in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
            writer.write(struct.pack("!ii", len(STARTUP) + 8, 3 << 16) + STARTUP)
            while b"Z" not in [kind for kind, _ in Frames(startup=False).feed(await reader.read(65536))]:
                pass
            writer.write(QUERY)
            if served:
                assert b"SELECT 1" in await reader.read(65536)
            while not wire.struck:
                await asyncio.sleep(0.01)
            writer.transport.abort()
        await wire.close()
    sessions.close()


async def test_a_worker_whose_schedule_was_over_before_it_was_born_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would live on beside all others, and the nursery would hear of no further birth."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(HERE / name) for name in ("tests", "worker", "tools")))
    nursery = Nursery()
    env = {
        "POOLKEEPER_DSN": "postgresql://127.0.0.1:1/none",
        "POOLKEEPER_QUEUES": "q",
        "POOLKEEPER_HTTP_ADDR": "127.0.0.1:0",
    }
    try:
        async with asyncio.timeout(60):
            early = asyncio.ensure_future(nursery.fork("early", env, tmp_path / "early.txt"))
            while not nursery.born:
                await asyncio.sleep(0)
            early.cancel()
            body = await nursery.fork("late", env, tmp_path / "late.txt")
            while not nursery.exits:
                await asyncio.sleep(0.02)
            assert body.alive()
            assert list(nursery.exits.values()) == [-signal.SIGKILL]
            body.end()
            while body.alive():
                await asyncio.sleep(0.02)
    finally:
        await nursery.close()


async def test_a_worker_with_the_number_of_one_that_has_ended_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of processes come again after some ten thousand: it would be taken for dead, hear no signal, and live on."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(HERE / name) for name in ("tests", "worker", "tools")))
    nursery = Nursery()
    nursery.exits = dict.fromkeys(range(1, int(Path("/proc/sys/kernel/pid_max").read_text()) + 1), 0)
    env = {
        "POOLKEEPER_DSN": "postgresql://127.0.0.1:1/none",
        "POOLKEEPER_QUEUES": "q",
        "POOLKEEPER_HTTP_ADDR": "127.0.0.1:0",
    }
    try:
        async with asyncio.timeout(60):
            body = await nursery.fork("another", env, tmp_path / "another.txt")
            assert (body.alive(), body.code) == (True, None)
            body.end()
            while body.alive():
                await asyncio.sleep(0.02)
            assert body.code == -signal.SIGKILL
    finally:
        await nursery.close()


@pytest.mark.parametrize("preload", [[], ["fixtures.crash.sharing"]])
def test_who_is_killed_while_asking_for_a_process_ends_nobody_elses_fork_server(preload: list[str]) -> None:
    """Workers of the suite share one; with the standard library's alone the next one would be refused."""
    program = (
        "import socket, multiprocessing, time\n"
        "from multiprocessing import forkserver\n"
        f"forkserver.set_forkserver_preload({preload})\n"
        "forkserver.ensure_running()\n"
        "with socket.socket(socket.AF_UNIX) as gone: gone.connect(forkserver._forkserver._forkserver_address)\n"
        "time.sleep(1)\n"
        "forkserver._forkserver.ensure_running = lambda: None\n"
        "process = multiprocessing.get_context('forkserver').Process(target=print, args=('made',))\n"
        "process.start(); process.join()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(HERE / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert (done.stdout == "made\n") == bool(preload), done.stderr
