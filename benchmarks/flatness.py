"""F5, F6 and F8: what lies around a claim must not cost it anything. Ours against ours, in interleaved rounds of one run.

Each side claims and settles the same number of tasks by `turn` on one connection, as a worker does, with nothing around it and with

- F5 a backlog behind it;
- F6 a snapshot that holds back vacuum while tasks end;
- F8 many tenants beside it that may not start anything: capped, paused, or scheduled for later.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import psycopg

from benchmarks.figures import Figure, spread
from benchmarks.rig import BULK, Rig, fill, install
from poolkeeper.store import Settle, calls, connect, run
from poolkeeper.store.prepared import prepare as prepare_statements
from poolkeeper.worker.loop import SWEEP_EVERY

Prepare = Callable[[str], Any]


def steps(conn: psycopg.Connection[Any], count: int, batch: int) -> float:
    """Tasks per second that are claimed and settled, `batch` in a turn."""
    prepare_statements(conn)
    session = run(conn, calls.register_session("default/bench", ["bench"], ["bench.noop"], concurrency=batch, info={}))
    settles: list[Settle] = []
    done = number = 0
    began = due = renew = time.monotonic()
    while done < count:
        number += 1
        sweep = time.monotonic() >= due
        answer = run(conn, calls.turn(session, number, number - 1, settles, min(batch, count - done), sweep=sweep))
        if answer.sweep_in is not None:  # as a worker does
            due = time.monotonic() + max(SWEEP_EVERY, answer.sweep_in.total_seconds())
        if time.monotonic() >= renew:
            renew = time.monotonic() + session.renew_every.total_seconds()
            run(conn, calls.renew(session, number, [each.task_id for each in answer.claimed]))
        settles = [Settle(task_id=each.task_id, token=each.token, outcome="succeeded") for each in answer.claimed]
        assert settles, f"nothing to claim after {done} of {count}"
        done += len(settles)
    run(conn, calls.turn(session, number + 1, number, settles, 0))
    seconds = time.monotonic() - began
    run(conn, calls.end_session(session))
    return count / seconds


def backlog(count: int, dsn: str) -> None:
    """So many tasks more than will be claimed."""
    fill(dsn, count)


def tenants(count: int, dsn: str) -> None:
    """A third of them capped, with one running elsewhere, a third suspended, a third with work for later; each has ten tasks."""
    kinds = ("capped", "suspended", "later")
    names = {kind: [f"{kind}-{n}" for n in range(count // 3)] for kind in kinds}
    with connect(dsn) as conn:
        for kind in kinds:
            later = {"run_at": "2100-01-01T00:00:00Z"} if kind == "later" else {}
            tasks = [
                {"type": "bench.noop", "tenant": name, "payload": {"n": n}, **later}
                for name in names[kind]
                for n in range(10)
            ]
            for first in range(0, len(tasks), BULK):
                verdicts = run(conn, calls.submit_many("bench", tasks[first : first + BULK], notify=False))
                assert all(verdict.code is None for verdict in verdicts), verdicts[0]
        policy = {
            "tenants": [{"name": name, "max_running": 1} for name in names["capped"]],
            "suspended_tenants": names["suspended"],
        }
        run(conn, calls.apply_policy("local", "default", "default", "bench", policy, who="bench"))
        elsewhere = run(
            conn,
            calls.register_session(
                "default/other", ["bench"], ["bench.noop"], concurrency=10_000, info={}, tenants=names["capped"]
            ),
        )
        held = number = 0
        while held < count // 3:
            number += 1
            claimed = run(conn, calls.turn(elsewhere, number, number - 1, [], 1_000)).claimed
            assert claimed, f"{held} of {count // 3} capped tenants run one"
            held += len(claimed)


@contextmanager
def held(dsn: str, *, held: bool) -> Iterator[None]:
    """A snapshot that somebody keeps open."""
    with psycopg.connect(dsn) as conn:
        if held:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT count(*) FROM poolkeeper.task")
        yield


def rate(rig: Rig, count: int, batch: int, prepare: Prepare | None, *, hold: bool = False) -> float:
    """Tasks per second in a fresh database, the tasks to be claimed submitted after what is around them."""
    with rig.database() as dsn:
        install(dsn)
        if prepare is not None:
            prepare(dsn)
        fill(dsn, count)
        with connect(dsn) as conn:
            conn.execute("VACUUM (ANALYZE)")
            with held(dsn, held=hold):
                return steps(conn, count, batch)


def figures(rig: Rig, ids: set[str], *, quick: bool) -> list[Figure]:
    """F5, F6 and F8, as asked."""
    rounds = 3 if quick else 5
    found: list[Figure] = []
    if "F5" in ids:
        for behind, must in ((200_000, 0.95),) if quick else ((1_000_000, 0.95), (10_000_000, 0.9)):
            unit = f"claim and settle with {behind:,} tasks behind, batches of 100"
            most = rounds if behind < 10_000_000 else 1
            found.append(_compared("F5", unit, must, most, _sides(rig, 20_000, 100, partial(backlog, behind))))
    if "F6" in ids:
        for batch, count in ((1, 5_000), (10, 20_000)) if quick else ((1, 200_000), (10, 200_000)):
            unit = f"{count:,} tasks under a held snapshot, batches of {batch}"
            found.append(_compared("F6", unit, 0.9, rounds if quick else 1, _sides(rig, count, batch, None, hold=True)))
    if "F8" in ids:
        many = 3_000 if quick else 9_999
        unit = f"{many:,} tenants that may not start, beside one that may, batches of 100"
        found.append(_compared("F8", unit, 0.9, rounds, _sides(rig, 20_000, 100, partial(tenants, many))))
    return found


def _sides(
    rig: Rig, count: int, batch: int, prepare: Prepare | None, *, hold: bool = False
) -> dict[str, Callable[[], float]]:
    return {
        "without": partial(rate, rig, count, batch, None),
        "with": partial(rate, rig, count, batch, prepare, hold=hold),
    }


def _compared(name: str, unit: str, must: float, rounds: int, sides: dict[str, Callable[[], float]]) -> Figure:
    got: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            got[side].append(measure())
            print(f"  {name} round {number + 1}, {unit}: {side} {got[side][-1]:,.0f} tasks/s", flush=True)
    medians = {side: median(samples) for side, samples in got.items()}
    ratio = medians["with"] / medians["without"]
    detail = {side: spread(samples) for side, samples in got.items()}
    return Figure(name, f">= {must:g} x", "", f"{ratio:.2f} x ({medians['with']:,.0f}/s)", unit, ratio >= must, detail)
