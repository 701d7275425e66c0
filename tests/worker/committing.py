"""Handlers that end their task in a transaction of their own (Q18)."""

import asyncio
import os
import threading
import time
from typing import Any

import psycopg
from notes import note, released  # type: ignore[import-not-found]  # beside this file

from poolkeeper import Context, LeaseLost, Poolkeeper


def dsn() -> str:
    return os.environ["POOLKEEPER_DSN"]


def write(conn: psycopg.Connection[Any], ctx: Context) -> None:
    conn.execute("INSERT INTO business (task, delivery) VALUES (%s, %s)", [ctx.task_id, ctx.delivery])


async def commits(how: str, ctx: Context) -> str:
    """Writes a business row and ends its task in one transaction; what it does then is said by its payload."""
    async with await psycopg.AsyncConnection.connect(dsn()) as conn:
        try:
            async with conn.transaction():
                await conn.execute("INSERT INTO business (task, delivery) VALUES (%s, %s)", [ctx.task_id, ctx.delivery])
                answer = await ctx.succeed_in(conn, {"in": "transaction"})
                note(ctx, "called", answer=answer)
                while how in {"wait", "die_before"} and not released("before"):
                    await asyncio.sleep(0.02)
                if how in {"rollback", "rollback_and_raise"}:
                    raise psycopg.Rollback
        except LeaseLost as lost:
            note(ctx, "lost", code=str(lost.code))
            raise
        note(ctx, "committed")
        while how in {"go_on", "die_after"} and not released("after"):
            await asyncio.sleep(0.02)
    if how in {"raise", "rollback_and_raise"}:
        raise RuntimeError("after all")
    note(ctx, "out")
    return "returned"


async def saves_inside(payload: Any, ctx: Context) -> str:
    """Saves a checkpoint in the transaction in which it has ended its task, which is the wrong way round."""
    async with await psycopg.AsyncConnection.connect(dsn()) as conn, conn.transaction():
        await ctx.succeed_in(conn)
        note(ctx, "called")
        try:
            await ctx.save_checkpoint(payload)
        except RuntimeError as error:
            note(ctx, "told", error=str(error))
    return "returned"


def commits_thread(how: str, ctx: Context) -> str:
    """The same in a thread; `open`: it returns, and leaves its transaction to another thread."""
    if ctx.delivery > 1:
        return "again"
    conn = psycopg.connect(dsn())
    write(conn, ctx)
    note(ctx, "called", answer=ctx.succeed_in_sync(conn, "thread"))
    if how == "open":
        threading.Thread(target=leave_open, args=(conn, ctx)).start()
        return "returned"
    conn.commit()
    conn.close()
    note(ctx, "committed")
    while how == "die" and not released("after"):
        time.sleep(0.02)
    return "returned"


def leave_open(conn: psycopg.Connection[Any], ctx: Context) -> None:
    while not released("commit") and not released("rollback"):
        time.sleep(0.02)
    if released("commit"):
        conn.commit()
    conn.close()
    note(ctx, "closed")


def repeats(payload: Any, ctx: Context) -> list[bool]:
    """Does its transaction over again, as after a commit whose answer was lost."""
    answers = []
    for _ in range(2):
        with psycopg.connect(dsn()) as conn:
            write(conn, ctx)
            answers.append(ctx.succeed_in_sync(conn, payload))
            answers.append(ctx.succeed_in_sync(conn, payload))  # twice in one transaction is once
            if not answers[-1]:
                conn.rollback()
    note(ctx, "answers", answers=answers)
    return answers


def late_commit(name: str, ctx: Context) -> None:
    """Waits for a file without asking its context anything, then writes and ends in one transaction."""
    note(ctx, "in")
    while not released(name):
        time.sleep(0.02)
    with psycopg.connect(dsn()) as conn:
        write(conn, ctx)
        try:
            ctx.succeed_in_sync(conn)
        except LeaseLost as lost:
            note(ctx, "refused", code=str(lost.code))
            raise


def add_to(app: Poolkeeper) -> None:
    """Make them handlers of the tests' application."""
    app.task("t.commits")(commits)
    app.task("t.saves_inside")(saves_inside)
    app.task("t.commits_thread")(commits_thread)
    app.task("t.repeats")(repeats)
    app.task("t.late_commit")(late_commit)
    app.task("t.commits_process", isolation="process")(commits_thread)
