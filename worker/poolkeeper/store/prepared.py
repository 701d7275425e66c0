"""Prepared statements, where a connection leads to one backend of ours alone.

Guarantees: behind a pooler that hands backends around nothing is prepared, for it would now and then be another client's (C20).
"""

from typing import Any

import psycopg

from poolkeeper.store import calls
from poolkeeper.store.call import arun, run

PREPARE_FROM = 5
"""Times that a statement is sent before it is prepared."""


def prepare(conn: psycopg.Connection[Any]) -> bool:
    """Have statements of this connection prepared if its backend is its own; return whether it is."""
    alone = run(conn, calls.backend()) == conn.info.backend_pid
    conn.prepare_threshold = PREPARE_FROM if alone else None
    return alone


async def aprepare(conn: psycopg.AsyncConnection[Any]) -> bool:
    """Have statements of this connection prepared if its backend is its own; return whether it is."""
    alone = await arun(conn, calls.backend()) == conn.info.backend_pid
    conn.prepare_threshold = PREPARE_FROM if alone else None
    return alone
