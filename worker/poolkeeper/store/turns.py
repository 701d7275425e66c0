"""The calls of a worker: register, turn (settle these, claim more), renew, checkpoint, drain."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.codes import ALREADY_DONE, Code
from poolkeeper.provider import Report
from poolkeeper.store.call import Call, Row, nothing, one, value
from poolkeeper.store.rows import (
    CheckpointVerdict,
    Claimed,
    Extended,
    RenewAnswer,
    Session,
    Settle,
    SettleVerdict,
    TurnAnswer,
)
from poolkeeper.store.signs import ReportVerdict

_CLAIMED = slice(2, -1)
"""Columns of an answer that are the fields of ``Claimed`` but the last, in the same order."""


def register_session(
    pool: str,
    queues: Sequence[str],
    types: Sequence[str],
    *,
    concurrency: int,
    info: Mapping[str, Any],
    tenants: Sequence[str] | None = None,
    tenants_except: Sequence[str] = (),
) -> Call[Session]:
    """Register this process. Queues that do not exist yet are picked up by later turns once they do.

    Takes tasks of ``tenants`` (None: of all) but for ``tenants_except``, as far as the login may see them (Q11).
    """

    def read(rows: list[Row]) -> Session:
        row = rows[0]
        return Session(
            row.session, row.secret, row.renew_every, row.visibility_timeout, list(row.unknown_queues), row.instance_id
        )

    params = {
        "pool": pool,
        "queues": list(queues),
        "types": list(types),
        "concurrency": concurrency,
        "info": Json(dict(info)),
        "tenants": None if tenants is None else list(tenants),
        "tenants_except": list(tenants_except),
    }
    return Call("register_session", params, read)


def turn(
    session: Session,
    turn_no: int,
    received: int,
    settles: Sequence[Settle],
    want: int,
    *,
    sweep: bool = False,
    isolated: bool = False,
    slots: int | None = None,
    starts: Sequence[Claimed] = (),
    since: float | None = None,
    idle: bool = False,
) -> Call[TurnAnswer]:
    """One round trip: settle these, claim up to ``want`` more (contract 20, Q10).

    ``turn_no`` rises by one per call; ``received`` is the last one whose answer arrived: deliveries of an answer that
    never did are returned unstarted. The first ``slots`` of what is claimed start at once (None: all of it), the rest
    is leased ahead and starts when a later turn names it in ``starts`` (Q16); what may not start comes back in
    ``refused``. ``isolated``: this process runs nothing but suspects and takes ``want`` more, in processes of their
    own; a process that runs none and takes one only runs it alone (Q27). ``since``: seconds since the last turn that swept,
    by a monotonic clock, None where one failed since (Q23). ``idle``: this process holds
    nothing, and renews by this turn (Q20).
    """

    def read(rows: list[Row]) -> TurnAnswer:
        claimed, note = [], {}
        told, refused = {}, {}
        for row in rows:
            if row.kind == "claimed":
                claimed.append(Claimed._make((*row[_CLAIMED], row.extra["beside"] if row.suspect else 0)))
            elif row.kind == "settled":
                told[row.delivery] = SettleVerdict(row.task_id, row.code, row.state)
            elif row.kind == "refused":
                refused[row.task_id] = row.code
            else:
                session.cursor.update(row.extra.get("cursor", {}))
                note = row.extra
        verdicts = [told.get(n) or SettleVerdict(s.task_id, None, "succeeded") for n, s in enumerate(settles, 1)]
        return TurnAnswer(
            verdicts, claimed, note["draining"], note["isolate"], timedelta(seconds=float(note["come_again"])), refused,
            _seconds(note["slot_in"]), note["position"], _seconds(note["sweep_in"]),
        )  # fmt: skip

    params = {
        "session": session.id,
        "secret": session.secret,
        "turn": turn_no,
        "received": received,
        "settles": Json([_wire(s) for s in settles]),
        "want": want,
        "sweep": sweep,
        "isolated": isolated,
        "cursor": Json(session.cursor),
        "slots": slots,
        "starts": Json([{"t": str(c.task_id), "k": c.token} for c in starts]),
        "since": since,
        "idle": idle,
    }
    return Call("turn", params, read)


def _wire(settle: Settle) -> dict[str, Any]:
    wire: dict[str, Any] = {"t": str(settle.task_id), "k": settle.token, "o": settle.outcome}
    if settle.result is not None:
        wire["r"] = settle.result
    if settle.error_class is not None:
        wire["c"] = settle.error_class
    if settle.error is not None:
        wire["e"] = settle.error
    if settle.retry_after is not None:
        wire["a"] = settle.retry_after.total_seconds()
    if not settle.started:
        wire["u"] = True
    if settle.own_transaction:
        wire["m"] = True
    return wire


def renew(
    session: Session,
    received: int,
    held: Sequence[UUID],
    *,
    complete: bool = False,
    stats: Mapping[str, Any] | None = None,
) -> Call[RenewAnswer]:
    """Renew for every lease of the session (Q20). ``complete``: ``held`` is all that answers up to ``received`` brought
       and that no answered settle ended; other leases of those turns go back unstarted, their answers never arrived.
    ``stats``: totals ``finished`` and ``busy_seconds`` of the process; ``progress``: tasks that gave a sign of it (Q21).
    """

    def read(rows: list[Row]) -> RenewAnswer:
        note = rows[-1].extra
        tasks = rows[:-1]
        return RenewAnswer(
            [r.task_id for r in tasks if r.code not in {Code.CANCELED, ALREADY_DONE}],
            [r.task_id for r in tasks if r.code == "canceled"],
            note["draining"],
            _seconds(note["grace"]),
            _seconds(note["visibility_timeout"]),
            {r.task_id: Code(r.code) for r in tasks if r.code != ALREADY_DONE},
            note["position"],
            note["held"],
            _seconds(note["slot_in"]),
        )

    params = {
        "session": session.id,
        "secret": session.secret,
        "received": received,
        "held": list(held),
        "complete": complete,
        "stats": Json(dict(stats or {})),
    }
    return Call("renew", params, read)


def _seconds(raw: float | None) -> timedelta | None:
    return None if raw is None else timedelta(seconds=float(raw))


def checkpoint(task_id: UUID, token: str, value: Any, *, sequence: int, version: int = 1) -> Call[CheckpointVerdict]:
    """Save the resumption cursor of a running delivery (Q30)."""
    params = {"task_id": task_id, "token": token, "value": Json(value), "sequence": sequence, "version": version}
    return Call("checkpoint", params, one(CheckpointVerdict))


def succeed(task_id: UUID, token: str, result: Any = None) -> Call[bool]:
    """End a delivery well in the transaction that the connection is in (Q18); raises LeaseLost and Refused.

    True: it ends with this transaction. False: it had ended well in an earlier one, so this one is to be rolled back.
    """
    params = {"task_id": task_id, "token": token, "result": None if result is None else Json(result)}
    return Call("succeed", params, lambda rows: rows[0].code is None)


def extend(task_id: UUID, token: str, by: timedelta) -> Call[Extended]:
    """Extend one lease, for workers that do not renew a session; at most an hour at a time."""
    return Call("extend", {"task_id": task_id, "token": token, "by": by}, one(Extended))


def report_provider(task_id: UUID, token: str, report: Report) -> Call[ReportVerdict]:
    """Tell what a provider answered a running delivery (Q40): where it refused, all pools of its quota start fewer tasks.

    ``code`` ``unknown_provider``: the pool has none of that name; a token that is no longer current is refused, and nothing changes.
    """
    params = {
        "task_id": task_id,
        "token": token,
        "name": report.name,
        "status": report.status,
        "retry_after": report.retry_after,
        "used": Json(report.used),
    }
    return Call("report_provider", params, one(ReportVerdict))


def end_session(session: Session) -> Call[int]:
    """End the session; answers how many leases it still held, which are handed back."""
    return Call("end_session", {"session": session.id, "secret": session.secret}, value)


def report_drain(session: Session, report: Mapping[str, Any]) -> Call[None]:
    """Write the drain report (Q48): at least ``duration_seconds`` and ``truncated``."""
    return Call(
        "report_drain", {"session": session.id, "secret": session.secret, "report": Json(dict(report))}, nothing
    )
