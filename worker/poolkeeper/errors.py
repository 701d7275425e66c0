"""The exception tree. Catch a class to react to a kind; read ``code`` to tell the cases apart.

Recipe: ``Refused`` and ``Unavailable`` may be tried again (after ``retry_after`` where given); ``Conflict``,
``NotFound``, ``Forbidden`` and ``Misconfigured`` need somebody to change something; ``LeaseLost`` means that this
delivery is over and its work belongs to another.
"""

from datetime import timedelta

from poolkeeper.codes import Code


class PoolkeeperError(Exception):
    """Root of all errors of Poolkeeper.

    Attributes
    ----------
    code : Code
        Stable code (contract 2).
    exit_code : int
        What the command line exits with.
    retry_after : timedelta or None
        How long to wait before trying again makes sense.
    """

    exit_code = 1

    def __init__(self, code: Code, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class Refused(PoolkeeperError):
    """Admission said no: paused, too large, not of this queue."""

    exit_code = 4


class Conflict(PoolkeeperError):
    """The object is in another state than the caller assumed."""

    exit_code = 4


class LeaseLost(PoolkeeperError):
    """The delivery is over: canceled, expired, or another one has begun."""

    exit_code = 4


class NotFound(PoolkeeperError):
    """No such task or queue, or not for this login."""

    exit_code = 3


class Forbidden(PoolkeeperError):
    """The login may not do that."""

    exit_code = 4


class Unavailable(PoolkeeperError):
    """The database cannot serve now, or not with this schema."""

    exit_code = 5


class Misconfigured(PoolkeeperError):
    """Settings, app or cluster need mending before anything can run."""

    exit_code = 2


CLASSES: dict[Code, type[PoolkeeperError]] = {
    **dict.fromkeys(
        (
            Code.QUEUE_PAUSED,
            Code.QUEUE_LIMIT,
            Code.TENANT_QUEUE_LIMIT,
            Code.TENANT_SUSPENDED,
            Code.PAYLOAD_TOO_LARGE,
            Code.PAYLOAD_INVALID,
            Code.TYPE_INVALID,
            Code.TENANT_INVALID,
            Code.KEY_INVALID,
            Code.LABELS_INVALID,
            Code.OPTION_INVALID,
            Code.NAME_INVALID,
            Code.SCHEDULE_INVALID,
            Code.CHECKPOINT_TOO_LARGE,
            Code.MAX_AGE_PASSED,
            Code.UNKNOWN_TYPE,
        ),
        Refused,
    ),
    **dict.fromkeys(
        (
            Code.KEY_CONFLICT,
            Code.KEY_IN_FLIGHT,
            Code.QUEUE_OWNED,
            Code.HELD,
            Code.ALREADY_ENDED,
            Code.NOT_DEAD,
            Code.STALE_VERSION,
            Code.NOT_LEADING,
        ),
        Conflict,
    ),
    **dict.fromkeys(
        (
            Code.STALE_TOKEN,
            Code.LEASE_EXPIRED,
            Code.CANCELED,
            Code.MAX_RUN_TIME,
            Code.MAX_TENURE,
            Code.PROGRESS_TIMEOUT,
        ),
        LeaseLost,
    ),
    **dict.fromkeys(
        (Code.UNKNOWN_TASK, Code.UNKNOWN_QUEUE, Code.UNKNOWN_SCHEDULE, Code.UNKNOWN_POOL, Code.UNKNOWN_PROVIDER),
        NotFound,
    ),
    Code.ROLE_NOT_ALLOWED: Forbidden,
    **dict.fromkeys(
        (
            Code.DATABASE_UNREACHABLE,
            Code.DATABASE_READ_ONLY,
            Code.DATABASE_BUSY,
            Code.CONNECTIONS_EXHAUSTED,
            Code.SCHEMA_TOO_OLD,
            Code.SCHEMA_TOO_NEW,
            Code.CLUSTER_UNREACHABLE,
        ),
        Unavailable,
    ),
    **dict.fromkeys(
        (
            Code.DSN_MISSING,
            Code.DSN_INVALID,
            Code.LOGIN_REFUSED,
            Code.APP_NOT_IMPORTABLE,
            Code.DUPLICATE_TYPE,
            Code.SETTING_INVALID,
            Code.CRD_MISSING,
            Code.RIGHT_MISSING,
        ),
        Misconfigured,
    ),
}
"""The class of each code: the same as the column ``class`` of ``poolkeeper.code``."""


def error(code: Code | str, message: str, *, retry_after: timedelta | None = None) -> PoolkeeperError:
    """Make the error of a code, of the class that the contract gives it."""
    known = Code(code)
    return CLASSES[known](known, message, retry_after=retry_after)
