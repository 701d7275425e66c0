"""Ending a delivery in a transaction that its handler owns: `ctx.succeed_in` (Q18).

Guarantees: nothing but that transaction's commit ends the task; a connection that is in no transaction is refused, since
nothing would commit together. Does not commit, and keeps no connection.
"""

from typing import TYPE_CHECKING, Any

from psycopg.pq import TransactionStatus

from poolkeeper import jsonsafe
from poolkeeper.codes import Code
from poolkeeper.connections import areach, in_words, reach
from poolkeeper.context import Context
from poolkeeper.store import arun, calls, run

if TYPE_CHECKING:
    import psycopg


async def succeed(ctx: Context, token: str, connection: Any, result: Any) -> bool:
    """End the delivery in the transaction of an async connection."""
    inner = await areach(connection)
    _demand_transaction(inner, in_words(connection))
    return await arun(inner, calls.succeed(ctx.task_id, token, kept(result)))


def succeed_sync(ctx: Context, token: str, connection: Any, result: Any) -> bool:
    """End the delivery in the transaction of a sync connection."""
    inner = reach(connection)
    _demand_transaction(inner, in_words(connection))
    return run(inner, calls.succeed(ctx.task_id, token, kept(result)))


def kept(result: Any) -> Any:
    """Return the result as JSON; raises Refused as a returned one would."""
    return None if result is None else jsonsafe.kept(result, "result", Code.PAYLOAD_TOO_LARGE)


def _demand_transaction(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]", begin: str) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise RuntimeError(f"this connection is in no transaction, nothing would commit together; write: {begin}: …")
