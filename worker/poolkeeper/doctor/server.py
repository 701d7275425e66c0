"""What the server must be like: its version, its part, what it keeps through a crash, its clock, its room. Pure."""

from collections.abc import Mapping
from typing import Any

from poolkeeper.doctor.finding import Finding, Unseen, fault, named, ok, warning

OLDEST, NEWEST = 15, 18
CLOCK = 1.0
FULL, NEARLY = 0.95, 0.8
NOTIFICATIONS = 0.25


def reached(facts: Mapping[str, Any]) -> Finding:
    """The way to it."""
    told, server = facts["told"], facts["server"]
    place = f'database "{told["database"]}" at {told["host"] or "a local socket"} answers'
    if server["backend"] == told["backend"]:
        return ok("connection", place)
    return ok("connection", f"{place}, through a connection pooler: workers need POOLKEEPER_POOLER=transaction")


def version(facts: Mapping[str, Any]) -> Finding:
    """Supported versions of Postgres."""
    server = facts["server"]
    major = server["number"] // 10_000
    if major < OLDEST:
        return fault("server version", f"Postgres {server['version']} is too old", f"upgrade it to {OLDEST} or later")
    if major > NEWEST:
        return warning(
            "server version",
            f"Postgres {server['version']} is newer than what was tried ({OLDEST} to {NEWEST})",
            "upgrade poolkeeper",
        )
    return ok("server version", f"Postgres {server['version']}")


def primary(facts: Mapping[str, Any]) -> Finding:
    """Whether it can be written to, in the isolation that claims need (Q12)."""
    server, settings = facts["server"], facts["server"]["settings"]
    if server["standby"]:
        return fault("primary", "this is a standby: it is read-only", "point the DSN at the primary")
    if settings.get("default_transaction_read_only") == "on":
        return fault(
            "primary",
            "transactions of this login are read-only by default",
            "run: ALTER ROLE … RESET default_transaction_read_only, of the role or the database",
        )
    isolation = settings.get("default_transaction_isolation", "read committed")
    if isolation not in {"read committed", "read uncommitted"}:
        return fault(
            "primary",
            f"transactions of this login are {isolation} by default, and claims are refused in these",
            "run: ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        )
    if server["encoding"] != "UTF8":
        return warning(
            "primary",
            f"the database's encoding is {server['encoding']}: texts that it lacks are refused",
            "use a database in UTF8",
        )
    return ok("primary", "it is the primary and can be written to")


def durability(facts: Mapping[str, Any]) -> Finding:
    """What was acknowledged must outlive a crash of the server."""
    settings = facts["server"]["settings"]
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if off:
        return fault(
            "durability",
            f"{' and '.join(off)} is off: a crash of the machine loses tasks or the whole database",
            f"set {' and '.join(off)} to on in postgresql.conf, and reload",
        )
    if settings.get("synchronous_commit") in {"off", "local", "remote_write"}:
        return ok(
            "durability",
            f"fsync is on; synchronous_commit is {settings['synchronous_commit']}, and our functions raise it to on for themselves",
        )
    return ok(
        "durability", f"fsync and full_page_writes are on, synchronous_commit is {settings.get('synchronous_commit')}"
    )


def replication(facts: Mapping[str, Any]) -> Finding:
    """Whether a lost server loses what was acknowledged, and whether commits wait for a standby that is not there."""
    settings, seen = facts["server"]["settings"], facts["replication"]
    wanted = settings.get("synchronous_standby_names")
    states: dict[str, int] = seen["states"]
    count = sum(states.values())
    if wanted is None:
        return ok("replication", f"{count} standbys; whether commits wait for them is not shown to this login")
    if not wanted:
        return ok(
            "replication", f"{count} standbys, none of which commits wait for: a fail-over may lose the last moments"
        )
    if not seen["sees_all"]:
        return Finding("replication", *_hidden("whether the standbys that commits wait for are there"))
    if not {"sync", "quorum"} & set(states):
        return fault(
            "replication",
            f"commits wait for {wanted}, and no such standby is connected: nothing is accepted",
            "start the standby, or change synchronous_standby_names and reload",
        )
    return ok("replication", f"{count} standbys, commits wait for {wanted}")


def clock(facts: Mapping[str, Any]) -> Finding:
    """The database's clock against ours: its times are the ones that count (Q23)."""
    seen = facts["clock"]
    words = f"the database's clock is {abs(seen.ahead):.3f} s {'ahead of' if seen.ahead >= 0 else 'behind'} this machine's, give or take {seen.give:.3f} s"
    if abs(seen.ahead) - seen.give > CLOCK:
        return warning(
            "clock", words, "let NTP keep both; tasks go by the database's clock alone, logs of programs by their own"
        )
    return ok("clock", words)


def connections(facts: Mapping[str, Any]) -> Finding:
    """How much room there is for more."""
    seen, login = facts["connections"], facts["login"]
    parts = [
        ("the server", seen["used"], seen["max"]),
        ("this database", seen["database_used"], seen["database_max"]),
        (f'login "{login["login"]}"', login["used"], login["limit"]),
    ]
    bounded = [(name, used, most) for name, used, most in parts if most > 0]
    words = ", ".join(f"{used} of {most} of {name}" for name, used, most in bounded)
    for name, used, most in bounded:
        if used >= FULL * most:
            return fault(
                "connections",
                f"{name} has {used} of {most} connections in use",
                "end some, raise the limit, or put a pooler in between",
            )
    if any(used >= NEARLY * most for _, used, most in bounded):
        return warning("connections", words, "end some, raise the limit, or put a pooler in between, before it is full")
    return ok("connections", words)


def notifications(facts: Mapping[str, Any]) -> Finding:
    """The queue of NOTIFY, which is the whole server's: once it is full, commits that notify fail (Q15)."""
    usage = float(facts["connections"]["notifications"])
    if usage < NOTIFICATIONS:
        return ok("notifications", f"{usage:.1%} of the notification queue is used")
    store = facts["store"]
    oldest = None if isinstance(store, Unseen) else store["oldest"]
    by = (
        f'the oldest transaction is of pid {oldest["pid"]}, "{oldest["user"]}", application "{oldest["application"]}", database "{oldest["database"]}", since {oldest["seconds"] or 0:.0f} s'
        if oldest
        else "a session that listens and stays in a transaction holds it back"
    )
    make = fault if usage >= NEARLY else warning
    return make(
        "notifications",
        f"{usage:.0%} of the notification queue is used; {by}",
        "end that session (pg_terminate_backend); until then set wakeUp: Poll on the queues",
    )


def autovacuum(facts: Mapping[str, Any]) -> Finding:
    """Whether anybody tidies up."""
    settings = facts["server"]["settings"]
    off = [name for name in ("autovacuum", "track_counts") if settings.get(name) == "off"]
    if off:
        return fault(
            "autovacuum",
            f"{' and '.join(off)} is off: tables grow and claims become slow",
            f"set {' and '.join(off)} to on, and reload",
        )
    tables = [table["name"] for table in facts["tables"] if table["off"]]
    if tables:
        return fault(
            "autovacuum", f"it is off for {named(tables)}", "run: ALTER TABLE poolkeeper.… RESET (autovacuum_enabled)"
        )
    return ok("autovacuum", "it is on, for every table of the store")


def _hidden(what: str) -> tuple[Any, str, str]:
    from poolkeeper.doctor.finding import Verdict

    return Verdict.UNSEEN, f"this login does not see {what}", "let it see: GRANT pg_read_all_stats TO it"
