"""What other sessions do to the store: who keeps vacuum back, who holds its rows, how many dead rows lie there. Pure."""

from collections.abc import Mapping
from typing import Any

from poolkeeper.doctor.finding import Finding, Unseen, Verdict, fault, ok, warning

HOLDS_WARNS, HOLDS_FAILS = 600.0, 6 * 3600.0
"""Seconds that a transaction may keep vacuum back."""

XIDS_WARN, XIDS_FAIL = 10_000_000, 200_000_000
"""The same in transactions, for what has no time."""

IDLE_WARNS, IDLE_FAILS = 5.0, 60.0
DEAD_ROWS = 100_000
BIG, BYTES_PER_ROW = 256 * 2**20, 20_000
CHURNING = {"ready", "later", "suspect", "ordered", "lease", "session", "opening", "gate_due", "checkpoint", "dead"}

_WAYS = {
    "session": "end it: SELECT pg_terminate_backend({name}); bound such by idle_in_transaction_session_timeout",
    "prepared transaction": "COMMIT PREPARED or ROLLBACK PREPARED '{name}'",
    "replication slot": "let its consumer catch up, or SELECT pg_drop_replication_slot('{name}')",
    "standby": "end the long query on the standby, or set hot_standby_feedback = off there",
}


def vacuum(facts: Mapping[str, Any]) -> Finding:
    """Who keeps dead rows from being removed, and for how long."""
    store = facts["store"]
    holders = [one for one in store["holders"] if _bad(one) is not None]
    if holders:
        worst = [one for one in holders if _bad(one) is Verdict.FAULT] or holders
        told = "; ".join(_told(one) for one in holders[:5])
        return Finding(
            "vacuum",
            _bad(worst[0]) or Verdict.WARNING,
            f"dead rows stay because of {told}",
            "; ".join(dict.fromkeys(_WAYS[one["kind"]].format(**one) for one in holders[:5])),
        )
    if not store["sees_all"]:
        return Finding(
            "vacuum",
            Verdict.UNSEEN,
            f'the schema\'s owner "{store["owner"]}" does not see the transactions of others',
            f'run: GRANT pg_read_all_stats TO "{store["owner"]}"',
        )
    return ok("vacuum", f"nobody keeps it back for longer than {HOLDS_WARNS / 60:.0f} min")


def _bad(one: Mapping[str, Any]) -> Verdict | None:
    seconds, xids = one["seconds"] or 0.0, one["xids"] or 0
    if seconds >= HOLDS_FAILS or xids >= XIDS_FAIL:
        return Verdict.FAULT
    return Verdict.WARNING if seconds >= HOLDS_WARNS or xids >= XIDS_WARN else None


def _told(one: Mapping[str, Any]) -> str:
    who = f' of "{one["user"]}"' if one["user"] else ""
    app = f', application "{one["application"]}"' if one["application"] else ""
    state = f", {one['state']}" if one["state"] else ""
    since = f" since {one['seconds']:.0f} s" if one["seconds"] is not None else ""
    return f"{one['kind']} {_name(one)}{who}{app}{state}{since}, {one['xids']} transactions back"


def holder_in_words(one: Mapping[str, Any]) -> tuple[str, str]:
    """Who keeps vacuum back, without figures, and what to do about it."""
    if one["name"] is None:
        return f"a {one['kind']}", "whose, tells `poolkeeper doctor` to a login that may see all queues"
    who = f' of "{one["user"]}"' if one["user"] else ""
    app = f', application "{one["application"]}"' if one["application"] else ""
    state = f", {one['state']}," if one["state"] else ""
    return f"{one['kind']} {_name(one)}{who}{app}{state}", _WAYS[one["kind"]].format(**one)


def _name(one: Mapping[str, Any]) -> str:
    return f"pid {one['name']}" if one["kind"] in {"session", "standby"} else f'"{one["name"]}"'


def idle(facts: Mapping[str, Any]) -> Finding:
    """Sessions idle in a transaction that hold rows of the store (Q51)."""
    store = facts["store"]
    held = [one for one in store["idle"] if one["seconds"] >= IDLE_WARNS]
    if held:
        told = "; ".join(
            f'pid {one["pid"]} of "{one["user"]}", application "{one["application"]}", for {one["seconds"]:.0f} s, in {", ".join(one["tables"])}'
            for one in held[:5]
        )
        make = fault if held[0]["seconds"] >= IDLE_FAILS else warning
        pids = ", ".join(f"pg_terminate_backend({one['pid']})" for one in held[:5])
        return make(
            "idle in transaction",
            f"nothing is done, and rows are held, by {told}",
            f"run: SELECT {pids}; ALTER ROLE … SET idle_in_transaction_session_timeout = '60s'",
        )
    if not store["sees_all"]:
        return Finding(
            "idle in transaction",
            Verdict.UNSEEN,
            f'the schema\'s owner "{store["owner"]}" does not see what others do',
            f'run: GRANT pg_read_all_stats TO "{store["owner"]}"',
        )
    return ok("idle in transaction", "no idle session holds rows of the store")


def dead_rows(facts: Mapping[str, Any]) -> Finding:
    """Dead rows and empty room of the tables through which tasks travel."""
    holders = facts["store"]
    behind = [t for t in facts["tables"] if t["name"] in CHURNING and t["dead"] > DEAD_ROWS + t["live"]]
    if behind:
        told = "; ".join(f"{t['name']} has {t['dead']} dead rows beside {t['live']}, {_last(t)}" for t in behind)
        held = not isinstance(holders, Unseen) and any(_bad(one) for one in holders["holders"])
        return warning(
            "dead rows",
            told,
            "see the check vacuum: somebody keeps it back"
            if held
            else "VACUUM poolkeeper.… now; more or faster autovacuum workers",
        )
    loose = [
        t
        for t in facts["tables"]
        if t["name"] in CHURNING and t["bytes"] > BIG and t["bytes"] > BYTES_PER_ROW * (t["live"] + t["dead"] + 1)
    ]
    if loose:
        told = "; ".join(f"{t['name']} takes {t['bytes'] // 2**20} MiB for {t['live']} rows" for t in loose)
        return warning(
            "dead rows",
            told,
            "the room is used again; to give it back, VACUUM FULL poolkeeper.… while workers are stopped",
        )
    return ok("dead rows", f"{sum(t['dead'] for t in facts['tables'])} in all tables")


def _last(table: Mapping[str, Any]) -> str:
    ago = table["vacuumed_ago"]
    return "never vacuumed" if ago is None else f"vacuumed {ago / 60:.0f} min ago"
