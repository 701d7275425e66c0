"""`poolkeeper doctor`: facts are gathered (`look`), and judged by pure checks, each of which says what to do."""

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from poolkeeper.doctor import installation, recording, server, sessions
from poolkeeper.doctor.finding import Finding, Unseen, Verdict, unseen
from poolkeeper.doctor.look import gather

__all__ = ["CHECKS", "Finding", "Verdict", "examine", "judge"]

CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[Mapping[str, Any]], Finding]], ...] = (
    ("connection", ("server",), server.reached),
    ("server version", ("server",), server.version),
    ("primary", ("server",), server.primary),
    ("schema", (), installation.schema),
    ("functions", ("store",), installation.texts),
    ("login", ("login",), installation.login),
    ("rights", ("rights",), installation.rights),
    ("owner", ("rights",), installation.owner),
    ("access", ("store",), installation.leftovers),
    ("durability", ("server",), server.durability),
    ("replication", ("server", "replication"), server.replication),
    ("clock", ("clock",), server.clock),
    ("store clock", ("store",), installation.moved_clock),
    ("connections", ("connections", "login"), server.connections),
    ("notifications", ("connections",), server.notifications),
    ("recorded parameters", ("server", "role_settings"), recording.parameters),
    ("autovacuum", ("server", "tables"), server.autovacuum),
    ("vacuum", ("store",), sessions.vacuum),
    ("dead rows", ("tables",), sessions.dead_rows),
    ("idle in transaction", ("store",), sessions.idle),
    ("indexes", ("rights",), installation.indexes),
    ("months", ("store",), installation.months),
    ("upkeep", ("store",), installation.upkeep),
    ("schedules", ("store",), installation.schedules),
    ("worker versions", ("store",), installation.versions),
)
"""Name, the facts without which nothing can be said, and the judgement."""


def examine(conn: psycopg.Connection[Any]) -> list[Finding]:
    """Look at everything and judge it; raises Unavailable where the connection is lost."""
    return judge(gather(conn))


def judge(facts: Mapping[str, Any]) -> list[Finding]:
    """Judge facts, in the order of CHECKS."""
    found = []
    for name, needs, check in CHECKS:
        missing = [facts[need] for need in needs if isinstance(facts[need], Unseen)]
        found.append(unseen(name, missing[0]) if missing else check(facts))
    return found
