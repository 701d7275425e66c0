"""The store's typed face: every call is a value of ``calls``, run by ``run`` or ``arun`` on a connection."""

from poolkeeper.store import calls
from poolkeeper.store.call import Call, arun, run
from poolkeeper.store.connection import Fault, aconnect, connect
from poolkeeper.store.rows import (
    Claimed,
    RenewAnswer,
    Session,
    Settle,
    SettleVerdict,
    Stats,
    TaskView,
    TurnAnswer,
    Verdict,
)

__all__ = [
    "Call",
    "Claimed",
    "Fault",
    "RenewAnswer",
    "Session",
    "Settle",
    "SettleVerdict",
    "Stats",
    "TaskView",
    "TurnAnswer",
    "Verdict",
    "aconnect",
    "arun",
    "calls",
    "connect",
    "run",
]
